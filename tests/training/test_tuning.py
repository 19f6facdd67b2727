"""Tuning of the number of replicas: the knee, the memory limit, and the number that auto chooses and the run saves."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from harness import HAS_CUDA
from trainers import FIELD, MODULE_SETTINGS, off_policy_run, small_run

torch = pytest.importorskip("torch")

from dropout_policy import DropoutPolicy  # noqa: E402
from ranks import run_ranks  # noqa: E402

from gpu_envs.training import Trainer, choose_num_envs, resume, runs, train, tune, tuning  # noqa: E402
from gpu_envs.training.memory_estimate import MemoryEstimate, memory_of_run  # noqa: E402
from gpu_envs.training.process.device import USABLE_FRACTION, ShortageError  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402
from gpu_envs.training.tuning import Size, Tuning, max_fitting, still_improving  # noqa: E402

FIRST = {"cpu": 16, "cuda": 64}

# --- conclusions from sizes ---


def sizes_of(*rates: float, memory: int = 0) -> list[Size]:
    """Return sizes of 64, 128 and so on, with these training rates."""
    return [Size(64 * 2**i, memory * 2**i, 2 * rate, rate) for i, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "best", "goes_on"),
    [
        ([10], 64, True),
        ([10, 5], 64, True),
        ([10, 20, 9], 128, True),  # the last but one is faster
        ([10, 20, 40], 256, True),
        ([10, 20, 21], 128, True),  # 20 is 95.2 % of 21
        ([10, 20, 22], 256, True),  # and 90.9 % of 22
        ([10, 100, 90, 80], 128, False),
        ([96, 100, 98], 64, False),
        ([10, 10, 10], 64, False),
        ([10, 10.2, 10.4], 64, False),
        ([10, 10, 11], 256, True),
        ([10, 20, 20, 20], 128, False),
        ([10, 20, 19, 30], 512, True),
    ],
)
def test_the_knee_is_the_smallest_near_the_best(rates: list[float], best: int, goes_on: bool) -> None:
    """And tuning continues while training gets faster."""
    assert Tuning(tuple(sizes_of(*rates)), 0, 0, "").knee == best
    assert still_improving(sizes_of(*rates)) == goes_on


@pytest.mark.parametrize(
    ("most", "chosen", "why"),
    [
        (2000, 256, "the fewest within 5 % of the fastest training"),
        (300, 256, "the largest power of two for which total_steps is at least 200 updates"),
        (200, 128, "the largest power of two for which total_steps is at least 200 updates"),
        (3, 64, "the smallest that was tried; total_steps is still less than 200 updates"),
    ],
)
def test_the_chosen_size_leaves_enough_updates(most: int, chosen: int, why: str) -> None:
    found = Tuning(tuple(sizes_of(10, 20, 40, 41, 39)), 5000, most, "")
    assert (found.knee, found.chosen, found.reason) == (256, chosen, why)


def test_the_reason_says_that_larger_sizes_were_excluded() -> None:
    tuning = Tuning(tuple(sizes_of(10, 10, 10, 40)), 5000, 300, "")
    assert (tuning.knee, tuning.chosen) == (512, 64)
    assert tuning.reason == "the fewest within 5 % of the fastest training among those with at least 200 updates"


def test_max_fitting_follows_the_measured_memory() -> None:
    """The estimate is 1,000 bytes per replica."""
    stored = MemoryEstimate(1000)
    exact = [Size(64, 64_000, 1, 1), Size(128, 128_000, 1, 1)]
    assert max_fitting(exact, stored, 1_000_999) == 1000
    assert max_fitting(exact[:1], stored, 1_000_999) == 1000
    with_more = [Size(64, 164_000, 1, 1), Size(128, 228_000, 1, 1)]  # 100,000 bytes for any size
    assert max_fitting(with_more, stored, 1_000_000) == 900
    twice = [Size(64, 138_000, 1, 1), Size(128, 266_000, 1, 1)]  # and 2,000 bytes per replica
    assert max_fitting(twice, stored, 2_010_000) == 1000
    less = [Size(64, 2_000_000, 1, 1), Size(128, 2_000_000, 1, 1)]  # blocks so large that one is enough for both
    assert max_fitting(less, stored, 2_872_000) == 1000


# --- measuring ---


@pytest.mark.slow
def test_sizes_are_measured_one_after_the_other(device: str) -> None:
    told: list[Size] = []
    config = small_run(device, num_envs="auto", total_steps=200 * 16 * 500)
    found = tune(config, callback=told.append, limit_updates=True)
    counts = [size.num_envs for size in found.sizes]
    assert told == list(found.sizes)
    assert counts == [FIRST[device] * 2**i for i in range(len(counts))]
    assert (found.max_updating, counts[-1] <= 256) == (500, True)
    assert found.knee in counts
    assert found.chosen in counts
    assert all(size.rollout > size.training > 0 for size in found.sizes)
    assert all(first.memory <= second.memory for first, second in itertools.pairwise(found.sizes))
    if device == "cpu":
        assert [size.memory for size in found.sizes] == list(map(memory_of_run(Plan(config, "cpu", 1)).of, counts))
    assert found.max_fitting > counts[-1]


@pytest.mark.slow
def test_tuning_ends_at_the_memory_limit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(device)
    first, stored = FIRST[device], memory_of_run(Plan(config, Trainer(config).device, 1))
    room = stored.of(3 * first) if device == "cpu" else 2**40
    monkeypatch.setattr(tuning, "available_memory", lambda _: room / USABLE_FRACTION)
    found = tune(config)
    if device == "cpu":
        assert [size.num_envs for size in found.sizes] == [16, 32]
        assert (found.max_fitting, found.stop_reason) == (48, "twice as many would not fit")
    else:
        assert found.max_fitting > 10**6


@pytest.mark.slow
def test_an_allocation_failure_ends_tuning(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(trainer: Trainer) -> tuple[float, float]:
        if trainer.config.num_envs == 4 * FIRST[device]:
            raise ShortageError("full")
        return 1.0, float(trainer.config.num_envs)

    monkeypatch.setattr(tuning, "_rates", full)
    found = tune(small_run(device))
    assert [size.num_envs for size in found.sizes] == [FIRST[device], 2 * FIRST[device]]
    assert (found.max_fitting, found.stop_reason) == (4 * FIRST[device] - 1, "the memory was full")


@pytest.mark.slow
def test_minibatches_have_sequences(device: str) -> None:
    settings: dict[str, Any] = {"memory": "gru:4", "minibatches": 100, "total_steps": 100}
    assert tune(small_run(device, **settings), limit_updates=True).chosen >= 100
    assert tune(small_run(device, **settings, sequence_length=4), limit_updates=True).chosen >= 25


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_minibatches_have_samples_and_a_team_its_policies(own: bool, device: str) -> None:
    many: dict[str, Any] = {"minibatches": 100}
    settings = {f"tagger.{name}": value for name, value in many.items()} if own else many
    config = small_run(device, FIELD, horizon=2, policies={"runner": "random"}, total_steps=100, **settings)
    found = tune(config, limit_updates=True)
    assert [size.num_envs for size in found.sizes] == [64]
    assert (found.max_updating, found.chosen) == (1, 64)


@pytest.mark.slow
def test_off_policy_tuning_measures_learning(device: str) -> None:
    """Without the warm-up, for which trials have enough steps; a buffer holds a batch."""
    config = off_policy_run(device, learning_starts=10_000, batch_size=6000, buffer_size=40, total_steps=10_001)
    found = tune(config, limit_updates=True)
    assert [size.num_envs for size in found.sizes] == [256]
    assert not any(learner.warmup_iterations for learner in tuning._trial(config, 256, None).learners.values())  # noqa: SLF001 - a trial is no public run


@pytest.mark.slow
def test_user_modules_are_not_modified(device: str) -> None:
    mine = DropoutPolicy(0.0)
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    config = small_run(device, num_envs="auto", total_steps=100, run_dir="", **MODULE_SETTINGS)
    number, _ = choose_num_envs(config, modules={"agent": mine})
    assert all(torch.equal(before[name], tensor) for name, tensor in mine.state_dict().items())
    assert train(config, modules={"agent": mine}, progress=False).steps == number * 16


@pytest.mark.skipif(not HAS_CUDA, reason="it is about a GPU's memory")
def test_trials_free_a_gpus_memory() -> None:
    config = small_run("cuda", num_envs="auto", total_steps=200 * 16 * 1000)
    tune(config, limit_updates=True)
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tune(config, limit_updates=True)
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


# --- the run ---


def test_a_trainer_refuses_auto(device: str) -> None:
    with pytest.raises(ValueError, match=r"num_envs is 'auto': call gpu_envs\.training\.train"):
        Trainer(small_run(device, num_envs="auto"))


@pytest.mark.slow
def test_the_run_saves_the_number(tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    result = train(small_run(device, num_envs="auto", total_steps=4000, run_dir=str(run)), progress=False)
    first = FIRST[device]
    assert result.steps == -(-4000 // (first * 16)) * first * 16
    assert json.loads((run / "config.json").read_text())["config"]["num_envs"] == first

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("it was measured again")

    monkeypatch.setattr(runs, "choose_num_envs", again)
    assert resume(run, total_steps=8000, progress=False).steps == -(-8000 // (first * 16)) * first * 16
    with pytest.raises(ValueError, match="a resumed run cannot change num_envs"):
        resume(run, num_envs="auto")


def trained_by(group: Any, device: str, run: str) -> tuple[int, str, int]:
    """Return a process's choice, where the first process could use more replicas, and the steps of both."""
    room = 64 if torch.distributed.get_rank(group) == 0 else 1
    number, why = choose_num_envs(small_run(device, num_envs="auto", total_steps=200 * 2 * 16 * room), group=group)
    config = small_run(device, num_envs="auto", total_steps=2000, run_dir=run)
    return number, why, train(config, progress=False, group=group).steps


def test_processes_use_the_smallest_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = run_ranks(2, trained_by, tmp_path / "ranks", str(run))
    assert first[0] == second[0] == 16
    assert second[1].startswith("the smallest that was tried")
    assert first[2] == second[2] == 2 * 16 * 16 * 4
    assert json.loads((run / "config.json").read_text())["config"]["num_envs"] == 16
