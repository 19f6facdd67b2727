"""The loop: it learns, stops where it should, says what went wrong, and leaves the process as it was."""

import copy
import re
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, assert_same_bits
from trainers import FIELD, FIELD_PARAMS, GRID, after, rows_of, saved, small, timeless, usual

torch = pytest.importorskip("torch")

from dropping import Dropping, seeded_dropout  # noqa: E402

from gpu_envs.backend.ahead import available_threads  # noqa: E402
from gpu_envs.errors import DivergedError  # noqa: E402
from gpu_envs.training import Config, RunDirectory, Schedule, Trainer, evaluate, resume, train, trainer  # noqa: E402
from gpu_envs.training.operations.device_schedule import DeviceSchedules  # noqa: E402
from gpu_envs.training.process import memory  # noqa: E402
from gpu_envs.training.process.settings import interruption, torch_threads  # noqa: E402
from gpu_envs.training.record.checkpoint import Checkpoints, load  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


# --- learning ---

NORMALISED = {"normalise_observations": True, "normalise_rewards": True}

LEARNT: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"num_envs": 128, "gamma": 0.98, "total_steps": 40_000, "seed": 1},
    "a2c": {"num_envs": 64, "horizon": 16, "algorithm": "a2c", "total_steps": 60_000},
    "box": {"env": "Pendulum-v1", "num_envs": 64, "gamma": 0.9, "total_steps": 100_000, **NORMALISED},
}
BETTER = {"ppo": (40, 200), "a2c": (40, 80), "box": (-900, -400)}
"""Mean returns: at most the one before training, at least the other after it."""


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", LEARNT)
def test_training_raises_the_return(name: str, device: str) -> None:
    given = {"env": "CartPole-v1", "horizon": 32, "learning_rate": "0:0.003,1:0", **LEARNT[name]}
    ours = Trainer(usual(given.pop("env"), device, **given))
    worst, least = BETTER[name]
    assert ours.evaluate(100)["agent"].mean < worst
    assert ours.run(progress=False).reason == "total_steps"
    assert ours.evaluate(100)["agent"].mean > least


@pytest.mark.slow
def test_a_team_learns(device: str) -> None:
    """Taggers learn to catch a runner that moves at random."""
    game: dict[str, Any] = {"params": {"grid_length": 5, "max_episode_steps": 30}, "policies": {"runner": "random"}}
    ours = Trainer(usual(GRID, device, num_envs=64, horizon=16, total_steps=20_000, learning_rate=0.003, **game))
    first = ours.evaluate(200)["tagger"]
    assert ours.run(progress=False).returns.keys() == {"tagger", "runner"}
    last = ours.evaluate(200)["tagger"]
    assert last.mean > first.mean
    assert last.length < 0.6 * first.length  # the runner is caught sooner


def test_training_stops_at_the_return_that_is_aimed_at(tmp_path: Path, device: str) -> None:
    steps: dict[str, Any] = {"num_envs": 64, "horizon": 32, "total_steps": 2_000_000, "learning_rate": 0.003}
    run = str(tmp_path / "run")
    config = usual("CartPole-v1", device, run_dir=run, target_return=100, log_interval=5, **steps)
    result = train(config, progress=False)
    assert result.reason == "target_return"
    assert result.run_dir == config.run_dir
    assert result.iterations < config.iterations / 4
    assert result.steps == result.iterations * 64 * 32
    assert result.returns["agent"] >= 100
    assert resume(run, progress=False).iterations == result.iterations  # it is there already
    assert rows_of(tmp_path / "run" / "log.csv")[-1]["iteration"] == str(result.iterations)
    assert saved(run)["iteration"] == result.iterations


def test_an_aim_is_reached_at_the_same_iteration_every_time(device: str) -> None:
    """What follows it depends on no clock."""
    steps: dict[str, Any] = {"num_envs": 64, "horizon": 32, "total_steps": 400_000, "learning_rate": 0.003}
    config = usual("CartPole-v1", device, target_return=60, **steps)
    ends = []
    for _ in range(3):
        ours = Trainer(config)
        ends.append((ours.run(progress=False).iterations, timeless(ours.state())["learners"]))
    assert len({iterations for iterations, _ in ends}) == 1
    assert_same_bits(ends[0][1], ends[1][1])
    assert_same_bits(ends[0][1], ends[2][1])


@pytest.mark.skipif(not HAS_CUDA, reason="a CPU has no graphs")
def test_a_capture_that_fails_leaves_random_numbers_as_they_were() -> None:
    ours = Trainer(small("cuda"), modules={"agent": Dropping(reads_back=True)})
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        ours.iterate(2)
    assert ours.eager_because
    assert torch.rand(3, device="cuda").unique().numel() == 3


def test_an_evaluation_draws_no_numbers_of_the_training(tmp_path: Path, device: str) -> None:
    config = small(device, run_dir=str(tmp_path / "run"))
    states = []
    for evaluates in (False, True):
        ours = Trainer(config, modules=seeded_dropout())
        before = torch.get_rng_state()
        ours.iterate(1)
        if evaluates:
            assert ours.evaluate(4, seed=1) == ours.evaluate(4, seed=1)
        ours.iterate(1)
        assert torch.equal(before, torch.get_rng_state())  # the process keeps its own numbers
        states.append(timeless(ours.state())["learners"])
    assert_same_bits(states[0], states[1])


def test_a_module_under_training_is_not_filled_with_a_checkpoint(tmp_path: Path, device: str) -> None:
    config = small(device, run_dir=str(tmp_path / "run"), total_steps=1)
    train(config, progress=False)
    ours = Trainer(config)
    ours.iterate(1)
    live = ours.learners["agent"].module
    before = copy.deepcopy(live.state_dict())
    with pytest.raises(ValueError, match="being trained by another Trainer"):
        evaluate(tmp_path / "run", episodes=2, device=device, modules={"agent": live})
    assert_same_bits(before, live.state_dict())


def test_schedules_on_the_device_are_the_schedules(device: str) -> None:
    schedules = [Schedule.of(text) for text in ("0.5", "0:1,1:0", "0.25:3,0.5:1,0.75:-2", "0.3:1e-3,0.31:7")]
    targets = [(schedule, torch.zeros(1, device=device)) for schedule in schedules]
    ours = DeviceSchedules(targets, small(device, total_steps=8 * 16 * 40), device)
    for update in range(44):  # beyond the end the last one's stay
        ours.write()
        for schedule, target in targets:
            assert target.item() == np.float32(schedule.at(min(update, 39) / 40))
    assert ours.clock.item() == 44
    begun = small(device, total_steps=(8 * 24 + 2 * 16 * 8) * 16, since=(24, 8 * 16 * 24), num_envs=16)
    going_on = DeviceSchedules(targets, begun, device)
    going_on.clock.fill_(30)
    going_on.write()
    done = (8 * 24 + 16 * 6) / (8 * 24 + 16 * 16)
    assert [target.item() for _, target in targets] == [np.float32(schedule.at(done)) for schedule in schedules]


@pytest.mark.parametrize("env", [GRID, FIELD])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_all_roles_of_a_team_are_trained(algorithm: str, env: str, tmp_path: Path, device: str) -> None:
    run = str(tmp_path / "run")
    params = FIELD_PARAMS if env == FIELD else {"max_episode_steps": 20}
    config = small(device, env, params=params, algorithm=algorithm, num_envs=16, total_steps=16 * 16 * 10, run_dir=run)
    before = {name: one.state()["module"] for name, one in Trainer(config).learners.items()}
    result = train(config, progress=False)
    assert all(np.isfinite(value) for value in result.returns.values())
    for name, learner in saved(run)["learners"].items():
        for key, weights in learner["module"].items():
            assert not torch.equal(weights, before[name][key].cpu()), (name, key)
    (row,) = rows_of(tmp_path / "run" / "log.csv")
    for role in ("tagger", "runner"):
        assert {f"{role}/return", f"{role}/length", f"{role}/entropy", f"{role}/kl"} <= set(row)
    assert set(evaluate(run, episodes=3, device=device)) == {"tagger", "runner"}


# --- what goes wrong ---


def ruin(learner: Any) -> None:
    next(learner.module.parameters()).data.view(-1)[0] = float("nan")


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
def test_weights_that_are_no_numbers_stop_the_run(env: str, tmp_path: Path, device: str) -> None:
    config = small(device, env, run_dir=str(tmp_path / "run"), checkpoint_interval=3)
    ours = Trainer(config, RunDirectory.create(config.run_dir, config))
    after(ours, 8, lambda: ruin(next(iter(ours.learners.values()))))
    with pytest.raises(DivergedError) as caught:
        ours.run(progress=False)
    message = str(caught.value)
    # on a GPU the host looks when a later iteration may have spread it
    assert re.match(
        r"iteration 9: (observations|values|log-probabilities|the parameters) of the policy '(agent|tagger)'", message
    )
    assert f"the last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'iteration-00000006.pt'}" in message
    check_checkpoints(tmp_path / "run", [3, 6])


def check_checkpoints(run: Path, iterations: list[int]) -> None:
    paths = Checkpoints(run / "checkpoints").paths()
    assert [int(path.stem.rpartition("-")[2]) for path in paths] == iterations
    for path in paths:
        for learner in load(path)["learners"].values():
            assert all(bool(torch.isfinite(tensor).all()) for tensor in learner["module"].values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_observation_that_is_no_number_stops_the_run(value: float, device: str) -> None:
    ours: Any = Trainer(small(device))
    after(ours, 4, lambda: ours.horizon_env.storage["agent"].observations[-1, 2].fill_(value))
    with pytest.raises(DivergedError, match=r"iteration 5: observations of the policy 'agent'.*there is no checkpoint"):
        ours.run(progress=False)


def test_a_checkpoint_of_weights_that_are_no_numbers_is_not_written(tmp_path: Path, device: str) -> None:
    """They may come of the last step of an update, whose own figures are finite still."""
    config = small(device, run_dir=str(tmp_path / "run"), checkpoint_interval=3)
    ours: Any = Trainer(config, RunDirectory.create(config.run_dir, config))
    after(ours, 6, lambda: ruin(ours.learners["agent"]))
    message = r"iteration 6: the parameters of the policy 'agent'.*iteration-00000003.pt"
    with pytest.raises(DivergedError, match=message):
        ours.run(progress=False)
    check_checkpoints(tmp_path / "run", [3])


def test_a_learning_rate_far_too_high_stops_the_run(device: str) -> None:
    with pytest.raises(DivergedError, match=r"of the policy 'agent' hold a NaN or an infinity.*learning_rate"):
        Trainer(small(device, learning_rate=1e37, hidden=(16,))).run(progress=False)


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
def test_mistakes_show_before_there_is_a_folder(
    settings: Mapping[str, Any], message: str, tmp_path: Path, device: str
) -> None:
    run = tmp_path / "run"
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        train(small(device, GRID, run_dir=str(run), **settings), progress=False)
    assert not run.exists()


def test_the_role_whose_return_is_aimed_at(device: str) -> None:
    for role, target, reason in (("tagger", -1e9, "target_return"), ("runner", 1e9, "total_steps")):
        config = small(device, FIELD, target_role=role, target_return=target, num_envs=16, total_steps=16 * 16 * 20)
        assert Trainer(config).run(progress=False).reason == reason


def test_what_needs_a_gpu_is_refused_without_one(device: str) -> None:
    if device == "cpu":
        with pytest.raises(ValueError, match="graphs=True needs a CUDA device"):
            Trainer(small(device, graphs=True))
        with pytest.raises(ValueError, match=r"fused=True, and .*; leave it out"):
            Trainer(small(device, fused=True))
        assert Trainer(small(device)).eager_because == "there are no CUDA graphs on a CPU"
    assert Trainer(small(device, graphs=False)).eager_because == "graphs are turned off"


# --- memory ---


def advice(config: Config, error: Exception, device: str = "cpu") -> str:
    """What is said where an allocator has raised an error."""
    with pytest.raises(MemoryError) as caught, memory.explain_shortage(config, device):
        raise error
    return str(caught.value)


@pytest.mark.parametrize(
    ("error", "need"),
    [
        (RuntimeError("can't allocate memory: you tried to allocate 8589934592 bytes."), "8.0 GiB"),
        (MemoryError("std::bad_alloc"), "there is"),
    ],
    ids=["torch", "numpy"],
)
def test_a_shortage_of_memory_says_what_to_lower(error: Exception, need: str) -> None:
    said = advice(usual("CartPole-v1", "cpu", num_envs=1000, horizon=50), error)
    assert said.startswith(f"1,000 replicas for a horizon of 50 need more than {need} on cpu")
    assert ": lower num_envs to 500, or horizon to 25" in said


@pytest.mark.parametrize("own", [False, True])
def test_a_shortage_names_the_setting_that_is_wrong(own: bool) -> None:
    """Widths whose weights alone are more than there is, and then such as fit; so with replicas."""
    wide: dict[str, Any] = {"hidden": (10**6, 10**7)}
    config = usual("CartPole-v1", "cpu", **({"policy_settings": {"agent": wide}} if own else wide))
    total = memory.memory_of("cpu")
    assert total is not None
    error = MemoryError(f"Unable to allocate {total * 3.99 / 2**40:.6f} TiB for an array")
    _, lower, widths = advice(config, error).partition("lower hidden to ")
    assert lower
    fitting, twice = (tuple(int(int(width) * of) for width in widths.split(",")) for of in (0.9, 2))
    assert "hidden to" not in advice(usual("CartPole-v1", "cpu", hidden=fitting), error)
    assert "hidden to" in advice(usual("CartPole-v1", "cpu", hidden=twice), error)
    assert "lower num_envs to 225, or" in advice(usual("CartPole-v1", "cpu", num_envs=1000), error)


def test_a_shortage_on_a_gpu_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 of 80 GiB are taken and 140 are asked for: 90 % of 80 GiB are 0.4 of that."""
    properties = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 40 * 2**30)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 140.00 GiB. GPU 0 has a total of 80 GiB")
    message = "need more than 180.0 GiB on cuda:0, which has 80.0 GiB: lower num_envs to 400, or horizon to 20"
    assert message in advice(usual("CartPole-v1", "cpu", num_envs=1000, horizon=50), error, "cuda:0")


def test_other_errors_pass() -> None:
    config = usual("CartPole-v1", "cpu")
    for error in (RuntimeError("something else"), ValueError("x")):
        with pytest.raises(type(error), match=str(error)), memory.explain_shortage(config, "cpu"):
            raise error


def test_the_environments_own_shortage_is_explained(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise MemoryError("Unable to allocate it")

    monkeypatch.setattr(trainer, "HorizonEnv", none_left)
    with pytest.raises(MemoryError, match="lower num_envs to 4, or horizon to 8"):
        Trainer(small(device))


# --- the process ---


def test_the_process_is_left_as_it_was(tmp_path: Path, device: str) -> None:
    torch.manual_seed(5)
    before = process()
    run = str(tmp_path / "run")
    config = small(device, precision="tf32", total_steps=8 * 16 * 3, run_dir=run, threads=2)
    ours = Trainer(config)
    ours.iterate(1)
    ours.evaluate(3)
    ours.run(progress=False)
    train(config, progress=False)
    resume(run, total_steps=8 * 16 * 4, progress=False)
    evaluate(run, episodes=3, device=device)
    assert process() == before
    spoilt = Trainer(config)
    after(spoilt, 1, lambda: ruin(spoilt.learners["agent"]))
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
    """They wait for one another without giving up their cores: many on few all but stand still."""
    with torch_threads("cpu", 512):
        assert torch.get_num_threads() == available_threads()


def test_training_elsewhere_than_in_the_main_thread(device: str) -> None:
    config = small(device, total_steps=8 * 16 * 3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: Trainer(config).run(progress=False)).result().reason == "total_steps"


def test_two_threads_train_one_after_the_other(device: str) -> None:
    """Beside one another they would share torch's random numbers, threads and captures: the second is refused."""
    config = small(device, total_steps=8 * 16 * 6)
    lone, ours = (Trainer(config, modules=seeded_dropout()) for _ in range(2))
    lone.run(progress=False)
    refused: list[str] = []

    def beside() -> None:
        things = (lambda: Trainer(config), lambda: lone.iterate(1), lambda: lone.evaluate(2))
        with ThreadPoolExecutor(1) as pool:
            refused.extend(str(pool.submit(thing).exception()) for thing in things)

    after(ours, 3, beside)
    ours.run(progress=False)
    assert len(refused) == 3
    assert all("another thread of this process" in message for message in refused)
    assert_same_bits(timeless(lone.state()), timeless(ours.state()))
    beside()  # now none is at work
    assert refused[3:] == ["None"] * 3


def test_a_second_ctrl_c_does_not_wait(device: str) -> None:
    ours = Trainer(small(device))
    before = signal.getsignal(signal.SIGINT)

    def press_twice() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    after(ours, 2, press_twice)
    with pytest.raises(KeyboardInterrupt):
        ours.run(progress=False)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_process_ignores_it_goes_on_ignoring() -> None:
    """As under nohup, or in the background of a shell script."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption() as pressed:
            for number in (signal.SIGHUP, signal.SIGTERM):
                signal.raise_signal(number)
                assert pressed.is_set() == (number is signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


# --- precisions ---


def test_getting_ready_learns_nothing(device: str) -> None:
    ours = Trainer(small(device, normalise_observations=True))
    before = ours.state()
    ours.prepare()
    assert_same_bits(timeless(before), timeless(ours.state()))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("shared", [False, True])
def test_every_precision_trains(precision: str, shared: bool, device: str) -> None:
    for env in ("CartPole-v1", "Pendulum-v1"):
        ours = Trainer(small(device, env, precision=precision, shared_trunk=shared))
        ours.iterate(3)
        learner: Any = next(iter(ours.learners.values()))
        assert np.isfinite(learner.figures.tolist()).all()
        assert all(tensor.dtype == torch.float32 for tensor in learner.state()["module"].values())


def test_training_and_iterating_are_the_same(device: str) -> None:
    config = small(device, total_steps=8 * 16 * 7, log_interval=3)
    run, iterated = Trainer(config), Trainer(config)
    run.run(progress=False)
    for count in (1, 4, 2):
        iterated.iterate(count)
    for state in (states := [timeless(one.state()) for one in (run, iterated)]):
        del state["recent"]  # iterating keeps no log
    assert_same_bits(states[0], states[1])
    assert run.returns == iterated.returns
