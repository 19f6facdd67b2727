"""Evaluation over full episodes, the same number per replica, so that short episodes are not overrepresented.

Also the policies of a run in a loop that the user writes.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from registered import needs_cuda
from trainers import FIELD, GRID, MODULE_SETTINGS, last_checkpoint, off_policy_run, small_run, without_times

torch = pytest.importorskip("torch")

from dropout_policy import DropoutPolicy  # noqa: E402

import gpu_envs  # noqa: E402
import gpu_envs.replays  # noqa: E402
from gpu_envs import evaluating  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.seeds import derived_seed  # noqa: E402
from gpu_envs.training import RunDirectory, Trainer, evaluate, load_policies, resume, train  # noqa: E402
from gpu_envs.training.rollout import evaluation  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_with_drawn_parameters_is_evaluated_and_shown(tmp_path: Path, device: str) -> None:
    """With the parameters of training, or others; also after resuming."""
    params = {"pole_mass": gpu_envs.Uniform(0.05, 0.4), "observe_params": ["pole_mass", "gravity"]}
    config = small_run(device, params=params, run_dir=str(tmp_path / "run"), total_steps=8 * 16 * 4)
    train(config, progress=False)
    assert RunDirectory.open(tmp_path / "run").config().params == {**params, "pole_mass": "uniform:0.05:0.4"}
    assert evaluate(tmp_path / "run", episodes=20, device=device)["agent"].episodes == 20
    others = {"pole_mass": 0.1, "gravity": gpu_envs.Choice(9, 10)}
    env = load_policies(tmp_path / "run", params=others, device=device).make(30)
    assert set(numpy_of(env.reset(seed=0)[0])[:, 5].tolist()) == {9, 10}
    assert (numpy_of(env.reset(seed=0)[0])[:, 4] == np.float32(0.1)).all()
    replay = gpu_envs.replays.record(tmp_path / "run", episodes=3, device=device)
    assert replay.facts["Parameters"].startswith("pole_mass = uniform:0.05:0.4")
    assert len(np.unique(replay.drawn["pole_mass"][: replay.last[0] + 1, 0])) == 3
    assert resume(tmp_path / "run", total_steps=8 * 16 * 6, progress=False).steps == 8 * 16 * 6


@pytest.mark.parametrize("env", ["CartPole-v1", GRID])
@pytest.mark.parametrize(("episodes", "num_envs"), [(6, None), (21, 5)])
def test_evaluation_matches_a_plain_loop(episodes: int, num_envs: int | None, env: str, device: str) -> None:
    """Greedy actions need no random numbers, so that a loop over an autoreset environment gives the same numbers."""
    config = small_run(device, env, fused=False, params={"max_episode_steps": 40} if env == GRID else {})
    trainer = Trainer(config)
    trainer.iterate(2)
    found = trainer.evaluate(episodes, greedy=True, seed=11, num_envs=num_envs)
    count = num_envs or episodes
    each = -(-episodes // count)
    other = gpu_envs.make(env, count, device=device, output="torch", autoreset_mode="SameStep", **config.params)
    observations, _ = other.reset(seed=derived_seed(11, "evaluation"))
    teams = env == GRID
    episodes_of: dict[str, list[list[list[float]]]] = {name: [[] for _ in range(count)] for name in trainer.learners}
    while any(len(one) < each for of_role in episodes_of.values() for one in of_role):
        actions: Any = {}
        for name, learner in trainer.learners.items():
            rows = (observations[name] if teams else observations).reshape(-1, learner.policy_rows.features)
            with torch.no_grad():
                actions[name] = learner.module(rows)[0].argmax(-1).view(count, -1)
        observations, *_, infos = other.step(actions if teams else actions["agent"][:, 0])
        for name, by_replica in episodes_of.items():
            both = [infos["episode"][key][name] if teams else infos["episode"][key] for key in ("r", "l")]
            for replica in np.flatnonzero(numpy_of(infos["_episode"])):
                by_replica[replica].append([each[replica].double().mean().item() for each in both])
    assert set(found) == set(trainer.learners)
    for name, by_replica in episodes_of.items():
        counted = np.array([one[:each] for one in by_replica]).reshape(-1, 2)
        assert found[name].episodes == len(counted) == each * count
        # the environment sums rewards of hundreds of steps in float32
        assert found[name].mean == pytest.approx(counted[:, 0].mean(), rel=1e-5, abs=1e-5)
        assert found[name].std == pytest.approx(counted[:, 0].std(ddof=1), rel=1e-4, abs=1e-5)
        assert found[name].interval == pytest.approx(1.96 * found[name].std / math.sqrt(len(counted)), rel=1e-12)
        assert found[name].length == pytest.approx(counted[:, 1].mean(), rel=1e-12)


@pytest.mark.parametrize("num_envs", [None, 5])
def test_metrics_and_lengths_use_the_same_episodes(num_envs: int | None, device: str) -> None:
    """In TagGridWorld a runner's length is the number of steps that it survives, plus the step of the tag."""
    trainer = Trainer(small_run(device, GRID, params={"max_episode_steps": 20, "grid_length": 4}))
    found = trainer.evaluate(40, num_envs=num_envs, greedy=False)
    tags, survival = found["runner"].metrics["tags"], found["runner"].metrics["survival"]
    assert found["tagger"].metrics == found["runner"].metrics
    assert 0 < tags.mean < 1
    assert tags.std == pytest.approx(math.sqrt(tags.mean * (1 - tags.mean) * 40 / 39))
    assert survival.interval == pytest.approx(1.96 * survival.std / math.sqrt(40))
    assert tags.mean + survival.mean == pytest.approx(found["runner"].length)


def test_an_evaluation_depends_on_its_seed_and_does_not_affect_training(device: str) -> None:
    config = small_run(device, FIELD, normalise_observations=True, normalise_rewards=True)
    trainer, undisturbed = Trainer(config), Trainer(config)
    trainer.iterate(2)
    before = without_times(trainer.state())
    ways = ((1, False), (1, False), (2, False), (1, True))
    results = [trainer.evaluate(10, seed=seed, greedy=greedy) for seed, greedy in ways]
    assert_same_bits(before, without_times(trainer.state()))
    assert results[0] == results[1]
    assert results[0] != results[2]
    assert results[0] != results[3]
    assert trainer.evaluate(10) == trainer.evaluate(10)  # with the default seed, derived from the run's
    trainer.iterate(2)
    undisturbed.iterate(4)
    assert_same_bits(without_times(undisturbed.state()), without_times(trainer.state()))


def test_numbers_of_episodes_and_replicas(device: str) -> None:
    trainer = Trainer(small_run(device))
    one = trainer.evaluate(1)["agent"]
    assert (one.episodes, one.std, one.interval) == (1, 0.0, 0.0)
    for episodes, num_envs, counted in ((7, 3, 9), (6, 100, 6)):
        assert trainer.evaluate(episodes, num_envs=num_envs)["agent"].episodes == counted
    for name, number in (("episodes", 0), ("num_envs", 0), ("num_envs", -1)):
        wrong: dict[str, Any] = {name: number}
        with pytest.raises(ValueError, match=f"{name} is {number}"):
            trainer.evaluate(**wrong)


def test_an_endless_episode_raises(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "MAX_EPISODE_STEPS", 100)
    trainer = Trainer(small_run(device, "Pendulum-v1", params={"max_episode_steps": -1}))
    with pytest.raises(RuntimeError, match="needs over 100 steps for 1 episode: limit them"):
        trainer.evaluate(2)


@pytest.mark.parametrize(("limit", "shown"), [(20, "100%"), (-1, "  0%  0 episodes/s  no episode has ended yet")])
def test_an_evaluation_shows_its_progress(
    limit: int, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "MAX_EPISODE_STEPS", 100)
    run, given = str(tmp_path / "run"), {"max_episode_steps": limit}
    train(small_run("cpu", "Pendulum-v1", params=given, run_dir=run, total_steps=8 * 16), progress=False)
    with pytest.raises(RuntimeError) if limit < 0 else contextlib.nullcontext():
        evaluate(run, episodes=4, device="cpu", progress=True)
    assert shown in capsys.readouterr().err
    with pytest.raises(RuntimeError) if limit < 0 else contextlib.nullcontext():
        evaluate(run, episodes=4, device="cpu", progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
def test_evaluating_a_run_matches_evaluating_its_trainer(env: str, tmp_path: Path, device: str) -> None:
    run = str(tmp_path / "run")
    others = {"policies": {"runner": "random"}} if env == GRID else {}
    config = small_run(
        device, env, total_steps=8 * 16 * 3, run_dir=run, normalise_observations=True, fused=False, **others
    )
    train(config, progress=False)
    trainer = Trainer(config)
    trainer.load(last_checkpoint(run, trainer.device))
    for greedy in (True, False):
        found = evaluate(run, episodes=12, greedy=greedy, device=device, num_envs=4)
        assert found == trainer.evaluate(12, greedy=greedy, num_envs=4)
        policies = load_policies(run, device=device, policies=others.get("policies"))
        own_env = policies.make(4, autoreset_mode="SameStep")
        again = gpu_envs.evaluate(policies.acting_in(own_env, greedy=greedy), own_env, episodes=12, seed=policies.seed)
        assert again == found
        assert_same_bits([each.returns for each in again.values()], [each.returns for each in found.values()])
    assert evaluate(run, episodes=12, device=device, seed=5) != evaluate(run, episodes=12, device=device, seed=6)


def test_frozen_policies_are_independent_of_their_run(tmp_path: Path, device: str) -> None:
    source, run = tmp_path / "source", str(tmp_path / "run")
    policies = {"runner": f"frozen:{source}"}
    for folder, others in ((str(source), {}), (run, policies)):
        train(small_run(device, GRID, total_steps=1, run_dir=folder, policies=others), progress=False)
    own = evaluate(source, episodes=5, device=device)
    assert evaluate(source, episodes=5, device=device, policies={"runner": "random"}) != own
    assert evaluate(source, episodes=5, device=device, policies=policies) == own
    with pytest.raises(CheckpointError, match="has no policy 'x'; it has tagger, runner"):
        evaluate(source, episodes=5, device=device, policies={"runner": "x"})
    before = evaluate(run, episodes=5, device=device)
    shutil.rmtree(source)
    assert evaluate(run, episodes=5, device=device) == before
    assert resume(run, total_steps=8 * 16 * 2, progress=False).iterations == 2
    with pytest.raises(FileNotFoundError, match="does not exist"):
        evaluate(run, episodes=5, device=device, policies=policies)


def test_errors_of_evaluations(tmp_path: Path, device: str) -> None:
    RunDirectory.create(tmp_path / "empty", small_run(device))
    with pytest.raises(CheckpointError, match="no checkpoint yet: there is nothing to evaluate"):
        evaluate(str(tmp_path / "empty"), device=device)

    run = str(tmp_path / "own")
    config = small_run(device, total_steps=300, run_dir=run, normalise_observations=True, **MODULE_SETTINGS)
    train(config, progress=False, modules={"agent": DropoutPolicy(0.0)})
    with pytest.raises(CheckpointError, match="a module that you gave, which must be given again as modules="):
        evaluate(run, device=device)
    trainer = Trainer(config, modules={"agent": DropoutPolicy(0.0)})
    trainer.load(last_checkpoint(run, trainer.device))
    module = DropoutPolicy(0.0)
    for greedy in (True, False):
        found = evaluate(run, episodes=7, greedy=greedy, device=device, modules={"agent": module})
        assert found == trainer.evaluate(7, greedy=greedy)
    assert_same_bits(module.state_dict(), trainer.learners["agent"].module.state_dict())  # now trained
    with pytest.raises(ValueError, match=r"modules names 'agnet', which is not a learning policy. Did you mean 'ag"):
        evaluate(run, device=device, modules={"agnet": DropoutPolicy(0.0)})
    with pytest.raises(CheckpointError, match=r"the module given for the policy .*own:agent has other parameters"):
        evaluate(run, device=device, modules={"agent": torch.nn.Linear(4, 3)})


@pytest.mark.parametrize("episodes", [3, 8, 20])
def test_parameters_by_replica_are_repeated(episodes: int, tmp_path: Path, device: str) -> None:
    """If the pole may not lean, an episode is one step; otherwise it is truncated after three, before a fall."""
    limits = np.array([1, 3, 3, 1, 3, 1, 1, 3])
    run = str(tmp_path / "run")
    params = {"theta_threshold_radians": np.where(limits == 1, 1e-6, 0.2), "max_episode_steps": 3}
    trained = small_run(device, params=params, total_steps=1, run_dir=run)
    played = limits[np.arange(episodes) % 8]
    train(trained, progress=False)
    trainer = Trainer(trained)
    for found in (evaluate(run, episodes=episodes, device=device), trainer.evaluate(episodes)):
        assert found["agent"].length == pytest.approx(played.mean(), rel=1e-15)  # (the order of sums may differ)
        assert found["agent"].length_interval == pytest.approx(1.96 * played.std(ddof=1) / math.sqrt(episodes))
    assert evaluate(run, episodes=10, num_envs=3, device=device)["agent"].length == pytest.approx(7 / 3, rel=1e-15)
    others = {"theta_threshold_radians": 1e-6}
    assert evaluate(run, episodes=episodes, params=others, device=device)["agent"].length == 1


def test_an_evaluation_out_of_memory_names_its_replicas(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate it")

    trainer = Trainer(small_run(device))
    monkeypatch.setattr(evaluation, "HorizonEnv", none_left)
    message = f"^100 replicas need more memory than is free on {trainer.device}: lower num_envs to 50 "
    with pytest.raises(MemoryError, match=message):
        trainer.evaluate(200, num_envs=100)


# --- in the user's loop ---


@pytest.fixture(scope="module")
def negotiation_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained run with action masks and shared observations; other games are in tests/replays."""
    folder = tmp_path_factory.mktemp("runs") / "RiceN-v0"
    params = {"num_regions": 3, "negotiation": True}
    train(small_run("cpu", "RiceN-v0", total_steps=8 * 16, run_dir=str(folder), params=params), progress=False)
    return folder


@pytest.mark.parametrize("greedy", [True, False])
def test_policies_act_as_in_an_evaluation(greedy: bool, device: str, negotiation_run: Path) -> None:
    found = evaluate(negotiation_run, episodes=6, greedy=greedy, device=device, seed=5)
    policies = load_policies(negotiation_run, device=device)
    env = policies.make(6, autoreset_mode="SameStep")
    act = policies.acting_in(env, greedy=greedy, seed=5)
    observations, _ = env.reset(seed=derived_seed(5, "evaluation"))
    infos: dict[str, Any] = {"_episode": torch.zeros(6)}
    while not infos["_episode"].any():  # all episodes have the same length
        observations, *_, infos = env.step(act(observations))
    returns = {role: each.double().mean().item() for role, each in infos["episode"]["r"].items()}
    assert returns == {role: pytest.approx(each.mean, rel=1e-12) for role, each in found.items()}
    act = policies.acting_in(env, greedy=greedy, seed=5)
    assert gpu_envs.evaluate(act, env, episodes=6, seed=5) == found


@pytest.mark.parametrize("settings", [{}, {"algorithm": "td3", "gradient_steps": 2, "exploration": "ou"}])
def test_the_callers_autocast_has_no_effect(settings: dict[str, Any], tmp_path: Path, device: str) -> None:
    """On training, on evaluation, and on policies in the user's loop."""
    make, found = off_policy_run if settings else small_run, []
    for cast in (False, True):
        run = str(tmp_path / f"run-{cast}")
        with torch.autocast(device, torch.bfloat16, enabled=cast):
            config = make(device, "Pendulum-v1", total_steps=8 * 16 * 3, run_dir=run, fused=False, **settings)
            train(config, progress=False)
            policies = load_policies(run, device=device)
            env = policies.make(4)
            actions = policies.acting_in(env)(env.reset(seed=1)[0])
        learnt = last_checkpoint(run)["learners"]
        found.append((learnt, actions.clone(), evaluate(run, episodes=4, device=device)["agent"].mean))
    assert_same_bits(found[0], found[1])


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_callers_grad_mode_and_dtype_have_no_effect(device: str) -> None:
    found = []
    for context in (contextlib.nullcontext, torch.no_grad, torch.inference_mode, doubles):
        with context():
            trainer = Trainer(small_run(device))
            trainer.iterate(1)
            found.append((trainer.state()["learners"], trainer.evaluate(4)["agent"].mean))
    for other in found[1:]:
        assert_same_bits(found[0], other)


def test_policies_act_with_the_threads_of_the_run(negotiation_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's default, a thread per core, is many times slower with few replicas."""
    policies = load_policies(negotiation_run, device="cpu")
    assert policies.config.torch_threads == 1
    env = policies.make(2)
    act, threads, inner = policies.acting_in(env), [], evaluation.Players.act

    def spied(*arguments: Any, **options: Any) -> Any:
        threads.append(torch.get_num_threads())
        return inner(*arguments, **options)

    monkeypatch.setattr(evaluation.Players, "act", spied)
    torch.set_num_threads(2)  # the fixture restores it
    act(env.reset(seed=0)[0])
    assert (threads, torch.get_num_threads()) == ([1], 2)


def test_environments_that_do_not_fit_are_refused(negotiation_run: Path) -> None:
    policies = load_policies(negotiation_run, device="cpu")
    for env, message in (
        (
            gpu_envs.make("RiceN-v0", 2, device="cpu", output="numpy"),
            r"arrays of numpy, .* make it with output='torch', or by make",
        ),
        (gymnasium.make("CartPole-v1"), r"arrays of another library, "),
        (
            gpu_envs.make("RiceN-v0", 2, device="cpu", output="torch", negotiation=True),
            r"act for 3 region with \d+ features .*, but the environment has 27 region",
        ),
        (
            gpu_envs.make("CartPole-v1", 2, device="cpu", output="torch"),
            r"act for 3 region .*, but the environment has 1 agent",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            policies.acting_in(env)


@needs_cuda
@pytest.mark.cuda
def test_devices_of_policies_and_environment_must_agree(negotiation_run: Path) -> None:
    policies = load_policies(negotiation_run, device="cpu")
    with pytest.raises(ValueError, match=r"the environment is on cuda:0, but the policies are on cpu; load them with"):
        policies.acting_in(gpu_envs.make("CartPole-v1", 2, device="cuda", output="torch"))
