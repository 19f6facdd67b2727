"""Policies with memory: acting, values and gradients against torch's cells in float64, unrolled step by step."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import assert_same_bits, numpy_of, restored_registry
from sharing import sharing
from trainers import (
    FIELD,
    GRID,
    MODULE_SETTINGS,
    last_checkpoint,
    small_run,
    without_times,
)

torch = pytest.importorskip("torch")

from recurrent_oracle import FIXED, Tolerance, check_against_oracle, memory_run  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.cli import OK, main  # noqa: E402
from gpu_envs.replays import record  # noqa: E402
from gpu_envs.training import (  # noqa: E402
    GRU,
    LSTM,
    Network,
    RecurrentModule,
    RunDirectory,
    Trainer,
    evaluate,
    load_policies,
    resume,
    train,
)
from gpu_envs.training.engines.base import Minibatch  # noqa: E402
from gpu_envs.training.observations import SplitRows  # noqa: E402
from gpu_envs.training.record import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "masked_environments")

RUNS: Mapping[str, Mapping[str, Any]] = {
    "discrete": {"params": {"max_episode_steps": 18}},
    "lstm": {"params": {"max_episode_steps": 18}, "memory": "lstm:6", "shared_trunk": True},
    "sequences": {"params": {"max_episode_steps": 18}, "sequence_length": 4, "normalise_observations": True},
    "episodes shorter than the horizon": {"params": {"max_episode_steps": 5}, "shared_trunk": True},
    "no time limit": {"env": "CartPole-v1", "params": {"max_episode_steps": None}},
    "frames": {"params": {"max_episode_steps": 18}, "frame_stack": 3},
    "box": {"env": "Pendulum-v1", "stagger": True, "memory": "lstm:6"},
    "a2c": {"env": "Pendulum-v1", "params": {"max_episode_steps": 18}, "algorithm": "a2c", "sequence_length": 8},
    "masks": {"env": "MaskedCorridor-v0", "sequence_length": 8},
    "agents that leave": {"env": FIELD, "shared_trunk": True, "sequence_length": 8},
    "masked team": {"env": "MaskedTeam-v0", "policies": {"walker_1": "hiker"}, "memory": "lstm:6"},
    "shared observations": {"env": "Sharing-v0", "num_envs": 5, "sequence_length": 8, "normalise_observations": True},
    "a policy for two roles": {
        "env": GRID,
        "params": {"episode_length": 18},
        "policies": {"tagger": "one", "runner": "one"},
    },
}
"""Settings of small runs with memory."""


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with restored_registry():
        gpu_envs.register(sharing())
        yield


@pytest.mark.parametrize("name", RUNS)
def test_acting_values_and_gradients_are_those_of_unrolled_cells(device: str, name: str) -> None:
    """Over ends of episodes and agents that leave; later iterations continue the states of earlier ones.

    The states are zero where the episode ended in the step before, and where an agent was inactive. Advantages keep
    their mean: without it the gradients of biases are differences of nearly equal sums.
    """
    trainer = Trainer(memory_run(device, **{**FIXED, **RUNS[name]}))
    check_against_oracle(trainer, Tolerance(2e-5, 1e-5), ends=name != "no time limit")


def test_minibatches_have_full_sequences(device: str) -> None:
    trainer = Trainer(memory_run(device, num_envs=6, sequence_length=4, minibatches=5, epochs=1))
    trainer.iterate(1)
    learner: Any = trainer.learners["agent"]
    numbers = learner.indices.sort().values
    assert numbers.tolist() == list(range(24))
    assert learner.minibatch_bounds == [0, 4, 9, 14, 19, 24]
    indices, recurrence = learner.sequences.minibatch(learner.indices[:4])
    steps, rows = numpy_of(indices).reshape(4, 4) // 6, numpy_of(indices).reshape(4, 4) % 6
    assert (steps == steps[:1] + np.arange(4)[:, None]).all()
    assert (steps[0] % 4 == 0).all()
    assert (rows == rows[:1]).all()
    assert recurrence.state.shape == (4, 12)


@pytest.mark.parametrize("bytes_each", [1, 2**16, 2**20])
@pytest.mark.parametrize("role", ["agent", "hunter", "prey"])
def test_large_minibatches_are_computed_in_pieces(
    device: str, role: str, bytes_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same gradient; pieces have full groups of agents that share observations."""
    env = "CartPole-v1" if role == "agent" else "Sharing-v0"
    trainer = Trainer(memory_run(device, env=env, sequence_length=4, epochs=1))
    trainer.iterate(1)
    learner: Any = trainer.learners[role]
    indices, recurrence = learner.sequences.minibatch(learner.indices[: 9 * learner.policy_rows.group_size])
    observations, samples = learner.samples
    if isinstance(observations, SplitRows):
        observations = observations.with_data(observations.individual, torch.rand_like(observations.shared))
    minibatch = Minibatch(observations, samples, indices, learner.algorithm, learner.scalars, recurrence)
    results = []
    for size in (2**32, bytes_each):
        monkeypatch.setattr("gpu_envs.training.engines.torch.CHUNK_BYTES", size)
        learner.networks.gradient(minibatch, learner.optimiser.totals)
        results.append(learner.optimiser.message.clone())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_from_before_memory_is_loaded(device: str, tmp_path: Path) -> None:
    run = small_run(device, total_steps=8 * 16, run_dir=str(tmp_path / "run"))
    train(run, progress=False)
    latest = RunDirectory.open(tmp_path / "run").checkpoints.latest()
    assert latest is not None
    state = checkpoint.load(latest)
    for name in ("memory", "sequence_length"):
        del state["describes"][f"agent: {name}"]
    for name in ("starts", "recurrent_states"):
        del state[name]
    checkpoint.save(latest, state)
    assert resume(tmp_path / "run", total_steps=8 * 16 * 2, progress=False).iterations == 2


# --- acting without learning ---


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_trained_policies_keep_their_state_in_environments_of_users(mode: str, device: str, tmp_path: Path) -> None:
    """The greedy actions of a loop that restarts its own state with each episode."""
    params = {"max_episode_steps": 18}
    train(memory_run(device, params=params, total_steps=8 * 16 * 4, run_dir=str(tmp_path / "run")), progress=False)
    policies = load_policies(tmp_path / "run", device=device)
    env = policies.make(7, autoreset_mode=mode)
    act, module = policies.acting_in(env), policies.networks["agent"].module  # type: ignore[union-attr]  # torch's
    observations, _ = env.reset(seed=1)
    state, starts, differs = module.initial_state(7), torch.ones(1, 7, dtype=torch.bool, device=device), 0
    ended = torch.zeros(7, dtype=torch.bool, device=device)
    for _ in range(50):
        with torch.no_grad():
            state = torch.where(starts[0].unsqueeze(1), 0.0, state)
            forgetful, *_ = module(observations.unsqueeze(0), torch.zeros_like(state), starts)
            logits, _, state = module(observations.unsqueeze(0), state, starts)
        actions = act(observations)
        assert actions.tolist() == logits[0].argmax(1).tolist()
        differs += int((logits - forgetful).abs().gt(1e-4).sum())
        observations, _, terminated, truncated, _ = env.step(actions)
        starts = (terminated | truncated if mode == "SameStep" else ended).clone().unsqueeze(0)
        ended = (terminated | truncated) & ~ended
    assert differs > 100


@pytest.mark.parametrize("env", ["CartPole-v1", GRID])
def test_evaluations_and_replays_of_policies_with_memory(env: str, device: str, tmp_path: Path) -> None:
    params = {"episode_length": 18} if env == GRID else {}
    run = memory_run(device, env=env, params=params, total_steps=8 * 16 * 3, run_dir=str(tmp_path / "run"))
    train(run, progress=False)
    trainer = Trainer(run)
    trainer.load(last_checkpoint(tmp_path / "run", trainer.device))
    for greedy in (True, False):
        found = evaluate(tmp_path / "run", episodes=12, greedy=greedy, device=device, num_envs=4)
        assert found == trainer.evaluate(12, greedy=greedy, num_envs=4)
        policies = load_policies(tmp_path / "run", device=device)
        user_env = policies.make(4, autoreset_mode="SameStep")
        act = policies.acting_in(user_env, greedy=greedy)
        assert gpu_envs.evaluate(act, user_env, episodes=12, seed=policies.seed) == found
    assert record(tmp_path / "run", episodes=2, device=device).rewards


def test_a_replaced_opponent_restarts(device: str, tmp_path: Path) -> None:
    """Its state is zero, as the former policy's means nothing to it; a policy without memory is refused."""
    settings: dict[str, Any] = {"env": GRID, "policies": {"runner": "random"}, "total_steps": 1}
    train(memory_run(device, **settings, run_dir=str(tmp_path / "one")), progress=False)
    train(memory_run(device, **settings, seed=9, run_dir=str(tmp_path / "other")), progress=False)
    train(small_run(device, **settings, hidden=(8,), run_dir=str(tmp_path / "plain")), progress=False)
    trainer = Trainer(small_run(device, GRID, policies={"tagger": f"frozen:{tmp_path / 'one'}"}))
    trainer.iterate(1)
    (player,) = trainer.players.values()
    state: Any = player.recurrent_state
    assert state.abs().max() > 0
    with pytest.raises(ValueError, match="its memory is None, not GRU"):
        trainer.replace_opponent("tagger", str(tmp_path / "plain"))
    assert state.abs().max() > 0
    trainer.replace_opponent("tagger", str(tmp_path / "other"))
    assert not state.any()
    trainer.iterate(1)


def test_one_policy_of_a_team_has_memory(device: str) -> None:
    """The other learns as without it; the sequence length of the run is for the one."""
    settings: dict[str, Any] = {"params": {"episode_length": 18}, "fused": False}
    plain = Trainer(small_run(device, GRID, **settings))
    mixed = Trainer(small_run(device, GRID, **settings, **{"runner.memory": "gru:6"}, sequence_length=8))
    for trainer in (plain, mixed):
        trainer.iterate(1)
    actions = [trainer.learners["tagger"].actions[0] for trainer in (plain, mixed)]  # type: ignore[attr-defined]
    assert torch.equal(*actions)
    assert mixed.learners["tagger"].recurrent_state is None
    assert mixed.learners["runner"].sequences.length == 8  # type: ignore[attr-defined]  # they learn on-policy


def test_frozen_policies_have_memory(device: str, tmp_path: Path) -> None:
    """They act beside policies without memory; a resumed run is the same bit for bit."""
    source = tmp_path / "source"
    params = {"episode_length": 18}
    train(memory_run(device, env=GRID, params=params, total_steps=1, run_dir=str(source)), progress=False)
    run = small_run(device, GRID, params=params, policies={"runner": f"frozen:{source}"})
    whole = Trainer(run)
    whole.iterate(2)
    state = whole.state()
    (name,) = state["recurrent_states"]
    assert name.startswith("frozen:")
    assert state["recurrent_states"][name].abs().max() > 0
    other = Trainer(run)
    other.load(state)
    for trainer in (whole, other):
        trainer.iterate(2)
    assert_same_bits(without_times(whole.state()), without_times(other.state()))


# --- modules of users ---


class Traces(RecurrentModule):
    """Averages over the past of an episode, of several lengths; learnt layers see them."""

    def __init__(self, features: int = 4, outputs: int = 2) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1.0, 1.0, features), requires_grad=False)
        self.first = nn.Parameter(torch.full((features,), 0.1))
        self.heads = nn.Linear(2 * features, outputs + 1)

    def initial_state(self, rows: int) -> Tensor:
        first: Tensor = self.first
        return first.expand(rows, -1)

    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        traces = []
        for rows, start in zip(observations, starts, strict=True):
            state = torch.where(start.unsqueeze(1), self.first, state)
            state = torch.lerp(state, rows, self.decay.sigmoid())
            traces.append(state)
        both = self.heads(torch.cat((observations, torch.stack(traces)), 2))
        return both[..., :-1], both[..., -1], state


def test_modules_of_users_have_memory(device: str, tmp_path: Path) -> None:
    """Also the initial state is learnt; a resumed run is the same bit for bit."""
    settings = {**MODULE_SETTINGS, "sequence_length": 8, "total_steps": 8 * 16 * 6}
    whole = Trainer(small_run(device, **settings), modules={"agent": Traces()})
    before = {name: tensor.clone() for name, tensor in whole.learners["agent"].module.state_dict().items()}
    part = small_run(device, **settings | {"total_steps": 8 * 16 * 3, "run_dir": str(tmp_path / "run")})
    module = Traces()
    module.load_state_dict(before)
    whole.iterate(6)
    after = whole.learners["agent"].module.state_dict()
    assert not torch.equal(before["first"], after["first"])
    assert torch.equal(before["decay"], after["decay"])
    train(part, progress=False, modules={"agent": module})
    resume(tmp_path / "run", total_steps=8 * 16 * 6, progress=False, modules={"agent": Traces()})
    assert_same_bits(last_checkpoint(tmp_path / "run")["learners"], whole.state()["learners"])
    assert evaluate(tmp_path / "run", episodes=5, device=device, modules={"agent": Traces()})["agent"].episodes == 5


class FirstStepOnly(Traces):
    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().forward(observations[:1], state, starts[:1])


class NoState(Traces):
    def initial_state(self, rows: int) -> Tensor:
        state: Tensor = torch.zeros(rows, 0)
        return state


class WrongState(Traces):
    def initial_state(self, rows: int) -> Tensor:
        state: Tensor = torch.zeros(rows, dtype=torch.float64)
        return state


class WrongOutputs(Traces):
    def forward(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parameters, values, state = super().forward(observations, state, starts)
        return parameters, values, state[:, :1]


def test_errors_of_memory(device: str) -> None:
    def raises(match: str, modules: Any = None, **settings: Any) -> None:
        with pytest.raises(ValueError, match=match):
            Trainer(small_run(device, **(MODULE_SETTINGS if modules else {}), **settings), modules=modules)

    raises(r"initial_state\(1\) of the policy 'agent' is torch.float64 \[1\]; return a", {"agent": WrongState()})
    raises(r"initial_state\(1\) .* is torch.float32 \[1, 0\]; return a .*, with n above 0", {"agent": NoState()})
    raises(r"to \(1, 3, 2\) and \(1, 3\) and \(3, 4\); expected", {"agent": FirstStepOnly()})
    raises("RecurrentModule without initial_state", {"agent": RecurrentModule()})
    raises(
        r"maps observations \[2, 3, 4\], state \[3, 4\] and starts \[2, 3\] to \(2, 3, 2\) and \(2, 3\) and "
        r"\(3, 1\); expected a tuple of the distribution's parameters \(2, 3, 2\), the values \(2, 3\) and the "
        r"state \(3, 4\)",
        {"agent": WrongOutputs()},
    )
    raises(
        "RecurrentModule, which pqn cannot train: give the algorithm ppo or a2c", {"agent": Traces()}, algorithm="pqn"
    )
    raises("sequence_length is 8, but the policy 'agent' has no memory", sequence_length=8)
    one = {"env": GRID, "runner.memory": "gru:4", "tagger.sequence_length": 8}
    raises("sequence_length is 8, but the policy 'tagger' has no memory", **one)
    raises("sequence_length is 5, but horizon is 16: give a", memory="gru:4", sequence_length=5)
    raises(
        "a horizon of the policy 'agent' has 8 sequences of 16 steps: give 8 or fewer", memory="gru:4", minibatches=9
    )
    raises("pqn has no memory, which is a setting of ppo and a2c", memory="gru:4", algorithm="pqn")
    raises(r"memory cannot be set for the policy 'agent'", {"agent": Traces()}, memory="gru:4")
    raises("'gr:4' is not a memory. Did you mean 'gru'", memory="gr:4")
    raises("'gru:x' has no size from 1 to", memory="gru:x")
    with pytest.raises(ValueError, match="the size of a memory is 0; give an integer from 1"):
        GRU(0)


def test_settings_of_memory_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert Network(memory="lstm").memory == LSTM(64)
    assert Network(memory=GRU(7)).memory == Network(memory="GRU:7").memory
    options = ["--memory", "gru:8", "--sequence-length", "8", "--num-envs", "8", "--device", "cpu", "--no-progress"]
    run = tmp_path / "run"
    assert main(["train", "CartPole-v1", *options, "--total-steps", "512", "--run-dir", str(run)]) == OK
    assert load_policies(run).config.network.memory == GRU(8)
    assert main(["train", "CartPole-v1", "--memory", "gr:8"]) != OK
    assert "'gr:8' is not a memory" in capsys.readouterr().err
