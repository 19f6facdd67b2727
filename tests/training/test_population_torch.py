"""Populations whose networks torch computes: each run has the results of the run alone, except for rounding errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from dropout_policy import DropoutPolicy
from populations import Interruption, assert_same
from torch import nn
from trainers import FIELD, FIELD_PARAMS, GRID, MODULE_SETTINGS, small_run

from gpu_envs.training import PolicyModule, Population, Run, Trainer, extract, resume
from gpu_envs.training.population_result import PopulationResult


def normed_policy(run: Run) -> dict[str, Any]:
    """Returns a module with buffers, batch normalisation's, and the initial weights of a run."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh())
            self.heads = nn.Linear(16, 3)

        def forward(self, observations: Any) -> tuple[Any, Any]:
            both = self.heads(self.body(observations))
            return both[:, :2], both[:, 2]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        return {"agent": Normed()}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "many units": ("CartPole-v1", {"hidden": [16, 300], "precision": "float32"}, {"gamma": [0.9, 0.99]}),
    "fused off": ("Pendulum-v1", {"fused": False, "normalise_observations": True}, {"learning_rate": [1e-3, 1e-2]}),
    "pqn": ("CartPole-v1", {"algorithm": "pqn", "fused": False}, {"epsilon": [0.1, 0.5]}),
    "a2c": ("CartPole-v1", {"algorithm": "a2c", "fused": False, "shared_trunk": True}, {"gae_lambda": [0.5, 0.9]}),
    "team that shares": (GRID, {"fused": False}, {"gamma": [0.9, 0.99]}),
    "central critic": (GRID, {"critic": "team", "fused": False}, {"gamma": [0.9, 0.99]}),
    "memory": ("CartPole-v1", {"memory": "gru:6", "sequence_length": 4}, {"learning_rate": [1e-3, 1e-2]}),
    "memory beyond the limit": (
        "Pendulum-v1",
        {"memory": "lstm:6", "shared_trunk": True, "params": {"max_episode_steps": 7}},
        {"gamma": [0.9, 0.99]},
    ),
    "memory of a team": (FIELD, {"memory": "gru:6", "params": FIELD_PARAMS}, {"clip": [0.1, 0.3]}),
    "masks": (FIELD, {"fused": False, "params": FIELD_PARAMS}, {"clip": [0.1, 0.3]}),
}


def assert_near(
    population: Population,
    result: PopulationResult,
    number: int,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    **trainer: Any,
) -> None:
    """Compares the weights of a run, and its moments, with the run alone."""
    alone = Trainer(population.runs[number], **trainer)
    expected = alone.run(progress=False)
    assert result.outcomes[number].iterations == expected.iterations
    ours, theirs = population.trainer(number).state()["learners"], alone.state()["learners"]
    assert ours.keys() == theirs.keys()
    for name, learner in theirs.items():
        assert alone.learners[name].engine == "torch"
        for key, tensor in learner["module"].items():
            np.testing.assert_allclose(ours[name]["module"][key].cpu(), tensor.cpu(), rtol, atol)


@pytest.mark.parametrize("case", CASES)
def test_each_run_is_near_the_run_alone(case: str, device: str) -> None:
    env, settings, vary = CASES[case]
    run = small_run(device, env, **settings | {"total_steps": 8 * 16 * 3})
    population = Population(run, seeds=2, vary=vary, search="grid")
    result = population.train(progress=False)
    assert_near(population, result, 3)
    first, last = (population.trainer(number).state()["learners"] for number in (0, 3))
    assert any((tensor != last[n]["module"][k]).any() for n, v in first.items() for k, tensor in v["module"].items())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", FIELD])
def test_a_loss_in_torch(env: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_envs.training.engines.torch.loss_fallback_reason", lambda _: "a test")
    population = Population(small_run(device, env, fused=False, total_steps=8 * 16 * 3), seeds=2)
    assert_near(population, population.train(progress=False), 1)


def test_modules_of_users(device: str, tmp_path: Any) -> None:
    folder = tmp_path / "all"
    run = small_run(device, **MODULE_SETTINGS | {"total_steps": 8 * 16 * 3, "run_dir": str(folder)})
    population = Population(run, seeds=3, modules=normed_policy)
    result = population.train(progress=False)
    assert_near(population, result, 2, modules=normed_policy(population.runs[2]))
    directory = extract(folder, 1, tmp_path / "one", modules=normed_policy)
    modules = normed_policy(population.runs[0])  # any weights: they are loaded
    assert resume(directory, total_steps=8 * 16 * 4, modules=modules, progress=False).iterations == 4


def test_runs_with_dropout_draw_different_numbers(device: str) -> None:
    def modules(run: Run) -> dict[str, Any]:
        del run
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return {"agent": DropoutPolicy()}

    run = small_run(device, **MODULE_SETTINGS | {"total_steps": 8 * 16 * 2})
    population = Population(run, seeds=[5, 5], modules=modules)
    population.train(progress=False)
    one, other = (population.trainer(number).state()["learners"]["agent"]["module"] for number in range(2))
    assert not torch.equal(one["heads.weight"], other["heads.weight"])


class Heads(nn.Module):
    """A module for CartPole: ``self.body`` of subclasses, then the logits of two actions and the value."""

    body: nn.Module

    def __init__(self, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Linear(4, 16) if body is None else body
        self.heads = nn.Linear(16, 3)

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(observations))

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.heads(self.hidden(observations))
        return both[:, :2], both[:, 2]


class Assigns(Heads):
    """Assigns other tensors to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()))

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        self.mean: torch.Tensor = 0.9 * self.mean + 0.1 * observations.mean(0).detach()
        self.calls: torch.Tensor
        if self.training:
            self.calls += 1
        return super().hidden(observations - self.mean)


class Unsaved(Heads):
    """Has a buffer that checkpoints lack."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(16), persistent=False)

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        return super().hidden(observations) + self.noise  # type: ignore[operator]


class Outs(Heads):
    """Writes to given tensors, and names its arguments."""

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        largest = observations.new_empty(len(observations))
        where = torch.empty_like(largest, dtype=torch.int64)
        with torch.no_grad():
            torch.max(observations, 1, out=(largest, where))
        total = torch.sum(input=observations, dim=1, keepdim=True) + torch.sum(input=torch.ones(3), dim=0).item()
        return super().hidden(observations) + 0.1 * total + 0.1 * largest.unsqueeze(1)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "assigned buffers": Assigns,
    "unsaved buffers": Unsaved,
    "outs": Outs,
    "spectral norm": lambda: Heads(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 16))),
    "instance norm": lambda: Heads(
        nn.Sequential(nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1), nn.Flatten(), nn.Linear(4, 16))
    ),
    "convolution": lambda: Heads(nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 1), nn.Flatten())),
}


def seeded(make: Callable[[], nn.Module]) -> Callable[[Run], dict[str, nn.Module]]:
    """Returns a function that makes modules with a run's seed."""

    def modules(run: Run) -> dict[str, nn.Module]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            return {"agent": make()}

    return modules


def test_assigned_buffers_in_graphs(device: str) -> None:
    """They change in every iteration, though a CUDA graph reads the tensors of its capture."""
    if device == "cpu":
        pytest.skip("a CPU has no graphs")
    means = []
    for graphs in (True, False):
        run = small_run(device, **MODULE_SETTINGS | {"total_steps": 8 * 16 * 4, "graphs": graphs})
        trainer = Trainer(run, modules=seeded(Assigns)(run))
        trainer.iterate(2)
        trainer.evaluate(8)  # which runs the module, too
        trainer.iterate(2)
        means.append(trainer.state()["learners"]["agent"]["module"]["mean"])
    torch.testing.assert_close(*means)


@pytest.mark.parametrize("kind", MODULES)
def test_modules_with_buffers_and_outs(kind: str, device: str) -> None:
    modules = seeded(MODULES[kind])
    population = Population(small_run(device, **MODULE_SETTINGS | {"total_steps": 384}), seeds=2, modules=modules)
    assert_near(population, population.train(progress=False), 1, modules=modules(population.runs[1]))


class Grows(Heads):
    """Has a buffer that gets its shape from the observations."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        self.last: torch.Tensor = observations.detach()
        return super().hidden(observations)


def test_buffers_keep_their_shape() -> None:
    population = Population(small_run("cpu", **MODULE_SETTINGS), seeds=2, modules=seeded(Grows))
    with pytest.raises(
        ValueError, match=r"the buffer 'last' of Grows was .* and is now torch.float32 of shape \[8, 4\]"
    ):
        population.train(progress=False)


class Maps(Heads):
    """Calls torch.vmap itself."""

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.vmap(super().hidden)(observations)


class Branches(Heads):
    """Branches on numbers."""

    def hidden(self, observations: torch.Tensor) -> torch.Tensor:
        return super().hidden(observations if observations.sum() > 0 else -observations)


@pytest.mark.parametrize(("kind", "why"), [(Maps, "calls torch.func or torch.vmap"), (Branches, "data-dependent")])
def test_modules_that_a_population_cannot_run(kind: type[Heads], why: str) -> None:
    population = Population(small_run("cpu", **MODULE_SETTINGS), seeds=2, modules=seeded(kind))
    with pytest.raises(RuntimeError, match=f"a module failed in a population, .*{why}.*page on populations lists"):
        population.train(progress=False)


def test_dropout_continues_bit_for_bit(device: str, tmp_path: Any) -> None:
    """The population's random numbers are saved."""
    weights = []
    for folder, callbacks in (("", []), (str(tmp_path / "all"), [Interruption(3)])):
        run = small_run(device, **MODULE_SETTINGS | {"total_steps": 8 * 16 * 5, "run_dir": folder})
        population = Population(run, seeds=2, modules=seeded(DropoutPolicy))
        population.train(progress=False, callbacks=callbacks)
        if folder:
            population = Population.open(folder, modules=seeded(DropoutPolicy))
            population.train(progress=False)
        weights.append(population.trainer(1).state()["learners"])
    assert_same(weights[0], weights[1], "learners")


def test_bf16(device: str) -> None:
    """Products may be more precise than alone, so that the runs differ, but learn the same."""
    run = small_run(device, **MODULE_SETTINGS | {"total_steps": 384, "precision": "bf16", "fused": False})
    population = Population(run, seeds=2)
    population.train(progress=False)
    before, alone = Trainer(population.runs[1]), Trainer(population.runs[1])
    alone.run(progress=False)
    weights = [
        torch.cat([tensor.flatten().cpu() for tensor in trainer.state()["learners"]["agent"]["module"].values()])
        for trainer in (before, alone, population.trainer(1))
    ]
    theirs, ours = (after - weights[0] for after in weights[1:])
    assert torch.cosine_similarity(ours, theirs, dim=0) > 0.95


def test_a_module_that_is_given_twice() -> None:
    given = normed_policy(small_run("cpu", **MODULE_SETTINGS))
    with pytest.raises(ValueError, match="is being trained by another Trainer"):
        Population(small_run("cpu", **MODULE_SETTINGS), seeds=2, modules=lambda _: given).train(progress=False)


def test_a_policy_module(device: str) -> None:
    """A module with separate methods for distribution and value."""

    class Two(PolicyModule):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

        def distribution(self, observations: torch.Tensor) -> torch.Tensor:
            return self.actor(observations)  # type: ignore[no-any-return]

        def value(self, observations: torch.Tensor) -> torch.Tensor:
            return self.critic(observations).squeeze(1)  # type: ignore[no-any-return]

    def modules(run: Run) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(run.seed)
            return {"agent": Two()}

    run = small_run(device, **MODULE_SETTINGS | {"total_steps": 8 * 16 * 3})
    population = Population(run, seeds=2, modules=modules)
    assert_near(population, population.train(progress=False), 1, modules=modules(population.runs[1]))
