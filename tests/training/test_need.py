"""What memory a run needs is known beforehand: to the byte what it stores, and nearly what it works with."""

import functools
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA
from trainers import FIELD, FOR_MODULES, GRID, small

torch = pytest.importorskip("torch")

from allocations import Allocations  # noqa: E402
from torch import nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.backend import host  # noqa: E402
from gpu_envs.training import Config, Trainer, need  # noqa: E402
from gpu_envs.training.need import Need, Pass, need_of  # noqa: E402
from gpu_envs.training.policies.networks import most_rows  # noqa: E402
from gpu_envs.training.process import memory  # noqa: E402

pytestmark = pytest.mark.usefixtures("masked_environments")

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usual": {"hidden": (64, 64), "minibatches": 8},
    "one pass": {"algorithm": "a2c"},
    "normalised": {"normalise_observations": True, "normalise_rewards": True, "stagger": True},
    "continuous": {"env": "Pendulum-v1", "params": {"max_episode_steps": 50}},
    "parameters of their own": {"params": {"length": True}},
    "shared trunk": {"shared_trunk": True, "minibatches": 1, "activation": "silu"},
    "normalised layers": {"layer_norm": True, "hidden": (64, 64)},
    "several layers": {"hidden": (32, 64, 32), "minibatches": 1, "activation": "relu"},
    "beyond the limit": {"params": {"max_episode_steps": 10}},
    "no limit": {"params": {"max_episode_steps": -1}},
    "team": {"env": GRID},
    "against random": {"env": FIELD, "policies": {"runner": "random"}},
    "one policy for a team": {"env": GRID, "policies": {"tagger": "all", "runner": "all"}},
    "settings of their own": {
        "env": GRID,
        "policy_settings": {"tagger": {"hidden": (64, 64), "minibatches": 1, "normalise_rewards": True}},
    },
    "one runner apart": {"env": FIELD, "policies": {"runner_0": "fox"}},
    "half the bits": {"env": FIELD, "precision": "bf16", "hidden": (64, 64)},
    "sac": {"env": "Pendulum-v1", "algorithm": "sac", "warm_up": 0, "batch": 64, "slots": 500},
    "td3": {
        "env": "Pendulum-v1", "algorithm": "td3", "warm_up": 0, "batch": 64, "updates": 2, "exploration": "state",
        "normalise_observations": True,
    },
    "action masks": {"env": "PicturedCorridor-v0"},
    "a team's action masks": {"env": "MaskedTeam-v0"},
}  # fmt: skip

FEW, MANY = 64, 128


def run_of(name: str, device: str, num_envs: int, **others: Any) -> Config:
    given: dict[str, Any] = {**RUNS[name], "num_envs": num_envs, **others}
    if name == "parameters of their own":
        given["params"] = {"length": [0.5 + 0.001 * i for i in range(num_envs)]}
    return small(device, given.pop("env", "CartPole-v1"), **given)


def taken(config: Config, modules: Any = None) -> tuple[int, int]:
    """The bytes of tensors that a trainer holds, and the most that there were within two iterations."""
    gc.collect()
    with Allocations() as allocations:
        trainer = Trainer(config, modules=modules)
        gc.collect()
        held = allocations.held
        trainer.iterate(2)
    return held, allocations.most


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("name", RUNS)
def test_it_is_what_is_allocated(name: str) -> None:
    """By the difference of two sizes, so that what does not grow with the replicas plays no part."""
    few, many = (taken(run_of(name, "cpu", count)) for count in (FEW, MANY))
    worked_out = need_of(run_of(name, "cpu", MANY), "cpu")
    assert many[0] - few[0] == worked_out.stored * (MANY - FEW)
    most = worked_out.of(MANY) - worked_out.of(FEW)
    assert 0.95 * most / 1.3 < many[1] - few[1] < 1.02 * most


@pytest.mark.parametrize("horizon", [16, 64])
def test_an_off_policy_run_copies_a_number_of_each_observation(horizon: int) -> None:
    assert need_of(run_of("sac", "cpu", FEW, horizon=horizon), "cpu").copied == 4 * (horizon + 1)


def test_a_module_of_the_users_own_counts() -> None:
    layers = (nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 2))
    modules, given = (
        {"agent": nn.Sequential(*layers)},
        {"algorithm": "pqn", "epochs": 1, "minibatches": 1, **FOR_MODULES},
    )
    few, many = (taken(run_of("plain", "cpu", count, **given), modules) for count in (FEW, MANY))
    worked_out = need_of(run_of("plain", "cpu", MANY, **given), "cpu", modules)
    assert many[0] - few[0] == worked_out.stored * (MANY - FEW)
    most = worked_out.of(MANY) - worked_out.of(FEW)
    assert 0.5 * most < many[1] - few[1] < most


@pytest.mark.skipif(not HAS_CUDA, reason="it is about a GPU's memory")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", ["usual", "normalised", "continuous", "team", "against random", "half the bits"])
def test_it_is_what_a_gpu_holds(name: str, graphs: bool) -> None:
    """The pools of graphs keep at most what the work takes."""

    def asked_for(what: str) -> int:
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{what}"])

    found = []
    for count in (64, 4096, 8192):  # with the first all is loaded that stays
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = asked_for("current")
        trainer = Trainer(run_of(name, "cuda", count, graphs=graphs))
        gc.collect()
        held = asked_for("current") - before
        trainer.iterate(2)
        found.append((held, asked_for("peak") - before))
        del trainer
    worked_out = need_of(run_of(name, "cuda", 8192), "cuda:0")
    assert found[2][0] - found[1][0] == pytest.approx(worked_out.stored * 4096, abs=2**16)
    most = worked_out.of(8192) - worked_out.of(4096)
    assert 0.7 * most < found[2][1] - found[1][1] < 1.3 * most + 2**20


def test_pieces_of_a_large_minibatch_need_no_more_than_one() -> None:
    """Beyond the rows that go through a module at a time, only what is stored and copied grows."""
    units = 2 * (64 + 64) + 2 + 1
    worked_out = need_of(run_of("usual", "cpu", FEW, minibatches=1), "cpu")
    rows = most_rows(units)
    beyond = -(-rows // 16) + 1
    assert worked_out.of(beyond + 1000) - worked_out.of(beyond) == 1000 * (worked_out.stored + worked_out.copied)
    assert worked_out.of(1000) - worked_out.of(500) > 500 * (worked_out.stored + worked_out.copied)


def test_the_most_that_have_room() -> None:
    """100 bytes each, and 10 a row of 2 rows each, of which 50 go at a time: 120 each up to 25 replicas."""
    some = Need(stored=90, copied=10, passes=(Pass(2.0, 10, 50),))
    assert [some.of(count) for count in (1, 25, 26)] == [120, 3000, 3100]
    assert [some.most(room) for room in (119, 120, 2999, 3000, 3099, 3100)] == [0, 1, 24, 25, 25, 26]


def test_too_many_are_refused_before_anything_is_allocated(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(device, num_envs=10**9)
    with Allocations() as allocations, pytest.raises(MemoryError, match="lower num_envs to") as caught:
        Trainer(config)
    assert allocations.most < 2**20
    message = r"1,000,000,000 replicas for a horizon of 16 need [\d,.]+ GiB on .*, of which [\d,.]+ GiB are free: "
    assert caught.match(message)
    room = 100 * 2**20
    monkeypatch.setattr(need, "available", lambda _: room)
    with pytest.raises(MemoryError) as caught:
        Trainer(config)
    most = int(str(caught.value).partition("lower num_envs to ")[2].partition(", which fits")[0].replace(",", ""))
    worked_out = need_of(config, Trainer(small(device)).device)
    assert worked_out.of(most) <= 0.9 * room < worked_out.of(most + 1)
    monkeypatch.setattr(need, "available", lambda _: 1000)
    with pytest.raises(MemoryError, match=r"are free: lower the horizon, or hidden$"):
        Trainer(config)


PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
FIRST, SECOND = "4:memory:/box/inner\n3:cpu,cpuacct:/box\n0::/\n", "0::/box/inner\n"
"""What ``/proc/self/cgroup`` says with version 1 and version 2 of control groups."""


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
        SECOND, version_2("box/inner", "max", 600, 200) | version_2("box", 1000, 700, 200), (1000, 500),
    ),
    "version 2, limited twice": (
        SECOND, version_2("box/inner", 1000, 600, 200) | version_2("box", 2000, 1900, 1), (1000, 101),
    ),
    "version 2, above its limit": (SECOND, version_2("box", 1000, 1100, 1), (1000, 0)),
    "another system": ("", {}, (PHYSICAL, 2**20)),
}  # fmt: skip


def machine(root: Path, group: str, files: Mapping[str, str]) -> Path:
    """A folder with what a machine says of its memory, of which 1 MiB is free, and a container of its own."""
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
    """By training, with a number that fits, by the environment itself, and of a team too large for a single replica."""
    limited = functools.partial(host.host_memory, machine(tmp_path, SECOND, version_2("box", 2**20, 2**19, 2)))
    for module in (host, memory):
        monkeypatch.setattr(module, "host_memory", limited)
    with pytest.raises(MemoryError, match=r"need [\d.]+ GiB on cpu, of which 0.0 GiB are free: lower num_envs to"):
        Trainer(small("cpu", num_envs=10_000))
    with pytest.raises(MemoryError, match=r"100,000 replicas of CartPole-v1 need .* on cpu, which has 0.0 GiB"):
        gpu_envs.make("CartPole-v1", 100_000, device="cpu")
    team = small("cpu", "TagContinuous-v0", num_envs=4, params={"num_runners": 100_000})
    with pytest.raises(
        MemoryError, match=r"^1 replica of TagContinuous-v0 needs .*; lower num_taggers or num_runners$"
    ):
        Trainer(team)  # before each agent is named: a billion names take 60 GiB


def test_the_memory_of_this_machine() -> None:
    found = host.host_memory()  # by its own files
    assert 2**28 < found.free < found.total <= PHYSICAL
    assert memory.available("cpu") == pytest.approx(found.free, rel=0.2)
    assert memory.memory_of("cpu") == found.total
