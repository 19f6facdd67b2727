"""NormalizeObservation and NormalizeReward against statistics of all samples in NumPy, and against Gymnasium."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.wrappers import vector  # noqa: E402
from harness import assert_same_bits, numpy_of, on_host, random_actions  # noqa: E402
from wrapper_cases import (  # noqa: E402
    EPS,
    ROUNDINGS,
    Array,
    SampleMoments,
    assert_close,
    assert_statistics,
    numpy_env,
    step_both,
    to_device,
    torch_env,
)

from gpu_envs.wrappers import FrameStackObservation, NormalizeObservation, NormalizeReward, RunningMeanStd  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

COUNTS = (37, 700)
"""Replicas: one block, and three blocks with a partial last one."""


# --- observations ---


@pytest.mark.parametrize("count", COUNTS)
def test_observations_against_numpy(env_id: str, mode: str, count: int, device: str) -> None:
    ours, raw = NormalizeObservation(torch_env(env_id, count, mode, device)), numpy_env(env_id, count, mode)
    samples = SampleMoments()
    actual = numpy_of(ours.reset(seed=2)[0])
    samples.add(raw.reset(seed=2)[0])
    finals = 0
    for taken in step_both(ours, raw, env_id, 30, device):
        observations = taken.theirs[0]
        samples.add(observations if taken.mask is None else observations[taken.mask])
        mean, var, _ = samples.moments()
        actual = numpy_of(taken.ours[0])
        assert_close(actual, (observations - mean) / np.sqrt(var + 1e-8))
        if taken.mask is None and mode == "SameStep":
            ended = numpy_of(taken.ours[4]["_final_obs"])
            if ended.any():
                final, expected = numpy_of(taken.ours[4]["final_obs"])[ended], taken.theirs[4]["final_obs"][ended]
                assert_close(final, (expected - mean) / np.sqrt(var + 1e-8))
                finals += len(final)
    assert_statistics(ours.obs_rms, samples)
    assert finals > count or mode != "SameStep"


@pytest.mark.parametrize("stack", [1, 3, 20, 100])
def test_many_features(stack: int, device: str) -> None:
    """Rows of 4 to 400 features: fewer than a block has threads, and more."""

    def stacked() -> FrameStackObservation:
        return FrameStackObservation(torch_env("CartPole-v1", 600, "SameStep", device), stack)

    ours, raw, samples = NormalizeObservation(stacked()), stacked(), SampleMoments()
    samples.add(numpy_of(raw.reset(seed=2)[0]))
    ours.reset(seed=2)
    for actions in random_actions("CartPole-v1", 13, 600):
        actual, infos = ours.step(to_device(device, actions))[::4]
        observations, expected = raw.step(to_device(device, actions))[::4]
        samples.add(numpy_of(observations))
    mean, var, _ = samples.moments()
    # A thread sums up to 256 rows: the bound holds even if all 256 rounding errors have the same sign.
    for one, other in ((actual, observations), (infos["final_obs"], expected["final_obs"])):
        wrong = np.abs(numpy_of(one) - (numpy_of(other) - mean) / np.sqrt(var + 1e-8))[numpy_of(infos["_final_obs"])]
        assert not wrong.size or wrong.max() < 256 * EPS * (1 + np.abs(numpy_of(one)).max())
    np.testing.assert_allclose(numpy_of(ours.obs_rms.var), var, rtol=256 * EPS)
    assert ours.single_observation_space.shape == (stack, 4)


def test_observations_far_from_zero(device: str) -> None:
    """A mean of a million standard deviations loses no digits: each block sums squares of deviations from its mean."""
    env = torch_env("MountainCar-v0", 2000, "SameStep", device)
    env.reset(seed=0)
    ours, samples = NormalizeObservation(env), SampleMoments()
    rng = np.random.default_rng(0)
    for _ in range(20):
        env.state["position"].copy_(to_device(device, rng.normal(1000, 1e-3, 2000).astype(np.float32)))
        raw = env.observe()
        ours._update_statistics(raw, None)  # noqa: SLF001 - observations of no environment
        samples.add(numpy_of(raw))
    mean, var, count = samples.moments()
    # The initial 1e-4 samples at zero add 1e-4 * 1000^2 = 100 to the sum of squares: 0.0025 to the variance.
    assert var[0] == pytest.approx(0.0025, rel=0.01)
    assert float(ours.obs_rms.count) == pytest.approx(count, rel=1e-12)
    assert float(ours.obs_rms.mean[0]) == pytest.approx(mean[0], rel=1e-12)
    assert float(ours.obs_rms.var[0]) == pytest.approx(var[0], rel=1e-7)
    nothing = {"mean": torch.zeros(2), "var": torch.ones(2), "count": torch.tensor(0.0)}
    ours.load_state_dict(nothing)
    ours._update_statistics(raw, None)  # noqa: SLF001 - observations of no environment
    last = numpy_of(raw)[:, 0].astype(np.float64)
    assert float(ours.obs_rms.mean[0]) == pytest.approx(last.mean(), rel=1e-12)
    assert float(ours.obs_rms.var[0]) == pytest.approx(last.var(), rel=ROUNDINGS * EPS)
    ours.update_running_mean = False
    actual = numpy_of(ours.step(to_device(device, np.ones(2000, np.int64)))[0])[:, 0]
    moved = numpy_of(env.state["position"]).astype(np.float64)
    assert_close(actual, (moved - last.mean()) / np.sqrt(last.var() + 1e-8))


def test_a_million_steps_later(device: str) -> None:
    """After 1.3e11 samples, a step still changes the statistics by the right amount."""
    ours = NormalizeObservation(torch_env("Pendulum-v1", 500, "SameStep", device))
    count, mean, var = 65_536.0 * 2_000_000, np.array([0.5, -0.25, 2.0]), np.array([0.5, 0.25, 8.0])
    state = {"mean": torch.tensor(mean), "var": torch.tensor(var), "count": torch.tensor(count, dtype=torch.float64)}
    ours.load_state_dict(state)
    raw = numpy_env("Pendulum-v1", 500, "SameStep")
    ours.reset(seed=0)
    samples = raw.reset(seed=0)[0].astype(np.float64)
    total = count + 500
    shift = samples.mean(0) - mean
    expected = (var * count + samples.var(0) * 500 + shift**2 * count * 500 / total) / total
    assert float(ours.obs_rms.count) == total
    change = numpy_of(ours.obs_rms.mean) - mean
    # rounding: the means differ by 4e-9, which leaves 6 digits of a float64
    np.testing.assert_allclose(change, shift * 500 / total, rtol=1e-4)
    np.testing.assert_allclose(numpy_of(ours.obs_rms.var) - var, expected - var, rtol=1e-3)


def test_a_waiting_replica_is_not_counted(device: str) -> None:
    """In Disabled mode with ``allow_frozen_steps``, ended replicas add no samples."""
    env, raw = (torch_env("CartPole-v1", 3, "Disabled", env_device) for env_device in (device, "cpu"))
    for wrapped in (env, raw):
        wrapped.allow_frozen_steps()
    ours, samples = NormalizeObservation(env), SampleMoments()
    ours.reset(seed=0)
    samples.add(numpy_of(raw.reset(seed=0)[0]))
    waits = np.zeros(3, bool)
    for actions in random_actions("CartPole-v1", 14, 3):
        ours.step(to_device(device, actions))
        observations, _, terminations, truncations, _ = on_host(raw.step(to_device("cpu", actions)))
        samples.add(observations[~waits])
        waits = terminations | truncations
    assert waits.all()
    assert_statistics(ours.obs_rms, samples)
    ours.reset()
    samples.add(numpy_of(raw.reset()[0]))
    ours.step(to_device(device, actions))
    samples.add(numpy_of(raw.step(to_device("cpu", actions))[0]))
    assert_statistics(ours.obs_rms, samples)


@pytest.mark.parametrize("clip", [0.2, 1.0])
def test_clip(clip: float, device: str) -> None:
    ours, plain = (NormalizeObservation(torch_env("CartPole-v1", 64, "SameStep", device), clip=c) for c in (clip, None))
    assert ours.single_observation_space == gymnasium.spaces.Box(-clip, clip, (4,), np.float32)
    ours.reset(seed=0)
    plain.reset(seed=0)
    cut = 0
    for actions in random_actions("CartPole-v1", 12, 64):
        actual, expected = (on_host(env.step(to_device(device, actions))) for env in (ours, plain))
        np.testing.assert_array_equal(actual[0], expected[0].clip(-clip, clip))
        ended = actual[4]["_final_obs"]
        np.testing.assert_array_equal(actual[4]["final_obs"][ended], expected[4]["final_obs"][ended].clip(-clip, clip))
        cut += int((np.abs(expected[4]["final_obs"][ended]) > clip).sum())
    assert cut > 64


# --- rewards ---


def discounted_returns(mode: str, gamma: float, count: int) -> Any:
    """Return Gymnasium's update of discounted returns in float32: a function from a step to the counted returns."""
    running, ended = np.zeros(count, np.float32), np.zeros(count, bool)

    def step(rewards: Array, terminations: Array, truncations: Array, mask: Array | None = None) -> Array:
        nonlocal running, ended
        if mask is not None:
            running[mask], ended[mask] = 0, False
            return running
        active = np.ones(count, bool) if mode == "SameStep" else ~ended
        discounted = np.where(terminations, np.float32(0), running * np.float32(gamma))
        running = np.where(active, discounted + rewards, running).astype(np.float32)
        counted: Array = running[active].copy()
        ended = terminations | truncations
        if mode == "SameStep":
            running = np.where(ended, np.float32(0), running)
        return counted

    return step


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("count", COUNTS)
def test_rewards_as_gymnasium(env_id: str, mode: str, count: int, device: str) -> None:
    ours = NormalizeReward(torch_env(env_id, count, mode, device), gamma=0.9)
    theirs = vector.NormalizeReward(numpy_env(env_id, count, mode), gamma=0.9)
    ours.reset(seed=2)
    theirs.reset(seed=2)
    for taken in step_both(ours, theirs, env_id, 40, device):
        np.testing.assert_array_equal(numpy_of(ours.accumulated_reward), theirs.accumulated_reward)
        mean, var = float(theirs.return_rms.mean), float(theirs.return_rms.var)
        assert float(ours.return_rms.count) == pytest.approx(theirs.return_rms.count, rel=1e-12)
        # Gymnasium's batch means are float32: their errors scale with the mean, not with the standard deviation.
        off = ROUNDINGS * EPS * (1 + mean**2 / var)
        assert float(ours.return_rms.var) == pytest.approx(var, rel=off)
        np.testing.assert_allclose(numpy_of(taken.ours[1]), taken.theirs[1], rtol=off)
        np.testing.assert_array_equal(numpy_of(taken.ours[0]), taken.theirs[0])


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_rewards_against_numpy(env_id: str, mode: str, precision: str, device: str) -> None:
    count, gamma = 300, 0.95
    ours = NormalizeReward(torch_env(env_id, count, mode, device, precision=precision), gamma=gamma, epsilon=1e-4)
    raw = numpy_env(env_id, count, mode, precision=precision)
    update_returns, samples = discounted_returns(mode, gamma, count), SampleMoments()
    ours.reset(seed=2)
    raw.reset(seed=2)
    for taken in step_both(ours, raw, env_id, 30, device):
        if taken.mask is not None:
            update_returns(*taken.theirs[:1] * 3, mask=taken.mask)
            continue
        rewards = taken.theirs[1]
        samples.add(update_returns(*taken.theirs[1:4]))
        var = samples.moments()[1]
        actual = numpy_of(taken.ours[1])
        assert actual.dtype == precision
        np.testing.assert_allclose(actual, rewards / np.sqrt(var + 1e-4), rtol=ROUNDINGS * EPS)
    assert_statistics(ours.return_rms, samples)


# --- running statistics of both ---

KINDS: dict[str, Any] = {"obs_rms": NormalizeObservation, "return_rms": NormalizeReward}


def trained(kind: str, device: str, count: int = 40, mode: str = "SameStep") -> Any:
    """Return a wrapper after 15 steps."""
    wrapper = KINDS[kind](torch_env("Pendulum-v1", count, mode, device))
    wrapper.reset(seed=0)
    for actions in random_actions("Pendulum-v1", 15, count):
        wrapper.step(to_device(device, actions))
    return wrapper


def assert_normalised(kind: str, actual: Any, raw: Any, state: dict[str, Any]) -> None:
    """Assert that a step's results are normalized by these statistics."""
    mean, deviation = numpy_of(state["mean"]), np.sqrt(numpy_of(state["var"]) + 1e-8)
    if kind == "obs_rms":
        assert_close(numpy_of(actual[0]), (raw[0] - mean) / deviation)
    else:
        np.testing.assert_allclose(numpy_of(actual[1]), raw[1] / deviation, rtol=4 * EPS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_frozen_statistics_do_not_change(kind: str, mode: str, device: str) -> None:
    wrapper = trained(kind, device, mode=mode)
    assert wrapper.update_running_mean is True
    wrapper.update_running_mean = False
    before = wrapper.state_dict()
    wrapper.reset(seed=1)
    raw = numpy_env("Pendulum-v1", 40, mode)
    raw.reset(seed=1)
    for actions in random_actions("Pendulum-v1", 15, 40, seed=2):
        actual, expected = wrapper.step(to_device(device, actions)), raw.step(actions)
        assert_normalised(kind, actual, expected, before)
    assert_same_bits(before, wrapper.state_dict())
    wrapper.update_running_mean = True
    wrapper.step(to_device(device, actions))
    assert float(wrapper.state_dict()["count"]) > float(before["count"])


@pytest.mark.parametrize("kind", KINDS)
def test_saved_statistics(kind: str, device: str, tmp_path: Path) -> None:
    """Statistics load into a wrapper with another number of replicas on another device."""
    wrapper = trained(kind, device)
    wrapper.save(tmp_path / "statistics.pt")
    from_file = KINDS[kind](torch_env("Pendulum-v1", 3, "Disabled", "cpu"))
    address = getattr(from_file, kind).mean.data_ptr()
    from_file.load(tmp_path / "statistics.pt")
    assert_same_bits(from_file.state_dict(), wrapper.state_dict())
    assert getattr(from_file, kind).mean.data_ptr() == address
    from_dict = KINDS[kind](torch_env("Pendulum-v1", 3, "Disabled", "cpu"))
    from_dict.load_state_dict(wrapper.state_dict())
    from_file.update_running_mean = from_dict.update_running_mean = False
    for env in (from_file, from_dict):
        env.reset(seed=4)
    action = np.zeros((3, 1), np.float32)
    results, expected = (on_host(env.step(to_device("cpu", action))) for env in (from_file, from_dict))
    assert_same_bits(results[:4], expected[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_shared_statistics(kind: str, device: str) -> None:
    """Updates by the training wrapper apply to the evaluation wrapper, and vice versa."""
    training, evaluation = trained(kind, device), KINDS[kind](torch_env("Pendulum-v1", 8, "NextStep", device))
    evaluation.reset(seed=3)
    setattr(evaluation, kind, getattr(training, kind))
    evaluation.update_running_mean = False
    unshared = trained(kind, device)
    raw = numpy_env("Pendulum-v1", 8, "NextStep")
    raw.reset(seed=3)
    for actions in random_actions("Pendulum-v1", 5, 40, seed=8):
        training.step(to_device(device, actions))
        unshared.step(to_device(device, actions))
        actual, expected = evaluation.step(to_device(device, actions[:8])), raw.step(actions[:8])
        assert_same_bits(training.state_dict(), unshared.state_dict())
        assert_normalised(kind, actual, expected, training.state_dict())
    evaluation.update_running_mean = True
    evaluation.step(to_device(device, actions[:8]))
    assert float(getattr(training, kind).count) == pytest.approx(float(unshared.state_dict()["count"]) + 8)


def test_writing_statistics_in_place(device: str) -> None:
    ours = NormalizeObservation(torch_env("Pendulum-v1", 4, "SameStep", device))
    ours.update_running_mean = False
    ours.obs_rms.mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    ours.obs_rms.var.fill_(4.0)
    raw = numpy_env("Pendulum-v1", 4, "SameStep").reset(seed=6)[0]
    assert_close(numpy_of(ours.reset(seed=6)[0]), (raw - np.array([1.0, 2.0, 3.0])) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_that_do_not_fit(kind: str) -> None:
    wrapper = trained(kind, "cpu")
    shape = list(getattr(wrapper, kind).mean.shape)
    state = wrapper.state_dict()
    with pytest.raises(ValueError, match=r"have no 'means'\. Did you mean 'mean'"):
        wrapper.load_state_dict({"means": state["mean"]})
    with pytest.raises(ValueError, match="'count' is missing"):
        wrapper.load_state_dict({name: state[name] for name in ("mean", "var")})
    with pytest.raises(ValueError, match=r"'var' has shape \[7\]; these running statistics need shape"):
        wrapper.load_state_dict(state | {"var": torch.ones(7)})
    assert_same_bits(state, wrapper.state_dict())
    with pytest.raises(TypeError, match=f"{kind} is dict; give the {kind} of another wrapper"):
        setattr(wrapper, kind, state)
    with pytest.raises(
        ValueError, match=rf"{kind} has shape \[7\] on cpu; this wrapper needs \[{shape[0] if shape else ''}"
    ):
        setattr(wrapper, kind, RunningMeanStd(shape=(7,)))


def test_wrong_settings() -> None:
    env = torch_env("Pendulum-v1", 4, "SameStep", "cpu")
    for kind in KINDS.values():
        with pytest.raises(gymnasium.error.InvalidBound, match="epsilon is 0; give a number above 0"):
            kind(env, epsilon=0)
    with pytest.raises(gymnasium.error.InvalidBound, match=r"gamma is 1\.5; give a number from 0 to 1"):
        NormalizeReward(env, gamma=1.5)
    with pytest.raises(ValueError, match=r"clip is -1; give a number above 0"):
        NormalizeObservation(env, clip=-1)
