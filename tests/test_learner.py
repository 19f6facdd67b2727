"""What a policy learns from: storage, advantages, statistics, masks; and its update, against plain torch."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of
from trainers import FIELD, FIELD_PARAMS, GRID, small

torch = pytest.importorskip("torch")

import gpu_envs  # noqa: E402
from gpu_envs.resets import derived_seed  # noqa: E402
from gpu_envs.training import Schedule, Trainer, networks  # noqa: E402
from gpu_envs.training.arena import Arena  # noqa: E402
from gpu_envs.training.learner import FIGURES  # noqa: E402
from gpu_envs.training.normalise import OBSERVATION_LIMIT, RunningMoments  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

Tensor = Any
EPS = 2.0**-24
"""A rounding to float32."""


def figures_of(learner: Any) -> dict[str, float]:
    return dict(zip(FIGURES, learner.figures.tolist(), strict=True))


def taken(trainer: Any, name: str) -> dict[str, np.ndarray]:
    """The roll-out's arrays of a policy, ``[T, rows, ...]``."""
    learner, storage = trainer.learners[name], trainer._arena.storage
    names = ("observations", "rewards", "terminations", "truncations", "final_obs", "alive")
    present = [n for n in names if getattr(next(iter(storage.values())), n) is not None]
    arrays = {n: numpy_of(learner._taken(storage, n)) for n in present}
    horizon = len(arrays["rewards"])
    alive = arrays["alive"][:horizon] if "alive" in arrays else np.ones_like(arrays["terminations"])
    return arrays | {"alive": alive}


# --- storage ---


@pytest.mark.parametrize(
    ("env", "params"), [("CartPole-v1", {}), ("CartPole-v1", {"max_episode_steps": 9}), (GRID, {})]
)
def test_storage_is_what_the_environment_gives(env: str, params: Mapping[str, Any], device: str) -> None:
    """The same actions in an environment that writes into arrays of its own."""
    trainer: Any = Trainer(small(device, env, params=params))
    other = gpu_envs.make(env, 8, device=device, output="torch", autoreset_mode="SameStep", **params)
    teams = env == GRID
    observations, infos = other.reset(seed=derived_seed(3, "environments"))
    ended = 0

    def of(array: Any, role: str) -> np.ndarray:
        return numpy_of(array[role] if teams else array[:, None])

    for _ in range(8 if teams else 3):
        trainer._roll_out()
        storage = trainer._arena.storage
        for t in range(trainer.config.horizon):
            for role, s in storage.items():
                assert_same_bits(s.observations[t], of(observations, role), f"observations[{t}]")
                if teams:
                    assert_same_bits(s.alive[t], of(infos["alive"], role), f"alive[{t}]")
            taken = {role: learner._actions[t] for role, learner in trainer.learners.items()}
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
                if not teams:  # what follows an end is a beginning
                    assert (np.abs(numpy_of(s.observations[t + 1])[final]) <= 0.05).all()
        trainer._learn()
    assert ended >= 8


def test_staggered_replicas_are_cut_at_steps_of_their_own(device: str) -> None:
    trainer: Any = Trainer(small(device, "Pendulum-v1", stagger=True, num_envs=64, horizon=200))
    trainer._roll_out()
    storage = trainer._arena.storage["agent"]
    truncations = numpy_of(storage.truncations)[..., 0]
    assert (truncations.sum(0) == 1).all()  # once within the limit
    assert len(set(truncations.argmax(0))) > 40
    lengths = numpy_of(storage.episode_length)[..., 0]
    assert (lengths.max(0) == 1 + truncations.argmax(0)).all() or (lengths.max(0) == 200).all()


def test_episodes_that_began_midway_are_not_counted(device: str) -> None:
    """Their returns are of a few steps, and their lengths are not those that were played."""
    for env, limit in (("Pendulum-v1", 200), (GRID, 100)):
        trainer: Any = Trainer(small(device, env, stagger=True, num_envs=64, horizon=50))
        counted = np.zeros(64)
        for horizon in range(2 * limit // 50):
            trainer.iterate(1)
            role = trainer._arena.roles[0].name
            lengths = numpy_of(trainer._arena.storage[role].episode_length)[..., 0]
            for t, replica in np.argwhere(lengths > 0):
                counted[replica] += 1
                assert 50 * horizon + t + 1 >= lengths[t, replica]  # so many steps it has been played
        assert (counted >= 1).all() or env == GRID
        assert counted.sum() >= 60
        restored: Any = Trainer(small(device, env, stagger=True, num_envs=64, horizon=50))
        state = trainer.state()
        assert not state["begun_midway"].any()
        restored.load(state)
        assert not restored._arena.begun_midway.any()


# --- advantages ---


def advantages_of(a: Mapping[str, np.ndarray], values: np.ndarray, final_values: np.ndarray, config: Any) -> np.ndarray:
    """Generalised advantages as the paper has them, in float64, forward from each step."""
    steps, rows = a["rewards"].shape
    found = np.zeros((steps, rows))
    for row in range(rows):
        for t in range(steps):
            if not a["alive"][t, row]:
                continue
            weight = 1.0
            for s in range(t, steps):
                if a["terminations"][s, row]:
                    following = 0.0
                elif a["truncations"][s, row]:
                    following = final_values[s, row]
                else:
                    following = values[s + 1, row]
                found[t, row] += weight * (a["rewards"][s, row] + config.gamma * following - values[s, row])
                weight *= config.gamma * config.gae_lambda
                if a["terminations"][s, row] or a["truncations"][s, row]:
                    break
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
    trainer: Any = Trainer(small(device, env, params=params, horizon=horizon, fused=False))
    seen = np.zeros(3, int)
    for _ in range(2):
        trainer._roll_out()
        trainer._learn()
    for name, learner in trainer.learners.items():
        trainer._roll_out()
        for other in trainer.learners.values():
            other.conclude(trainer._arena.storage)
        arrays = taken(trainer, name)
        values = numpy_of(learner._values)
        assert np.abs(values - valued(learner, arrays["observations"])).max() <= 16 * EPS * np.abs(values).max()
        final_values = valued(learner, arrays["final_obs"]) if "final_obs" in arrays else values[1:]
        expected = advantages_of(arrays, values.astype(np.float64), final_values, trainer.config)
        found, returns = numpy_of(learner._advantages), numpy_of(learner._returns)
        # Each of up to `horizon` terms is a sum of three numbers of this size, rounded a few times
        largest = np.abs(arrays["rewards"]).max() + 2 * np.abs(values).max()
        assert np.abs(found - expected).max() <= horizon * 16 * EPS * largest
        assert np.abs(returns - (expected + values[:-1])).max() <= (horizon + 1) * 16 * EPS * largest
        cut = arrays["truncations"] & ~arrays["terminations"] & arrays["alive"]
        seen += [cut.sum(), (arrays["terminations"] & arrays["alive"]).sum(), (~arrays["alive"]).sum()]
    assert (seen[0] > 0) == (case != "no limit")
    assert (seen[1] > 0) == (env != "Pendulum-v1")
    assert (seen[2] > 0) == (env == FIELD)


def valued(learner: Any, observations: np.ndarray) -> np.ndarray:
    """The critic's values, in float64."""
    device = next(learner.module.parameters()).device
    double = copy.deepcopy(learner.module).double()
    with torch.no_grad():
        found = numpy_of(double.value(torch.from_numpy(observations).double().to(device).flatten(0, 1)))
    return found.reshape(observations.shape[:2])


# --- who is out of the game ---


@pytest.mark.parametrize("shared", [False, True])
def test_those_out_of_the_game_change_nothing(shared: bool, device: str) -> None:
    settings = {"normalise_observations": True, "normalise_rewards": True, "shared_trunk": shared, "horizon": 24}
    states, figures = [], []
    for garbage in (False, True):
        trainer: Any = Trainer(small(device, FIELD, policies={"tagger": "one", "runner": "one"}, **settings))
        for _ in range(2):
            trainer._roll_out()
            if garbage:
                spoil(trainer)
            trainer._learn()
        learner = trainer.learners["one"]
        states.append(learner.state())
        figures.append({n: v for n, v in figures_of(learner).items() if n != "largest_observation"})
    assert_same_bits(states[0], states[1])
    assert figures[0] == figures[1]


def spoil(trainer: Any) -> None:
    """Writes something else wherever an agent was out of the game."""
    dead_rows = []
    for storage in trainer._arena.storage.values():
        dead = ~storage.alive[:-1]
        storage.observations[:-1][dead] = 1e3
        storage.rewards[dead] = math.nan
        dead_rows.append(dead.flatten(1, 2))
    learner = trainer.learners["one"]
    dead = torch.cat(dead_rows, 1)
    assert dead.any()
    learner._log_probs[dead] = math.nan
    learner._actions[dead] = 0
    learner._values[:-1][dead] = math.nan


# --- statistics ---


def test_moments_are_those_of_all_samples(device: str) -> None:
    rng = np.random.default_rng(0)
    moments = RunningMoments(3, "cpu" if device == "cpu" else "cuda")
    parts = [rng.normal(7.0, 2.0, (n, 3)) for n in (1, 50, 0, 1000, 3)]
    for part in parts:
        tensor = torch.from_numpy(part).to(moments.mean.device)
        moments.add(tensor.sum(0), tensor.square().sum(0), moments.count.new_full((1,), len(part)))
    everything = np.concatenate(parts)
    assert moments.count.item() == len(everything)
    assert np.allclose(numpy_of(moments.mean), everything.mean(0), rtol=1e-12)
    assert np.allclose(numpy_of(moments.variance), everything.var(0), rtol=1e-11)


@pytest.mark.parametrize("env", ["CartPole-v1", FIELD])
def test_observations_are_normalised_by_all_before_this_horizon(env: str, device: str) -> None:
    trainer: Any = Trainer(small(device, env, normalise_observations=True))
    seen: dict[str, list[np.ndarray]] = {name: [] for name in trainer.learners}
    for iteration in range(4):
        for name, learner in trainer.learners.items():
            scale = learner._scale
            probe = torch.full((1, learner.seats.features), 0.125, device=trainer.device)
            if iteration == 0:
                assert torch.equal(scale(probe), probe)
            else:
                samples = np.concatenate(seen[name])
                inverse = 1 / np.sqrt(np.maximum(samples.var(0), 1e-8))
                expected = np.clip((0.125 - samples.mean(0)) * inverse, -OBSERVATION_LIMIT, OBSERVATION_LIMIT)
                assert np.allclose(numpy_of(scale(probe))[0], expected, rtol=1e-5, atol=1e-6)
        trainer._roll_out()
        trainer._learn()
        for name in trainer.learners:
            arrays = taken(trainer, name)
            seen[name].append(arrays["observations"][:-1][arrays["alive"]].astype(np.float64))


@pytest.mark.parametrize("env", ["CartPole-v1", FIELD])
def test_rewards_are_divided_by_the_deviation_of_discounted_returns(env: str, device: str) -> None:
    trainer: Any = Trainer(small(device, env, normalise_rewards=True, horizon=24))
    name = next(iter(trainer.learners))
    learner = trainer.learners[name]
    running, seen = np.zeros(learner.seats.rows), []
    for _ in range(3):
        trainer._roll_out()
        learner.conclude(trainer._arena.storage)
        arrays = taken(trainer, name)
        for t in range(trainer.config.horizon):
            alive, ended = arrays["alive"][t], arrays["terminations"][t] | arrays["truncations"][t]
            running[alive] = trainer.config.gamma * running[alive] + arrays["rewards"][t][alive]
            seen.append(running[alive].copy())
            running[ended | ~alive] = 0.0
        deviation = np.concatenate(seen).std()
        assert learner._rewards.scale.item() == pytest.approx(1 / deviation, rel=1e-5)
        scaled = arrays | {"rewards": arrays["rewards"] * learner._rewards.scale.item()}
        values = numpy_of(learner._values)
        expected = advantages_of(
            scaled, values.astype(np.float64), valued(learner, arrays["final_obs"]), trainer.config
        )
        largest = np.abs(scaled["rewards"]).max() + 2 * np.abs(values).max()
        assert np.abs(numpy_of(learner._advantages) - expected).max() <= 24 * 16 * EPS * largest * ROUGHER[device]


ROUGHER = {"cpu": 1, "cuda": 64}
"""On a GPU the values may come from kernels of our own, whose products have rows of tensor cores' roundings."""


# --- the update ---


def losses(
    module: Any,
    batch: Mapping[str, Tensor],
    rows: Tensor,
    config: Any,
    entropy_weight: float,
    moments: tuple[float, float],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some samples as the papers have it, one number each, and what a log shows of it."""
    parameters, values = module(batch["observations"][rows])
    if "discrete" in config:
        distribution: Any = torch.distributions.Categorical(logits=parameters)
        log_probs = distribution.log_prob(batch["actions"][rows, 0])
        entropy = distribution.entropy()
    else:
        mean, log_std = parameters.chunk(2, -1)
        distribution = torch.distributions.Normal(mean, log_std.exp())
        log_probs = distribution.log_prob(batch["actions"][rows]).sum(-1)
        entropy = distribution.entropy().sum(-1)
    advantages = (batch["advantages"][rows] - moments[0]) * moments[1]
    ratio = (log_probs - batch["log_probs"][rows]).exp()
    if config["algorithm"] == "ppo":
        clipped = ratio.clamp(1 - config["clip"], 1 + config["clip"])
        policy = -torch.minimum(ratio * advantages, clipped * advantages)
    else:
        policy = -log_probs * advantages
    value = 0.5 * (values - batch["returns"][rows]) ** 2
    total = policy + config["value_weight"] * value - entropy_weight * entropy
    divergence = (ratio - 1) - (log_probs - batch["log_probs"][rows])
    return total, {"policy_loss": policy, "value_loss": value, "entropy": entropy, "kl": divergence}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", GRID])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_an_update_is_that_of_plain_torch(algorithm: str, env: str, device: str) -> None:
    """Step by step: the gradient at the same weights, and the weights that Adam makes of the same gradient."""
    config = small(
        device, env, algorithm=algorithm, num_envs=3, horizon=7, epochs=3, minibatches=2, learning_rate=0.02,
        entropy_weight=0.03, hidden=(6, 5), fused=False, max_grad_norm=0.3, normalise_advantages=env != GRID,
    )  # fmt: skip
    trainer = Trainer(config)
    trainer._roll_out()
    trainer._learn()  # so that values and moments are no beginner's
    trainer._roll_out()
    name = next(iter(trainer.learners))
    learner: Any = trainer.learners[name]
    learner.set_scalars(*torch.tensor([[0.02], [0.03]], device=trainer.device))
    for other in trainer.learners.values():
        other.conclude(trainer._arena.storage)
    observations, flat = learner._flat
    batch = {n: getattr(flat, n).double() for n in ("log_probs", "advantages", "returns")}
    batch |= {"observations": observations.double()}
    discrete = learner.seats.head.kind == "discrete"
    batch["actions"] = flat.actions.long() if discrete else flat.actions.double()
    alive = torch.ones_like(batch["returns"], dtype=torch.bool) if flat.alive is None else flat.alive.bool()
    moments = (0.0, 1.0)
    if config.normalise_advantages:
        some = batch["advantages"][alive]
        moments = (some.mean().item(), 1 / (some.std(correction=0).item() + 1e-8))
    kinds: dict[str, Any] = {
        "algorithm": algorithm, "clip": config.clip, "value_weight": config.value_weight,
        **({"discrete": True} if discrete else {}),
    }  # fmt: skip

    double = copy.deepcopy(learner.module).double()
    weights = list(double.parameters())
    adam = torch.optim.Adam(weights, lr=0.02, eps=1e-5)
    kept = learner._optimiser.state()
    start = int(kept["steps"].item())
    for parameter, mean, square in zip(
        weights, pieces(kept["means"], weights), pieces(kept["squares"], weights), strict=True
    ):
        adam.state[parameter] = {
            "step": torch.tensor(float(start)), "exp_avg": mean.double(), "exp_avg_sq": square.double(),
        }  # fmt: skip
    epochs, minibatches = config.passes
    samples = len(batch["returns"])
    order = torch.arange(samples, dtype=torch.int32, device=trainer.device)
    stream = learner._streams["minibatches"].clone()
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "samples"), 0.0)
    steps: list[tuple[Tensor, ...]] = []
    take = learner._step

    def checked(some: Tensor, all_of_it: Any, number: int) -> None:
        if epochs * minibatches > 1 and number == 0:
            learner._permutation.write(order, stream, len(steps) // minibatches)
        cuts = [part * samples // minibatches for part in range(minibatches + 1)]
        rows = order[cuts[number] : cuts[number + 1]].long()
        rows = rows[alive[rows]]
        copy_into(weights, learner._optimiser.flat)
        total, parts = losses(double, batch, rows, kinds, 0.03, moments)
        one_by_one = torch.eye(len(total), dtype=torch.float64, device=trainer.device)
        each = torch.autograd.grad(total, weights, one_by_one, is_grads_batched=True)  # of each sample
        before = learner._optimiser.flat.clone()
        take(some, all_of_it, number)
        for part, values in parts.items():
            sums[part] += values.sum().item()
        sums["samples"] += len(rows)
        for index, found in enumerate(pieces(learner._optimiser.gradient, weights)):
            expected = each[index]
            # A sample's gradient is off by the roundings of products of two layers, the loss and the sum: some dozens
            allowed = 64 * EPS * (expected.abs().amax() * len(rows) + EPS)
            assert (found.double() - expected.sum(0)).abs().max() <= allowed
        for parameter, gradient in zip(weights, pieces(learner._optimiser.gradient, weights), strict=True):
            parameter.grad = gradient.double() / len(rows)
        torch.nn.utils.clip_grad_norm_(weights, 0.3)
        adam.step()
        ours = learner._optimiser.flat
        theirs = torch.cat([p.detach().ravel() for p in weights])
        # a step is lr times a ratio of about 1, made in a few float32 operations; the weight is rounded once more
        assert (ours - theirs).abs().max() <= 0.02 * 64 * EPS + EPS * theirs.abs().max()
        steps.append((before, ours.clone()))

    learner._step = checked
    learner.update()
    assert len(steps) == epochs * minibatches
    assert all(not torch.equal(before, after) for before, after in steps)
    found = figures_of(learner)
    for part, expected in sums.items():
        assert found[part] == pytest.approx(expected, rel=1e-4, abs=1e-4), part


def pieces(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [p.view(q.shape).clone() for p, q in zip(flat.split([p.numel() for p in like]), like, strict=True)]


def copy_into(weights: list[Tensor], flat: Tensor) -> None:
    for parameter, values in zip(weights, pieces(flat, weights), strict=True):
        parameter.data.copy_(values)


@pytest.mark.parametrize(("env", "shared"), [("CartPole-v1", False), (FIELD, True)])
def test_pieces_of_a_minibatch_add_up(env: str, shared: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = Trainer(small(device, env, fused=False, shared_trunk=shared))
    trainer._roll_out()
    learner: Any = next(iter(trainer.learners.values()))
    learner.conclude(trainer._arena.storage)
    observations, batch = learner._flat
    order = torch.arange(len(observations), dtype=torch.int32, device=trainer.device).flip(0)[:101].contiguous()

    def found(chosen: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        totals, values = torch.zeros(6, device=trainer.device), torch.zeros(len(observations), device=trainer.device)
        learner.networks.gradient(observations, batch, chosen, learner._settings, learner._scalars, totals)
        learner.networks.values(observations, values)
        return learner._optimiser.gradient.clone(), totals, values

    for chosen in (None, order):
        whole = found(chosen)
        with monkeypatch.context() as patch:
            patch.setattr(networks, "CHUNK_BYTES", 12 * 100 * 20)
            assert learner.networks._chunk(len(observations)) < 100
            parts = found(chosen)
        assert not torch.equal(whole[0], parts[0])  # other sums
        for one, other in zip(whole, parts, strict=True):
            # sums of some hundred samples of either sign, in another order
            assert (one - other).abs().max() <= 512 * EPS * one.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("whole", [False, True])
def test_what_the_dead_observe_does_not_reach_the_weights(
    whole: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = Trainer(small(device, FIELD, fused=False, normalise_observations=True))
    trainer._roll_out()
    learner = trainer.learners["runner"]
    learner.conclude(trainer._arena.storage)
    observations, batch = learner._flat
    order = torch.arange(len(observations), dtype=torch.int32, device=trainer.device).flip(0).contiguous()
    dead = torch.rand(len(observations), generator=torch.Generator().manual_seed(0)).to(trainer.device) < 0.3
    batch = dataclasses.replace(batch, alive=~dead)
    hollow = torch.where(dead.unsqueeze(1), math.nan, observations)

    def found(some: Tensor) -> Tensor:
        totals = torch.zeros(6, device=trainer.device)
        chosen = None if whole else order
        learner.networks.gradient(some, batch, chosen, learner._settings, learner._scalars, totals)
        return learner._optimiser.gradient.clone()

    for pieces_of in (2**30, 12 * 100 * 20):
        monkeypatch.setattr(networks, "CHUNK_BYTES", pieces_of)
        assert torch.isfinite(found(hollow)).all()
        assert_same_bits(found(hollow), found(torch.where(dead.unsqueeze(1), 3.0, observations)))


@pytest.mark.parametrize(
    ("num_envs", "horizon", "minibatches"), [(1, 5, 4), (3, 3, 8), (7, 3, 5), (1, 1, 1), (2, 2, 4)]
)
def test_minibatches_of_any_number(num_envs: int, horizon: int, minibatches: int, device: str) -> None:
    """Every sample is in one minibatch of each epoch, and none is empty."""
    trainer: Any = Trainer(small(device, num_envs=num_envs, horizon=horizon, minibatches=minibatches, epochs=3))
    trainer.iterate(2)
    (learner,) = trainer.learners.values()
    assert figures_of(learner)["samples"] == 3 * num_envs * horizon
    assert learner.state()["optimiser"]["steps"].item() == 2 * 3 * minibatches
    assert np.isfinite(learner.figures.tolist()).all()


def test_more_minibatches_than_samples_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="minibatches is 5; a horizon of the policy 'agent' has 4 samples"):
        Trainer(small(device, num_envs=2, horizon=2, minibatches=5))
    Trainer(small(device, num_envs=2, horizon=2, minibatches=5, algorithm="a2c"))  # that is one pass


def test_an_update_stops_where_the_policy_has_moved_too_far(device: str) -> None:
    settings: dict[str, Any] = {"learning_rate": 0.05, "epochs": 4, "minibatches": 4}
    stopping: Any = Trainer(small(device, target_kl=0.01, **settings))
    going: Any = Trainer(small(device, **settings))
    for trainer in (stopping, going):
        trainer._roll_out()
        trainer._learn()
    one, other = stopping.learners["agent"], going.learners["agent"]
    steps = one.state()["optimiser"]["steps"].item()
    assert 1 <= steps < 16 == other.state()["optimiser"]["steps"].item()
    assert figures_of(one)["samples"] == steps * 8 * 16 / 4
    assert figures_of(one)["kl"] / figures_of(one)["samples"] < 1.5 * 0.01

    again: Any = Trainer(small(device, **settings))  # that many steps and no more
    again._roll_out()
    take, done = again.learners["agent"]._step, []

    def few(*given: Any) -> None:
        done.append(1)
        if len(done) <= steps:
            take(*given)

    again.learners["agent"]._step = few
    again._learn()
    assert_same_bits(one.state(), again.learners["agent"].state())

    stopping._roll_out()
    stopping._learn()  # the next horizon begins afresh
    assert one.state()["optimiser"]["steps"].item() > steps
    loose: Any = Trainer(small(device, target_kl=1e3, **settings))
    loose.iterate(1)
    assert loose.learners["agent"].state()["optimiser"]["steps"].item() == 16


def test_an_iteration_has_what_its_schedules_say(device: str) -> None:
    rate, weight = "0:0.004,0.5:0.001,1:0", "0.2:0.5,0.8:0"
    trainer: Any = Trainer(small(device, learning_rate=rate, entropy_weight=weight, total_steps=8 * 16 * 10))
    assert trainer.config.iterations == 10
    learner = trainer.learners["agent"]
    for iteration in range(12):  # beyond the end the last one stays
        trainer.iterate(1)
        at = min(iteration, 9) / 10
        assert figures_of(learner)["learning_rate"] == np.float32(Schedule.of(rate).at(at))
        assert learner._scalars[2].item() == np.float32(Schedule.of(weight).at(at))


def test_every_horizon_has_random_numbers_of_its_own(device: str) -> None:
    """Every epoch an order of its own; and where nothing is learnt, other actions for the same observations."""
    trainer: Any = Trainer(small(device, GRID, epochs=1, learning_rate=0.0, policies={"runner": "random"}, horizon=1))
    learner, seen = trainer.learners["tagger"], []
    for _ in range(5):
        before = trainer._arena.storage["tagger"].observations[-1].clone()
        trainer.iterate(1)
        drawn = (learner._indices, learner._actions, trainer._actions["runner"])
        seen.append([numpy_of(tensor).tobytes() for tensor in drawn])
        assert not torch.equal(before, trainer._arena.storage["tagger"].observations[-1])
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 5
    orders: Any = []
    trainer = Trainer(small(device, epochs=3))
    trainer._roll_out()
    learner = trainer.learners["agent"]
    take = learner._step

    def noting(observations: Tensor, batch: Any, number: int) -> None:
        orders.append(numpy_of(learner._indices).tobytes())
        take(observations, batch, number)

    learner._step = noting
    trainer._learn()
    assert len(set(orders)) == 3


def test_nothing_is_learnt_at_rate_zero(device: str) -> None:
    trainer: Any = Trainer(small(device, learning_rate=0.0))
    before = trainer.learners["agent"].state()["module"]
    trainer.iterate(3)
    assert_same_bits(before, trainer.learners["agent"].state()["module"])


def test_values_explain_what_they_equal(device: str) -> None:
    """Figures of a horizon: 1 - Var(returns - values) / Var(returns), over agents in the game."""
    for env in ("CartPole-v1", FIELD):
        trainer: Any = Trainer(small(device, env))
        trainer._roll_out()
        for name, learner in trainer.learners.items():
            learner.conclude(trainer._arena.storage)
            alive = taken(trainer, name)["alive"]
            returns, values = numpy_of(learner._returns), numpy_of(learner._values)[:-1]
            expected = 1 - (returns - values)[alive].var() / returns[alive].var()
            assert figures_of(learner)["explained_variance"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
            advantages = numpy_of(learner._advantages)[alive].astype(np.float64)
            assert learner._scalars[0].item() == pytest.approx(advantages.mean(), rel=1e-4, abs=1e-6)
            assert learner._scalars[1].item() == pytest.approx(1 / advantages.std(), rel=1e-4)
            largest = max(abs(taken(trainer, name)["observations"]).max(), 0)
            assert figures_of(learner)["largest_observation"] == largest


def test_an_arena_of_replicas_that_never_end(device: str) -> None:
    trainer: Any = Trainer(small(device, "Pendulum-v1", params={"max_episode_steps": -1}))
    arena: Arena = trainer._arena
    assert arena.limit is None
    assert arena.storage["agent"].final_obs is None
    trainer.iterate(20)
    assert math.isnan(trainer.returns["agent"])
