"""FrameStackObservation against stacks in Python, FlattenObservation, ClipAction and RescaleAction."""

import collections
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.wrappers import vector  # noqa: E402
from harness import IDS, assert_all_same, is_discrete, numpy_of, on_host, random_actions  # noqa: E402
from wrapper_cases import LIMIT, Array, numpy_env, step_both, to_device, torch_env  # noqa: E402

from gpu_envs.wrappers import ClipAction, FlattenObservation, FrameStackObservation, RescaleAction  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Stacks:
    """Stacks of the last observations of each replica, in Python."""

    def __init__(self, size: int, padding: Array | None) -> None:
        self.size = size
        self.padding = padding
        self.frames: dict[int, collections.deque[Array]] = {}

    def reset(self, replica: int, observation: Array) -> None:
        before = observation if self.padding is None else self.padding
        self.frames[replica] = collections.deque([before] * (self.size - 1) + [observation], maxlen=self.size)

    def push(self, replica: int, observation: Array) -> None:
        self.frames[replica].append(observation)

    def stacked(self) -> Array:
        return np.stack([np.stack(self.frames[replica]) for replica in sorted(self.frames)])


@pytest.mark.parametrize("size", [1, 2, 4, 15])
@pytest.mark.parametrize("padding", ["reset", "zero", "other"])
def test_stacks(env_id: str, mode: str, size: int, padding: str, device: str) -> None:
    count = 67
    raw = numpy_env(env_id, count, mode)
    shape = raw.single_observation_space.shape
    assert shape is not None
    other = np.linspace(0.0, 0.05, shape[0], dtype=np.float32)
    padding_type: Any = other if padding == "other" else padding
    ours = FrameStackObservation(torch_env(env_id, count, mode, device), size, padding_type=padding_type)
    stacks = Stacks(size, {"reset": None, "zero": np.zeros(shape, np.float32), "other": other}[padding])
    actual = numpy_of(ours.reset(seed=3)[0])
    for replica, observation in enumerate(raw.reset(seed=3)[0]):
        stacks.reset(replica, observation)
    np.testing.assert_array_equal(actual, stacks.stacked())
    assert ours.single_observation_space.shape == (size, *shape)
    assert ours.observation_space.shape == actual.shape
    ended, finals, some = np.zeros(count, bool), 0, np.arange(count) % 3 == 0

    def check_reset(mask: Array, stacked: Array, observations: Array) -> None:
        for replica in np.flatnonzero(mask).tolist():
            stacks.reset(replica, observations[replica])
        np.testing.assert_array_equal(stacked, stacks.stacked())

    for number, taken in enumerate(step_both(ours, raw, env_id, 2 * LIMIT + 5, device)):
        if taken.mask is not None:
            check_reset(taken.mask, numpy_of(taken.ours[0]), taken.theirs[0])
            ended &= ~taken.mask
            continue
        observations, _, terminations, truncations, infos = taken.theirs
        done = terminations | truncations
        for replica in range(count):
            if mode == "SameStep" and done[replica]:
                stacks.push(replica, infos["final_obs"][replica])
                finals += 1
                actual = numpy_of(taken.ours[4]["final_obs"][replica])
                np.testing.assert_array_equal(actual, np.stack(stacks.frames[replica]))
            if done[replica] if mode == "SameStep" else ended[replica]:
                stacks.reset(replica, observations[replica])
            else:
                stacks.push(replica, observations[replica])
        ended = done
        np.testing.assert_array_equal(numpy_of(taken.ours[0]), stacks.stacked())
        if number == 4:  # in the middle of an episode
            stacked = numpy_of(ours.reset(options={"reset_mask": to_device(device, some)})[0])
            check_reset(some, stacked, raw.reset(options={"reset_mask": some.copy()})[0])
            ended &= ~some
    assert finals >= 2 * count or mode != "SameStep"


def test_a_waiting_replica_keeps_its_stack(device: str) -> None:
    env = torch_env("Pendulum-v1", 2, "Disabled", device)
    env.allow_frozen_steps()
    ours = FrameStackObservation(env, 3)
    ours.reset(seed=1)
    for actions in random_actions("Pendulum-v1", LIMIT, 2):
        last = numpy_of(ours.step(to_device(device, actions))[0])
    assert (last[:, 0] != last[:, 1]).any()
    for _ in range(2):
        np.testing.assert_array_equal(numpy_of(ours.step(to_device(device, actions))[0]), last)


def test_writes_into_a_returned_stack_change_no_later_stack(device: str) -> None:
    ours, other = (FrameStackObservation(torch_env("Pendulum-v1", 4, "SameStep", device), 3) for _ in range(2))
    ours.reset(seed=0)[0].fill_(7)
    other.reset(seed=0)
    for actions in random_actions("Pendulum-v1", 2, 4):
        actual = ours.step(to_device(device, actions))[0]
        np.testing.assert_array_equal(numpy_of(actual), numpy_of(other.step(to_device(device, actions))[0]))
        actual.fill_(7)


def test_wrong_stacks() -> None:
    env = torch_env("Pendulum-v1", 4, "SameStep", "cpu")
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=f"stack_size is {wrong}; give an integer of 1 or more"):
            FrameStackObservation(env, wrong)
    with pytest.raises(TypeError, match=r"stack_size is 2\.5"):
        FrameStackObservation(env, 2.5)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match=r"padding_type is 'rest'\. Did you mean 'reset'"):
        FrameStackObservation(env, 2, padding_type="rest")
    with pytest.raises(ValueError, match=r"padding_type is array.*; give 'reset', 'zero' or an observation in Box"):
        FrameStackObservation(env, 2, padding_type=np.zeros(7, np.float32))


# --- flat observations ---


def test_flat_stacks(mode: str, device: str) -> None:
    def stacked() -> FrameStackObservation:
        return FrameStackObservation(torch_env("CartPole-v1", 20, mode, device), 3)

    ours, plain = FlattenObservation(stacked()), stacked()
    assert ours.single_observation_space == gymnasium.spaces.flatten_space(plain.single_observation_space)
    assert ours.observation_space.shape == (20, 12)
    first = ours.reset(seed=0)[0]
    np.testing.assert_array_equal(numpy_of(first), numpy_of(plain.reset(seed=0)[0]).reshape(20, 12))
    for taken in step_both(ours, plain, "CartPole-v1", 15, device):
        np.testing.assert_array_equal(numpy_of(taken.ours[0]), numpy_of(taken.theirs[0]).reshape(20, 12))
        if taken.mask is None and mode == "SameStep":
            final, expected = (numpy_of(results[4]["final_obs"]) for results in (taken.ours, taken.theirs))
            np.testing.assert_array_equal(final, expected.reshape(20, 12))
    assert taken.ours[0].data_ptr() == first.data_ptr()


def test_flat_observations_stay(device: str) -> None:
    """Flat observations pass through unchanged; final observations are not contiguous in memory."""
    ours, plain = (
        FlattenObservation(torch_env("Acrobot-v1", 9, "SameStep", device)),
        numpy_env("Acrobot-v1", 9, "SameStep"),
    )
    ours.reset(seed=0)
    plain.reset(seed=0)
    for taken in step_both(ours, plain, "Acrobot-v1", LIMIT, device):
        np.testing.assert_array_equal(numpy_of(taken.ours[0]), taken.theirs[0])
    np.testing.assert_array_equal(numpy_of(taken.ours[4]["final_obs"]), taken.theirs[4]["final_obs"])


# --- actions ---


# Gymnasium's RescaleAction makes a float32 space of float64 bounds.
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if not is_discrete(env_id)])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(
    "bounds", [None, (-1.0, 1.0), (0, 3), (np.array([-0.1]), np.array([0.7], np.float32))], ids=str
)
def test_actions_as_gymnasium(env_id: str, mode: str, bounds: Any, device: str) -> None:
    """Results are bitwise equal, so the same actions reach the environment."""

    def wrapped(env: Any, clip: Any, rescale: Any) -> Any:
        return clip(env) if bounds is None else rescale(env, *bounds)

    ours = wrapped(torch_env(env_id, 50, mode, device), ClipAction, RescaleAction)
    theirs = wrapped(numpy_env(env_id, 50, mode), vector.ClipAction, vector.RescaleAction)
    assert ours.single_action_space == theirs.single_action_space
    assert ours.action_space == theirs.action_space
    ours.reset(seed=0)
    theirs.reset(seed=0)
    for taken in step_both(ours, theirs, env_id, 30, device):
        for mine, other in zip(on_host(taken.ours)[:4], taken.theirs[:4], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_actions_of_any_library_and_type(device: str) -> None:
    ours = ClipAction(torch_env("Pendulum-v1", 3, "SameStep", device))
    values = [[-7.0], [0.5], [9.0]]
    with_gradient = to_device(device, np.array(values, np.float32)).requires_grad_()
    kinds = (np.array(values), np.array(values, np.float32), torch.tensor(values), to_device(device, np.array(values)))
    results = []
    for actions in (values, *kinds, with_gradient):
        ours.reset(seed=0)
        results.append(on_host(ours.step(actions)[:2]))
    assert_all_same(results)
    np.testing.assert_array_equal(numpy_of(with_gradient), np.array(values, np.float32))


def test_double_precision_of_actions(device: str) -> None:
    ours = RescaleAction(torch_env("Pendulum-v1", 3, "SameStep", device, precision="float64"), -1.0, 1.0)
    env = torch_env("Pendulum-v1", 3, "SameStep", device, precision="float64")
    ours.reset(seed=0)
    env.reset(seed=0)
    actions = np.array([[1 / 3], [-0.123456789012345], [1.0]])
    results, expected = ours.step(to_device(device, actions)), env.step(to_device(device, 2 * actions))
    np.testing.assert_array_equal(numpy_of(results[1]), numpy_of(expected[1]))


def test_wrong_actions() -> None:
    discrete, box = (torch_env(env_id, 3, "SameStep", "cpu") for env_id in ("CartPole-v1", "Pendulum-v1"))
    with pytest.raises(TypeError, match=r"ClipAction needs actions in a Box; .* Discrete\(2\): leave ClipAction out"):
        ClipAction(discrete)
    with pytest.raises(TypeError, match="RescaleAction needs actions in a Box"):
        RescaleAction(discrete, -1, 1)
    with pytest.raises(gymnasium.error.InvalidBound, match=r"min_action is 1\.0 and max_action 1\.0"):
        RescaleAction(box, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"min_action has shape \(2,\); give a number or an array of shape \(1,\)"):
        RescaleAction(box, np.zeros(2), 1.0)
    ours = ClipAction(box)
    ours.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions have shape \(3,\); give \(3, 1\)"):
        ours.step(torch.zeros(3))
    with pytest.raises(TypeError, match=r"actions have dtype torch\.bool; .* needs real numbers"):
        ours.step(torch.zeros(3, 1, dtype=torch.bool))
