"""Learners: storage, advantages, inactive agents, and normalisation."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import EPS, FIELD, FIELD_PARAMS, GRID, metrics_of, rollout_of, small_run

torch = pytest.importorskip("torch")

import gpu_envs  # noqa: E402
from gpu_envs.seeds import derived_seed  # noqa: E402
from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.observations import OBSERVATION_LIMIT  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("env", "params"), [("CartPole-v1", {}), ("CartPole-v1", {"max_episode_steps": 9}), (GRID, {})]
)
def test_storage_matches_the_environment(env: str, params: Mapping[str, Any], device: str) -> None:
    """Against the same actions in an environment that allocates its results."""
    trainer: Any = Trainer(small_run(device, env, params=params))
    other = gpu_envs.make(env, 8, device=device, output="torch", autoreset_mode="SameStep", **params)
    teams = env == GRID
    observations, infos = other.reset(seed=derived_seed(3, "environments"))
    ended = 0

    def of(array: Any, role: str) -> np.ndarray:
        return numpy_of(array[role] if teams else array[:, None])

    for _ in range(8 if teams else 3):
        trainer.roll_out()
        storage = trainer.horizon_env.storage
        for t in range(trainer.config.horizon):
            for role, s in storage.items():
                assert_same_bits(s.observations[t], of(observations, role), f"observations[{t}]")
                if teams:
                    assert_same_bits(s.alive[t], of(infos["alive"], role), f"alive[{t}]")
            taken = {role: learner.actions[t] for role, learner in trainer.learners.items()}
            actions: Any = {r: a.view(8, -1) for r, a in taken.items()} if teams else taken["agent"][:, 0]
            observations, rewards, terminations, truncations, infos = other.step(actions)
            final = numpy_of(infos["_final_obs"])
            ended += int(final.sum())
            for role, s in storage.items():
                assert_same_bits(s.rewards[t], of(rewards, role))
                assert_same_bits(s.terminations[t], of(terminations, role))
                assert_same_bits(s.truncations[t], of(truncations, role))
                assert_same_bits(numpy_of(s.final_obs[t])[final], of(infos["final_obs"], role)[final])
                lengths = numpy_of(s.episode_length[t])
                assert ((lengths > 0) == final[:, None]).all()
                episode = of(infos["episode"]["r"], role)
                assert_same_bits(numpy_of(s.episode_return[t])[final], episode[final])
                if not teams:  # an initial state follows the end of an episode
                    assert (np.abs(numpy_of(s.observations[t + 1])[final]) <= 0.05).all()
        trainer.learn()
    assert ended >= 8


def test_staggered_episodes_end_at_random_steps_and_are_not_counted(device: str) -> None:
    """Their returns would be sums of a few steps."""
    for env, limit in (("Pendulum-v1", 200), (GRID, 100)):
        trainer: Any = Trainer(small_run(device, env, stagger=True, num_envs=64, horizon=50))
        counted, cut = np.zeros(64), []
        for horizon in range(2 * limit // 50):
            trainer.iterate(1)
            storage = trainer.horizon_env.storage[trainer.horizon_env.roles[0].name]
            lengths = numpy_of(storage.episode_length)[..., 0]
            cut.append(numpy_of(storage.truncations)[..., 0])
            for t, replica in np.argwhere(lengths > 0):
                counted[replica] += 1
                assert 50 * horizon + t + 1 >= lengths[t, replica]  # the number of steps so far
        cuts = np.concatenate(cut)[:limit]
        if env != GRID:
            assert (counted >= 1).all()
            assert (cuts.sum(0) == 1).all()  # once per limit of steps
            assert len(set(cuts.argmax(0))) > 40
        assert counted.sum() >= 60
        restore_networks: Any = Trainer(small_run(device, env, stagger=True, num_envs=64, horizon=50))
        state = trainer.state()
        assert not state["begun_midway"].any()
        restore_networks.load(state)
        assert not restore_networks.horizon_env.staggered.any()


def advantages_of(a: Mapping[str, np.ndarray], values: np.ndarray, final_values: np.ndarray, config: Any) -> np.ndarray:
    """Generalised advantage estimates as defined in the paper, in float64."""
    found, carried = np.zeros(a["rewards"].shape), np.zeros(a["rewards"].shape[1])
    for t in reversed(range(len(found))):
        following = np.where(a["truncations"][t], final_values[t], values[t + 1])
        error = a["rewards"][t] + config.algorithm.gamma * np.where(a["terminations"][t], 0.0, following) - values[t]
        carried = np.where(
            a["truncations"][t] | a["terminations"][t],
            0.0,
            config.algorithm.gamma * config.algorithm.gae_lambda * carried,
        )
        found[t] = carried = np.where(a["alive"][t], error + carried, 0.0)
    return found


CASES: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "one end at most": ("CartPole-v1", 16, {"max_episode_steps": 16}),
    "several ends": ("CartPole-v1", 40, {"max_episode_steps": 13}),
    "no limit": ("CartPole-v1", 40, {"max_episode_steps": -1}),
    "truncations alone": ("Pendulum-v1", 20, {"max_episode_steps": 6}),
    "team, one end at most": (FIELD, 20, FIELD_PARAMS),
    "team, several ends": (FIELD, 30, FIELD_PARAMS | {"episode_length": 10}),
}


@pytest.mark.parametrize("case", CASES)
def test_advantages_of_a_horizon(case: str, device: str) -> None:
    env, horizon, params = CASES[case]
    trainer: Any = Trainer(small_run(device, env, params=params, horizon=horizon, fused=False))
    seen = np.zeros(3, int)
    for _ in range(2):
        trainer.roll_out()
        trainer.learn()
    for name, learner in trainer.learners.items():
        trainer.roll_out()
        for other in trainer.learners.values():
            other.finish_rollout(trainer.horizon_env.storage)
        arrays = rollout_of(trainer, name)
        values = numpy_of(learner.values)
        assert np.abs(values - critic_values(learner, arrays["observations"])).max() <= 16 * EPS * np.abs(values).max()
        final_values = critic_values(learner, arrays["final_obs"]) if "final_obs" in arrays else values[1:]
        expected = advantages_of(arrays, values.astype(np.float64), final_values, trainer.config)
        found, returns = numpy_of(learner.advantages), numpy_of(learner.returns)
        # each of up to `horizon` terms is a sum of three numbers of this size, with a few roundings
        largest = np.abs(arrays["rewards"]).max() + 2 * np.abs(values).max()
        assert np.abs(found - expected).max() <= horizon * 16 * EPS * largest
        assert np.abs(returns - (expected + values[:-1])).max() <= (horizon + 1) * 16 * EPS * largest
        cut = arrays["truncations"] & ~arrays["terminations"] & arrays["alive"]
        seen += [cut.sum(), (arrays["terminations"] & arrays["alive"]).sum(), (~arrays["alive"]).sum()]
    assert (seen[0] > 0) == (case != "no limit")
    assert (seen[1] > 0) == (env != "Pendulum-v1")
    assert (seen[2] > 0) == (env == FIELD)


def critic_values(learner: Any, observations: np.ndarray) -> np.ndarray:
    """Return the critic's values in float64."""
    device = next(learner.module.parameters()).device
    double = copy.deepcopy(learner.module).double()
    with torch.no_grad():
        found = numpy_of(double.value(torch.from_numpy(observations).double().to(device).flatten(0, 1)))
    return found.reshape(observations.shape[:2])


@pytest.mark.parametrize("shared", [False, True])
def test_inactive_agents_change_nothing(shared: bool, device: str) -> None:
    settings = dict.fromkeys(("normalise_observations", "normalise_rewards", "normalise_values"), True)
    one, states, figures = {"tagger": "one", "runner": "one"}, [], []
    for garbage in (False, True):
        trainer: Any = Trainer(small_run(device, FIELD, policies=one, horizon=24, shared_trunk=shared, **settings))
        for _ in range(2):
            trainer.roll_out()
            if garbage:
                spoil(trainer)
            trainer.learn()
        learner = trainer.learners["one"]
        states.append(learner.state())
        figures.append(metrics_of(learner))
    assert_same_bits(states[0], states[1])
    assert figures[0] == figures[1]


def spoil(trainer: Any) -> None:
    """Overwrite the storage wherever an agent was inactive."""
    dead_rows = []
    for storage in trainer.horizon_env.storage.values():
        dead = ~storage.alive[:-1]
        storage.observations[:-1][dead] = 1e3
        storage.rewards[dead] = math.nan
        dead_rows.append(dead.flatten(1, 2))
    learner = trainer.learners["one"]
    dead = torch.cat(dead_rows, 1)
    assert dead.any()
    learner.log_probs[dead] = math.nan
    learner.actions[dead] = 0
    learner.values[:-1][dead] = math.nan


@pytest.mark.parametrize("env", ["CartPole-v1", FIELD])
def test_observations_are_normalised_by_earlier_horizons(env: str, device: str) -> None:
    trainer: Any = Trainer(small_run(device, env, normalise_observations=True))
    seen: dict[str, list[np.ndarray]] = {name: [] for name in trainer.learners}
    for iteration in range(4):
        for name, learner in trainer.learners.items():
            scale = learner.scale
            probe = torch.full((1, learner.policy_rows.features), 0.125, device=trainer.device)
            if iteration == 0:
                assert torch.equal(scale(probe), probe)
            else:
                samples = np.concatenate(seen[name])
                inverse = 1 / np.sqrt(np.maximum(samples.var(0), 1e-8))
                expected = np.clip((0.125 - samples.mean(0)) * inverse, -OBSERVATION_LIMIT, OBSERVATION_LIMIT)
                assert np.allclose(numpy_of(scale(probe))[0], expected, rtol=1e-5, atol=1e-6)
        trainer.roll_out()
        trainer.learn()
        for name in trainer.learners:
            arrays = rollout_of(trainer, name)
            seen[name].append(arrays["observations"][:-1][arrays["alive"]].astype(np.float64))


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"params": {"max_episode_steps": 24}}),
        ("CartPole-v1", {"params": {"max_episode_steps": None}}),
        ("Pendulum-v1", {"algorithm": "a2c"}),
        (FIELD, {}),
    ],
)
def test_returns_are_normalised_for_the_critic(env: str, settings: dict[str, Any], device: str) -> None:
    """Advantages and the explained variance are in the units of rewards."""
    trainer: Any = Trainer(small_run(device, env, normalise_values=True, horizon=24, learning_rate=3e-3, **settings))
    name = next(iter(trainer.learners))
    learner = trainer.learners[name]
    seen: list[np.ndarray] = []
    for _ in range(3):
        past = np.concatenate(seen) if seen else np.array([-1.0, 1.0])
        mean, deviation = past.mean(), past.std()
        trainer.roll_out()
        learner.finish_rollout(trainer.horizon_env.storage)
        arrays, outputs = rollout_of(trainer, name), numpy_of(learner.values).astype(np.float64)
        finals = critic_values(learner, arrays["final_obs"]) * deviation + mean
        values = outputs * deviation + mean
        expected = advantages_of(arrays, values, finals, trainer.config)
        largest = np.abs(arrays["rewards"]).max() + 2 * np.abs(values).max()
        tolerance = 48 * 16 * EPS * largest * ROUGHER[device]
        assert np.abs(numpy_of(learner.advantages) - expected).max() <= tolerance
        alive, returns = arrays["alive"], expected + values[:-1]
        seen.append(returns[alive])
        all_returns = np.concatenate(seen)
        assert learner.value_scale.mean.item() == pytest.approx(all_returns.mean(), rel=1e-4, abs=1e-6)
        assert learner.value_scale.inverse.item() == pytest.approx(1 / all_returns.std(), rel=1e-4)
        normalised = (returns - all_returns.mean()) / all_returns.std()
        np.testing.assert_allclose(numpy_of(learner.returns)[alive], normalised[alive], rtol=1e-3, atol=1e-3)
        unexplained = expected[alive].var() / returns[alive].var()
        assert metrics_of(learner)["explained_variance"] == pytest.approx(1 - unexplained, rel=1e-3, abs=1e-3)
        learner.update()


def test_a_critic_with_normalised_returns_learns_them_sooner(device: str) -> None:
    """Pendulum's returns are about -50 at this discount factor, and the critic's first outputs about 0."""
    explained = []
    for normalises in (False, True):
        settings: dict[str, Any] = {
            "num_envs": 64,
            "horizon": 32,
            "gamma": 0.9,
            "stagger": True,
            "normalise_observations": True,
        }
        settings |= {"hidden": (32, 32), "epochs": 4, "minibatches": 4}
        trainer = Trainer(small_run(device, "Pendulum-v1", normalise_values=normalises, **settings))
        trainer.iterate(40)
        explained.append(metrics_of(trainer.learners["agent"])["explained_variance"])
    assert explained[0] < 0.5
    assert explained[1] > 0.8


@pytest.mark.parametrize("env", ["CartPole-v1", FIELD])
def test_rewards_are_divided_by_the_std_of_discounted_returns(env: str, device: str) -> None:
    trainer: Any = Trainer(small_run(device, env, normalise_rewards=True, horizon=24))
    name = next(iter(trainer.learners))
    learner = trainer.learners[name]
    running, seen = np.zeros(learner.policy_rows.rows), []
    for _ in range(3):
        trainer.roll_out()
        learner.finish_rollout(trainer.horizon_env.storage)
        arrays = rollout_of(trainer, name)
        for t in range(trainer.config.horizon):
            alive, ended = arrays["alive"][t], arrays["terminations"][t] | arrays["truncations"][t]
            running[alive] = trainer.config.algorithm.gamma * running[alive] + arrays["rewards"][t][alive]
            seen.append(running[alive].copy())
            running[ended | ~alive] = 0.0
        deviation = np.concatenate(seen).std()
        assert learner.reward_scale.inverse.item() == pytest.approx(1 / deviation, rel=1e-5)
        scaled = arrays | {"rewards": arrays["rewards"] * learner.reward_scale.inverse.item()}
        values = numpy_of(learner.values)
        expected = advantages_of(
            scaled, values.astype(np.float64), critic_values(learner, arrays["final_obs"]), trainer.config
        )
        largest = np.abs(scaled["rewards"]).max() + 2 * np.abs(values).max()
        assert np.abs(numpy_of(learner.advantages) - expected).max() <= 24 * 16 * EPS * largest * ROUGHER[device]


ROUGHER = {"cpu": 1, "cuda": 64}
"""On a GPU fused kernels may compute the values, with the roundings of tensor cores."""
