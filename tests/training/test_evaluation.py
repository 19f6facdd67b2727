"""Evaluations: full episodes, equally many of every replica, so that short ones are no likelier to be counted."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import FIELD, GRID, saved, small, timeless

torch = pytest.importorskip("torch")

from dropping import Dropping  # noqa: E402

import gpu_envs  # noqa: E402
import gpu_envs.replays  # noqa: E402
from gpu_envs.errors import CheckpointError  # noqa: E402
from gpu_envs.seeds import derived_seed  # noqa: E402
from gpu_envs.training import RunDirectory, Trainer, evaluate, load_policies, resume, train  # noqa: E402
from gpu_envs.training.rollout import evaluation  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_short_episodes_are_no_likelier_to_be_counted(device: str) -> None:
    """Of an undecided policy: 1,600 first episodes, and 100 of each of 16 replicas, have the same mean."""
    trainer = Trainer(small(device))
    first = trainer.evaluate(1600, seed=1, greedy=False)["agent"]
    many = trainer.evaluate(1600, seed=2, num_envs=16, greedy=False)["agent"]
    assert first.episodes == many.episodes == 1600
    apart = abs(first.mean - many.mean) / math.hypot(first.interval, many.interval)
    assert apart < 2  # nearly four deviations
    assert 18 < first.mean < 28  # CartPole under random actions lasts about 22 steps
    assert first.mean == first.length
    assert first.interval == pytest.approx(1.96 * first.std / 40)


def test_a_run_with_drawn_parameters_is_evaluated_and_shown(tmp_path: Path, device: str) -> None:
    """With those of training, or with others; and resumed."""
    params = {"pole_mass": gpu_envs.Uniform(0.05, 0.4), "observe_params": ["pole_mass", "gravity"]}
    config = small(device, params=params, run_dir=str(tmp_path / "run"), total_steps=8 * 16 * 4)
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
def test_the_numbers_of_a_plain_loop(episodes: int, num_envs: int | None, env: str, device: str) -> None:
    """Greedy actions need no random numbers; the loop steps an environment that resets itself, and looks at it all."""
    config = small(device, env, fused=False, params={"max_episode_steps": 40} if env == GRID else {})
    trainer = Trainer(config)
    trainer.iterate(2)
    found = trainer.evaluate(episodes, greedy=True, seed=11, num_envs=num_envs)
    count = num_envs or episodes
    each = -(-episodes // count)
    other = gpu_envs.make(env, count, device=device, output="torch", autoreset_mode="SameStep", **config.params)
    observations, _ = other.reset(seed=derived_seed(11, "evaluation"))
    teams = env == GRID
    episodes_of: dict[str, list[list[tuple[float, float]]]] = {
        name: [[] for _ in range(count)] for name in trainer.learners
    }
    running: dict[str, Any] = {}

    def of(array: Any, role: str) -> np.ndarray:
        found: np.ndarray = numpy_of(array[role]) if teams else numpy_of(array)[:, None]
        return found

    while any(len(one) < each for of_role in episodes_of.values() for one in of_role):
        actions: Any = {}
        for name, learner in trainer.learners.items():
            rows = (observations[name] if teams else observations).reshape(-1, learner.policy_rows.features)
            with torch.no_grad():
                actions[name] = learner.module(rows)[0].argmax(-1).view(count, -1)
        observations, rewards, terminations, truncations, infos = other.step(
            actions if teams else actions["agent"][:, 0]
        )
        over = numpy_of(infos["_final_obs"])
        for name in trainer.learners:
            reward = of(rewards, name).astype(np.float64)
            total, length = running.get(name, (np.zeros_like(reward), np.zeros_like(reward)))
            out = running.get(f"{name} out", np.zeros(reward.shape, bool))
            total, length = total + reward, length + ~out
            out |= of(terminations, name) | of(truncations, name)
            for replica in np.flatnonzero(over):
                episodes_of[name][replica].append((total[replica].mean(), length[replica].mean()))
            total[over], length[over], out[over] = 0, 0, False
            running |= {name: (total, length), f"{name} out": out}
    assert set(found) == set(trainer.learners)
    for name, by_replica in episodes_of.items():
        counted = np.array([one[:each] for one in by_replica]).reshape(-1, 2)
        assert found[name].episodes == len(counted) == each * count
        # rewards of hundreds of steps were added up in float32 by the environment
        assert found[name].mean == pytest.approx(counted[:, 0].mean(), rel=1e-5, abs=1e-5)
        assert found[name].std == pytest.approx(counted[:, 0].std(ddof=1), rel=1e-4, abs=1e-5)
        assert found[name].interval == pytest.approx(1.96 * found[name].std / math.sqrt(len(counted)), rel=1e-12)
        assert found[name].length == pytest.approx(counted[:, 1].mean(), rel=1e-12)


@pytest.mark.parametrize("num_envs", [None, 5])
def test_metrics_are_of_the_same_episodes(num_envs: int | None, device: str) -> None:
    """In TagGridWorld a runner is in the game for as many steps as it survives, and for that in which it is tagged."""
    trainer = Trainer(small(device, GRID, params={"max_episode_steps": 20, "grid_length": 4}))
    found = trainer.evaluate(40, num_envs=num_envs, greedy=False)
    tags, survival = found["runner"].metrics["tags"], found["runner"].metrics["survival"]
    assert found["tagger"].metrics == found["runner"].metrics
    assert 0 < tags.mean < 1
    assert tags.std == pytest.approx(math.sqrt(tags.mean * (1 - tags.mean) * 40 / 39))
    assert survival.interval == pytest.approx(1.96 * survival.std / math.sqrt(40))
    assert tags.mean + survival.mean == pytest.approx(found["runner"].length)


def test_an_evaluation_is_of_its_seed_and_leaves_training_alone(device: str) -> None:
    config = small(device, FIELD, normalise_observations=True, normalise_rewards=True)
    trainer, undisturbed = Trainer(config), Trainer(config)
    trainer.iterate(2)
    before = timeless(trainer.state())
    ways = ((1, False), (1, False), (2, False), (1, True))
    results = [trainer.evaluate(10, seed=seed, greedy=greedy) for seed, greedy in ways]
    assert_same_bits(before, timeless(trainer.state()))
    assert results[0] == results[1]
    assert results[0] != results[2]
    assert results[0] != results[3]
    assert trainer.evaluate(10) == trainer.evaluate(10)  # of a seed that follows from the run's
    trainer.iterate(2)
    undisturbed.iterate(4)
    assert_same_bits(timeless(undisturbed.state()), timeless(trainer.state()))


@pytest.mark.parametrize(("episodes", "num_envs", "counted"), [(1, None, 1), (7, 3, 9), (6, 100, 6)])
def test_at_least_as_many_as_asked_for(episodes: int, num_envs: int | None, counted: int, device: str) -> None:
    result = Trainer(small(device)).evaluate(episodes, num_envs=num_envs)["agent"]
    assert result.episodes == counted
    if counted == 1:
        assert (result.std, result.interval) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"episodes": 0}, "episodes is 0"), ({"num_envs": 0}, "num_envs is 0"), ({"num_envs": -1}, "num_envs is -1")],
)
def test_no_episodes_are_refused(arguments: dict[str, Any], message: str, device: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(small(device)).evaluate(**arguments)


def test_an_episode_without_an_end_is_given_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_STEPS", 100)
    trainer = Trainer(small(device, "Pendulum-v1", params={"max_episode_steps": -1}))
    with pytest.raises(RuntimeError, match="did not end within 100 steps; give it a limit"):
        trainer.evaluate(2)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
def test_a_run_is_evaluated_as_its_trainer_would(env: str, tmp_path: Path, device: str) -> None:
    run = str(tmp_path / "run")
    others = {"policies": {"runner": "random"}} if env == GRID else {}
    config = small(device, env, total_steps=8 * 16 * 3, run_dir=run, normalise_observations=True, fused=False, **others)
    train(config, progress=False)
    trainer = Trainer(config)
    trainer.load(saved(run, trainer.device))
    for greedy in (True, False):
        found = evaluate(run, episodes=12, greedy=greedy, device=device, num_envs=4)
        assert found == trainer.evaluate(12, greedy=greedy, num_envs=4)
    assert evaluate(run, episodes=12, device=device, seed=5) != evaluate(run, episodes=12, device=device, seed=6)


def test_others_may_take_part_in_an_evaluation(tmp_path: Path, device: str) -> None:
    run = str(tmp_path / "run")
    train(small(device, GRID, total_steps=1, run_dir=run), progress=False)
    own = evaluate(run, episodes=5, device=device)
    assert evaluate(run, episodes=5, device=device, policies={"runner": "random"}) != own
    assert evaluate(run, episodes=5, device=device, policies={"runner": f"frozen:{run}"}) == own
    with pytest.raises(CheckpointError, match="has no policy 'x'; it has tagger, runner"):
        evaluate(run, episodes=5, device=device, policies={"runner": "x"})
    with pytest.raises(ValueError, match=r"Did you mean 'runner'\?"):
        evaluate(run, episodes=5, device=device, policies={"runer": "random"})


def test_a_frozen_policy_needs_its_run_no_longer(tmp_path: Path, device: str) -> None:
    source, run = tmp_path / "source", str(tmp_path / "run")
    train(small(device, GRID, total_steps=1, run_dir=str(source), seed=4), progress=False)
    policies = {"runner": f"frozen:{source}"}
    train(small(device, GRID, total_steps=1, run_dir=run, policies=policies), progress=False)
    before = evaluate(run, episodes=5, device=device)
    shutil.rmtree(source)
    assert evaluate(run, episodes=5, device=device) == before
    assert resume(run, total_steps=8 * 16 * 2, progress=False).iterations == 2
    with pytest.raises(FileNotFoundError, match="does not exist"):
        evaluate(run, episodes=5, device=device, policies=policies)


def test_what_cannot_be_evaluated_is_said(tmp_path: Path, device: str) -> None:
    RunDirectory.create(tmp_path / "empty", small(device))
    with pytest.raises(CheckpointError, match="no checkpoint yet: there is nothing to evaluate"):
        evaluate(str(tmp_path / "empty"), device=device)

    run = str(tmp_path / "own")
    config = small(device, total_steps=300, run_dir=run, normalise_observations=True)
    train(config, progress=False, modules={"agent": Dropping(0.0)})
    with pytest.raises(CheckpointError, match="is a module of your own, which only Python can make again"):
        evaluate(run, device=device)
    trainer = Trainer(config, modules={"agent": Dropping(0.0)})
    trainer.load(saved(run, trainer.device))
    module = Dropping(0.0)
    for greedy in (True, False):
        found = evaluate(run, episodes=7, greedy=greedy, device=device, modules={"agent": module})
        assert found == trainer.evaluate(7, greedy=greedy)
    assert_same_bits(module.state_dict(), trainer.learners["agent"].module.state_dict())  # it has the weights now
    with pytest.raises(ValueError, match=r"modules names 'agnet', which is no policy that learns. Did you mean 'ag"):
        evaluate(run, device=device, modules={"agnet": Dropping(0.0)})
    with pytest.raises(CheckpointError, match=r"the module given for the policy .*own:agent is not the one it had"):
        evaluate(run, device=device, modules={"agent": torch.nn.Linear(4, 3)})


@pytest.mark.parametrize("episodes", [3, 8, 20])
def test_replicas_that_differ_take_turns(episodes: int, tmp_path: Path, device: str) -> None:
    """Where the pole may not lean at all an episode is one step; elsewhere it is cut at three, too soon to fall."""
    limits = np.array([1, 3, 3, 1, 3, 1, 1, 3])
    run = str(tmp_path / "run")
    params = {"theta_threshold_radians": np.where(limits == 1, 1e-6, 0.2), "max_episode_steps": 3}
    trained = small(device, params=params, total_steps=1, run_dir=run)
    played = limits[np.arange(episodes) % 8]
    train(trained, progress=False)
    trainer = Trainer(trained)
    for found in (evaluate(run, episodes=episodes, device=device), trainer.evaluate(episodes)):
        assert found["agent"].length == pytest.approx(played.mean(), rel=1e-15)  # (sums are in any order)
        assert found["agent"].length_interval == pytest.approx(1.96 * played.std(ddof=1) / math.sqrt(episodes))
    assert evaluate(run, episodes=10, num_envs=3, device=device)["agent"].length == pytest.approx(7 / 3, rel=1e-15)


def test_a_shortage_in_an_evaluation_names_its_replicas(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise MemoryError("Unable to allocate it")

    trainer = Trainer(small(device))
    monkeypatch.setattr(evaluation, "HorizonEnv", none_left)
    message = f"^100 replicas need more than there is on {trainer.device}: lower num_envs to 50 "
    with pytest.raises(MemoryError, match=message):
        trainer.evaluate(200, num_envs=100)
