"""Memory that wrappers return, their launches, bitwise equality across devices, and refused environments."""

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness import MODES, MULTITHREADED_COUNT, assert_same_bits, numpy_of, on_host, random_actions  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from wrapper_cases import LAUNCHES, LIMIT, WRAPPERS, make_wrapped, numpy_env, random_action_tensors, to_device  # noqa: E402

import gpu_envs  # noqa: E402
from gpu_envs import Step  # noqa: E402
from gpu_envs.backend.cuda import CudaKernels  # noqa: E402
from gpu_envs.backend.host import HostKernels  # noqa: E402
from gpu_envs.wrappers import (  # noqa: E402
    NormalizeObservation,
    RecordEpisodeStatistics,
    blocks,
    episodes,
    frames,
    noise,
    observations,
    rewards,
)
from gpu_envs.wrappers.blocks import program  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


OBSERVATIONS = {*("NormalizeObservation", "FrameStackObservation", "FlattenObservation", "ObservationNoise", "all")}
"""Wrappers that write observations."""

VIEWS = {"view", "detach", "select", "alias"}
"""Torch operations that launch no kernel."""


def tensors(results: Any, path: str = "") -> dict[str, Any]:
    """Return all tensors or arrays in results by path, except durations, which differ between runs."""
    if isinstance(results, torch.Tensor | np.ndarray):
        return {path: results}
    pairs = results.items() if isinstance(results, dict) else enumerate(results)
    return {name: t for key, part in pairs for name, t in tensors(part, f"{path}/{key}").items() if key != "t"}


@pytest.mark.parametrize("name", WRAPPERS)
def test_steps_return_the_same_buffers(name: str, mode: str, device: str) -> None:
    env = make_wrapped(name, device, mode)
    first, second = (tensors(env.step(actions)) for actions in random_action_tensors(device, 2))
    assert {path: t.data_ptr() for path, t in first.items()} == {path: t.data_ptr() for path, t in second.items()}
    assert env.reset()[0].data_ptr() == second["/0"].data_ptr()


@pytest.mark.parametrize("name", WRAPPERS)
def test_copies(name: str, mode: str, device: str) -> None:
    """With copy=True later steps do not change earlier results; final_obs is zero for replicas that did not end."""
    copying, plain = make_wrapped(name, device, mode, copy=True), make_wrapped(name, device, mode)
    copies, expected = [copying.reset(seed=0)[0]], [on_host(plain.reset(seed=0)[0])]
    for actions in random_action_tensors(device, LIMIT):
        copies.append(copying.step(actions))
        expected.append(on_host(plain.step(actions)))
        if mode == "SameStep" and len(copies) == 2 and name in OBSERVATIONS:
            assert not copies[1][4]["final_obs"].any()
    assert copies[-1][3].all()
    for copied, live in zip(copies[1:], expected[1:], strict=True):
        ended = numpy_of(copied[4]["_final_obs"]) if mode == "SameStep" else None
        live_tensors = tensors(live)
        for path, tensor in tensors(copied).items():
            mine, theirs = numpy_of(tensor), live_tensors[path]
            if path.endswith("/final_obs"):
                mine, theirs = mine[ended], theirs[ended]
            np.testing.assert_array_equal(mine, theirs, path)
    np.testing.assert_array_equal(numpy_of(copies[0]), expected[0])


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("copy", [None, True])
def test_out(name: str, mode: str, copy: bool | None, device: str) -> None:
    """Results are written into the caller's tensors, here rows of larger tensors."""
    env, plain = make_wrapped(name, device, mode, copy=copy), make_wrapped(name, device, mode)
    shape = (LIMIT, *env.observation_space.shape)
    torch_device = plain.reset(seed=0)[0].device
    storage = {
        "observations": torch.full(shape, 77.0, device=torch_device),
        "rewards": torch.full((LIMIT, 20), 77.0, device=torch_device),
        "truncations": torch.zeros((LIMIT, 20), dtype=torch.bool, device=torch_device),
        "episode_length": torch.full((LIMIT, 20), 77, dtype=torch.int32, device=torch_device),
    }
    if mode == "SameStep":
        storage["final_obs"] = torch.full(shape, 77.0, device=torch_device)
    env.reset(seed=0)
    for t, actions in enumerate(random_action_tensors(device, LIMIT)):
        rows = {part: values[t] for part, values in storage.items()}
        results = env.step(actions, out=Step(**rows))
        expected = plain.step(actions)
        assert_same_bits([numpy_of(part) for part in results[:4]], [numpy_of(part) for part in expected[:4]])
        for part, index in (("observations", 0), ("rewards", 1), ("truncations", 3)):
            assert results[index].data_ptr() == rows[part].data_ptr()
            assert results[index].shape == rows[part].shape
        if mode == "SameStep":
            assert results[4]["final_obs"].data_ptr() == rows["final_obs"].data_ptr()
            ended = expected[4]["_final_obs"]
            assert torch.equal(rows["final_obs"][ended], expected[4]["final_obs"][ended])
            assert (rows["final_obs"][~ended] == 77).all()
    assert storage["truncations"][-1].all()
    assert (storage["episode_length"][-1] == LIMIT).all()
    assert (storage["episode_length"][0] == 77).all()


def test_wrong_out(device: str) -> None:
    """A wrong ``out`` raises an error before the state changes."""
    action = random_action_tensors(device, 1)[0]
    for name in ("NormalizeObservation", "FrameStackObservation", "FlattenObservation", "ObservationNoise"):
        env = make_wrapped(name, device)
        before, shape = env.unwrapped.get_state(), env.observation_space.shape
        match = r"out\.observations is float32 \[20, 7\].* give contiguous float32 \[20, "
        with pytest.raises(ValueError, match=match):
            env.step(action, out=Step(observations=to_device(device, np.zeros((20, 7), np.float32))))
        with pytest.raises(TypeError, match=r"out\.final_obs is ndarray; give a torch tensor"):
            env.step(action, out=Step(final_obs=np.zeros(shape, np.float32)))
        assert_same_bits(before, env.unwrapped.get_state())
        with pytest.raises(ValueError, match=r"out\.final_obs is written in autoreset_mode='SameStep' only"):
            make_wrapped(name, device, "NextStep").step(
                action, out=Step(final_obs=to_device(device, np.zeros(shape, np.float32)))
            )
    with pytest.raises(ValueError, match=r"out\.rewards is float64 \[20\]"):
        make_wrapped("NormalizeReward", device).step(action, out=Step(rewards=to_device(device, np.zeros(20))))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch types no __init_subclass__
    """Records the torch operations that launch kernels."""

    def __init__(self, record: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self._record.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WRAPPERS)
def test_launches(monkeypatch: pytest.MonkeyPatch, name: str, mode: str, device: str) -> None:
    """A step launches at most three kernels for each wrapper, and none that allocates memory."""
    record: list[str] = []
    for kernels in (HostKernels, CudaKernels):
        bind = kernels.bind

        def counting(self: Any, kernel: str, call: Any, count: int, bind: Any = bind) -> Callable[[int], None]:
            launch = bind(self, kernel, call, count)

            def counted(stream: int) -> None:
                record.append(kernel)
                launch(stream)

            return counted

        monkeypatch.setattr(kernels, "bind", counting)
    env = make_wrapped(name, device, mode)
    first, *others = random_action_tensors(device, 3)
    env.step(first)
    for actions in others:
        record.clear()
        with Operations(record):
            env.step(actions)
        assert [launched for launched in record if launched not in {"inspect", "step"}] == LAUNCHES[name]
    assert name == "all" or len(LAUNCHES[name]) <= 3


def test_frozen_statistics_launch_less(device: str) -> None:
    env = make_wrapped("NormalizeObservation", device)
    env.update_running_mean = False
    record: list[str] = []
    env._measure = env._merge = lambda *_: record.append("launch")  # noqa: SLF001 - in place of the kernels
    env.step(random_action_tensors(device, 1)[0])
    assert record == []


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["all", "RecordEpisodeStatistics", "ObservationNoise", "ActionNoise", "RandomPushes"])
def test_same_bits_on_all_devices(name: str, mode: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums have the same order on one CPU thread, on two, and on the device.

    In NextStep mode a block has as many rows as threads; in the other modes more, and the last block fewer.
    """
    if mode != "NextStep":
        monkeypatch.setattr(blocks, "MAX_BLOCKS", 7)
    devices = ("cpu", "cpu", device)
    envs = [
        make_wrapped(name, env_device, mode, count=MULTITHREADED_COUNT, threads=threads)
        for env_device, threads in zip(devices, (1, 2, None), strict=True)
    ]
    for actions in random_actions("Pendulum-v1", LIMIT + 2, MULTITHREADED_COUNT):
        results = [env.step(to_device(env_device, actions)) for env, env_device in zip(envs, devices, strict=True)]
        done = numpy_of(results[0][2] | results[0][3])
        arrays = [{path: numpy_of(t) for path, t in tensors(r).items()} for r in results]
        for by_path in arrays:
            for path in by_path:
                if path.endswith("/final_obs"):
                    by_path[path] = by_path[path][done]
        for other in arrays[1:]:
            assert_same_bits(arrays[0], other)
        if mode == "Disabled" and done.any():
            resets = [on_host(env.reset(options={"reset_mask": done})[0]) for env in envs]
            for other in resets[1:]:
                assert_same_bits(resets[0], other)
    if name == "RecordEpisodeStatistics":
        for other in envs[1:]:
            assert_same_bits(numpy_of(envs[0].return_queue), numpy_of(other.return_queue))
            assert_same_bits(numpy_of(envs[0].length_queue), numpy_of(other.length_queue))
        assert len(envs[0].length_queue) == 100


def programs(mode: str) -> list[Any]:
    """Return the programs of all wrappers."""
    sources = [program(observations.HEADERS, observations.CALLS, mode, features, 1) for features in (1, 3, 110, 300)]
    for real in rewards.REWARD_TYPES.values():
        types, clock = {"Reward": real}, episodes.CLOCKS["cuda"]
        sources.append(program(rewards.HEADERS, rewards.CALLS, mode, 1, 1, types=types))
        sources.append(program(episodes.HEADERS, episodes.CALLS, mode, 1, 1, clock, types))
    for features, size, frame in ((3, 1, "float"), (4, 4, "int"), (300, 2, "u8")):
        stack = f"constexpr int STACK = {size};"
        sources.append(program(frames.HEADERS, frames.CALLS, mode, features, 1, stack, {"Frame": frame}))
    for features, element, distribution in (
        *((3, "float", "normal"), (300, "double", "uniform"), (1, "double", "normal")),
        *((2, "u8", ""), (1, "i64", ""), (4, "int", "")),
    ):
        constants = noise.prologue("ACTION_NOISE", distribution, noisy=distribution != "")
        sources.append(program(noise.HEADERS, noise.CALLS, mode, features, 1, constants, {"Element": element}))
    return sources


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "mode"), [*(("sm_90a", mode) for mode in MODES), ("sm_80", MODES[0]), ("sm_100", MODES[0])]
)
def test_nvrtc_compiles(architecture: str, mode: str) -> None:
    from nvrtc import compile_with_nvrtc, kernel_resources, nvrtc_missing

    missing = nvrtc_missing()
    if missing:
        assert os.environ.get("REQUIRE_NVRTC") != "1", missing
        pytest.skip(missing)
    for compiled in programs(mode):
        usage = list(kernel_resources(compile_with_nvrtc(compiled.source, architecture).cubin))
        names = {name for name, kind, _ in usage if kind == "registers" and name.startswith("kernel_")}
        assert names == {f"kernel_{name}" for name in compiled.calls}
        assert [(name, value) for name, kind, value in usage if kind == "local" and value > 0] == []
        assert [(name, value) for name, kind, value in usage if kind == "registers" and value > 80] == []


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "all"])
def test_refused_environments(name: str) -> None:
    wrap = WRAPPERS[name]
    wrapper = "FrameStackObservation" if name == "FlattenObservation" else name
    match = rf"{wrapper} needs torch tensors, but VectorEnv\('Pendulum-v1'.* has output='numpy'"
    with pytest.raises(ValueError, match=match):
        wrap(numpy_env("Pendulum-v1", 2, "SameStep"))
    with pytest.raises(TypeError, match=rf"{wrapper} wraps single-agent environments only; MultiAgentEnv\("):
        wrap(gpu_envs.make("TagGridWorld-v0", 2, device="cpu", output="torch"))
    with pytest.raises(TypeError, match=rf"{wrapper} wraps environments made by gpu_envs\.make\(.*got SyncVectorEnv"):
        wrap(gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync"))


def test_environment_of_gymnasium_make_vec() -> None:
    options: dict[str, Any] = {"device": "cpu", "output": "torch", "autoreset_mode": "SameStep"}
    inner: Any = gymnasium.make_vec("gpu_envs/CartPole-v1", num_envs=4, **options)
    env = RecordEpisodeStatistics(inner)
    env.reset(seed=0)
    assert env.step(torch.zeros(4, dtype=torch.int64))[1].tolist() == [1.0] * 4
    assert env.spec is not None
    assert (env.device, env.output, env.num_envs) == ("cpu", "torch", 4)
    env.check()
    env.close()
    assert env.closed


@pytest.mark.parametrize("copy_function", [copy.deepcopy, pickle.dumps])
def test_wrappers_refuse_copies(copy_function: Callable[[Any], Any]) -> None:
    env = NormalizeObservation(gpu_envs.make("CartPole-v1", 2, device="cpu", output="torch"))
    with pytest.raises(TypeError, match=r"NormalizeObservation cannot be copied or pickled.*state_dict"):
        copy_function(env)
