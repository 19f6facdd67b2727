"""Central critics: what they see, what they learn from it, and where they cannot be."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import numpy_of
from trainers import FIELD, FIELD_PARAMS, GRID, assert_resumes_identically, small_run

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from gpu_envs.training import Network, PolicyModule, Trainer, evaluate, train  # noqa: E402
from gpu_envs.training.assembly import central_input, describe_engines  # noqa: E402
from gpu_envs.training.rollout.plan import Plan  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SPREAD = "SimpleSpread-v3"
SHORT: dict[str, Any] = {"params": {"max_episode_steps": 6}}


def roll_out(trainer: Any) -> None:
    """Roll out, and compute values and returns."""
    trainer.roll_out()
    for learner in trainer.learners.values():
        learner.finish_rollout(trainer.horizon_env.storage)


def seen_by_critic(trainer: Any, role: str, critic: str, final: bool = False) -> np.ndarray:
    """Return a central critic's input from the storage, agent by agent, ``[steps, replicas, features]``."""
    columns: list[np.ndarray] = []
    for name, storage in trainer.horizon_env.storage.items():
        if critic == "team" and name != role:
            continue
        rows = storage.final_rows if final else storage.rows()
        own = numpy_of(getattr(rows, "individual", rows)).astype(np.float64)
        alive: np.ndarray = numpy_of(storage.alive)[: len(own)]
        if final:
            alive = alive & ~numpy_of(storage.terminations)
        columns += [np.where(alive[:, :, k, None], own[:, :, k], 0.0) for k in range(own.shape[2])]
        if hasattr(rows, "shared"):
            columns.append(np.where(alive.any(2, keepdims=True), numpy_of(rows.shared), 0.0))
    return np.concatenate(columns, 2)


def values_of(module: Any, seen: np.ndarray) -> np.ndarray:
    """Return the values of each agent in float64, from the layers' weights: ``[steps, replicas, agents]``."""
    layers = [layer for layer in module.critic if hasattr(layer, "weight")]
    first, *weights = [numpy_of(layer.weight).astype(np.float64) for layer in layers]
    biases = [numpy_of(layer.bias).astype(np.float64) for layer in layers]
    by_agent = []
    for agent in range(module.critic[0].central.agents):
        inputs = np.zeros((*seen.shape[:2], first.shape[1]))
        inputs[..., : seen.shape[2]] = seen
        if module.critic[0].central.agents > 1:
            inputs[..., seen.shape[2] + agent] = 1.0
        x = inputs @ first.T + biases[0]
        for weight, bias in zip(weights, biases[1:], strict=True):
            x = np.tanh(x) @ weight.T + bias
        by_agent.append(x[..., 0])
    return np.stack(by_agent, 2)


@pytest.mark.parametrize(("critic", "fused"), [("team", None), ("all", None), ("all", False)])
@pytest.mark.parametrize(("env", "role"), [(FIELD, "runner"), (FIELD, "tagger"), (SPREAD, "agent"), (GRID, "tagger")])
def test_values_are_those_of_the_joint_observations(
    env: str, role: str, critic: str, fused: bool | None, device: str
) -> None:
    """Also after a truncation, whose value the last observations of all agents have."""
    settings = {"normalise_observations": True, "params": {"max_episode_steps": 6}} if env == SPREAD else {}
    trainer: Any = Trainer(small_run(device, env, critic=critic, fused=fused, gae_lambda=1.0, gamma=0.9, **settings))
    history: list[np.ndarray] = []
    for iteration in range(3):
        roll_out(trainer)
        learner = trainer.learners[role]
        seen, scale = seen_by_critic(trainer, role, critic), learner.central.scale
        final = seen_by_critic(trainer, role, critic, final=True)
        if scale is not None:
            mean, variance = (numpy_of(tensor) for tensor in (scale.mean, scale.variance))
            past = np.concatenate([*history, np.zeros((0, seen.shape[2]))])
            assert np.allclose(mean, past.mean(0) if iteration else 0.0, atol=1e-5)
            assert np.allclose(variance, past.var(0) if iteration else 1.0, atol=1e-4)
            history.append(seen[:-1].reshape(-1, seen.shape[2]))
            seen, final = (np.clip((x - mean) / np.sqrt(np.maximum(variance, 1e-8)), -10, 10) for x in (seen, final))
        alive = numpy_of(trainer.horizon_env.storage[role].alive)
        expected = values_of(learner.module, seen)
        found = numpy_of(learner.values).reshape(expected.shape)
        assert np.allclose(found[alive], expected[alive], atol=2e-5)
        check_returns(trainer, role, found, values_of(learner.module, final))
        trainer.learn()


def check_returns(trainer: Any, role: str, values: np.ndarray, final_values: np.ndarray) -> None:
    """Compare the returns, with lambda 1, with sums of rewards up to the end of each agent's episode."""
    storage, learner = trainer.horizon_env.storage[role], trainer.learners[role]
    rewards, dones, cuts, alive = (
        numpy_of(getattr(storage, name)) for name in ("rewards", "terminations", "truncations", "alive")
    )
    returns = numpy_of(learner.returns).reshape(rewards.shape)
    after = values[-1].astype(np.float64)
    for t in reversed(range(len(rewards))):
        after = rewards[t] + 0.9 * np.where(dones[t], 0.0, np.where(cuts[t], final_values[t], after))
        assert np.allclose(returns[t][alive[t]], after[alive[t]], atol=1e-4)
        after = np.where(alive[t], after, 0.0)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_one_agent_alone_learns_as_with_its_own_observations(env: str, device: str) -> None:
    """By the same engine, with the same bits: its critic sees no more than its actor."""
    flat = []
    for critic in ("own", "team", "all"):
        trainer = Trainer(small_run(device, env, critic=critic, hidden=(64, 64)))
        assert (trainer.fused_rollout is not None) == (trainer.learners["agent"].engine != "torch")
        trainer.iterate(3)
        flat.append(numpy_of(trainer.learners["agent"].optimisers[0].flat))
    assert np.array_equal(flat[0], flat[1])
    assert np.array_equal(flat[0], flat[2])


def test_parts_of_a_minibatch_add_up(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = []
    for size in (2**32, 12 * 100 * 20):
        monkeypatch.setattr("gpu_envs.training.engines.torch.CHUNK_BYTES", size)
        trainer = Trainer(small_run(device, FIELD, critic="all", num_envs=40))
        trainer.iterate(2)
        flat.append(numpy_of(trainer.learners["runner"].optimisers[0].flat))
    assert np.allclose(flat[0], flat[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("garbage", [float("nan"), 1e30])
def test_observations_of_inactive_agents_do_not_matter(garbage: float, device: str) -> None:
    flat = []
    for spoils in (False, True):
        trainer: Any = Trainer(small_run(device, FIELD, critic="all", horizon=24, normalise_observations=True))
        for _ in range(2):
            trainer.roll_out()
            if spoils:
                for storage in trainer.horizon_env.storage.values():
                    dead = ~storage.alive
                    assert dead.any() == (storage.role.name == "runner")
                    storage.observations[dead] = garbage
                    storage.final_obs[dead[:-1]] = garbage
            trainer.learn()
        flat.append([numpy_of(learner.optimisers[0].flat) for learner in trainer.learners.values()])
    for plain, spoilt in zip(*flat, strict=True):
        assert np.array_equal(plain, spoilt)


@pytest.mark.parametrize("env", [SPREAD, FIELD])
def test_runs_resume_identically(env: str, device: str) -> None:
    assert_resumes_identically(small_run(device, env, critic="all", normalise_observations=True, normalise_values=True))


def test_a_run_is_played_with_its_actor(device: str, tmp_path: Any) -> None:
    """An actor needs no other agents' observations, and its weights do not depend on the critic."""
    weights = []
    for critic in ("own", "team"):
        config = small_run(device, SPREAD, critic=critic, total_steps=8 * 16 * 2, run_dir=str(tmp_path / critic))
        module: Any = Trainer(dataclasses.replace(config, run_dir="")).learners["agent"].module
        weights.append(numpy_of(module.actor[0].weight))
        train(config, progress=False)
        assert evaluate(tmp_path / critic, episodes=20, progress=False)["agent"].mean < 0
    assert np.array_equal(weights[0], weights[1])


@pytest.mark.parametrize("critic", ["team", "all"])
def test_a_policy_acts_in_other_teams_too(critic: str, device: str, tmp_path: Path) -> None:
    """Where its critic would see something else: in other numbers, for one agent, and in the other role."""
    folder = str(tmp_path / "run")
    train(small_run(device, FIELD, critic=critic, total_steps=8 * 16 * 2, run_dir=folder), progress=False)
    for options in (
        {"params": {"num_runners": 5}},
        {"policies": {"tagger": "runner"}},
        {"policies": {"tagger": f"frozen:{folder}:runner"}},
        {"policies": {"runner_0": f"frozen:{folder}:runner"}, "params": {"num_runners": 4}},
    ):
        played: Any = evaluate(folder, episodes=20, progress=False, device=device, **options)
        assert played["runner"].episodes >= 20
    against: Any = {"params": FIELD_PARAMS | {"num_runners": 4}, "policies": {"runner": f"frozen:{folder}:runner"}}
    trainer = Trainer(small_run(device, FIELD, critic=critic, **against))
    trainer.iterate(1)
    trainer.replace_opponent("runner", f"{folder}:tagger")
    trainer.iterate(1)
    other = Trainer(small_run(device, FIELD, **against))
    with pytest.raises(ValueError, match="its critic is 'own', not '"):
        other.replace_opponent("runner", "tagger")
    seeing = Trainer(small_run(device, FIELD, **against, critic=critic, critic_observes=("grid_length",)))
    seeing.iterate(1)
    seeing.replace_opponent("runner", "tagger")


class Mine(PolicyModule):
    """A user's policy with a critic of three agents."""

    def __init__(self, features: int, seen: int, values: int = 3) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(features, 5), nn.Linear(seen, values)

    def distribution(self, observations: Any) -> Any:
        return self.actor(observations)

    def value(self, observations: Any) -> Any:
        return self.critic(observations)


class Pair(Mine):
    """Its value is not a tensor."""

    def value(self, observations: Any) -> Any:
        return self.critic(observations), None


def test_my_module_sees_a_row_for_each_replica(device: str) -> None:
    module = Mine(18, 54)
    config = small_run(device, SPREAD, critic="team", hidden=(64, 64), **SHORT)
    trainer: Any = Trainer(config, modules={"agent": module})
    roll_out(trainer)
    seen = torch.from_numpy(seen_by_critic(trainer, "agent", "team")).float().to(device)
    with torch.no_grad():
        expected = module.critic(seen)
    assert torch.allclose(trainer.learners["agent"].values.view(expected.shape), expected, atol=1e-5)
    before = module.critic.weight.detach().clone()
    trainer.learn()
    assert not torch.equal(module.critic.weight, before)


def test_wrong_modules_are_refused() -> None:
    config = small_run("cpu", SPREAD, critic="team", hidden=(64, 64))
    wrong = {
        "the critic of the policy 'agent' maps observations \\[2, 54\\] to \\(2, 1\\); expected \\(2, 3\\)": Mine(
            18, 54, 1
        ),
        "the critic of the policy 'agent' cannot take float32 observations of 54 features": Mine(18, 18),
        "the critic of the policy 'agent' maps observations \\[2, 54\\] to tuple; expected \\(2, 3\\)": Pair(18, 54),
        "critic is set, but the module of the policy 'agent' has no method value\\(\\)": nn.Linear(18, 6),
    }
    for message, module in wrong.items():
        with pytest.raises(ValueError, match=message):
            Trainer(config, modules={"agent": module})


def test_settings_that_exclude_each_other_say_so() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"shared_trunk": True}, "critic is 'team' and shared_trunk is True"),
        ({"memory": "gru:8"}, "critic is 'team' and memory is gru:8"),
        ({"algorithm": "pqn"}, "pqn has no critic, which is a setting of ppo and a2c"),
        ({"algorithm": "sac", "env": "Pendulum-v1"}, "sac has no critic"),
    )
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            small_run("cpu", **({"env": SPREAD, "critic": "team"} | settings))
    with pytest.raises(ValueError, match=r"critic is 'tem'\. Did you mean 'team'\? Allowed: own, team, all"):
        small_run("cpu", critic="tem")
    with pytest.raises(
        ValueError, match="critic_observes is a,b for the 3 agents of the role 'agent'; give critic team"
    ):
        central_input(Plan(small_run("cpu", SPREAD), "cpu", 1).roles[0], Network(critic_observes=("a", "b")))
    both = small_run("cpu", FIELD, critic="team", policies={"runner": "one", "tagger": "one"})
    with pytest.raises(ValueError, match="one policy for tagger and runner cannot see more than its actors"):
        Trainer(both)


def test_description_names_what_the_critic_sees() -> None:
    run = small_run("cpu", SPREAD, critic="team", hidden=(64, 64))
    lines = describe_engines(run, "cuda:0")
    assert lines[0] == "agent: 18 features, the critic sees 54, 64 x 64 tanh, float32, cuda:0"
    assert any("the critic sees more than the actor, which these kernels do not support" in line for line in lines)
    alone = describe_engines(small_run("cpu", critic="team", hidden=(64, 64)), "cpu")
    assert alone[0] == "agent: 4 features, 64 x 64 tanh, float32, cpu"


POLES: dict[str, Any] = {"critic_observes": ("pole_mass", "length"), "horizon": 12}
DRAWN = {"pole_mass": "uniform:0.05:0.4", "length": "uniform:0.2:1", "max_episode_steps": 5}


@pytest.mark.parametrize("normalises", [False, True])
def test_critic_observes_parameters_of_the_episode(normalises: bool, device: str) -> None:
    """Of each step those before it, also of the last of an episode, after which new ones are drawn."""
    trainer: Any = Trainer(small_run(device, params=DRAWN, normalise_observations=normalises, **POLES))
    env = trainer.horizon_env.env
    seen, step = [], trainer.horizon_env.step

    def look() -> None:
        seen.append(np.stack([numpy_of(env.params[name]) for name in POLES["critic_observes"]], 1))

    def watched(t: int, actions: Any) -> None:
        step(t, actions)
        look()

    trainer.horizon_env.step = watched
    for _ in range(2):
        seen.clear()
        look()
        roll_out(trainer)
        learner = trainer.learners["agent"]
        shown, params = numpy_of(learner.central.samples.shared).reshape(12, 8, 6), np.stack(seen)
        assert len(np.unique(params[:, 0], axis=0)) > 2
        assert np.array_equal(shown[..., 4:], params[:-1])
        assert np.array_equal(shown[..., :4], numpy_of(trainer.horizon_env.storage["agent"].rows())[:-1, :, 0])
        final = numpy_of(learner.central.final_rows(trainer.horizon_env.storage).shared)
        assert np.array_equal(final[..., 4:], params[:-1])
        trainer.learn()


def test_critics_with_parameters_resume_identically(device: str) -> None:
    assert_resumes_identically(small_run(device, params=DRAWN, **POLES))
    drawn = {"pole_mass": "uniform:0.05:0.4", "max_episode_steps": 5}
    assert_resumes_identically(small_run(device, params=drawn, critic="team", critic_observes=("pole_mass",)))


def test_changed_parameters_are_seen_from_the_next_step_on(device: str) -> None:
    """Also those that are equal in all replicas at first."""
    trainer: Any = Trainer(
        small_run(device, critic_observes=("pole_mass", "gravity"), params={"gravity": "normal:9:1"})
    )
    trainer.iterate(1)
    trainer.set_params(pole_mass=0.4)
    trainer.iterate(1)
    seen = numpy_of(trainer.learners["agent"].central.samples.shared).reshape(16, 8, 6)
    assert np.allclose(seen[..., 4], 0.4)
    assert len(np.unique(seen[..., 5])) > 8


def test_parameters_that_a_critic_cannot_see() -> None:
    for name, message in (
        ("pole_mas", "critic_observes: CartPole-v1 has no parameter 'pole_mas'. Did you mean 'pole_mass'?"),
        ("max_episode_steps", "critic_observes: CartPole-v1 has no "),
    ):
        with pytest.raises(ValueError, match=message.replace("?", "[?]")):
            Trainer(small_run("cpu", critic_observes=(name,)))
    with pytest.raises(ValueError, match="names 'kinematics_integrator', which is not a number: name numbers"):
        Trainer(small_run("cpu", critic_observes=("kinematics_integrator",)))
    with pytest.raises(ValueError, match="critic_observes names 'length', which is fixed: name numbers"):
        Trainer(small_run("cpu", "TMaze-v0", critic_observes=("length",)))
