"""Memory estimates are exact to the byte, and runs that do not fit are refused."""

import functools
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA
from trainers import FIELD, GRID, small_run

torch = pytest.importorskip("torch")

from allocations import Allocations  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.backend import host  # noqa: E402
from gpu_envs.training import Run, Trainer, memory_estimate  # noqa: E402
from gpu_envs.training.memory_estimate import MemoryEstimate, memory_of_run  # noqa: E402
from gpu_envs.training.process import device as memory  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402

pytestmark = pytest.mark.usefixtures("masked_environments")

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one pass": {"algorithm": "a2c"},
    "values of choices": {"algorithm": "pqn"},
    "normalised": {
        "normalise_observations": True,
        "normalise_rewards": True,
        "normalise_values": True,
        "stagger": True,
    },
    "continuous": {"env": "Pendulum-v1", "params": {"max_episode_steps": 50}},
    "separate parameters": {"params": {"length": True}},
    "beyond the limit": {"params": {"max_episode_steps": 10}},
    "no limit": {"params": {"max_episode_steps": -1}},
    "team": {"env": GRID},
    "against random": {"env": FIELD, "policies": {"runner": "random"}},
    "one policy for a team": {"env": GRID, "policies": {"tagger": "all", "runner": "all"}},
    "central critic": {"env": GRID, "critic": "all", "normalise_observations": True},
    "separate settings": {
        "env": GRID,
        "tagger.hidden": (64, 64),
        "tagger.minibatches": 1,
        "tagger.normalise_rewards": True,
    },
    "one runner apart": {"env": FIELD, "policies": {"runner_0": "fox"}},
    "half the bits": {"env": FIELD, "precision": "bf16", "hidden": (64, 64)},
    "sac": {"env": "Pendulum-v1", "algorithm": "sac", "learning_starts": 0, "batch_size": 64, "buffer_size": 500},
    "td3": {
        "env": "Pendulum-v1",
        "algorithm": "td3",
        "learning_starts": 0,
        "batch_size": 64,
        "gradient_steps": 2,
        "exploration": "ou",
        "normalise_observations": True,
    },
    "memory": {"memory": "gru:6", "sequence_length": 4},
    "memory of a team": {"env": FIELD, "memory": "lstm:6", "shared_trunk": True, "algorithm": "a2c"},
    "action masks": {"env": "PicturedCorridor-v0"},
    "a team's action masks": {"env": "MaskedTeam-v0"},
}

FEW, MANY = 64, 128


def run_of_size(name: str, device: str, num_envs: int, **others: Any) -> Run:
    given: dict[str, Any] = {**RUNS[name], "num_envs": num_envs, **others}
    if name == "separate parameters":
        given["params"] = {"length": [0.5 + 0.001 * i for i in range(num_envs)]}
    return small_run(device, given.pop("env", "CartPole-v1"), **given)


def stored_bytes(config: Run) -> int:
    """Return the bytes of all tensors that a trainer stores."""
    gc.collect()
    with Allocations() as allocations:
        trainer = Trainer(config)
        gc.collect()
        assert trainer.steps == 0
        return int(allocations.held)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", RUNS)
def test_the_estimate_equals_the_allocation(name: str) -> None:
    """By the difference of two sizes, without memory that does not grow with the replicas."""
    few, many = (stored_bytes(run_of_size(name, "cpu", count)) for count in (FEW, MANY))
    estimate = memory_of_run(Plan(run_of_size(name, "cpu", MANY), "cpu", MANY))
    assert many - few == estimate.per_replica * (MANY - FEW)


@pytest.mark.skipif(not HAS_CUDA, reason="it is about a GPU's memory")
@pytest.mark.parametrize("name", ["plain", "normalised", "continuous", "team", "against random", "half the bits"])
def test_the_estimate_matches_a_gpus_memory(name: str) -> None:
    found = []
    for count in (64, 4096, 8192):  # the first trainer loads what stays in memory
        gc.collect()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        trainer = Trainer(run_of_size(name, "cuda", count))
        gc.collect()
        found.append(torch.cuda.memory_stats()["requested_bytes.all.current"] - before)
        trainer.iterate(1)
        del trainer
    stored = memory_of_run(Plan(run_of_size(name, "cuda", 8192), "cuda:0", 8192)).per_replica
    assert found[2] - found[1] == pytest.approx(stored * 4096, abs=2**16)


def test_max_replicas() -> None:
    some = MemoryEstimate(per_replica=120)
    assert [some.of(count) for count in (1, 25)] == [120, 3000]
    assert [some.max_replicas(room) for room in (119, 120, 2999, 3000)] == [0, 1, 24, 25]


def test_memory_per_step_of_a_buffer() -> None:
    runs = (run_of_size("sac", "cpu", FEW, buffer_size=size) for size in (500, 600))
    few, many = (memory_of_run(Plan(run, "cpu", FEW)) for run in runs)
    assert many.per_replica - few.per_replica == pytest.approx(100 * many.per_step, rel=0.05)


def test_too_many_replicas_are_refused_before_allocation(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(device, num_envs=10**9)
    with Allocations() as allocations, pytest.raises(MemoryError, match="lower num_envs to") as caught:
        Trainer(config)
    assert allocations.most < 2**20
    message = r"1,000,000,000 replicas with a horizon of 16 need [\d,.]+ GiB on .*, which has [\d,.]+ GiB free: "
    assert caught.match(message)
    room = 100 * 2**20
    monkeypatch.setattr(memory_estimate, "available_memory", lambda _: room)
    with pytest.raises(MemoryError) as caught:
        Trainer(config)
    most = int(str(caught.value).partition("lower num_envs to ")[2].partition(", which fits")[0].replace(",", ""))
    worked_out = memory_of_run(Plan(config, Trainer(small_run(device)).device, 10**9))
    assert worked_out.of(most) <= 0.9 * room < worked_out.of(most + 1)
    monkeypatch.setattr(memory_estimate, "available_memory", lambda _: 1000)
    with pytest.raises(MemoryError, match=r"GiB free: lower the horizon$"):
        Trainer(config)


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
FIRST, SECOND = "4:memory:/box/inner\n3:cpu,cpuacct:/box\n0::/\n", "0::/box/inner\n"
"""``/proc/self/cgroup`` with version 1 and version 2 of control groups."""


def version_1(folder: str, limit: int, used: int, cached: int) -> dict[str, str]:
    """The files of a control group, with cached files in both lists."""
    stat = f"cache 9\ninactive_file 9\ntotal_active_file {cached - 1}\ntotal_inactive_file 1\n"
    values = {"limit_in_bytes": f"{limit}\n", "usage_in_bytes": f"{used}\n", "stat": stat}
    return {f"memory/{folder}/memory.{name}": value for name, value in values.items()}


def version_2(folder: str, limit: object, used: int, cached: int) -> dict[str, str]:
    stat = f"anon 9\nfile 9\nactive_file {cached - 1}\ninactive_file 1\n"
    values = {"max": f"{limit}\n", "current": f"{used}\n", "stat": stat}
    return {f"{folder}/memory.{name}": value for name, value in values.items()}


CONTAINERS: dict[str, tuple[str, dict[str, str], tuple[int, int]]] = {
    "version 1": (FIRST, version_1("box/inner", 1000, 600, 200), (1000, 600)),
    "version 1, whose group is the top": (FIRST, version_1("", 1000, 600, 200), (1000, 600)),
    "version 1, without a limit": (FIRST, version_1("box", 2**63 - 4096, 600, 200), (PHYSICAL, 2**20)),
    "version 2": (SECOND, version_2("box/inner", 1000, 600, 200), (1000, 600)),
    "version 2, whose group is the top": ("0::/\n", version_2("", 1000, 600, 200), (1000, 600)),
    "version 2, limited above": (
        SECOND,
        version_2("box/inner", "max", 600, 200) | version_2("box", 1000, 700, 200),
        (1000, 500),
    ),
    "version 2, limited twice": (
        SECOND,
        version_2("box/inner", 1000, 600, 200) | version_2("box", 2000, 1900, 1),
        (1000, 101),
    ),
    "version 2, above its limit": (SECOND, version_2("box", 1000, 1100, 1), (1000, 0)),
    "another system": ("", {}, (PHYSICAL, 2**20)),
}


def machine(root: Path, group: str, files: Mapping[str, str]) -> Path:
    """A folder with the memory files of a machine with 1 MiB free, and of a container."""
    said = {"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"} | (
        {"proc/self/cgroup": group} if group else {}
    )
    for name, text in (said | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_containers_limit_counts(name: str, tmp_path: Path) -> None:
    group, files, expected = CONTAINERS[name]
    assert host.host_memory(machine(tmp_path, group, files)) == expected


def test_what_does_not_fit_into_a_container_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By training (with a number that fits), by the environment, and for a team whose single replica is too large."""
    limited = functools.partial(host.host_memory, machine(tmp_path, SECOND, version_2("box", 2**20, 2**19, 2)))
    for module in (host, memory):
        monkeypatch.setattr(module, "host_memory", limited)
    with pytest.raises(MemoryError, match=r"need [\d.]+ GiB on cpu, which has 0.0 GiB free: lower num_envs to"):
        Trainer(small_run("cpu", num_envs=10_000))
    with pytest.raises(MemoryError, match=r"100,000 replicas of CartPole-v1 need .* on cpu, which has 0.0 GiB"):
        gpu_envs.make("CartPole-v1", 100_000, device="cpu")
    team = small_run("cpu", "TagContinuous-v0", num_envs=4, params={"num_runners": 100_000})
    with pytest.raises(
        MemoryError, match=r"^1 replica of TagContinuous-v0 needs .*; lower num_taggers or num_runners$"
    ):
        Trainer(team)  # before agents are named: a billion names take 60 GiB


def test_rollouts_do_not_read_the_memorys_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment reads them once, when it is made; a rollout that is too large is refused all the same."""
    env = gpu_envs.make("CartPole-v1", 1024, device="cpu")
    env.reset(seed=0)
    monkeypatch.setattr(host, "host_memory", None)
    assert env.rollout(10).rewards.tolist() == [10] * 1024
    with pytest.raises(MemoryError, match=r"the results of .* steps of 1,024 replicas need .* GiB; take fewer steps"):
        env.rollout(2**31 - 1, per_step=True)


def test_the_memory_of_this_machine() -> None:
    found = host.host_memory()  # from its files
    assert 2**28 < found.free < found.total <= PHYSICAL
    assert memory.available_memory("cpu") == pytest.approx(found.free, rel=0.2)
    assert memory.total_memory("cpu") == found.total
