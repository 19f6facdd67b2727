"""Policies on a CPU in kernels: they act and learn as torch does, with the same bits for any number of threads."""

import copy
from typing import Any

import pytest
from harness import numpy_of
from trainers import FIELD, FIELD_PARAMS, GRID, small_run

torch = pytest.importorskip("torch")

from gpu_envs.training import Trainer  # noqa: E402
from gpu_envs.training.engines.base import Minibatch, ValueRequest  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # each case compiles kernels
    pytest.mark.usefixtures("one_thread", "masked_environments"),
]


CASES: dict[str, dict[str, Any]] = {
    "tanh": {"hidden": (64, 64)},
    "relu, one layer": {"hidden": (17,), "activation": "relu"},
    "elu, three layers, shared": {"hidden": (40, 16, 33), "activation": "elu", "shared_trunk": True},
    "silu, layer norm": {"hidden": (48, 20), "activation": "silu", "layer_norm": True},
    "gelu, statistics": {"activation": "gelu", "normalise_observations": True},
    "tanh, layer norm, shared": {"hidden": (130,), "layer_norm": True, "shared_trunk": True},
    "box": {"env": "Pendulum-v1", "value_clip": 0.2},
    "box, shared": {"env": "Pendulum-v1", "shared_trunk": True, "algorithm": "a2c", "gae_lambda": 0.9},
    "team": {"env": FIELD, "params": FIELD_PARAMS, "num_envs": 6, "stagger": True},
    "masks": {"env": "MaskedCorridor-v0", "num_envs": 16},
    "grid": {"env": GRID, "num_envs": 6, "activation": "relu"},
    "central critic": {"env": FIELD, "params": FIELD_PARAMS, "num_envs": 6, "critic": "all", "layer_norm": True},
    "central critic, statistics": {"env": "SimpleSpread-v3", "critic": "team", "normalise_observations": True},
    "parameters for the critic": {"params": {"pole_mass": "uniform:0.1:0.4"}, "critic_observes": ("pole_mass",)},
    "central critic, relu": {"env": GRID, "num_envs": 6, "critic": "team", "hidden": (30,), "activation": "relu"},
}


def pair(**settings: Any) -> list[Trainer]:
    """Returns trainers of the same run, with the kernels and with torch."""
    if settings.get("algorithm") == "a2c":
        settings = {"epochs": None, "minibatches": None} | settings
    settings = {name: value for name, value in settings.items() if value is not None}
    torch_only: dict[str, Any] = {"fused": False}
    return [Trainer(small_run("cpu", **settings, **more)) for more in ({}, torch_only)]


def finished(trainer: Trainer) -> Any:
    """Returns a learner after a rollout, from which it can learn."""
    trainer.roll_out()
    learner: Any = next(iter(trainer.learners.values()))
    if learner.networks.critic_scale is not None:
        scale = learner.networks.critic_scale
        scale.offset.fill_(0.25)
        scale.inverse.fill_(1.5)
    learner.finish_rollout(trainer.horizon_env.storage)
    return learner


@pytest.mark.parametrize("name", CASES)
def test_they_equal_torch(name: str) -> None:
    """Actions, log-probabilities, values, and the gradient and the sums of a minibatch."""
    ours, theirs = pair(**CASES[name])
    ours.fused_rollout = None
    learners = [finished(trainer) for trainer in (ours, theirs)]
    assert [learner.engine for learner in learners] == ["CPU actor-critic", "torch"]
    kernels, reference = learners
    alive = slice(None) if kernels.samples[1].alive is None else numpy_of(kernels.samples[1].alive)
    for attribute, tolerance in (("actions", 1e-5), ("log_probs", 2e-5), ("values", 2e-5)):
        found, expected = (numpy_of(getattr(learner, attribute))[: learner.horizon] for learner in learners)
        found, expected = (array.reshape(-1, *array.shape[2:])[alive] for array in (found, expected))
        assert found.shape == expected.shape
        assert abs(found - expected).max() <= tolerance * max(1.0, abs(expected).max()), attribute
    gradients = []
    for learner in learners:
        observations, samples = reference.samples  # the same for both
        torch.manual_seed(0)
        agents = 1 if reference.central is None else reference.central.samples.group_size
        groups = torch.randperm(len(samples.log_probs) // agents)[: len(samples.log_probs) * 2 // 3 // agents]
        indices = (groups.unsqueeze(1) * agents + torch.arange(agents)).flatten().int()
        minibatch = Minibatch(observations, samples, indices, learner.algorithm, learner.scalars)
        minibatch.critic_observations = reference.central and reference.central.samples
        learner.networks.gradient(minibatch, learner.optimiser.totals)
        gradients.append((learner.optimiser.gradient.clone(), learner.optimiser.totals.clone()))
    (found, sums), (expected, expected_sums) = gradients
    assert expected.abs().max() > 0
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    torch.testing.assert_close(sums, expected_sums, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("case", [{}, {"layer_norm": True, "hidden": (40, 24)}, {"activation": "gelu"}])
def test_q_networks_equal_torch(case: dict[str, Any]) -> None:
    learners: list[Any] = []
    for trainer in pair(env="Acrobot-v1", algorithm="pqn", epochs=1, normalise_observations=True, **case):
        trainer.iterate(2)
        learners += trainer.learners.values()
    assert [learner.engine for learner in learners] == ["CPU Q network", "torch"]
    kernels, reference = learners
    assert torch.equal(kernels.actions, reference.actions)
    torch.testing.assert_close(kernels.optimiser.flat, reference.optimiser.flat, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"env": "Pendulum-v1", "shared_trunk": True},
        {"algorithm": "pqn", "epochs": 1},
        {"params": {"pole_mass": "uniform:0.1:0.4"}, "critic_observes": ("pole_mass",)},
    ],
)
def test_bits_do_not_depend_on_threads(case: dict[str, Any]) -> None:
    weights = []
    for threads in (1, 2, 3):
        trainer = Trainer(small_run("cpu", num_envs=100, hidden=(64, 64), threads=threads, **case))
        trainer.iterate(2)
        weights.append(trainer.learners["agent"].optimisers[0].flat.clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_a_horizon_in_one_launch_has_the_same_bits(env: str) -> None:
    """As step by step, for full and partial tiles, over the ends of episodes."""
    fused, by_step = (
        Trainer(small_run("cpu", env, num_envs=100, stagger=True, params={"max_episode_steps": 20})) for _ in range(2)
    )
    assert fused.fused_rollout is not None
    by_step.fused_rollout = None
    for _ in range(3):
        for trainer in (fused, by_step):
            trainer.iterate(1)
        storages = [vars(trainer.horizon_env.storage["agent"]) for trainer in (fused, by_step)]
        for name, array in storages[0].items():
            if isinstance(array, torch.Tensor) and name != "final_obs":  # rows of running episodes are arbitrary
                assert torch.equal(array, storages[1][name]), name
        one, other = (trainer.learners["agent"] for trainer in (fused, by_step))
        for name in ("actions", "log_probs", "values"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert torch.equal(one.optimisers[0].flat, other.optimisers[0].flat)


def test_values_of_some_rows() -> None:
    """Rows with a negative index keep what is there."""
    learner = finished(pair()[0])
    observations = learner.samples[0]
    every, some = (torch.full((100,), 7.0) for _ in range(2))
    learner.networks.values(ValueRequest(observations[:100], every))
    indices = torch.arange(100).flip(0)
    indices[::3] = -1
    learner.networks.values(ValueRequest(observations, some, indices))
    assert torch.equal(some[indices >= 0], every[indices[indices >= 0]])
    assert (some[indices < 0] == 7.0).all()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hidden": (8, 8, 8, 8)}, "hidden layers are (8, 8, 8, 8), and the kernels take up to 3 of up to 256 units"),
        ({"hidden": (257,)}, "hidden layers are (257,), and the kernels take up to 3 of up to 256 units"),
    ],
)
def test_torch_runs_the_others(settings: dict[str, Any], reason: str) -> None:
    learner = Trainer(small_run("cpu", **settings)).learners["agent"]
    assert (learner.engine, learner.fallback_reason) == ("torch", reason)


def test_modules_that_differ_from_the_settings_run_in_torch() -> None:
    """The kernels have the settings' layers, and no parameters that do not learn."""
    settings: dict[str, Any] = {"hidden": (64, 64)}
    same, frozen = (copy.deepcopy(Trainer(small_run("cpu", **settings)).learners["agent"].module) for _ in range(2))
    frozen.critic.requires_grad_(False)
    other = copy.deepcopy(Trainer(small_run("cpu", hidden=(32, 32), activation="relu")).learners["agent"].module)
    for module, engine in ((same, "CPU actor-critic"), (frozen, "torch"), (other, "torch")):
        trainer = Trainer(small_run("cpu", **settings), modules={"agent": module})
        assert trainer.learners["agent"].engine == engine
        trainer.iterate(1)
