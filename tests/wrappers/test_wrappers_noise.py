"""Noise, delays, repeated actions and pushes against models in NumPy."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from custom import CRANE  # noqa: E402
from digger import actions_of as digger_actions  # noqa: E402
from digger import digger  # noqa: E402
from harness import MODES, Make, assert_same_bits, is_discrete, numpy_of, on_host, random_actions  # noqa: E402
from noise_model import ACTION, COUNT, OBSERVATION, PUSH, REPEAT_DRAW, SEED, ReplicaClock, unit_floats  # noqa: E402
from small_envs import walk  # noqa: E402
from wrapper_cases import LIMIT, Array, allow_frozen, numpy_env, to_device, torch_env  # noqa: E402

from gpu_envs import ActionError, Field, VectorEnv  # noqa: E402
from gpu_envs.codegen import PRECISIONS  # noqa: E402
from gpu_envs.wrappers import (  # noqa: E402
    ActionNoise,
    ClipAction,
    FlattenObservation,
    FrameStackObservation,
    ObservationNoise,
    RandomPushes,
    TorchWrapper,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def mask_of(step: int, done: Array, mode: str) -> Array | None:
    """Return the replicas to reset after a step: a third of them at step 4, and in Disabled mode ended ones."""
    some = np.arange(len(done)) % 3 == 0 if step == 4 else np.zeros(len(done), bool)
    mask = some | done if mode == "Disabled" and done.any() and step % 2 else some
    return mask if mask.any() else None


# --- observations ---


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("noise", ["none", "uniform", "normal"])
@pytest.mark.parametrize("delay", [0, 1, 4, (2, 13)], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_observations(env_id: str, mode: str, delay: int | tuple[int, int], noise: str, device: str) -> None:
    """Observations are delayed within their episode, then noisy; final observations continue the sequence."""
    raw = allow_frozen(numpy_env(env_id, COUNT, mode))
    (features,) = raw.single_observation_space.shape or ()
    scale = np.linspace(0, 0.5, features, dtype=np.float32) * np.float32(noise != "none")
    distribution = "normal" if noise == "normal" else "uniform"
    inner = allow_frozen(torch_env(env_id, COUNT, mode, device))
    ours = ObservationNoise(inner, scale, distribution=distribution, delay=delay)
    clock = ReplicaClock(OBSERVATION, mode)

    def noisy(replica: int, episode: list[Array], back: int = 0) -> Array:
        late: Array = episode[max(0, len(episode) - 1 - clock.integer(replica, delay, back))]
        step = len(episode) - 1
        if noise == "none":
            return late
        numbers: Any = (clock.normal if noise == "normal" else clock.uniform)(replica, features, step=step, back=back)
        return np.asarray(late + scale * numbers)

    def check(observations: Any, expected: Any) -> None:
        if noise == "normal":  # float32 rounding errors of numbers up to 6, and of the observation
            np.testing.assert_allclose(numpy_of(observations), expected, rtol=2**-22, atol=2**-20)
        else:
            np.testing.assert_array_equal(numpy_of(observations), np.asarray(expected, np.float32))

    observations, first = ours.reset(seed=SEED)[0], raw.reset(seed=SEED)[0]
    histories = [[observation] for observation in first]
    check(observations, [noisy(i, history) for i, history in enumerate(histories)])
    ends = 0
    for t, actions in enumerate(random_actions(env_id, 3 * LIMIT, COUNT)):
        mine, theirs = ours.step(to_device(device, actions)), raw.step(actions)
        assert_same_bits([numpy_of(part) for part in mine[1:4]], list(theirs[1:4]))
        done = theirs[2] | theirs[3]
        ends += done.sum()
        frozen = clock.over & (mode == "Disabled")
        started = clock.stepped(done)
        for i, history in enumerate(histories):
            if started[i]:
                if mode == "SameStep":
                    final = [*history, theirs[4]["final_obs"][i]]
                    check(mine[4]["final_obs"][i], noisy(i, final, back=1))
                histories[i] = []
            if not frozen[i]:
                histories[i].append(theirs[0][i])
        check(mine[0], [noisy(i, history) for i, history in enumerate(histories)])
        mask = mask_of(t, done, mode)
        if mask is not None:
            options = {"reset_mask": to_device(device, mask)}
            observations, first = ours.reset(options=options)[0], raw.reset(options={"reset_mask": mask})[0]
            clock.reset(mask)
            histories = [[first[i]] if mask[i] else history for i, history in enumerate(histories)]
            check(observations, [noisy(i, history) for i, history in enumerate(histories)])
    assert ends >= 2 * COUNT


def test_noise_widens_the_observation_space(device: str) -> None:
    env = torch_env("Pendulum-v1", 4, "SameStep", device)
    low, high = np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32)
    assert ObservationNoise(env, delay=3).single_observation_space == env.single_observation_space
    normal: Any = ObservationNoise(env, [0, 1, 0]).single_observation_space
    np.testing.assert_array_equal(normal.low, [-1, -np.inf, -8])
    uniform = ObservationNoise(env, 0.25, distribution="uniform")
    wider: Any = uniform.single_observation_space
    np.testing.assert_array_equal(wider.low, low - np.float32(0.25))
    np.testing.assert_array_equal(wider.high, high + np.float32(0.25))
    uniform.reset(seed=0)
    for _ in range(LIMIT):
        observations = numpy_of(uniform.step(torch.zeros(4, 1))[0])
        assert observations in uniform.observation_space


@pytest.mark.parametrize("size", [3, 90])
def test_delays_and_stacks_commute(mode: str, size: int, device: str) -> None:
    """Stacks of 9 features, and of 270: more than a block has threads."""
    inner = [allow_frozen(torch_env("Pendulum-v1", 9, mode, device)) for _ in range(2)]
    delay_first: Any = FlattenObservation(FrameStackObservation(ObservationNoise(inner[0], delay=(0, 3)), size))
    stack_first: Any = ObservationNoise(FlattenObservation(FrameStackObservation(inner[1], size)), delay=(0, 3))
    assert_same_bits(numpy_of(delay_first.reset(seed=SEED)[0]), numpy_of(stack_first.reset(seed=SEED)[0]))
    for actions in random_actions("Pendulum-v1", 2 * LIMIT + 5, 9):
        actual, expected = (on_host(env.step(to_device(device, actions))) for env in (delay_first, stack_first))
        assert_same_bits(actual[:4], expected[:4])
        if mode == "SameStep":
            ended = expected[4]["_final_obs"]
            assert_same_bits(actual[4]["final_obs"][ended], expected[4]["final_obs"][ended])


@pytest.mark.parametrize("kind", ["image", "dict"])
def test_image_and_dict_observations(kind: str, device: str) -> None:
    """Images can be delayed but have no noise; a Dict is refused."""
    options: dict[str, Any] = {"device": device, "autoreset_mode": "SameStep", "max_episode_steps": 5}
    env = VectorEnv(digger(kind), 9, output="torch", **options)
    with pytest.raises(TypeError, match=r"ObservationNoise needs observations in a Box of float32"):
        ObservationNoise(env, 0.1)
    if kind == "dict":
        with pytest.raises(TypeError, match=r"ObservationNoise needs observations in a Box.* has Dict\("):
            ObservationNoise(env, delay=1)
        return
    ours, raw = ObservationNoise(env, delay=1), VectorEnv(digger(kind), 9, **options)
    before, ends = raw.reset(seed=0)[0], 0
    assert_same_bits(numpy_of(ours.reset(seed=0)[0]), before)
    for actions in digger_actions(9, 12):
        actual, expected = ours.step(to_device(device, actions)), raw.step(actions)
        ended = expected[2] | expected[3]
        assert_same_bits(numpy_of(actual[4]["final_obs"])[ended], before[ended])
        shown = np.where(ended[:, None, None, None], expected[0], before)
        assert_same_bits(numpy_of(actual[0]), shown)
        before, ends = expected[0], ends + ended.sum()
    assert ends >= 2 * 9


# --- actions ---


def delayed(
    clock: ReplicaClock, actions: Array, sent: list[list[Any]], repeat: float, delay: Any, initial: Any
) -> Array:
    """Return repeated and delayed actions; ``sent`` has the repeated actions of each replica's episode so far."""
    arrived = np.empty_like(actions)
    for i, action in enumerate(actions):
        del sent[i][clock.step[i] :]
        repeats = clock.step[i] > 0 and unit_floats(clock.words(i, [REPEAT_DRAW]))[0, 0] < np.float32(repeat)
        sent[i].append(sent[i][-1] if repeats else action)
        when = clock.step[i] - clock.integer(i, delay)
        arrived[i] = sent[i][when] if when >= 0 else initial
    return arrived


@pytest.mark.fast_cases(23)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("repeat", "delay"), [(0.3, 0), (1.0, 0), (0.0, 1), (0.3, 5), (0.3, (0, 3)), (0.0, (2, 13))], ids=str
)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_actions(
    env_id: str, mode: str, repeat: float, delay: int | tuple[int, int], precision: str, device: str
) -> None:
    """Actions are repeated, delayed, then noisy: the steps are the same as with the model's actions."""
    if precision == "float64" and device != "cpu":
        pytest.skip("float64 results differ between devices in the last bits")
    raw = allow_frozen(numpy_env(env_id, COUNT, mode, precision=precision))
    discrete = is_discrete(env_id)
    scale = np.float32(0.0 if discrete else 0.8)
    initial: Any = 1 if discrete else np.full(raw.single_action_space.shape, 0.5, np.float32)
    ours = ActionNoise(
        allow_frozen(torch_env(env_id, COUNT, mode, device, precision=precision)),
        scale,
        distribution="uniform",
        delay=delay,
        initial_action=initial,
        repeat_action_probability=repeat,
    )
    clock = ReplicaClock(ACTION, mode)
    sent: list[list[Any]] = [[] for _ in range(COUNT)]
    assert_same_bits(numpy_of(ours.reset(seed=SEED)[0]), raw.reset(seed=SEED)[0])
    for t, actions in enumerate(random_actions(env_id, 2 * LIMIT + 5, COUNT)):
        changed = delayed(clock, actions, sent, repeat, delay, initial)
        if not discrete:
            space: Any = raw.single_action_space
            noise = np.stack([scale * clock.uniform(i, changed.shape[1]) for i in range(COUNT)])
            changed = np.clip(changed.astype(precision) + noise.astype(precision), space.low, space.high)
        mine, theirs = ours.step(to_device(device, actions)), raw.step(changed)
        assert_same_bits([numpy_of(part) for part in mine[:4]], list(theirs[:4]), f"step {t}")
        done = theirs[2] | theirs[3]
        clock.stepped(done)
        mask = mask_of(t, done, mode)
        if mask is not None:
            options = {"reset_mask": to_device(device, mask)}
            assert_same_bits(numpy_of(ours.reset(options=options)[0]), raw.reset(options={"reset_mask": mask})[0])
            clock.reset(mask)


def test_multi_discrete_actions(make: Make, device: str) -> None:
    """All elements of an action are repeated together and have the same delay."""
    options: dict[str, Any] = {"device": device, "autoreset_mode": "SameStep"}
    ours = ActionNoise(make(CRANE, COUNT, output="torch", **options), delay=1, repeat_action_probability=0.5)
    raw = make(CRANE, COUNT, **options)
    space: Any = raw.single_action_space
    clock = ReplicaClock(ACTION, "SameStep")
    sent: list[list[Any]] = [[] for _ in range(COUNT)]
    ours.reset(seed=SEED)
    raw.reset(seed=SEED)
    for actions in np.random.default_rng(0).integers(space.start, space.start + space.nvec, (20, COUNT, 3)):
        mine = ours.step(to_device(device, actions))
        theirs = raw.step(delayed(clock, actions, sent, 0.5, 1, space.start))
        assert_same_bits([numpy_of(part) for part in mine[:4]], [numpy_of(part) for part in theirs[:4]])
        clock.stepped(numpy_of(theirs[2] | theirs[3]))


@pytest.mark.parametrize(
    ("env_id", "space", "expected"),
    [
        ("Pendulum-v1", gymnasium.spaces.Box(-2, 2, (1,), np.float32), 0.0),
        ("Pendulum-v1", gymnasium.spaces.Box(0.5, 2, (1,), np.float32), 0.5),
        ("MountainCar-v0", gymnasium.spaces.Discrete(3), 0),
    ],
    ids=str,
)
def test_default_initial_action(env_id: str, space: Any, expected: float, device: str) -> None:
    """Zeros clipped to the bounds, or the first discrete action."""
    env, raw = torch_env(env_id, 2, "SameStep", device), numpy_env(env_id, 2, "SameStep")
    env.single_action_space = space
    late = ActionNoise(env, delay=LIMIT)
    late.reset(seed=0)
    raw.reset(seed=0)
    for actions in random_actions(env_id, LIMIT - 1, 2):
        actual = numpy_of(late.step(to_device(device, actions))[0])
        np.testing.assert_array_equal(actual, raw.step(np.full_like(actions, expected))[0])


def test_actions_of_any_library_and_type(device: str) -> None:
    box = ActionNoise(torch_env("Pendulum-v1", 3, "SameStep", device), 0.1, delay=1)
    discrete = ActionNoise(torch_env("CartPole-v1", 3, "SameStep", device), delay=1)
    frozen = np.array([[-1.0], [0.5], [2.0]])
    frozen.setflags(write=False)
    real = [
        frozen.tolist(),
        frozen,
        frozen.astype(np.float32),
        to_device(device, frozen),
        torch.tensor(frozen.tolist()),
    ]
    integers = [[0, 1, 1], np.array([0, 1, 1], np.uint8), to_device(device, np.array([0, 1, 1], np.int32))]
    integers += [torch.tensor([False, True, True]), to_device(device, np.array([[0, 1, 1], [0, 0, 0]]).T[:, 0])]
    for env, kinds in ((box, real), (discrete, integers)):
        results = []
        for actions in kinds:
            env.reset(seed=0)
            for _ in range(2):
                result = on_host(env.step(actions)[:2])
            results.append(result)
        for other in results[1:]:
            assert_same_bits(results[0], other)


def test_an_error_changes_nothing(device: str) -> None:
    """A wrong action raises an error in its step, not when it would arrive; the step can be repeated."""
    for env_id, wrong, message in (
        ("CartPole-v1", np.array([0, 1, 2]), r"replica 2.*out of range \(2\)"),
        ("Pendulum-v1", np.array([[0.0], [np.nan], [0.0]], np.float32), "replica 1.*not a number"),
    ):
        ours, other = (
            RandomPushes(
                ActionNoise(torch_env(env_id, 3, "SameStep", device), delay=2, repeat_action_probability=0.5),
                {"theta_dot": 1.0},
                interval=1,
            )
            for _ in range(2)
        )
        ours.reset(seed=0)
        other.reset(seed=0)
        for actions in random_actions(env_id, 2 * LIMIT, 3):
            with pytest.raises(ActionError, match=message):
                ours.step(wrong)
            actual, expected = ours.step(to_device(device, actions)), other.step(to_device(device, actions))
            assert_same_bits(on_host(actual[:4]), on_host(expected[:4]))


def test_a_waiting_replica_is_not_stepped(device: str) -> None:
    env = ActionNoise(torch_env("Pendulum-v1", 3, "Disabled", device), delay=1)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step(np.zeros((3, 1)))
    env.reset(seed=0)
    for actions in random_actions("Pendulum-v1", LIMIT, 3):
        env.step(actions)
    with pytest.raises(ActionError, match="the episode is over"):
        env.step(np.zeros((3, 1)))


# --- pushes ---


@pytest.mark.fast_cases(21)
@pytest.mark.parametrize("interval", [1, 3, (1, 4), (2, 30)], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_pushes(mode: str, interval: int | tuple[int, int], precision: str, device: str) -> None:
    """The steps are the same as in an environment whose state is changed by hand."""
    if precision == "float64" and device != "cpu":
        pytest.skip("float64 results differ between devices in the last bits")
    raw = allow_frozen(numpy_env("CartPole-v1", COUNT, mode, precision=precision))
    inner = allow_frozen(torch_env("CartPole-v1", COUNT, mode, device, precision=precision))
    scale = {"theta": np.float32(0.01), "x_dot": np.float32(0.5)}
    ours = RandomPushes(inner, scale, interval=interval, distribution="uniform")
    clock, pushed = ReplicaClock(PUSH, mode), 0
    ours.reset(seed=SEED)
    raw.reset(seed=SEED)
    for t, actions in enumerate(random_actions("CartPole-v1", 3 * LIMIT, COUNT)):
        mine, theirs = ours.step(to_device(device, actions)), raw.step(actions)
        assert_same_bits([numpy_of(part) for part in mine[:4]], list(theirs[:4]), f"step {t}")
        done = theirs[2] | theirs[3]
        clock.stepped(done)
        for i in range(COUNT):
            if clock.step[i] > 0 and not clock.over[i] and clock.step[i] % clock.integer(i, interval) == 0:
                numbers = clock.uniform(i, 2)
                raw.state["theta"][i] += (scale["theta"] * numbers[0]).astype(precision)
                raw.state["x_dot"][i] += (scale["x_dot"] * numbers[1]).astype(precision)
                pushed += 1
        assert_same_bits({f: numpy_of(v) for f, v in inner.state.items()}, dict(raw.state))
        mask = mask_of(t, done, mode)
        if mask is not None:
            options = {"reset_mask": to_device(device, mask)}
            assert_same_bits(numpy_of(ours.reset(options=options)[0]), raw.reset(options={"reset_mask": mask})[0])
            clock.reset(mask)
    assert pushed > COUNT


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_pushes_of_arrays(tmp_path: Path, distribution: str, device: str) -> None:
    """Each element of an array field has its own scale; other fields do not change."""
    state = {"x": Field(), "pace": Field(), "wind": Field(shape=(2, 3))}
    spec = walk(tmp_path, more={"state": state}, reset="s.x = s.pace = 0; for (int j = 0; j < 6; ++j) s.wind[j] = 0;")
    env = VectorEnv(spec, COUNT, device=device, output="torch", autoreset_mode="SameStep")
    scale = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = RandomPushes(env, {"wind": scale}, interval=2, distribution=distribution)
    clock, wind = ReplicaClock(PUSH, "SameStep"), np.zeros((COUNT, 2, 3), np.float32)
    ours.reset(seed=SEED)
    for _ in range(6):
        ours.step(to_device(device, np.zeros(COUNT, int)))
        clock.stepped(np.zeros(COUNT, bool))
        if clock.step[0] % 2 == 0:
            numbers = clock.normal if distribution == "normal" else clock.uniform
            wind += np.stack([scale * numbers(i, 6).reshape(2, 3) for i in range(COUNT)]).astype(np.float32)
        rounding = 2**-17 * (distribution == "normal")  # float32 rounding errors of sums up to 60
        np.testing.assert_allclose(numpy_of(env.state["wind"]), wind, rtol=0, atol=rounding)
        assert not numpy_of(env.state["x"]).any()


# --- mistakes ---


def test_wrong_arguments(make: Make) -> None:
    def refused(error: type[Exception], message: str, wrapper: Any, *args: Any, **options: Any) -> None:
        with pytest.raises(error, match=message):
            wrapper(*args, **options)

    box, discrete = (torch_env(env_id, 3, "SameStep", "cpu") for env_id in ("Pendulum-v1", "CartPole-v1"))
    crane = make(CRANE, 2, device="cpu", output="torch")
    message = "delay is .*; give an integer from 0 to 2147483646, or a range"
    for early in (-1, (2, 1), (-1, 2), 2**31):
        refused(ValueError, message, ObservationNoise, box, delay=early)
    for odd in (1.5, "two", (1, 2, 3), (0, 1.5), None):
        refused(TypeError, message, ActionNoise, box, delay=odd)
    refused(
        ValueError,
        "interval is 0; give an integer from 1 to 2147483646",
        RandomPushes,
        discrete,
        {"x": 1.0},
        interval=0,
    )
    refused(
        ValueError,
        r"noise has shape \(2,\); give a number or an array of shape \(3,\)",
        ObservationNoise,
        box,
        [0.1, 0.2],
    )
    for scale in (-0.1, np.nan, np.inf):
        refused(ValueError, "noise is .*; give finite numbers of 0 or more", ActionNoise, box, scale)
    message = "distribution is 'gaussian'.* Give 'normal' or 'uniform'"
    refused(ValueError, message, ObservationNoise, box, 0.1, distribution="gaussian")
    message = r"noise is 0\.1, but the action space is Discrete\(2\); noise needs a Box"
    refused(TypeError, message, ActionNoise, discrete, 0.1)
    message = "repeat_action_probability is .*; give 0 to 1"
    for probability in (-0.1, 1.1, np.nan):
        refused(ValueError, message, ActionNoise, discrete, repeat_action_probability=probability)
    message = r"initial_action is .*; give an action in (Box|Discrete)"
    for env, action in ((box, [7.0]), (box, 0.0), (discrete, 2), (discrete, [0])):
        refused(ValueError, message, ActionNoise, env, delay=1, initial_action=action)
    message = r"the state has no 'x_dott'. Did you mean 'x_dot'\?.* its fields are x, x_dot"
    refused(ValueError, message, RandomPushes, discrete, {"x_dott": 1.0}, interval=5)
    refused(ValueError, r"pushes is empty; give fields of the state: x, x_dot", RandomPushes, discrete, {}, interval=5)
    refused(ValueError, r"pushes\['x'\] has shape \(2,\)", RandomPushes, discrete, {"x": [1, 2]}, interval=5)
    message = r"the state field 'x' is torch\.int32; give a field of floating-point numbers"
    refused(TypeError, message, RandomPushes, crane, {"x": 1}, interval=5)
    ours = ActionNoise(ClipAction(box), 0.1)
    ours.reset(seed=0)
    refused(ValueError, r"actions have shape \(3,\); expected \(3, 1\)", ours.step, np.zeros(3))


# --- reproducibility of the noise ---

NOISY: dict[str, Callable[[Any], TorchWrapper]] = {
    "observations": lambda env: ObservationNoise(env, 0.1, delay=(0, 3)),
    "actions": lambda env: ActionNoise(env, 0.5, delay=(0, 3), repeat_action_probability=0.25),
    "pushes": lambda env: RandomPushes(env, {"theta_dot": 1.0}, interval=(1, 4)),
}
"""Wrappers of Pendulum-v1."""


def run(env: TorchWrapper, device: str, replicas: slice, steps: int = 2 * LIMIT) -> list[Any]:
    """Return the results of steps with the actions of these replicas, from actions for 60 replicas."""
    blocks = random_actions("Pendulum-v1", steps, 60)
    return [[numpy_of(part) for part in env.step(to_device(device, block[replicas]))[:2]] for block in blocks]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("name", NOISY)
def test_noise_depends_on_the_seed_only(name: str, mode: str, device: str) -> None:
    """A reset with the same seed reproduces the noise, also with fewer replicas."""
    discrete = NOISY[name](torch_env("Pendulum-v1", 60, mode, device))
    discrete.reset(seed=SEED)
    first = run(discrete, device, slice(60))
    discrete.reset(seed=SEED)
    assert_same_bits(first, run(discrete, device, slice(60)))
    some = slice(20, 27)
    for seed, first_replica in ((SEED + 20, 0), (SEED, 20)):
        part = NOISY[name](torch_env("Pendulum-v1", 7, mode, device, first_replica=first_replica))
        part.reset(seed=seed)
        assert_same_bits([[array[some] for array in step] for step in first], run(part, device, some))


def test_nothing_changes_without_noise(env_id: str, mode: str, device: str) -> None:
    """Zero noise changes no bit, even in actions out of bounds and negative zeros."""
    plain = allow_frozen(torch_env(env_id, COUNT, mode, device))
    inner = allow_frozen(torch_env(env_id, COUNT, mode, device))
    pushes = {name: 0 for name, values in inner.state.items() if values.dtype.is_floating_point}
    pushed = RandomPushes(inner, pushes, interval=1) if pushes else inner
    ours = ObservationNoise(ActionNoise(pushed, 0, delay=0), 0.0, delay=(0, 0))
    assert (ours.observation_space, ours.action_space) == (plain.observation_space, plain.action_space)
    assert_same_bits(on_host(ours.reset(seed=0)), on_host(plain.reset(seed=0)))
    for actions in random_actions(env_id, 2 * LIMIT, COUNT):
        actual, expected = (
            on_host(ours.step(to_device(device, actions))),
            on_host(plain.step(to_device(device, actions))),
        )
        if mode == "SameStep":
            done = expected[4]["_final_obs"]
            for results in (actual, expected):
                results[4]["final_obs"] = results[4]["final_obs"][done]
        assert_same_bits(actual, expected)


def test_nested_wrappers_draw_independent_noise(device: str) -> None:
    plain, once, twice = (torch_env("Pendulum-v1", 4_000, "SameStep", device) for _ in range(3))
    envs = (plain, ObservationNoise(once, 0.5), ObservationNoise(ObservationNoise(twice, 0.0), 0.5))
    true, single, nested = (numpy_of(env.reset(seed=SEED)[0]).ravel() for env in envs)
    assert abs(np.corrcoef(single - true, nested - true)[0, 1]) < 4 / math.sqrt(len(true))
