"""What memory a run needs is known beforehand: to the byte what it stores, and nearly what it works with."""

import gc
from typing import Any

import pytest
from harness import HAS_CUDA
from trainers import FIELD, GRID, small

torch = pytest.importorskip("torch")

from allocations import Allocations  # noqa: E402
from torch import nn  # noqa: E402

from gpu_envs.training import Config, Trainer, need  # noqa: E402
from gpu_envs.training.need import Need, Pass, need_of  # noqa: E402
from gpu_envs.training.policies.networks import most_rows  # noqa: E402

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
    modules, given = {"agent": nn.Sequential(*layers)}, {"algorithm": "pqn", "epochs": 1, "minibatches": 1}
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
