"""Shared observations of a role: in the agents' rows, or separate, once per replica."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from harness import HAS_TORCH, MODES, Place, numpy_of
from nvrtc import nvrtc_missing, ptx_of
from sharing import join_shared, sharing

import gpu_envs
from gpu_envs import MultiAgentEnv, NotFiniteError, Rules, TeamSpec, TranslationError
from gpu_envs.backend.program import Device
from gpu_envs.codegen import SimulationConfig, generate, layout_of

AT = {"hunter": 1, "prey": 3}
"""Positions of shared elements in rows."""


@pytest.fixture(params=["C++", "Python"])
def spec(request: Any, tmp_path: Path) -> TeamSpec:
    """Hunters and prey with shared observations, guards without."""
    return sharing(tmp_path if request.param == "C++" else None)


def both(spec: TeamSpec, place: Place, num_envs: int = 6, **options: Any) -> tuple[MultiAgentEnv, MultiAgentEnv]:
    """An environment with full rows, and one with separate shared observations."""
    where: dict[str, Any] = {"device": place.device, "output": place.output, **options}
    return MultiAgentEnv(spec, num_envs, **where), MultiAgentEnv(spec, num_envs, shared_observations=True, **where)


def check_equal(full: Any, separate: Any, shared: Any, who: np.ndarray | None = None) -> None:
    """Compares full rows with separate parts. ``who`` selects active agents (default: all); other rows are zero."""
    first = 0
    for role, rows in full.items():
        expected, found = numpy_of(rows), numpy_of(separate[role])
        if role in AT:
            found = join_shared(found, numpy_of(shared[role]), AT[role])
        count = expected.shape[1]
        here = slice(None) if who is None else who[:, first : first + count]
        np.testing.assert_array_equal(found[here], expected[here])
        first += count


@pytest.mark.parametrize("hunters", [70, 2100])
def test_separate_parts_equal_full_rows_in_each_schedule(spec: TeamSpec, place: Place, hunters: int) -> None:
    """For schedules with a block per team, and for a team spread over blocks; episodes end in several steps."""
    full, parts = both(spec, place, 2, autoreset_mode="SameStep", max_episode_steps=4, num_hunters=hunters)
    full.reset(seed=4)
    parts.reset(seed=4)
    full.stagger(offsets=[0, 1])
    parts.stagger(offsets=[0, 1])
    ended = []
    for _ in range(9):
        present = numpy_of(full.state["in_game"]).copy()
        actions = {role: np.full((2, count), 2) for role, count in full.counts.items()}
        (seen, *_, whole_infos), (separate, *_, infos) = full.step(actions), parts.step(actions)
        check_equal(seen, separate, infos["shared_observations"])
        finished = numpy_of(infos["_final_obs"]) if "_final_obs" in infos else np.zeros(2, bool)
        ended.append(finished.tolist())
        if finished.any():
            check_equal(
                whole_infos["final_obs"], infos["final_obs"], infos["final_shared"], present & finished[:, None]
            )
    assert ended[2:4] == [[False, True], [True, False]]


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("mode", MODES)
def test_separate_parts_equal_full_rows(spec: TeamSpec, place: Place, mode: str) -> None:
    full, parts = both(spec, place, autoreset_mode=mode, max_episode_steps=7)
    (seen, _), (separate, infos) = full.reset(seed=4), parts.reset(seed=4)
    assert {role: tuple(rows.shape) for role, rows in separate.items()} == {
        "hunter": (6, 2, 3),
        "prey": (6, 3, 3),
        "guard": (6, 1, 2),
    }
    assert {role: tuple(rows.shape) for role, rows in infos["shared_observations"].items()} == dict.fromkeys(
        AT, (6, 71)
    )
    assert {r: s.shape for r, s in parts.single_shared_spaces.items()} == dict.fromkeys(AT, (71,))
    assert {r: s.shape for r, s in parts.single_observation_spaces.items()} == {
        "hunter": (3,),
        "prey": (3,),
        "guard": (2,),
    }
    shared = infos["shared_observations"]
    check_equal(seen, separate, shared)
    rng = np.random.default_rng(0)
    for step in range(7 if mode == "Disabled" else 20):
        present = numpy_of(full.state["in_game"]).copy()
        actions = {role: rng.integers(0, 3, (6, count)) for role, count in full.counts.items()}
        (seen, rewards, *_, whole_infos), (separate, others, *_, infos) = full.step(actions), parts.step(actions)
        for role, given in rewards.items():
            np.testing.assert_array_equal(numpy_of(given), numpy_of(others[role]))
        begun = np.full((6, 1), mode != "Disabled") & (numpy_of(full.elapsed)[:, None] == 0)
        check_equal(seen, separate, infos["shared_observations"], present | begun)
        if mode == "SameStep" and step % 7 == 6:
            assert numpy_of(infos["_final_obs"]).all()
            check_equal(whole_infos["final_obs"], infos["final_obs"], infos["final_shared"], present)
    first = numpy_of(parts.state["x"])[:, :1] + np.arange(70, dtype=np.float32)
    np.testing.assert_array_equal(numpy_of(parts.shared_observations["prey"])[:, 1:], first)
    parts.state["weather"] = 0.5
    parts.observe()
    assert (numpy_of(parts.shared_observations["hunter"])[:, 0] == 0.5).all()


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
def test_steps_into_out(spec: TeamSpec, device: str) -> None:
    import torch

    env = MultiAgentEnv(spec, 5, device=device, output="torch", shared_observations=True, autoreset_mode="SameStep")
    env.reset(seed=0)
    mine = {role: torch.full((2, 5, 71), -1.0, device=device) for role in AT}
    out = gpu_envs.Step(shared_observations={r: a[0] for r, a in mine.items()}, final_shared={"prey": mine["prey"][1]})
    actions = {role: torch.ones(5, count, dtype=torch.int64, device=device) for role, count in env.counts.items()}
    infos = env.step(actions, out=out)[4]
    assert infos["shared_observations"]["prey"].data_ptr() == mine["prey"].data_ptr()
    assert (mine["hunter"][0, :, 1:] == torch.arange(100, 170, device=device)).all()
    assert (mine["prey"][1] == -1).all()  # no episode has ended
    with pytest.raises(ValueError, match=r"out\.shared_observations has no role 'guard'"):
        env.step(actions, out=gpu_envs.Step(shared_observations={"guard": mine["prey"][0]}))
    plain = MultiAgentEnv(spec, 5, device=device, output="torch")
    plain.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"out\.final_shared is written in .*SameStep.* with .*shared_observations=True"
    ):
        plain.step(actions, out=gpu_envs.Step(final_shared={"prey": mine["prey"][0]}))


def test_checking_covers_shared_observations(spec: TeamSpec, tmp_path: Path, device: str) -> None:
    """A value that only a shared observation contains."""
    if isinstance(spec.header, Rules):
        pytest.skip("what is written is the same")
    header = tmp_path / "sharing.cuh"
    header.write_text(
        header.read_text().replace("row[0] = float(w.weather)", "row[0] = 0.0f / float(w.elapsed == 2 ? 0 : 1)")
    )
    env = MultiAgentEnv(spec, 3, device=device, checking=True, shared_observations=True)
    env.reset(seed=0)
    actions = {role: np.ones((3, count), int) for role, count in env.counts.items()}
    env.step(actions)
    with pytest.raises(NotFiniteError, match=r"replica 0, .*the shared observation.*nan"):
        env.step(actions)


def test_pickles_keep_the_option() -> None:
    env = gpu_envs.make("RiceN-v0", 3, device="cpu", num_regions=2, shared_observations=True)
    env.reset(seed=0)
    again = pickle.loads(pickle.dumps(env))
    actions = {"region": np.ones((3, 2, 7), int)}
    here, there = env.step(actions)[4], again.step(actions)[4]
    np.testing.assert_array_equal(here["shared_observations"]["region"], there["shared_observations"]["region"])


@pytest.mark.fast_cases(5)
@pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "it is there")
@pytest.mark.parametrize("hunters", [2, 300, 5000])
@pytest.mark.parametrize("separate_shared", [False, True])
def test_it_compiles_for_every_schedule(spec: TeamSpec, hunters: int, separate_shared: bool) -> None:
    params = spec.check_params({"num_hunters": hunters}, 1)
    config = SimulationConfig(spec, 8, "SameStep", "float32", 40, params, separate_shared=separate_shared)
    layout = layout_of(config, Device(on_gpu=True, processors=132, shared_bytes=227 * 1024), frozenset())
    (module,) = layout.modules
    ptx_of(generate(layout, module).source)


def test_errors(spec: TeamSpec, tmp_path: Path) -> None:
    separate = dataclasses.replace(spec.roles[1], shared_observation=None)
    others = (dataclasses.replace(spec.roles[0], shared_observation=None, shared_at=None), separate, spec.roles[2])
    error: Any = TranslationError if isinstance(spec.header, Rules) else ValueError
    with pytest.raises(error, match=r"observe_shared.*no .*shared_observation"):
        MultiAgentEnv(dataclasses.replace(spec, roles=others), 2, device="cpu")
    if isinstance(spec.header, Rules):
        header: Any = dataclasses.replace(spec.header, observe_shared=None)
    else:
        header = tmp_path / "less.cuh"
        header.write_text(Path(str(spec.header)).read_text().replace("observe_shared", "observe_none"))
    with pytest.raises(error, match=r"a role has a shared_observation, but .* no (function )?observe_shared"):
        MultiAgentEnv(dataclasses.replace(spec, header=header), 2, device="cpu")
    wrong: tuple[Any, ...] = (4, -1, "wide", True, 1.5)
    with pytest.raises(ValueError, match=r"shared_at is the position of a shared_observation, which is missing"):
        dataclasses.replace(spec, roles=(*spec.roles[:2], dataclasses.replace(spec.roles[2], shared_at=1)))
    with pytest.raises(ValueError, match=r"its shared_at names 'wode', which is not a parameter. Did you mean 'wide'"):
        dataclasses.replace(spec, roles=(dataclasses.replace(spec.roles[0], shared_at="wode"), *spec.roles[1:]))
    for name in ("observation", "shared_observation"):
        none: dict[str, Any] = {name: Box(0, 1, (0,))}
        one = dataclasses.replace(spec.roles[0], shared_at=None, **none)
        with pytest.raises(ValueError, match=r"'hunter': observation and shared_observation are .*; give each"):
            MultiAgentEnv(dataclasses.replace(spec, roles=(one, *spec.roles[1:])), 2, device="cpu")
    nothing = dataclasses.replace(spec.roles[2], observation=Box(0, 1, (0,)))
    assert MultiAgentEnv(
        dataclasses.replace(spec, roles=(*spec.roles[:2], nothing)), 2, device="cpu"
    ).single_observation_spaces[nothing.name].shape == (0,)
    for at in wrong:
        roles = (dataclasses.replace(spec.roles[0], shared_at=at), *spec.roles[1:])
        with pytest.raises(ValueError, match=rf"'hunter': shared_at is {at!r}; give an integer from 0 to 3"):
            MultiAgentEnv(dataclasses.replace(spec, roles=roles), 2, device="cpu")
    roles = (dataclasses.replace(spec.roles[0], shared_observation=Box(0, 1, (2, 2))), *spec.roles[1:])
    with pytest.raises(ValueError, match=r"shared_observation is Box.*; a team needs one-dimensional float32 Boxes"):
        MultiAgentEnv(dataclasses.replace(spec, roles=roles), 2, device="cpu")
    for name in ("CartPole-v1", "TagGridWorld-v0"):
        with pytest.raises(ValueError, match=r"shared_observations=True, but no role has a shared_observation"):
            gpu_envs.make(name, 2, device="cpu", shared_observations=True)
    with pytest.raises(ValueError, match=r"shared_observations is 1; give True or False"):
        gpu_envs.make("RiceN-v0", 2, device="cpu", shared_observations=1)  # type: ignore[call-overload]  # a wrong type


def test_adapters_return_full_rows() -> None:
    """And raise an error if separate parts are requested."""
    pettingzoo = pytest.importorskip("gpu_envs.adapters.pettingzoo", exc_type=ImportError)
    for made in (pettingzoo.parallel_env, pettingzoo.vector_env):
        env = made("RiceN-v0", device="cpu", num_regions=2)
        assert env.observation_space("region_0").shape[-1] == 2 * 13 + 17
        with pytest.raises(ValueError, match=r"shared_observations=True splits observations, which adapters do not"):
            made("RiceN-v0", device="cpu", num_regions=2, shared_observations=True)
