"""Running statistics of both normalising wrappers: frozen, saved, shared, and what does not fit."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness import assert_same_bits, numpy_of, random_actions  # noqa: E402
from wrapper_cases import EPS, assert_close, copied, numpy_env, on, torch_env  # noqa: E402

from gpu_envs.wrappers import NormalizeObservation, NormalizeReward, RunningMeanStd  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS: dict[str, Any] = {"obs_rms": NormalizeObservation, "return_rms": NormalizeReward}


def trained(kind: str, device: str, count: int = 40, mode: str = "SameStep") -> Any:
    """A wrapper that has seen something."""
    wrapper = KINDS[kind](torch_env("Pendulum-v1", count, mode, device))
    wrapper.reset(seed=0)
    for actions in random_actions("Pendulum-v1", 15, count):
        wrapper.step(on(device, actions))
    return wrapper


def assert_normalised(kind: str, found: Any, raw: Any, state: dict[str, Any]) -> None:
    """Fails unless a step's results are normalised by these statistics."""
    mean, deviation = numpy_of(state["mean"]), np.sqrt(numpy_of(state["var"]) + 1e-8)
    if kind == "obs_rms":
        assert_close(numpy_of(found[0]), (raw[0] - mean) / deviation)
    else:
        np.testing.assert_allclose(numpy_of(found[1]), raw[1] / deviation, rtol=4 * EPS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_frozen_statistics_stay(kind: str, mode: str, device: str) -> None:
    wrapper = trained(kind, device, mode=mode)
    assert wrapper.update_running_mean is True
    wrapper.update_running_mean = False
    before = wrapper.state_dict()
    wrapper.reset(seed=1)
    raw = numpy_env("Pendulum-v1", 40, mode)
    raw.reset(seed=1)
    for actions in random_actions("Pendulum-v1", 15, 40, seed=2):
        found, expected = wrapper.step(on(device, actions)), raw.step(actions)
        assert_normalised(kind, found, expected, before)
    assert_same_bits(before, wrapper.state_dict())
    wrapper.update_running_mean = True
    wrapper.step(on(device, actions))
    assert float(wrapper.state_dict()["count"]) > float(before["count"])


@pytest.mark.parametrize("kind", KINDS)
def test_saved_statistics(kind: str, device: str, tmp_path: Path) -> None:
    """A file, or a copy, makes a wrapper of another size on another device normalise alike."""
    wrapper = trained(kind, device)
    wrapper.save(tmp_path / "statistics.pt")
    fresh = KINDS[kind](torch_env("Pendulum-v1", 3, "Disabled", "cpu"))
    memory = getattr(fresh, kind).mean.data_ptr()
    fresh.load(tmp_path / "statistics.pt")
    assert_same_bits(fresh.state_dict(), wrapper.state_dict())
    assert getattr(fresh, kind).mean.data_ptr() == memory
    other = KINDS[kind](torch_env("Pendulum-v1", 3, "Disabled", "cpu"))
    other.load_state_dict(wrapper.state_dict())
    fresh.update_running_mean = other.update_running_mean = False
    for env in (fresh, other):
        env.reset(seed=4)
    action = np.zeros((3, 1), np.float32)
    one, two = (copied(env.step(on("cpu", action))) for env in (fresh, other))
    assert_same_bits(one[:4], two[:4])


@pytest.mark.parametrize("kind", KINDS)
def test_shared_statistics(kind: str, device: str) -> None:
    """What training goes on to learn shows in the evaluation at once; both may even learn."""
    training, evaluation = trained(kind, device), KINDS[kind](torch_env("Pendulum-v1", 8, "NextStep", device))
    evaluation.reset(seed=3)
    setattr(evaluation, kind, getattr(training, kind))
    evaluation.update_running_mean = False
    apart = trained(kind, device)
    raw = numpy_env("Pendulum-v1", 8, "NextStep")
    raw.reset(seed=3)
    for actions in random_actions("Pendulum-v1", 5, 40, seed=8):
        training.step(on(device, actions))
        apart.step(on(device, actions))
        found, expected = evaluation.step(on(device, actions[:8])), raw.step(actions[:8])
        assert_same_bits(training.state_dict(), apart.state_dict())
        assert_normalised(kind, found, expected, training.state_dict())
    evaluation.update_running_mean = True
    evaluation.step(on(device, actions[:8]))
    assert float(getattr(training, kind).count) == pytest.approx(float(apart.state_dict()["count"]) + 8)


def test_statistics_may_be_written_to(device: str) -> None:
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
    with pytest.raises(ValueError, match=r"'var' has shape \[7\]; these running statistics need"):
        wrapper.load_state_dict(state | {"var": torch.ones(7)})
    assert_same_bits(state, wrapper.state_dict())
    with pytest.raises(TypeError, match=f"{kind} is dict; give the {kind} of another wrapper"):
        setattr(wrapper, kind, state)
    with pytest.raises(
        ValueError, match=rf"{kind} has shape \[7\] on cpu, and this wrapper's has \[{shape[0] if shape else ''}"
    ):
        setattr(wrapper, kind, RunningMeanStd(shape=(7,)))


def test_wrong_settings() -> None:
    env = torch_env("Pendulum-v1", 4, "SameStep", "cpu")
    for kind in KINDS.values():
        with pytest.raises(gymnasium.error.InvalidBound, match="epsilon is 0; give what is above 0"):
            kind(env, epsilon=0)
    with pytest.raises(gymnasium.error.InvalidBound, match=r"gamma is 1\.5; give 0 to 1"):
        NormalizeReward(env, gamma=1.5)
    with pytest.raises(ValueError, match=r"clip is -1; give a number above 0"):
        NormalizeObservation(env, clip=-1)
