"""Whose memory the wrappers return, how much they launch, which bits come out, and what cannot be wrapped."""

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness import MODES, THREADED, assert_same_bits, numpy_of, on_host, random_actions  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from wrapper_cases import LAUNCHES, LIMIT, WRAPPERS, actions_of, made, numpy_env, on  # noqa: E402

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
"""Operations of torch that launch nothing."""


def tensors(results: Any, path: str = "") -> dict[str, Any]:
    """All tensors of results, or arrays, by where they are, but for durations: no two runs have the same."""
    if isinstance(results, torch.Tensor | np.ndarray):
        return {path: results}
    pairs = results.items() if isinstance(results, dict) else enumerate(results)
    return {where: t for key, part in pairs for where, t in tensors(part, f"{path}/{key}").items() if key != "t"}


@pytest.mark.parametrize("name", WRAPPERS)
def test_live_memory(name: str, mode: str, device: str) -> None:
    """What a step returns is at the same place in each."""
    env = made(name, device, mode)
    one, two = (tensors(env.step(actions)) for actions in actions_of(device, 2))
    assert {where: t.data_ptr() for where, t in one.items()} == {where: t.data_ptr() for where, t in two.items()}
    assert env.reset()[0].data_ptr() == two["/0"].data_ptr()


@pytest.mark.parametrize("name", WRAPPERS)
def test_fresh_memory(name: str, mode: str, device: str) -> None:
    """With copy=True what a step returned stays, and is the same; final observations are zero where nothing ended."""
    fresh, live = made(name, device, mode, copy=True), made(name, device, mode)
    kept, expected = [fresh.reset(seed=0)[0]], [on_host(live.reset(seed=0)[0])]
    for actions in actions_of(device, LIMIT):
        kept.append(fresh.step(actions))
        expected.append(on_host(live.step(actions)))
        if mode == "SameStep" and len(kept) == 2 and name in OBSERVATIONS:
            assert not kept[1][4]["final_obs"].any()
    assert kept[-1][3].all()
    for one, other in zip(kept[1:], expected[1:], strict=True):
        ended = numpy_of(one[4]["_final_obs"]) if mode == "SameStep" else None
        wanted = tensors(other)
        for where, tensor in tensors(one).items():
            mine, theirs = numpy_of(tensor), wanted[where]
            if where.endswith("/final_obs"):
                mine, theirs = mine[ended], theirs[ended]
            np.testing.assert_array_equal(mine, theirs, where)
    np.testing.assert_array_equal(numpy_of(kept[0]), expected[0])


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("copy", [None, True])
def test_out(name: str, mode: str, copy: bool | None, device: str) -> None:
    """What the wrapper makes goes straight into the caller's tensors, rows of larger ones; the rest as ever."""
    env, plain = made(name, device, mode, copy=copy), made(name, device, mode)
    shape = (LIMIT, *env.observation_space.shape)
    place = plain.reset(seed=0)[0].device
    storage = {
        "observations": torch.full(shape, 77.0, device=place),
        "rewards": torch.full((LIMIT, 20), 77.0, device=place),
        "truncations": torch.zeros((LIMIT, 20), dtype=torch.bool, device=place),
        "episode_length": torch.full((LIMIT, 20), 77, dtype=torch.int32, device=place),
    }
    if mode == "SameStep":
        storage["final_obs"] = torch.full(shape, 77.0, device=place)
    env.reset(seed=0)
    for t, actions in enumerate(actions_of(device, LIMIT)):
        rows = {part: values[t] for part, values in storage.items()}
        found = env.step(actions, out=Step(**rows))
        expected = plain.step(actions)
        assert_same_bits([numpy_of(part) for part in found[:4]], [numpy_of(part) for part in expected[:4]])
        for part, index in (("observations", 0), ("rewards", 1), ("truncations", 3)):
            assert found[index].data_ptr() == rows[part].data_ptr()
            assert found[index].shape == rows[part].shape
        if mode == "SameStep":
            assert found[4]["final_obs"].data_ptr() == rows["final_obs"].data_ptr()
            ended = expected[4]["_final_obs"]
            assert torch.equal(rows["final_obs"][ended], expected[4]["final_obs"][ended])
            assert (rows["final_obs"][~ended] == 77).all()
    assert storage["truncations"][-1].all()
    assert (storage["episode_length"][-1] == LIMIT).all()
    assert (storage["episode_length"][0] == 77).all()


def test_wrong_out(device: str) -> None:
    """It is looked at before anything changes."""
    action = actions_of(device, 1)[0]
    for name in ("NormalizeObservation", "FrameStackObservation", "FlattenObservation", "ObservationNoise"):
        env = made(name, device)
        before, shape = env.unwrapped.get_state(), env.observation_space.shape
        match = r"out\.observations is float32 \[20, 7\].* give contiguous float32 \[20, "
        with pytest.raises(ValueError, match=match):
            env.step(action, out=Step(observations=on(device, np.zeros((20, 7), np.float32))))
        with pytest.raises(TypeError, match=r"out\.final_obs is ndarray; .* writes into torch tensors"):
            env.step(action, out=Step(final_obs=np.zeros(shape, np.float32)))
        assert_same_bits(before, env.unwrapped.get_state())
        with pytest.raises(ValueError, match=r"out\.final_obs is written in autoreset_mode='SameStep' only"):
            made(name, device, "NextStep").step(action, out=Step(final_obs=on(device, np.zeros(shape, np.float32))))
    with pytest.raises(ValueError, match=r"out\.rewards is float64 \[20\]"):
        made("NormalizeReward", device).step(action, out=Step(rewards=on(device, np.zeros(20))))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch types no __init_subclass__
    """Takes down the operations of torch that do something on the device."""

    def __init__(self, record: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor this
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self._record.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WRAPPERS)
def test_launches(monkeypatch: pytest.MonkeyPatch, name: str, mode: str, device: str) -> None:
    """At most three a step of each wrapper; none of them allocates, so nothing does."""
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
    env = made(name, device, mode)
    given = actions_of(device, 3)
    env.step(given[0])
    for actions in given[1:]:
        record.clear()
        with Operations(record):
            env.step(actions)
        assert [launched for launched in record if launched not in {"inspect", "step"}] == LAUNCHES[name]
    assert name == "all" or len(LAUNCHES[name]) <= 3


def test_frozen_statistics_launch_less(device: str) -> None:
    env = made("NormalizeObservation", device)
    env.update_running_mean = False
    record: list[str] = []
    env._measure = env._merge = lambda *_: record.append("learns")  # noqa: SLF001 - notes what would be launched
    env.step(actions_of(device, 1)[0])
    assert record == []


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["all", "RecordEpisodeStatistics", "ObservationNoise", "ActionNoise", "RandomPushes"])
def test_the_same_bits_everywhere(name: str, mode: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread of the CPU, two, and the device: sums are taken in an order that depends on none of them.

    In one mode blocks are as many as ever; in the others each has more rows than threads, and the last fewer.
    """
    if mode != "NextStep":
        monkeypatch.setattr(blocks, "MOST_BLOCKS", 7)
    envs = [
        made(name, place, mode, count=THREADED, threads=threads)
        for place, threads in (("cpu", 1), ("cpu", 2), (device, None))
    ]
    places = ("cpu", "cpu", device)
    for actions in random_actions("Pendulum-v1", LIMIT + 2, THREADED):
        results = [env.step(on(place, actions)) for env, place in zip(envs, places, strict=True)]
        done = numpy_of(results[0][2] | results[0][3])
        found = [{where: numpy_of(t) for where, t in tensors(r).items()} for r in results]
        for parts in found:
            for where in parts:
                if where.endswith("/final_obs"):
                    parts[where] = parts[where][done]
        for other in found[1:]:
            assert_same_bits(found[0], other)
        if mode == "Disabled" and done.any():
            again = [on_host(env.reset(options={"reset_mask": done})[0]) for env in envs]
            for other in again[1:]:
                assert_same_bits(again[0], other)
    if name == "RecordEpisodeStatistics":
        for other in envs[1:]:
            assert_same_bits(numpy_of(envs[0].return_queue), numpy_of(other.return_queue))
            assert_same_bits(numpy_of(envs[0].length_queue), numpy_of(other.length_queue))
        assert len(envs[0].length_queue) == 100


def programs(mode: str) -> list[Any]:
    """The sources of all wrappers' kernels."""
    found = [program(observations.HEADERS, observations.CALLS, mode, features, 1) for features in (1, 3, 110, 300)]
    for real in rewards.REWARD_TYPES.values():
        types, clock = {"Reward": real}, episodes.CLOCKS["cuda"]
        found.append(program(rewards.HEADERS, rewards.CALLS, mode, 1, 1, types=types))
        found.append(program(episodes.HEADERS, episodes.CALLS, mode, 1, 1, clock, types))
    for features, size, frame in ((3, 1, "float"), (4, 4, "int"), (300, 2, "u8")):
        stack = f"constexpr int STACK = {size};"
        found.append(program(frames.HEADERS, frames.CALLS, mode, features, 1, stack, {"Frame": frame}))
    for features, element, distribution in (
        *((3, "float", "normal"), (300, "double", "uniform"), (1, "double", "normal")),
        *((2, "u8", ""), (1, "i64", ""), (4, "int", "")),
    ):
        told = noise.prologue("ACTION_NOISE", distribution, noisy=distribution != "")
        found.append(program(noise.HEADERS, noise.CALLS, mode, features, 1, told, {"Element": element}))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "mode"), [*(("sm_90a", mode) for mode in MODES), ("sm_80", MODES[0]), ("sm_100", MODES[0])]
)
def test_nvrtc_compiles(architecture: str, mode: str) -> None:
    from nvrtc import compile_with_nvrtc, nvrtc_missing, resources

    missing = nvrtc_missing()
    if missing:
        assert os.environ.get("REQUIRE_NVRTC") != "1", missing
        pytest.skip(missing)
    for made_one in programs(mode):
        found = list(resources(compile_with_nvrtc(made_one.source, architecture).cubin))
        names = {name for name, kind, _ in found if kind == "registers" and name.startswith("kernel_")}
        assert names == {f"kernel_{name}" for name in made_one.calls}
        assert [(name, value) for name, kind, value in found if kind == "local" and value > 0] == []
        assert [(name, value) for name, kind, value in found if kind == "registers" and value > 80] == []


@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "all"])
def test_what_cannot_be_wrapped(name: str) -> None:
    wrap = WRAPPERS[name]
    said = "FrameStackObservation" if name == "FlattenObservation" else name
    with pytest.raises(ValueError, match=rf"{said} works on torch tensors, and VectorEnv\('Pendulum-v1'.* gives numpy"):
        wrap(numpy_env("Pendulum-v1", 2, "SameStep"))
    with pytest.raises(TypeError, match=rf"{said} wraps environments of one agent, and MultiAgentEnv\("):
        wrap(gpu_envs.make("TagGridWorld-v0", 2, device="cpu", output="torch"))
    with pytest.raises(TypeError, match=rf"{said} wraps what gpu_envs\.make\(.*got SyncVectorEnv"):
        wrap(gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync"))


def test_wrapped_as_gymnasium_makes_it() -> None:
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


@pytest.mark.parametrize("copied_by", [copy.deepcopy, pickle.dumps])
def test_copies_are_refused_with_advice(copied_by: Callable[[Any], Any]) -> None:
    env = NormalizeObservation(gpu_envs.make("CartPole-v1", 2, device="cpu", output="torch"))
    with pytest.raises(TypeError, match=r"NormalizeObservation cannot be copied or pickled.*state_dict"):
        copied_by(env)
