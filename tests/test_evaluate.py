"""``gpu_envs.evaluate`` gives the results of a loop that a user would write, for any policy and environment."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector as gymnasium_wrappers
from harness import Array, Place, assert_same_bits, numpy_of, run_python
from masked_envs import CHOICES
from registered import needs_cuda

import gpu_envs
from gpu_envs import evaluating
from gpu_envs.replays import record
from gpu_envs.seeds import derived_seed

Roles = dict[str, np.ndarray]
"""An array of each role, ``[num_envs, agents]``."""

COUNT, EACH, SEED = 6, 2, 5
"""Replicas, episodes of each replica, and seed of evaluations."""


def balance(observations: Array) -> Array:
    """Falls after some ten to hundred steps."""
    return observations[:, 1] + observations[:, 2] > 0


def chase(observations: dict[str, Array]) -> dict[str, Array]:
    """Every agent walks in a direction that depends on what it sees."""
    return {role: values.sum(-1) > 3 for role, values in observations.items()}


def zeros(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), int)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "single": ("CartPole-v1", balance, {}),
    "team": ("TagGridWorld-v0", chase, {"grid_length": 4, "num_taggers": 2, "max_episode_steps": 30}),
}


def by_role(values: Any) -> Roles:
    return {r: numpy_of(v) for r, v in values.items()} if isinstance(values, dict) else {"agent": values[:, None]}


def play_by_hand(env_id: str, policy: Any, **params: Any) -> dict[str, dict[str, list[Any]]]:
    """Returns ``returns`` and ``lengths`` of episodes by role, and ``metrics`` by name, one replica after another."""
    found: dict[str, dict[str, list[Any]]] = {"returns": {}, "lengths": {}, "metrics": {}}
    for replica in range(COUNT):
        env: Any = gpu_envs.make(env_id, 1, device="cpu", autoreset_mode="Disabled", **params)
        observations, _ = env.reset(seed=derived_seed(SEED, "evaluation") + replica)
        for _ in range(EACH):
            sums: Roles = {}
            steps: Roles = {}
            running = True
            while running:
                observations, rewards, terminations, truncations, _ = env.step(policy(observations))
                ended = {r: by_role(terminations)[r] | by_role(truncations)[r] for r in by_role(rewards)}
                for role, (agents_rewards,) in by_role(rewards).items():
                    sums[role] = sums.get(role, 0) + agents_rewards.astype(float)
                    steps[role] = steps.get(role, np.ones(len(agents_rewards), int)) + ~ended[role][0]
                running = not all(each.all() for each in ended.values())
            for kind, values in (("returns", sums), ("lengths", steps), ("metrics", env.episode_metrics)):
                for name, value in values.items():
                    found[kind].setdefault(name, []).append(np.array(value))
            observations, _ = env.reset()
        env.close()
    return found


@pytest.mark.parametrize("case", list(CASES))
def test_it_equals_a_loop_by_hand(case: str, place: Place) -> None:
    """Also in environments that the user made, in every autoreset mode."""
    env_id, policy, params = CASES[case]
    options: dict[str, Any] = {**place._asdict(), **params}
    found = gpu_envs.evaluate(policy, env_id, episodes=EACH * COUNT - 1, num_envs=COUNT, seed=SEED, **options)
    by_hand = play_by_hand(env_id, policy, **params)
    assert list(found) == list(by_hand["returns"])
    for role, evaluation in found.items():
        returns, lengths = (
            np.reshape(by_hand[kind][role], (COUNT, EACH, -1)).swapaxes(0, 1) for kind in ("returns", "lengths")
        )
        shape = returns.shape if case == "team" else (EACH, COUNT)
        assert evaluation.returns.shape == evaluation.lengths.shape == shape
        assert (evaluation.lengths == lengths.reshape(shape)).all()
        np.testing.assert_allclose(evaluation.returns, returns.reshape(shape), 1e-5, 1e-5)
        std = returns.mean(-1).std(ddof=1)
        assert evaluation.episodes == EACH * COUNT
        assert evaluation.mean == pytest.approx(returns.mean(), rel=1e-5)
        assert evaluation.std == pytest.approx(std, rel=1e-5)
        assert evaluation.interval == pytest.approx(1.96 * std / np.sqrt(EACH * COUNT), rel=1e-5)
        assert evaluation.length == lengths.mean()
        metrics = {name: metric.mean for name, metric in evaluation.metrics.items()}
        assert metrics == pytest.approx(
            {name: np.mean(values) for name, values in by_hand["metrics"].items()}, rel=1e-5
        )
    assert case == "single" or found["tagger"].metrics["tags"].mean > 0
    for mode in ("NextStep", "SameStep", "Disabled"):
        env = gpu_envs.make(env_id, COUNT, autoreset_mode=mode, **options)
        again = gpu_envs.evaluate(policy, env, episodes=EACH * COUNT, seed=SEED)
        assert again == found
        assert_same_bits([each.returns for each in again.values()], [each.returns for each in found.values()])


@pytest.mark.usefixtures("masked_environments")
def test_policies_are_called_with_masks(device: str) -> None:
    """In the corridor, choice ``5 place + 2`` leads on, ``5 place + 4`` stays, and any other gives -1."""

    def walk(observations: np.ndarray, masks: np.ndarray) -> np.ndarray:
        onward: np.ndarray = (observations.argmax(1) * 5 + 2) % CHOICES
        assert (masks.sum(1) == 2).all()
        assert (masks[np.arange(len(masks)), onward] == 1).all()
        return onward

    def climb(observations: dict[str, np.ndarray], masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert {role: mask.shape for role, mask in masks.items()} == {"walker": (4, 2, 5), "hiker": (4, 1, 5)}
        agents = {"walker": np.arange(2), "hiker": np.array([2])}
        first = {role: (values.argmax(-1) * 2 + 1 + agents[role]) % 3 + 2 for role, values in observations.items()}
        return {role: np.stack([choice, 0 * choice], -1) for role, choice in first.items()}

    options: dict[str, Any] = {"episodes": 8, "num_envs": 4, "device": device}
    assert gpu_envs.evaluate(walk, "MaskedCorridor-v0", prize=3.0, **options)["agent"].mean == 3
    team = gpu_envs.evaluate(climb, "MaskedTeam-v0", **options)
    recorded = record("MaskedTeam-v0", policy=climb, replicas=4, steps=6, device=device)  # calls policies alike
    assert {role: set(values.tolist()) for role, values in recorded.returns().items()} == {"walker": {6}, "hiker": {6}}
    assert {role: (each.mean, each.length) for role, each in team.items()} == {"walker": (6, 6), "hiker": (6, 6)}
    with pytest.raises(TypeError, match=r"(?s)takes 1 positional argument.*masks, which .* its second argument"):
        gpu_envs.evaluate(zeros, "MaskedCorridor-v0", **options)
    for env_id in ("MaskedCorridor-v0", "MaskedTeam-v0"):  # random actions are valid
        assert min(each.returns.min() for each in gpu_envs.evaluate(None, env_id, **options).values()) >= 0
    assert gpu_envs.evaluate(None, "BareCorridor-v0", **options)["agent"].mean < 0


def test_each_replica_counts_equally_often(device: str) -> None:
    """With a value per replica, columns of ``returns`` and ``lengths`` are the values' results."""
    env = "CartPole-v1"
    limits: dict[str, Any] = {"theta_threshold_radians": [1e-6, 0.2, 1e-6, 0.2], "max_episode_steps": 3}
    found = gpu_envs.evaluate(None, env, episodes=10, num_envs=4, device=device, **limits)["agent"]
    assert found.lengths.tolist() == [[1, 3, 1, 3]] * 3
    assert (found.length, found.episodes) == (2, 12)


def test_seeds(device: str) -> None:
    """Equal seeds give equal episodes, which are not those of a training with this seed."""
    env = gpu_envs.make("Pendulum-v1", 3, device=device, max_episode_steps=5)
    returns = [
        gpu_envs.evaluate(None, env, episodes=3, seed=seed)["agent"].returns.tolist()
        for seed in (0, 0, 1, np.random.SeedSequence(7), np.random.SeedSequence(7))
    ]
    assert returns[0] == returns[1]
    assert returns[3] == returns[4]
    assert returns[0] not in (returns[2], returns[3])
    gpu_envs.evaluate(None, env, episodes=3, seed=0)
    assert min(env.np_random_seed or ()) > 2**32


def test_wrapped_environments(device: str) -> None:
    """The policy sees and acts through wrappers, but the returns are the environment's."""
    plain = gpu_envs.evaluate(balance, "CartPole-v1", episodes=4, device=device)
    env: Any = gpu_envs.make("CartPole-v1", 4, device=device)
    env = gymnasium_wrappers.TransformReward(env, lambda rewards: 10 * rewards)
    env = gymnasium_wrappers.TransformObservation(env, lambda observations: -observations)
    assert gpu_envs.evaluate(lambda observations: balance(-observations), env, episodes=4) == plain
    only_left = gymnasium.spaces.MultiDiscrete([1] * 4), gymnasium.spaces.Discrete(1)
    env = gymnasium_wrappers.TransformAction(env, lambda actions: actions, *only_left)
    left = gpu_envs.evaluate(zeros, "CartPole-v1", episodes=4, device=device)
    assert gpu_envs.evaluate(None, env, episodes=4) == left


def test_results_print_as_a_table_and_become_json() -> None:
    found = gpu_envs.evaluate(None, "TagGridWorld-v0", episodes=4, device="cpu", max_episode_steps=5)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == ["role", "tagger", "runner", "tags", "survival"]
    assert len({line.index("+-") for line in lines[1:]}) == 1
    numbers = json.loads(json.dumps(found["tagger"].as_dict()))
    assert numbers["mean"] == found["tagger"].mean
    assert numbers["metrics"]["tags"]["interval"] == found["tagger"].metrics["tags"].interval
    assert "returns" not in numbers


MADE = object()
"""Stands for an environment that the user made."""


@pytest.mark.parametrize(
    ("policy", "env", "options", "error", "message"),
    [
        ("runs/x", "CartPole-v1", {}, TypeError, "policy is 'runs/x'; give a function .* gpu_envs.training.evaluate"),
        (lambda _: None, "CartPole-v1", {}, TypeError, "returned None; .* actions of all 3 replicas"),
        (lambda o: (zeros(o), None), "CartPole-v1", {}, TypeError, r"returned a tuple; .*deterministic=True\)\[0\]"),
        (lambda o: zeros(o)[:2], "CartPole-v1", {}, ValueError, r"actions have shape \(2,\); expected \(3,\)"),
        (lambda o: o[:, :2], "CartPole-v1", {}, ValueError, r"\(3, 2\); .* pass logits.argmax\(-1\)"),
        (lambda o: zeros(o) + 0.5, "CartPole-v1", {}, TypeError, "actions have dtype float64; .* needs integers"),
        (lambda o: zeros(o) + 2, "CartPole-v1", {}, gpu_envs.ActionError, "2"),
        (lambda o: {"tagger": o["tagger"]}, "TagGridWorld-v0", {}, ValueError, "role 'tagger': actions have shape"),
        (lambda _: {}, "TagGridWorld-v0", {}, ValueError, "actions of the role 'tagger' are missing"),
        (zeros, "CartPole-v1", {"episodes": 0}, ValueError, "episodes is 0"),
        (zeros, "CartPole-v1", {"num_envs": 0}, ValueError, "num_envs is 0"),
        (zeros, "CartPole-v1", {"seed": None}, TypeError, "seed is None"),
        (zeros, "CartPole-v1", {"mass": 1.0}, ValueError, "CartPole-v1 has no .*'mass'"),
        (zeros, MADE, {"num_envs": 3, "device": "cpu", "gravity": 9.0}, ValueError, "num_envs, gravity, device: give"),
        (zeros, 3, {}, TypeError, "env is 3; give an id, a spec"),
    ],
)
def test_mistakes(policy: Any, env: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    env = gpu_envs.make("CartPole-v1", 3, device="cpu") if env is MADE else env
    with pytest.raises(error, match=message):
        gpu_envs.evaluate(policy, env, **({"episodes": 3} | options))


def test_environments_without_statistics_or_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="no episode_return, because it was made with statistics=False"):
        gpu_envs.evaluate(None, "CartPole-v1", statistics=False, device="cpu")
    monkeypatch.setattr(evaluating, "MAX_EPISODE_STEPS", 10)
    with pytest.raises(RuntimeError, match="needs over 20 steps for 2 episodes: limit them by max_episode_steps"):
        gpu_envs.evaluate(None, "Pendulum-v1", episodes=2, num_envs=1, device="cpu", max_episode_steps=-1)


def test_torch_is_not_imported_but_needs_no_gradients() -> None:
    run_python(
        "import gpu_envs, sys; gpu_envs.evaluate(None, 'CartPole-v1', episodes=2, device='cpu');"
        "assert not {'torch', 'cupy'} & set(sys.modules)"
    )
    torch = pytest.importorskip("torch")
    policy = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Tanh())
    found = gpu_envs.evaluate(policy, "Pendulum-v1", episodes=2, output="torch", device="cpu", max_episode_steps=5)
    assert found["agent"].length == 5
    for play in (lambda: gpu_envs.evaluate(policy, "Pendulum-v1"), lambda: record("Pendulum-v1", policy=policy)):
        with pytest.raises(TypeError, match=r"(?s)must be Tensor.*for torch policies pass output='torch'"):
            play()


@needs_cuda
@pytest.mark.cuda
def test_adding_episodes_does_not_wait_for_the_device(sync_debug_mode: Any) -> None:
    env: Any = gpu_envs.make("CartPole-v1", 4, device="cuda", output="torch")
    env.reset(seed=0)
    tally = evaluating.EpisodeTally(2, 4, env.simulation.arrays)
    results = evaluating.Results({"agent": env.episode_return}, {"agent": env.episode_length}, env.episode_metrics)
    tally.add(env.finished, results)
    sync_debug_mode("error")
    tally.add(env.finished, results)
    sync_debug_mode("default")
    assert tally.count() == 0
