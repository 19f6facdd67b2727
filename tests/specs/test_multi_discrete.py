"""MultiDiscrete actions of a single agent: masks, draws and mistakes."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from custom import CRANE
from gymnasium.spaces import Discrete, MultiDiscrete
from harness import Make, Place, assert_same_bits, numpy_of, to_place
from refusals import SINGLE_AGENT_RULES, fill_template, single_agent_spec, translation_error
from small_envs import walk
from translation_cases import HEADER, import_source, rules_of

from gpu_envs import ActionError, EnvSpec, VectorEnv

REPLICAS = 150
COLUMNS = 5
SIZES, STARTS = np.array([3, 2, 5]), np.array([-1, 0, 0])
ENDS = np.cumsum(SIZES)

State = dict[str, np.ndarray]


def state_of(env: VectorEnv) -> State:
    return {name: np.array(numpy_of(values)).astype(np.int64) for name, values in env.state.items()}


def possible(s: State) -> np.ndarray:
    mask = np.ones((len(s["x"]), SIZES.sum()), np.int8)
    mask[:, 0], mask[:, 2] = s["x"] > 0, s["x"] < COLUMNS - 1
    mask[:, 3] = ~((s["laden"] == 1) & (s["x"] == 0))
    mask[:, 5:] = np.arange(5) <= s["stack"].max(1, keepdims=True)
    return mask


def make_env(make: Make, place: Place, count: int = REPLICAS, **kwargs: Any) -> VectorEnv:
    return make(CRANE, count, device=place.device, output=place.output, **kwargs)


def any_actions(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(STARTS, STARTS + SIZES, (*shape, 3))


# --- invalid actions ---

WRONG = {"above in the first": (0, 2), "below in the first": (0, -2), "above in the last": (2, 5), "far": (1, 2**40)}


@pytest.mark.parametrize("what", WRONG)
def test_an_element_out_of_range(make: Make, place: Place, what: str) -> None:
    element, value = WRONG[what]
    env = make_env(make, place)
    env.reset(seed=0)
    actions = any_actions(np.random.default_rng(0), REPLICAS)
    actions[7, element] = value
    before = env.get_state()
    message = r"replica 7, step 0 of its episode: an action is out of range.*: allowed are MultiDiscrete\(\[3 2 5\], st"

    def step_and_look() -> None:
        env.step(to_place(actions, place))
        env.check()

    with pytest.raises(ActionError, match=message) as caught:
        step_and_look()
    if place.device == "cpu":
        assert str(value) in str(caught.value)
        assert_same_bits(env.get_state(), before)
    nearest = np.clip(actions, STARTS, STARTS + SIZES - 1)
    if place.device != "cpu" and place.output != "numpy":  # clipped, and reported later
        other = make_env(make, place)
        other.reset(seed=0)
        other.step(to_place(nearest, place))
        for name, values in state_of(other).items():
            assert np.array_equal(values, state_of(env)[name])


@pytest.mark.parametrize(
    "space",
    [MultiDiscrete(np.ones((2, 2), int)), MultiDiscrete(np.zeros(0, int)), gymnasium.spaces.MultiBinary(3)],
    ids=str,
)
def test_unsupported_action_spaces(tmp_path: Path, space: gymnasium.Space[Any]) -> None:
    with pytest.raises(ValueError, match="Walk-v0: an action space must be Discrete, or a MultiDiscrete or"):
        VectorEnv(walk(tmp_path, more={"action": space}), 2, device="cpu")


@pytest.mark.parametrize(
    ("step", "entry", "message"),
    [
        ("s.x = action[3]", 0, "index 3 is out of range: there are 3 elements"),
        ("s.x = 1.0 if action == 1 else 0.0", 0, "this is an array and not a number"),
        ("s.x = action", 0, "this is an array and not a number"),
        ("s.x = action[0.5]", 0, "an index must be an int"),
        ("action[0] = 1", 0, "action[0] is read-only"),
        ("s.x = action[0]", 10, "index 10 is out of range: there are 10 elements"),
        ("s.x = action[-1] / 2 + action[s.count]", 9, ""),
    ],
)
def test_mistakes_in_python(tmp_path: Path, step: str, entry: int, message: str) -> None:
    def spec_of(header: Any) -> EnvSpec:
        return single_agent_spec(header, action=MultiDiscrete(SIZES, start=STARTS), action_mask=True)

    text = (
        fill_template(SINGLE_AGENT_RULES, step)
        + f"\n\ndef allow(s: State, p: Params, mask: Mask) -> None:\n    mask[{entry}] = False\n"
    )
    if message:
        assert message in translation_error(text, spec_of, tmp_path)
        return
    spec = spec_of(rules_of(import_source(HEADER + text, tmp_path)))
    env = VectorEnv(spec, 2, device="cpu")
    env.reset(seed=0)
    env.step(np.array([[1, 0, 3], [-1, 1, 4]]))
    assert env.state["x"].tolist() == [2.5, 1.0]


# --- draws ---


def test_draws_are_possible_and_the_same_in_one_launch_and_in_many(make: Make, place: Place) -> None:
    one, other = (make_env(make, place, autoreset_mode="SameStep") for _ in range(2))
    one.reset(seed=3)
    other.reset(seed=3)
    found = []
    for _ in range(40):
        mask = possible(state_of(one))
        assert_same_bits(numpy_of(one.action_mask), mask)
        actions = numpy_of(one.rollout(1, per_step=True).actions)[0]
        assert actions.dtype == np.int64
        for part, choice in zip(np.split(mask, ENDS[:-1], 1), (actions - STARTS).T, strict=True):
            assert part[np.arange(REPLICAS), choice].all()
        found.append(actions)
    assert_same_bits(numpy_of(other.rollout(40, per_step=True).actions), np.stack(found))


def test_draws_are_uniform_among_the_possible(make: Make, place: Place) -> None:
    replicas = 30_000
    env = make_env(make, place, replicas)
    env.reset(seed=9)
    env.state["x"], env.state["laden"] = 0, True
    env.state["stack"] = np.broadcast_to(np.array([2, 1, 0, 0, 0], np.uint8), (replicas, COLUMNS))
    actions = numpy_of(env.rollout(1, per_step=True).actions)[0] - STARTS
    for j, part in enumerate(([0, 1, 1], [0, 1], [1, 1, 1, 0, 0])):
        counts, expected = np.bincount(actions[:, j], minlength=SIZES[j]), replicas * np.array(part) / sum(part)
        assert (abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    pairs = np.bincount(actions[:, 0] * 5 + actions[:, 2], minlength=15).reshape(3, 5)[1:, :3]
    assert (abs(pairs - replicas / 6) < 5 * np.sqrt(replicas / 6)).all()  # elements are independent


FORBIDDING = """
FN void allow(const State& s, const Params& p, Mask& mask) {
    for (int k = 0; k < 6; ++k) mask[4 * k + 1] = mask[4 * k + 2] = mask[4 * k + 3] = false;
    for (int k = 0; k < 4; ++k) mask[k] = false;  // of the first nothing at all
}
"""


def test_more_elements_than_one_block_of_random_words_has(tmp_path: Path, place: Place) -> None:
    """Of the last two, whose words are in a second block, one choice is possible; if none is, all are drawn."""
    more = {"action": MultiDiscrete([4] * 6, start=[5] * 6), "action_mask": True}
    step = "s.x = real(action[5]); return {real(action[4]), false};"
    env = VectorEnv(walk(tmp_path, more=more, step=step, further=FORBIDDING), 4000, **place._asdict())
    env.reset(seed=0)
    actions = numpy_of(env.rollout(2, per_step=True).actions)
    assert (actions[..., 1:] == 5).all()
    counts = np.bincount(actions[..., 0].ravel() - 5, minlength=4)
    assert (abs(counts - 2000) < 5 * np.sqrt(2000)).all()
    assert (numpy_of(env.state["x"]) == 5).all()


def test_bytes_for_spaces_that_do_not_fit_into_bytes(tmp_path: Path, place: Place) -> None:
    for space, actions in (
        (Discrete(5, start=-2), np.array([0, 1, 2])),
        (Discrete(300), np.array([0, 100, 255])),
        (Discrete(300, start=200), np.array([200, 230, 255])),
        (MultiDiscrete([5, 300], start=[-2, 0]), np.array([[0, 255], [1, 100], [2, 44]])),
    ):
        read = "action" if actions.ndim == 1 else "action[0] + 1000 * action[1]"
        env = VectorEnv(
            walk(tmp_path, more={"action": space}, step=f"s.x = real({read}); return {{0, false}};"),
            3,
            **place._asdict(),
        )
        env.reset(seed=0)
        env.step(to_place(actions.astype(np.uint8), place))
        env.check()
        expected = actions if actions.ndim == 1 else actions @ np.array([1, 1000])
        assert numpy_of(env.state["x"]).tolist() == expected.tolist()


# --- libraries ---


def test_a_single_environment(make: Make) -> None:
    single, many = gymnasium.make(f"gpu_envs/{CRANE}"), make(CRANE, 1, device="cpu", autoreset_mode="Disabled")
    assert single.action_space == MultiDiscrete(SIZES, start=STARTS)
    (first, infos), (expected, _) = single.reset(seed=3), many.reset(seed=3)
    assert_same_bits(first, expected[0])
    assert list(infos) == ["action_mask"]
    before = infos["action_mask"].copy()
    rng = np.random.default_rng(0)
    for given in (tuple, list, np.asarray):
        action = any_actions(rng)
        one, two = single.step(given(action)), many.step(action[None])
        assert_same_bits([one[0], np.float32(one[1])], [two[0][0], two[1][0]])
        assert_same_bits(one[4]["action_mask"], two[4]["action_mask"][0])
    assert_same_bits(infos["action_mask"], before)
    for wrong in (0, [0, 0], [0, 0, 5], [2, 0, 0], [0.5, 0, 0], np.zeros((1, 3), int), None, [[0], [0, 0]]):
        with pytest.raises(ActionError, match="MultiDiscrete"):
            single.step(wrong)
    single.step(np.array([1, 1, 4], np.uint8))
    single.close()


@pytest.mark.usefixtures("one_thread")
def test_policies_of_stable_baselines_count_from_zero(make: Make) -> None:
    pytest.importorskip("stable_baselines3")
    from gpu_envs.adapters import sb3

    plain = make(CRANE, 5, device="cpu", autoreset_mode="SameStep")
    stable = sb3.VecEnv(CRANE, num_envs=5, device="cpu", seed=4)
    assert stable.action_space == MultiDiscrete(SIZES)
    plain.reset(seed=4)
    stable.reset()
    actions = np.random.default_rng(0).integers(0, SIZES, (5, 3))
    assert_same_bits(stable.step(actions)[1], plain.step(actions + STARTS)[1])
    assert stable.action_masks().shape == (5, 10)
    stable.close()


def test_an_element_of_a_block_out_of_range(make: Make) -> None:
    env = make(CRANE, REPLICAS, device="cpu", autoreset_mode="SameStep")
    env.reset(seed=0)
    actions = any_actions(np.random.default_rng(0), 6, REPLICAS)
    actions[4, 9, 2] = -1
    with pytest.raises(ActionError, match=r"step 4 of the block, replica 9: an action is out of range \(\[.* -1\]\)"):
        env.rollout(6, actions)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.zeros(4, int), ValueError, r"shape \(4,\); expected \(4, 3\)"),
        (np.zeros((4, 2), int), ValueError, r"shape \(4, 2\); expected \(4, 3\)"),
        (np.zeros((4, 3)), TypeError, "dtype float64; the action space MultiDiscrete"),
    ],
)
def test_invalid_arrays_of_actions(make: Make, given: np.ndarray, error: type[Exception], message: str) -> None:
    env = make(CRANE, 4, device="cpu")
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.step(given)
    env.step(np.zeros((4, 3), int))
