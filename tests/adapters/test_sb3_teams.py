"""Teams in the SB3 adapter: one environment per agent, inactive agents, and policies of the other roles."""

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from harness import Place, assert_same_bits, numpy_of, to_place
from registered import draw_actions

torch = pytest.importorskip("torch")
stable = pytest.importorskip("stable_baselines3", minversion="2.9")

from sb3_tools import Recorder, actions_for, make_vec  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs.adapters import sb3  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

GRID: dict[str, Any] = {"grid_length": 4, "num_taggers": 2, "episode_length": 12}
FIELD: dict[str, Any] = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 5.0,
    "tagging_distance": 0.2,
    "episode_length": 20,
    "num_acceleration_levels": 4,
    "num_turn_levels": 4,
    "step_reward_for_runner": 0.125,
}

CASES = [
    pytest.param("TagGridWorld-v0", "tagger", "runner", GRID, id="grid-tagger"),
    pytest.param("TagGridWorld-v0", "runner", "tagger", GRID, id="grid-runner"),
    pytest.param("TagContinuous-v0", "tagger", "runner", FIELD, id="field-tagger"),
    pytest.param("TagContinuous-v0", "runner", "tagger", FIELD, id="field-runner"),
    pytest.param("TagContinuous-v0", "runner", "tagger", FIELD | {"actions": "continuous"}, id="field-continuous"),
]


def drawn(env: Any, role: str, steps: int, seed: int = 0) -> np.ndarray:
    """Sample actions of a role, ``[steps, num_envs, agents, ...]``."""
    return np.stack([actions[role] for actions in draw_actions(env, steps, seed)])


def spy_on(env: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """Record copies of the actions passed to each step of the environment, by role."""
    recorded: list[dict[str, np.ndarray]] = []
    step = env.step

    def spy(actions: Mapping[str, Any], **kwargs: Any) -> Any:
        recorded.append({role: numpy_of(array) for role, array in actions.items()})
        return step(actions, **kwargs)

    monkeypatch.setattr(env, "step", spy)
    return recorded


# --- slots ---


@pytest.mark.parametrize(("team_id", "role", "other", "params"), CASES)
def test_slots_are_the_agents_of_a_role(
    team_id: str, role: str, other: str, params: Mapping[str, Any], place: Place
) -> None:
    """Compare with the environment stepped with the same actions, agent by agent in plain Python."""
    count, steps = 7, 80
    env = gpu_envs.make(team_id, count, device=place.device, output=place.output, autoreset_mode="SameStep", **params)
    plain: Any = gpu_envs.make(team_id, count, device=place.device, autoreset_mode="SameStep", **params)
    theirs = drawn(plain, other, steps, seed=1)
    turns = iter(theirs)
    venv = make_vec(env, role=role, others=lambda _: to_place(next(turns), place), seed=3)
    agents = plain.counts[role]
    assert venv.num_envs == count * agents
    assert venv.observation_space == plain.single_observation_spaces[role]
    assert venv.action_space == plain.single_action_spaces[role]

    first, _ = plain.reset(seed=3)
    assert_same_bits(venv.reset(), first[role].reshape(venv.num_envs, -1))
    alive = np.ones((count, agents), bool)
    assert_same_bits(venv.alive, alive.reshape(-1))
    totals, lives = np.zeros((count, agents)), np.zeros((count, agents), int)
    kinds = set()
    for step, actions in enumerate(actions_for(venv, steps)):
        observations, rewards, dones, infos = venv.step(actions)
        observed, plain_rewards, terminations, truncations, plain_infos = plain.step(
            {role: actions.reshape(count, agents, *actions.shape[1:]), other: theirs[step]}
        )
        ended = plain_infos.get("_final_obs", np.zeros(count, bool))
        for replica in range(count):
            for agent in range(agents):
                slot = replica * agents + agent
                what = f"step {step}, replica {replica}, agent {agent}"
                reward, last = plain_rewards[role][replica, agent], observed[role][replica, agent]
                totals[replica, agent] += reward
                lives[replica, agent] += alive[replica, agent]
                went_out = (
                    alive[replica, agent] and not plain_infos["alive"][role][replica, agent] and not ended[replica]
                )
                assert rewards[slot] == reward, what
                assert dones[slot] == (ended[replica] or went_out), what
                if ended[replica]:
                    cut = truncations[role][replica, agent] and not terminations[role][replica, agent]
                    assert_same_bits(
                        infos[slot]["terminal_observation"], plain_infos["final_obs"][role][replica, agent]
                    )
                    assert infos[slot]["TimeLimit.truncated"] is bool(cut)
                    episode = infos[slot]["episode"]
                    assert episode["l"] == lives[replica, agent], what
                    assert episode["r"] == pytest.approx(totals[replica, agent], rel=1e-5, abs=1e-5), what
                    for name, values in plain.episode_metrics.items():
                        assert episode[name] == values[replica], what
                    assert_same_bits(observations[slot], last)
                    kinds.add("cut" if cut else "waited" if not alive[replica, agent] else "terminated")
                    totals[replica, agent] = lives[replica, agent] = 0
                elif went_out:
                    assert set(infos[slot]) == {"terminal_observation", "TimeLimit.truncated"}, what
                    assert infos[slot]["TimeLimit.truncated"] is False
                    assert_same_bits(infos[slot]["terminal_observation"], last)
                    assert last.any()
                    assert not observations[slot].any(), what
                    kinds.add("out")
                else:
                    assert infos[slot] == {}, what
                    assert_same_bits(observations[slot], last)
                    if not alive[replica, agent]:
                        assert not observations[slot].any(), what
                        assert reward == 0
        alive = plain_infos["alive"][role]
        assert_same_bits(venv.alive, alive.reshape(-1))
    expected = {"cut", "terminated"}
    if team_id == "TagContinuous-v0" and role == "runner":
        expected |= {"out", "waited"}
    assert kinds == expected
    plain.close()


# --- the other roles ---


def test_still_roles_do_not_move(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = make_vec("TagGridWorld-v0", 5, role="tagger", others="still", device=device, **(GRID | {"grid_length": 50}))
    recorded = spy_on(venv.env, monkeypatch)
    venv.reset()
    before = numpy_of(venv.env.state["x"]), numpy_of(venv.env.state["y"])
    for _ in range(5):
        venv.step(np.ones(10, np.int64))
    runner = venv.env.counts["tagger"]
    assert (numpy_of(venv.env.state["x"])[:, runner] == before[0][:, runner]).all()
    assert (numpy_of(venv.env.state["y"])[:, runner] == before[1][:, runner]).all()
    assert (numpy_of(venv.env.state["x"])[:, :runner] != before[0][:, :runner]).any()
    assert all((actions["tagger"] == 1).all() and not actions["runner"].any() for actions in recorded)


@pytest.mark.parametrize(
    ("team_id", "params"),
    [("TagGridWorld-v0", {}), ("TagContinuous-v0", {}), ("TagContinuous-v0", {"actions": "continuous"})],
)
@pytest.mark.parametrize("policy", ["default", "random", {}, {"runner": "random"}])
def test_random_roles_sample_uniformly(
    team_id: str, params: dict[str, Any], policy: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the whole space, independently for each agent, replica and step."""
    others = {} if policy == "default" else {"others": policy}
    sizes = {} if team_id == "TagGridWorld-v0" else {"num_runners": 3, "num_taggers": 1}
    venv = make_vec(team_id, 100, role="tagger", device=device, seed=1, **others, **sizes, **params)
    recorded = spy_on(venv.env, monkeypatch)
    venv.reset()
    for actions in actions_for(venv, 20):
        venv.step(actions)
    drawn_actions = np.stack([actions["runner"] for actions in recorded])
    space = venv.env.single_action_spaces["runner"]
    columns = drawn_actions.reshape(-1, *(space.shape or (1,))).T
    for j, column in enumerate(columns):
        if isinstance(space, gymnasium.spaces.Box):
            low, high = float(space.low[j]), float(space.high[j])
            assert low <= column.min() < low + 0.02 * (high - low)
            assert high - 0.02 * (high - low) < column.max() <= high
            shares = np.histogram(column, 10, (low, high))[0] / len(column)
        else:
            n = int(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec[j])
            assert set(np.unique(column)) == set(range(n))
            shares = np.bincount(column, minlength=n) / len(column)
        # the standard deviation of a frequency is at most sqrt(p / samples); the tolerance is ten times that
        bound = 10 * np.sqrt(1 / len(shares) / len(column))
        assert np.abs(shares - 1 / len(shares)).max() < bound
    assert (drawn_actions[0] != drawn_actions[1]).any()
    assert len(np.unique(drawn_actions.reshape(20, 100, -1)[0], axis=0)) > 1


@pytest.mark.parametrize("mapping", [False, True])
def test_a_function_acts_for_a_role(mapping: bool, place: Place) -> None:
    """The function is called once per step with tensors of the role's observations, and moves the role."""
    observed: list[np.ndarray] = []
    kinds = set()

    def policy(observations: Any) -> Any:
        kinds.add((type(observations), observations.device.type))
        observed.append(numpy_of(observations))
        return torch.full(observations.shape[:2], 3, device=observations.device)

    params = {**GRID, **place._asdict(), "grid_length": 50}
    env: Any = gpu_envs.make("TagGridWorld-v0", 4, autoreset_mode="SameStep", **params)
    venv = make_vec(env, role="tagger", others={"runner": policy} if mapping else policy, seed=1)
    observations = venv.reset()
    assert observed == []
    for step in range(15):
        before = numpy_of(env.state["y"])[:, 2]
        expected = numpy_of(env.observe()["runner"])
        observations, _, dones, _ = venv.step(np.zeros(8, np.int64))
        assert len(observed) == step + 1
        assert_same_bits(observed[-1], expected)
        if not dones.any():
            assert (numpy_of(env.state["y"])[:, 2] == np.minimum(before + 1, 50)).all()
    assert observed[0].shape == (4, 1, 13)
    assert kinds == {(torch.Tensor, place.device)}
    assert observations.shape == (8, 13)


# --- error messages ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "taggr"}, "role is 'taggr'.*Did you mean 'tagger'"),
        ({"role": "tagger", "others": {"runnr": "still"}}, "'runnr'.*Did you mean 'runner'"),
        ({"role": "tagger", "others": {"tagger": "still"}}, "'tagger', .* trained one, 'tagger'. There are: runner"),
        ({"role": "tagger", "others": "stil"}, "'stil' for 'runner'.*Did you mean 'still'"),
        ({"role": "tagger", "others": {"runner": "rando"}}, "'rando' for 'runner'.*Did you mean 'random'"),
        ({"role": "tagger", "others": None}, "None for 'runner'"),
    ],
)
def test_invalid_roles_and_policies(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sb3.VecEnv("TagGridWorld-v0", 2, device="cpu", **arguments)


# --- seeds, options, attributes ---


def test_random_roles_depend_on_the_seed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a seed they differ; seeding a copy changes the random roles of this copy only."""
    venvs = [
        make_vec("TagGridWorld-v0", 50, role="tagger", device=device, seed=s, **GRID) for s in (None, None, 1, 2, 1)
    ]
    venvs += [copy.deepcopy(venvs[2]), pickle.loads(pickle.dumps(venvs[2]))]
    for twin in venvs[5:]:
        twin.seed(2)
    runs = []
    for venv in venvs:
        recorded = spy_on(venv.env, monkeypatch)
        venv.reset()
        venv.step(np.zeros(100, np.int64))
        runs.append(recorded[0]["runner"])
    assert_same_bits(runs[4], runs[2])
    assert_same_bits(runs[5:], [runs[3]] * 2)
    for i in range(4):
        for j in range(i):
            assert (runs[i] != runs[j]).any(), (i, j)


def test_options_apply_to_replicas(device: str) -> None:
    venv = make_vec("TagGridWorld-v0", 2, role="tagger", others="still", device=device, **GRID)
    places = [
        {"x": np.array([0, 1, 2]), "y": np.array([3, 3, 3])},
        {"x": np.array([4, 4, 0]), "y": np.array([0, 0, 0])},
    ]
    venv.set_options([places[0], places[0], places[1], places[1]])
    venv.reset()
    assert numpy_of(venv.env.state["x"]).tolist() == [[0, 1, 2], [4, 4, 0]]
    assert numpy_of(venv.env.state["y"]).tolist() == [[3, 3, 3], [0, 0, 0]]
    venv.set_options([places[0], places[1], places[1], places[1]])
    with pytest.raises(ValueError, match="agents of replica 0 have different options"):
        venv.reset()
    venv.set_options(places)
    with pytest.raises(ValueError, match="a list of 2: pass one dict, or a list of 4"):
        venv.reset()


def test_attributes_by_slot(device: str) -> None:
    venv = make_vec("TagContinuous-v0", 3, role="tagger", device=device, **FIELD)
    venv.reset()
    assert venv.get_attr("max_speed") == [1.0] * 6
    venv.set_attr("max_speed", 2.0, indices=[2])  # sets the agent's replica
    assert venv.get_attr("max_speed") == [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]
    assert venv.get_attr("max_speed", [-1, -3, 2]) == [1.0, 2.0, 2.0]
    assert venv.get_attr("max_speed", 3) == [2.0]
    venv.env_method("set_attr", "max_speed", 3.0)
    assert venv.get_attr("max_speed") == [3.0] * 6
    assert venv.env_method("get_attr", "max_speed", indices=[0, -1]) == [3.0, 3.0]
    assert venv.has_attr("roles")
    assert not venv.has_attr("no_such_thing")
    with pytest.raises(ValueError, match="shapes depend on 'num_taggers'"):
        venv.set_attr("num_taggers", 3)


def test_reset_by_slot(device: str) -> None:
    """The indices of all agents of a replica reset it; other replicas continue."""
    venv, plain = (make_vec("TagGridWorld-v0", 3, role="runner", device=device, seed=2) for _ in range(2))
    other = make_vec("TagGridWorld-v0", 3, role="tagger", others="still", device=device, seed=2)
    other.reset()
    with pytest.raises(ValueError, match="4 agents reset together: select all of them"):
        other.env_method("reset", indices=[4, 5, 7])
    for one in (venv, plain):
        one.reset()
    runners = drawn(venv.env, "runner", 20).reshape(20, -1)
    for actions in runners[:5]:
        venv.step(actions)
        plain.step(actions)
    ((observed, _),) = venv.env_method("reset", indices=1)
    assert_same_bits(observed, numpy_of(venv.env.observe()["runner"])[1, 0])
    assert numpy_of(venv.env.elapsed).tolist() == [5, 0, 5]
    for actions in runners[5:]:
        for part, expected in zip(venv.step(actions)[:3], plain.step(actions)[:3], strict=True):
            assert_same_bits(part[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("other", ["random", "function"])
def test_a_refused_action_changes_nothing(device: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the next step other roles act as they would have without the error, whatever their policy."""

    def make_policy(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return "random" if other == "random" else lambda observed: rng.integers(0, 5, observed.shape[:2])

    venv, plain = (
        make_vec("TagGridWorld-v0", 3, role="runner", others=make_policy(5), device=device, seed=2) for _ in range(2)
    )
    chosen, expected = spy_on(venv.env, monkeypatch), spy_on(plain.env, monkeypatch)
    for actions in (None, *drawn(venv.env, "runner", 5).reshape(5, -1)):
        for one in (venv, plain):
            one.reset() if actions is None else one.step(actions)
        for wrong in ([0, 77, 0], [0, 0], [0.5] * 3):
            with pytest.raises((ValueError, TypeError)):
                venv.step(np.array(wrong))
        chosen.clear()
        twin = copy.deepcopy(venv)
        for one in (venv, plain):
            one.step(np.zeros(3, np.int64))
        assert_same_bits(chosen[-1], expected[-1])
        assert_same_bits(twin.step(np.zeros(3, np.int64))[0], numpy_of(plain.env.observe()["runner"])[:, 0])


def test_staggered_teams(device: str) -> None:
    """First episodes end at different steps, and are not reported."""
    venv = make_vec(
        *("TagGridWorld-v0", 60), role="tagger", others="still", stagger=True, seed=2, device=device, grid_length=100
    )
    plain = make_vec("TagGridWorld-v0", 60, role="tagger", others="still", seed=2, device=device, grid_length=100)
    assert_same_bits(venv.reset(), plain.reset())  # including the time, their last number
    ends: list[list[int]] = [[] for _ in range(240)]
    for step in range(130):
        _, _, dones, infos = venv.step(np.zeros(240, np.int64))
        for i in np.flatnonzero(dones):
            assert ("episode" in infos[i]) == bool(ends[i])
            if ends[i]:
                assert infos[i]["episode"]["l"] == step - ends[i][-1]
            ends[i].append(step)
    assert len({steps[0] for steps in ends}) > 20
    assert all(ends)


# --- algorithms ---


def test_evaluation_counts_full_episodes(device: str) -> None:
    """An agent that becomes inactive does not end an episode of evaluation."""
    venv = Recorder(make_vec("TagContinuous-v0", 2, role="runner", others="still", device=device, **FIELD))
    model = stable.PPO("MlpPolicy", venv, device="cpu", seed=4)
    rewards, lengths = evaluate_policy(model, venv, 12, return_episode_rewards=True)
    remaining, expected = [2] * 6, []
    for infos in venv.infos:
        for slot, info in enumerate(infos):
            if "episode" in info and remaining[slot]:
                remaining[slot] -= 1
                expected.append((info["episode"]["r"], info["episode"]["l"]))
    assert list(zip(rewards, lengths, strict=True)) == expected
    assert len(expected) == 12
    assert min(lengths) < max(lengths) == FIELD["episode_length"]
    # a runner gets 1/8 per step, -10 if caught and +1 if not
    assert {reward - length / 8 for reward, length in expected} == {-10.0, 1.0}


@pytest.mark.parametrize(("env_id", "role"), [("CartPole-v1", None), ("TagGridWorld-v0", "runner")])
def test_device_results_equal_host_results(env_id: str, role: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``DeviceResults`` returns the same as ``HostResults``, also after unpickling."""
    from gpu_envs.adapters.sb3 import results, slots

    plain = sb3.VecEnv(env_id, 5, role=role, device="cpu", seed=0)
    monkeypatch.setattr(
        slots,
        "make_results",
        lambda env, role: results.DeviceResults(results.result_shapes(env, role), role, env.device),
    )
    blocked = sb3.VecEnv(env_id, 5, role=role, device="cpu", seed=0)
    plain.reset()
    blocked.reset()
    blocked = pickle.loads(pickle.dumps(blocked))
    records = []
    for t in range(150):
        actions = np.full(plain.num_envs, t // 3 % 2)
        one, other = plain.step(actions), blocked.step(actions)
        assert_same_bits(one[:3], other[:3])
        records.append((other[0], one[0].copy()))
        for left, right in zip(one[3], other[3], strict=True):
            assert left.keys() == right.keys()
            if left:
                assert_same_bits(left["terminal_observation"], right["terminal_observation"])
                assert left["TimeLimit.truncated"] == right["TimeLimit.truncated"]
    for fresh, expected in records:
        assert_same_bits(fresh, expected)
