"""Recordings of environments and of runs."""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import IDS, TEAM_IDS, Place, assert_same_bits, numpy_of, restored_registry

import gpu_envs
from gpu_envs.backend import resolve_device
from gpu_envs.registry import catalog as registry
from gpu_envs.rendering.frames import tiled
from gpu_envs.rendering.painter import Painter
from gpu_envs.replays import record, recording
from gpu_envs.replays.recorded import TERMINATED

PARAMS: Mapping[str, Mapping[str, Any]] = {
    "TagContinuous-v0": {"num_taggers": 3, "num_runners": 7, "tagging_distance": 0.1},
    "CartPole-v1": {"length": "choice:0.3:0.5:0.8"},  # the pole looks longer from episode to episode
}
"""Parameters that make some environments smaller, or change their pictures from episode to episode."""


def spaces_of(env: Any) -> dict[str, Any]:
    return {"": env.action_space} if isinstance(env, gpu_envs.VectorEnv) else env.action_spaces


def scripted(env: Any, seed: int = 0) -> Any:
    """Return a policy that ignores observations: equal environments get equal actions."""
    spaces = {role: copy.deepcopy(space) for role, space in spaces_of(env).items()}
    for space in spaces.values():
        space.seed(seed)

    def act(*_: Any) -> Any:
        actions = {role: space.sample() for role, space in spaces.items()}
        return actions.get("", actions)

    return act


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_frames_equal_rendered_frames(env_id: str, device: str) -> None:
    """Frames of a replay are the same as frames rendered step by step with the same actions."""
    params = PARAMS.get(env_id, {})
    recorded = gpu_envs.make(env_id, 5, device=device, **params)
    replay = record(recorded, policy=scripted(recorded), replicas=[3, 0, 4], steps=30, seed=8)
    env = gpu_envs.make(env_id, 5, device=device, render_mode="rgb_array", **params)
    act = scripted(env)
    env.reset(seed=8)
    painter = Painter(env.device)
    assert replay.drawing is not None
    assert (replay.env, replay.frames, replay.steps, replay.replicas) == (env_id, 31, 30, 3)
    assert replay.numbers.tolist() == [3, 0, 4]
    distinct = set()
    for frame in range(31):
        state = {name: numpy_of(values)[[3, 0, 4]] for name, values in env.state.items()}
        assert_same_bits(state, {name: values[frame] for name, values in replay.state.items()})
        if frame % 6 == 0:
            picture, rendered = replay.picture(frame), np.array(env.render())[[3, 0, 4]]
            assert_same_bits(painter.paint(picture, replay.drawing.size), rendered)
            assert_same_bits(replay.pixels(frame, painter, (100, 80)), tiled(painter.paint(picture, (100, 80))))
            distinct.add(rendered.tobytes())
        if frame < 30:
            env.step(act(None))
    assert len(distinct) == 6


@pytest.mark.parametrize("env_id", ["CartPole-v1", "TagGridWorld-v0"])
def test_random_actions_do_not_advance_the_spaces_random_state(env_id: str, place: Place) -> None:
    recorded, other = (gpu_envs.make(env_id, 3, device=place.device, output=place.output) for _ in range(2))
    for env in (recorded, other):
        for space in spaces_of(env).values():
            space.seed(4)
    record(recorded, steps=3, seed=5)
    for space, other_space in zip(spaces_of(recorded).values(), spaces_of(other).values(), strict=True):
        assert_same_bits(space.sample(), other_space.sample())


def test_finished_replicas_repeat_a_faded_last_frame(device: str) -> None:
    """The last frame shows the terminal state: here, a pole beyond the angle limit."""
    replay = record("CartPole-v1", replicas=9, device=device)
    assert len(set(replay.last.tolist())) > 1
    assert (replay.ends[replay.last, np.arange(9)] == TERMINATED).all()
    theta = np.abs(replay.state["theta"])
    limit = 12 * 2 * math.pi / 360
    for replica, last in enumerate(replay.last):
        assert theta[last, replica] > limit
        assert (theta[:last, replica] <= limit).all()
        assert (theta[last:, replica] == theta[last, replica]).all()  # not the next episode's
    first = int(replay.last.argmin())
    end = replay.steps
    painter = Painter(resolve_device(device))
    assert_same_bits(
        [shape.points[first] for shape in replay.picture(end).shapes],
        [shape.points[first] for shape in replay.picture(int(replay.last[first])).shapes],
    )
    plain = painter.paint(replay.picture(end), (200, 133))
    shown = replay.pixels(end, painter, (200, 133))
    faded = [i for i in range(9) if replay.last[i] < end]
    for i, frame in enumerate(plain):
        pale = np.rint(frame * 0.5 + 255 * 0.5).astype(np.uint8)
        top, left = i // 3 * 135, i % 3 * 202
        assert_same_bits(shown[top : top + 133, left : left + 200], pale if i in faded else frame)
    assert 0 < len(faded) < 9


def test_parameters_per_replica(device: str) -> None:
    lengths = np.linspace(0.2, 1.0, 5)
    env = gpu_envs.make("CartPole-v1", 5, device=device, length=lengths)
    replay = record(env, replicas=[4, 1], steps=3, seed=0)
    assert replay.params["length"] == pytest.approx(lengths[[4, 1]])
    assert replay.params["gravity"] == 9.8
    long, short = (replay.picture(2).shapes[2].points[i, 0] for i in (0, 1))
    assert np.ptp(long[:, 1]) > 2 * np.ptp(short[:, 1])


def test_step_limit_without_a_time_limit(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(recording, "MAX_EPISODE_STEPS", 40)
    replay = record("Pendulum-v1", replicas=2, params={"max_episode_steps": -1}, device=device)
    assert replay.steps == 40
    assert not replay.ends.any()
    assert len(replay.returns()["agent"]) == 0


def test_default_number_of_replicas(device: str) -> None:
    assert record("Pendulum-v1", steps=1, device=device).replicas == 9
    assert record(gpu_envs.make("Pendulum-v1", 4, device=device), steps=1, seed=0).replicas == 4
    assert record(gpu_envs.make("Pendulum-v1", 40, device=device), steps=1, seed=0).replicas == 9


def test_seeds(device: str) -> None:
    first, same, other = (record("Acrobot-v1", steps=20, seed=s, device=device) for s in (1, 1, 2))
    assert_same_bits(first.state, same.state)
    assert not np.array_equal(first.state["theta1"], other.state["theta1"])


def test_environments_without_a_drawing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their recordings are those of the same environment with a drawing, and have a page, but no video or window."""
    undrawn = dataclasses.replace(registry.env_spec("CartPole-v1"), id="Undrawn-v0", drawing=None)
    monkeypatch.setitem(registry.SPECS, "Undrawn-v0", undrawn)
    replay = record("Undrawn-v0", replicas=2, steps=9, device="cpu")
    assert_same_bits(replay.state, record("CartPole-v1", replicas=2, steps=9, device="cpu").state)
    assert replay.frames_a_second == 30
    replay.save_html(tmp_path / "a.html")
    message = "Undrawn-v0 has no drawing, which videos and windows need: save a page"
    for fails in (lambda: replay.save_video(tmp_path / "a.gif"), replay.show, lambda: replay.picture(0)):
        with pytest.raises(ValueError, match=message):
            fails()
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps is 0; give an integer of 1 or more"),
        ({"episodes": -1}, ValueError, "episodes is -1"),
        ({"steps": 2.5}, ValueError, r"steps is 2\.5; give an integer of 1 or more"),
        ({"episodes": True}, ValueError, "episodes is True; give an integer"),
        ({"seed": "a"}, TypeError, "a seed must be an integer.* got 'a'"),
        ({"policy": "random"}, TypeError, "policy is 'random'; give a function.* None for random actions"),
        ({"policies": "random"}, TypeError, "policies is 'random'; give a dict by name"),
        ({"params": ["gravity"]}, TypeError, r"params is \['gravity'\]; give a dict by name"),
        ({"steps": 3, "episodes": 2}, ValueError, "give only one"),
        ({"seed": -1}, ValueError, "seed must not be negative; got -1"),
        ({"replicas": 0}, ValueError, "replicas is 0; give an integer from 1 to 64"),
        ({"replicas": 65}, ValueError, "replicas is 65"),
        ({"replicas": True}, ValueError, "replicas is True"),
        ({"replicas": [1, 2]}, TypeError, "give the number of replicas to record of 'CartPole-v1'"),
        ({"params": {"gravty": 1}}, ValueError, r"Did you mean 'gravity'\?"),
        ({"modules": {"agent": None}}, ValueError, "modules is for runs, and 'CartPole-v1' is an environment id"),
        ({"policy": len, "policies": {"agent": "random"}}, ValueError, "leave one out"),
        ({"device": "gpu"}, ValueError, "device is 'gpu'"),
    ],
)
def test_wrong_arguments_for_an_id(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    if "policies" in arguments:
        pytest.importorskip("torch")
    with pytest.raises(error, match=message):
        record("CartPole-v1", **({"device": "cpu"} | arguments))


def test_a_file_and_name_is_an_environment_unless_a_folder_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = 'dataclasses.replace(CARTPOLE_V1, id="Placed-v0")'
    (tmp_path / "placed.py").write_text(
        f"import dataclasses\nfrom gpu_envs.envs.cartpole import CARTPOLE_V1\nPLACED = {spec}\n"
    )
    with restored_registry():
        assert record("placed.py:PLACED", steps=2, replicas=1, device="cpu").env == "Placed-v0"
    (tmp_path / "placed:PLACED").mkdir()
    pytest.importorskip("torch")
    with pytest.raises(FileNotFoundError, match="placed:PLACED"):
        record("placed:PLACED", device="cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": 4}, "replicas is 4, but the environment has 3"),
        ({"replicas": [0, 3]}, "replicas has number 3; the environment has replicas 0 to 2"),
        ({"replicas": []}, r"replicas is \[\]"),
        ({"params": {"gravity": 1}}, "params is for a run or an environment id"),
    ],
)
def test_wrong_arguments_for_an_environment(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        record(gpu_envs.make("CartPole-v1", 3, device="cpu"), seed=0, **arguments)


def test_missing_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "cart").mkdir(parents=True)
    (tmp_path / "runs" / "cart" / "config.json").write_text("{}")
    with pytest.raises(
        gpu_envs.UnknownEnvironmentError, match=r"no environment .* named 'CartPol'\. Did you mean 'CartPole-v1'\?"
    ):
        record("CartPol")
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match=r"Did you mean 'runs/cart'\?"):
        record("cart")
    pytest.importorskip("torch")
    with pytest.raises(FileNotFoundError, match=r"directory runs/cat does not exist; .*\. Did you mean 'runs/cart'\?"):
        record("runs/cat")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        record(Path("CartPole-v1"))  # a Path is never an id
    from trainers import small_run

    from gpu_envs.training import RunDirectory

    RunDirectory.create(tmp_path / "empty", small_run("cpu"))
    with pytest.raises(gpu_envs.errors.CheckpointError, match="no checkpoint yet: there is nothing to play"):
        record(tmp_path / "empty", device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a small run at first use and returns its folder."""
    torch = pytest.importorskip("torch")
    from trainers import GRID, small_run

    from gpu_envs.training import train

    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def trained(env: str) -> Path:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        params = {"params": {"max_episode_steps": 20, "grid_length": 3}} if env == GRID else {}
        run = small_run("cpu", env, total_steps=8 * 16 * 12, run_dir=str(folder / env), fused=False, **params)
        train(run, progress=False)
        torch.set_num_threads(before)
        return folder / env

    return trained


@pytest.mark.fast_cases(2)
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "TagGridWorld-v0", "TagContinuous-v0"])
@pytest.mark.parametrize(("greedy", "seed"), [(True, None), (False, None), (True, 5)])
def test_replays_of_runs_equal_evaluations(
    env: str, greedy: bool, seed: int | None, runs: Callable[[str], Path], device: str
) -> None:
    """The first episodes have the same returns and metrics."""
    from gpu_envs.training import evaluate

    replay = record(runs(env), replicas=6, greedy=greedy, seed=seed, device=device)
    evaluation = evaluate(runs(env), episodes=6, greedy=greedy, seed=seed, device=device)
    assert list(replay.agents) == list(evaluation)
    for role, returns in replay.returns().items():
        assert len(returns) == 6
        assert returns.mean() == pytest.approx(evaluation[role].mean, rel=1e-5, abs=1e-5)
        assert returns.std(ddof=1) == pytest.approx(evaluation[role].std, rel=1e-4, abs=1e-4)
        for metric, value in evaluation[role].metrics.items():
            assert replay.metrics[metric][replay.last, np.arange(6)].mean() == pytest.approx(value.mean, rel=1e-5)
    assert replay.title == env  # the run's name starts with the environment's
    assert replay.facts["Trained for"] == "1,536 steps"
    assert replay.facts["Run"] == env
    assert ("greedy" in replay.facts["Actions"]) == greedy
    if seed is not None:
        assert replay.facts["Seed"] == str(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_return_in_training_is_the_logged_one(runs: Callable[[str], Path]) -> None:
    for env, roles in (("CartPole-v1", [""]), ("TagContinuous-v0", ["tagger/", "runner/"])):
        header, *_, last = (runs(env) / "log.csv").read_text().splitlines()
        logged = dict(zip(header.split(","), last.split(","), strict=True))
        fact = record(runs(env), replicas=1, steps=1, device="cpu").facts["Return in training"]
        values = [f"{float(logged[f'{role}return']):.6g}" for role in roles]
        names = ["tagger ", "runner "] if len(roles) > 1 else [""]
        assert fact == ", ".join(name + value for name, value in zip(names, values, strict=True))


@pytest.mark.usefixtures("one_thread")
def test_replacing_policies_of_a_run(runs: Callable[[str], Path], device: str) -> None:
    run = runs("TagGridWorld-v0")
    trained = record(run, replicas=3, device=device, steps=15)
    with_random = record(run, replicas=3, device=device, policies={"runner": "random"}, steps=15)
    assert with_random.facts["Policies"] == "runner: random"
    assert_same_bits(trained.state["x"][0], with_random.state["x"][0])
    assert not np.array_equal(trained.state["x"], with_random.state["x"])
    frozen = record(
        "TagGridWorld-v0",
        replicas=3,
        device=device,
        params={"max_episode_steps": 20, "grid_length": 3},
        policies={"tagger": f"frozen:{run}", "runner": f"frozen:{run}"},
        seed=int(trained.facts["Seed"]),
        steps=15,
    )
    assert_same_bits(trained.state, frozen.state)
    assert record("TagGridWorld-v0", policies={"runner": "random"}, steps=2, device=device).steps == 2
    with pytest.raises(ValueError, match="'mine' is not a policy: TagGridWorld-v0 is an environment"):
        record("TagGridWorld-v0", policies={"runner": "mine"}, device=device)
    with pytest.raises(ValueError, match=r"Did you mean 'runner'\?"):
        record(run, policies={"runer": "random"}, device=device)
    with pytest.raises(ValueError, match="policy is not for runs, which have policies"):
        record(run, policy=len, device=device)


@pytest.mark.usefixtures("one_thread")
def test_a_run_with_other_parameters(runs: Callable[[str], Path], device: str) -> None:
    replay = record(runs("CartPole-v1"), replicas=2, steps=4, params={"length": 0.9}, device=device)
    assert replay.params["length"] == 0.9
    assert replay.facts["Parameters"] == "length = 0.9"


@pytest.mark.usefixtures("one_thread")
def test_recording_keeps_torchs_random_state(runs: Callable[[str], Path]) -> None:
    import torch

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    record(runs("CartPole-v1"), replicas=2, steps=4, greedy=False, device="cpu")
    assert torch.equal(torch.rand(2), expected)
