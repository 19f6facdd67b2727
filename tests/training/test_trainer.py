"""The training loop: learning, stopping, errors, memory, and the state of the process."""

import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, assert_same_bits
from trainers import (
    FIELD,
    GRID,
    MODULE_SETTINGS,
    call_after,
    default_run,
    last_checkpoint,
    rows_of,
    run_of,
    small_run,
    without_times,
)

torch = pytest.importorskip("torch")

from dropout_policy import DropoutPolicy, seeded_dropout  # noqa: E402

from gpu_envs.backend.background import available_threads  # noqa: E402
from gpu_envs.errors import DivergedError  # noqa: E402
from gpu_envs.training import PPO, Run, RunDirectory, Schedule, Trainer, evaluate, resume, train  # noqa: E402
from gpu_envs.training.horizon import DeviceSchedules  # noqa: E402
from gpu_envs.training.presets import PRESETS  # noqa: E402
from gpu_envs.training.process import device as memory  # noqa: E402
from gpu_envs.training.process.device import torch_threads  # noqa: E402
from gpu_envs.training.process.signals import interruption  # noqa: E402
from gpu_envs.training.record.checkpoint import Checkpoints, load  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


# --- learning ---

NORMALISED = {"normalise_observations": True, "normalise_rewards": True, "normalise_values": True}

LEARNT: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"num_envs": 128, "gamma": 0.98, "total_steps": 40_000, "seed": 1},
    "a2c": {"num_envs": 64, "horizon": 16, "algorithm": "a2c", "total_steps": 60_000},
    "box": {"env": "Pendulum-v1", "num_envs": 64, "gamma": 0.9, "total_steps": 100_000, **NORMALISED},
    "pqn": {
        "num_envs": 64,
        "algorithm": "pqn",
        "epochs": 4,
        "minibatches": 8,
        "layer_norm": True,
        "activation": "relu",
        "total_steps": 400_000,
        "learning_rate": "0:0.001,1:0",
        "gae_lambda": 0.9,
        "gamma": 0.98,
        "epsilon": "0:1,0.2:0.05",
        "max_grad_norm": 10.0,
        "seed": 1,
    },
}
BETTER = {"ppo": (40, 200), "a2c": (40, 80), "box": (-900, -400), "pqn": (40, 475)}
"""Mean returns: maximum before training, minimum after it."""


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", LEARNT)
def test_training_raises_the_return(name: str, device: str) -> None:
    given = {"env": "CartPole-v1", "horizon": 32, "learning_rate": "0:0.003,1:0", **LEARNT[name]}
    ours = Trainer(default_run(given.pop("env"), device, **given))
    worst, least = BETTER[name]
    assert ours.evaluate(100)["agent"].mean < worst
    assert ours.run(progress=False).reason == "total_steps"
    assert ours.evaluate(200)["agent"].mean >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "preset", "metric", "share"),
    [
        ("SimpleTag-v3", "adversaries", "collisions", 3.0),  # 10 at the end
        ("SimpleSpread-v3", "default", "distance", 0.75),  # 0.6; the full preset reaches 0.3
    ],
)
def test_presets_of_particles_learn(env: str, preset: str, metric: str, share: float, device: str) -> None:
    settings = {**PRESETS[env][preset], "num_envs": 64, "total_steps": 80_000}
    ours = Trainer(run_of(env=env, device=device, run_dir="", **settings))

    def metric_of(greedy: bool) -> float:
        return next(iter(ours.evaluate(200, greedy=greedy).values())).metrics[metric].mean

    by_chance = metric_of(greedy=False)
    ours.run(progress=False)
    assert metric_of(greedy=True) > share * by_chance if share > 1 else metric_of(greedy=True) < share * by_chance


def test_training_stops_at_the_target_return(tmp_path: Path, device: str) -> None:
    steps: dict[str, Any] = {"num_envs": 64, "horizon": 32, "total_steps": 2_000_000, "learning_rate": 0.003}
    run = str(tmp_path / "run")
    config = default_run("CartPole-v1", device, run_dir=run, target_return=100, log_interval=5, **steps)
    result = train(config, progress=False)
    assert result.reason == "target_return"
    assert result.run_dir == config.run_dir
    assert result.iterations < config.iterations / 4
    assert result.steps == result.iterations * 64 * 32
    assert result.returns["agent"] >= 100
    with pytest.warns(UserWarning, match="reached its target return, .* no step was taken: .* target_return=None"):
        assert resume(run, progress=False).iterations == result.iterations
    assert rows_of(tmp_path / "run" / "log.csv")[-1]["iteration"] == str(result.iterations)
    assert last_checkpoint(run)["iteration"] == result.iterations
    again = Trainer(config)  # later steps do not depend on timing
    assert again.run(progress=False).iterations == result.iterations
    assert_same_bits(last_checkpoint(run)["learners"], without_times(again.state())["learners"])


@pytest.mark.skipif(not HAS_CUDA, reason="a CPU has no graphs")
def test_a_capture_that_fails_leaves_random_numbers_as_they_were() -> None:
    ours = Trainer(small_run("cuda", **MODULE_SETTINGS), modules={"agent": DropoutPolicy(reads_back=True)})
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        ours.iterate(2)
    assert ours.no_graphs_reason
    assert torch.rand(3, device="cuda").unique().numel() == 3


def test_schedules_on_the_device(device: str) -> None:
    schedules = [Schedule.of(text) for text in ("0.5", "0:1,1:0", "0.25:3,0.5:1,0.75:-2", "0.3:1e-3,0.31:7")]
    targets = [(schedule, torch.zeros(1, device=device)) for schedule in schedules]
    ours = DeviceSchedules(targets, small_run(device, total_steps=8 * 16 * 40), device)
    for update in range(44):  # beyond the end the last value stays
        ours.write()
        for schedule, target in targets:
            assert target.item() == np.float32(schedule.at(min(update, 39) / 40))
    assert ours.clock.item() == 44
    begun = small_run(device, total_steps=(8 * 24 + 2 * 16 * 8) * 16, since=(24, 8 * 16 * 24), num_envs=16)
    going_on = DeviceSchedules(targets, begun, device)
    going_on.clock.fill_(30)
    going_on.write()
    done = (8 * 24 + 16 * 6) / (8 * 24 + 16 * 16)
    assert [target.item() for _, target in targets] == [np.float32(schedule.at(done)) for schedule in schedules]


# --- errors ---


def ruin(learner: Any) -> None:
    next(learner.module.parameters()).data.view(-1)[0] = float("nan")


@pytest.mark.parametrize(
    ("env", "at", "told", "kept"),
    [
        # on a GPU a later iteration may have spread it before the host checks
        *(
            (env, 8, "iteration 9: (observations|values|log-probabilities|the parameters) of the policy ", [3, 6])
            for env in ("CartPole-v1", "Pendulum-v1", GRID)
        ),
        # in the last step of an update, whose metrics are still finite: no checkpoint is written
        ("CartPole-v1", 6, "iteration 6: the parameters of the policy ", [3]),
    ],
)
def test_nan_weights_stop_the_run(env: str, at: int, told: str, kept: list[int], tmp_path: Path, device: str) -> None:
    config = small_run(device, env, run_dir=str(tmp_path / "run"), checkpoint_interval=3)
    ours = Trainer(config, RunDirectory.create(config.run_dir, config))
    call_after(ours, at, lambda: ruin(next(iter(ours.learners.values()))))
    with pytest.raises(DivergedError, match=told + "'(agent|tagger)'") as caught:
        ours.run(progress=False)
    path = tmp_path / "run" / "checkpoints" / f"iteration-{kept[-1]:08d}.pt"
    assert f"the last good checkpoint is {path}" in str(caught.value)
    check_checkpoints(tmp_path / "run", kept)


def check_checkpoints(run: Path, iterations: list[int]) -> None:
    paths = Checkpoints(run / "checkpoints").paths()
    assert [int(path.stem.rpartition("-")[2]) for path in paths] == iterations
    for path in paths:
        for learner in load(path)["learners"].values():
            assert all(bool(torch.isfinite(tensor).all()) for tensor in learner["module"].values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_observations_stop_the_run(value: float, device: str) -> None:
    ours: Any = Trainer(small_run(device))
    call_after(ours, 4, lambda: ours.horizon_env.storage["agent"].observations[-1, 2].fill_(value))
    message = "5: observations of the policy 'agent' contain NaN or infinity; there is no checkpoint; .*learning_rate"
    with pytest.raises(DivergedError, match=message):
        ours.run(progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_role": "tager"}, r"target_role is 'tager'. Did you mean 'tagger'\? The roles are: tagger, runner"),
        ({"policies": {"taggr": "x"}}, r"Did you mean 'tagger'\?"),
        ({"params": {"grid_lenght": 5}}, r"Did you mean 'grid_length'\?"),
        ({"policies": {"tagger": "frozen:nowhere"}}, "nowhere does not exist"),
    ],
    ids=str,
)
def test_mistakes_are_reported_before_a_folder_exists(
    settings: Mapping[str, Any], message: str, tmp_path: Path, device: str
) -> None:
    run = tmp_path / "run"
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        train(small_run(device, GRID, run_dir=str(run), **settings), progress=False)
    assert not run.exists()


def test_target_role(device: str) -> None:
    for role, target, reason in (("tagger", -1e9, "target_return"), ("runner", 1e9, "total_steps")):
        config = small_run(device, FIELD, target_role=role, target_return=target, num_envs=16, total_steps=16 * 16 * 20)
        assert Trainer(config).run(progress=False).reason == reason


def test_what_needs_a_gpu_is_refused_without_one(device: str) -> None:
    if device == "cpu":
        with pytest.raises(ValueError, match="graphs=True needs a CUDA device"):
            Trainer(small_run(device, graphs=True))
        with pytest.raises(ValueError, match=r"fused is True, but .*; leave fused out"):
            Trainer(small_run(device, fused=True, hidden=(300,)))
        assert Trainer(small_run(device)).no_graphs_reason == "there are no CUDA graphs on a CPU"
    assert Trainer(small_run(device, graphs=False)).no_graphs_reason == "graphs are turned off"


# --- memory ---


def advice(config: Run, error: Exception, device: str = "cpu") -> str:
    """Return the message for an allocator's error."""
    with pytest.raises(MemoryError) as caught, memory.explain_out_of_memory(config, device):
        raise error
    return str(caught.value)


@pytest.mark.parametrize(
    ("error", "need"),
    [
        (RuntimeError("can't allocate memory: you tried to allocate 8589934592 bytes."), "than 8.0 GiB"),
        (MemoryError("std::bad_alloc"), "memory than is free"),
    ],
    ids=["torch", "numpy"],
)
def test_a_shortage_of_memory_says_what_to_lower(error: Exception, need: str) -> None:
    said = advice(default_run("CartPole-v1", "cpu", num_envs=1000, horizon=50), error)
    assert said.startswith(f"1,000 replicas with a horizon of 50 need more {need} on cpu")
    assert ": lower num_envs to 500, or horizon to 25" in said


@pytest.mark.parametrize("own", [False, True])
def test_a_shortage_names_the_setting_that_is_wrong(own: bool) -> None:
    """Widths whose weights exceed the memory, and smaller widths that fit; the same for replicas."""
    wide: dict[str, Any] = {"hidden": (10**6, 10**7)}
    config = default_run(
        "CartPole-v1", "cpu", **({f"agent.{name}": value for name, value in wide.items()} if own else wide)
    )
    total = memory.total_memory("cpu")
    error = MemoryError(f"Unable to allocate {total * 3.99 / 2**40:.6f} TiB for an array")
    _, lower, widths = advice(config, error).partition("lower hidden to ")
    assert lower
    fitting, twice = (tuple(int(int(width) * of) for width in widths.split(",")) for of in (0.9, 2))
    assert "hidden to" not in advice(default_run("CartPole-v1", "cpu", hidden=fitting), error)
    assert "hidden to" in advice(default_run("CartPole-v1", "cpu", hidden=twice), error)
    assert "lower num_envs to 225, or" in advice(default_run("CartPole-v1", "cpu", num_envs=1000), error)


def test_a_shortage_on_a_gpu_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 of 80 GiB are in use and 140 are requested: 90 % of 80 GiB are 0.4 of 180 GiB."""
    properties = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 40 * 2**30)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 140.00 GiB. GPU 0 has a total of 80 GiB")
    message = "need more than 180.0 GiB on cuda:0, which has 80.0 GiB: lower num_envs to 400, or horizon to 20"
    assert message in advice(default_run("CartPole-v1", "cpu", num_envs=1000, horizon=50), error, "cuda:0")
    small = torch.OutOfMemoryError("CUDA out of memory")  # 1,000,000 replicas with 50 steps need at least 6 GB
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    properties.total_memory = 128 * 25 * 10**6
    assert "lower num_envs to 450,000" in advice(
        default_run("CartPole-v1", "cpu", num_envs=10**6, horizon=50), small, "cuda:0"
    )


def test_other_errors_pass() -> None:
    config = default_run("CartPole-v1", "cpu")
    for error in (RuntimeError("something else"), ValueError("x")):
        with pytest.raises(type(error), match=str(error)), memory.explain_out_of_memory(config, "cpu"):
            raise error


# --- the process ---


def test_process_settings_are_restored(tmp_path: Path, device: str) -> None:
    torch.manual_seed(5)
    before = process()
    run = str(tmp_path / "run")
    config = small_run(device, precision="tf32", total_steps=8 * 16 * 3, run_dir=run, threads=2)
    ours = Trainer(config)
    ours.iterate(1)
    ours.evaluate(3)
    ours.run(progress=False)
    train(config, progress=False)
    resume(run, total_steps=8 * 16 * 4, progress=False)
    evaluate(run, episodes=3, device=device)
    assert process() == before
    spoilt = Trainer(config)
    call_after(spoilt, 1, lambda: ruin(spoilt.learners["agent"]))
    with pytest.raises(DivergedError):
        spoilt.run(progress=False)
    assert process() == before


def process() -> tuple[Any, ...]:
    generator = torch.cuda.get_rng_state().numpy().tobytes() if HAS_CUDA else b""
    return (
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        signal.getsignal(signal.SIGINT),
        torch.random.get_rng_state().numpy().tobytes(),
        generator,
        repr(np.random.get_state()),  # noqa: NPY002 - the global one is what must not be touched
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )


def test_torch_gets_no_more_threads_than_there_are_cores() -> None:
    """Threads spin while they wait for each other: more threads than cores are very slow."""
    with torch_threads("cpu", 512):
        assert torch.get_num_threads() == available_threads()


def test_torch_gets_a_thread_where_kernels_compute_all_networks() -> None:
    """Two pools of threads that wait for the same cores halved the rate of large horizons."""
    counts: list[int] = []

    class Count:
        def on_iteration(self, *_: Any) -> None:
            counts.append(torch.get_num_threads())

    steps, algorithm = 256 * 66, PPO(epochs=1, minibatches=1)
    run = Run(env="CartPole-v1", num_envs=256, horizon=66, total_steps=2 * steps, algorithm=algorithm, device="cpu")
    assert run.torch_threads is None  # torch would get all threads
    torch.set_num_threads(2)  # the fixture restores it
    for modules in (None, {"agent": seeded_dropout()["agent"]}):
        trainer = Trainer(run, modules=modules, callbacks=[Count()])
        trainer.run(progress=False)
        assert set(counts) == ({2} if modules else {1})
        counts.clear()


def test_two_threads_train_one_after_the_other(device: str) -> None:
    """Concurrently they would share torch's random numbers, threads and captures: the second is refused."""
    config = small_run(device, total_steps=8 * 16 * 6, **MODULE_SETTINGS)
    lone, ours = (Trainer(config, modules=seeded_dropout()) for _ in range(2))
    lone.run(progress=False)
    refused: list[str] = []

    def train_concurrently() -> None:
        things = (lambda: Trainer(config).run(progress=False), lambda: lone.iterate(1), lambda: lone.evaluate(2))
        with ThreadPoolExecutor(1) as pool:
            refused.extend(str(pool.submit(thing).exception()) for thing in things)

    call_after(ours, 3, train_concurrently)
    ours.run(progress=False)
    assert len(refused) == 3
    assert all("another thread of this process" in message for message in refused)
    assert_same_bits(without_times(lone.state()), without_times(ours.state()))
    train_concurrently()  # no thread is training now
    assert refused[3:] == ["None"] * 3


def test_a_second_ctrl_c_does_not_wait(device: str) -> None:
    ours = Trainer(small_run(device))
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    call_after(ours, 2, press_twice)
    with pytest.raises(KeyboardInterrupt):
        ours.run(progress=False)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signals_stay_ignored() -> None:
    """Such as SIGHUP under nohup, or SIGINT in the background of a shell script."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption() as pressed:
            for number in (signal.SIGHUP, signal.SIGTERM):
                signal.raise_signal(number)
                assert pressed.is_set() == (number is signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


# --- precisions ---


def test_preparing_changes_nothing(device: str) -> None:
    ours = Trainer(small_run(device, normalise_observations=True))
    before = ours.state()
    ours.prepare()
    assert_same_bits(without_times(before), without_times(ours.state()))
