"""Properties of a GPU alone: streams, graphs, and work that the host does not wait for."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, IDS, Array, Make, Place, assert_same_bits, numpy_of, to_place
from registered import (
    CONTINUOUS,
    GRID,
    HOST,
    LIMIT,
    RESULTS,
    VARIANTS,
    Actions,
    Team,
    Variant,
    assert_guards,
    distant_starts,
    draw_actions,
    guarded_array,
    has_integer_actions,
    join_actions,
    make_variant,
    numpy_by_role,
    parametrize_variants,
    place_actions,
    roles_of,
    shape_of,
    split_by_role,
    step_outcome,
    take_step,
    zero_actions,
)

import gpu_envs
from gpu_envs import ActionError, Step
from gpu_envs.engine.roles import RoleInterface

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]

STEPS = 16
TORCH, CUPY = Place("cuda", "torch"), Place("cuda", "cupy")

GAMES = {
    **VARIANTS,
    "block": Variant(CONTINUOUS, Team(10, 100).params),
    "spread": Variant(CONTINUOUS, Team(1500, 600).params),
    "spread-grid": Variant(GRID, {"num_taggers": 2500, "grid_length": 900, "use_full_observation": False}),
}
"""The variants of other tests, a team with one block per replica, and teams with one launch per phase."""

FEW = {name: GAMES[name] for name in (*IDS, "continuous-nearest", "continuous-box", "grid-full", "block", "spread")}
SMALL = {name: game for name, game in FEW.items() if name not in ("block", "spread")}


def pair(make: Make, variant: Variant, place: Place, mode: str = "SameStep", seed: int = 3) -> list[Any]:
    """Two equal environments after their first reset; few replicas of large teams."""
    large = variant in (GAMES["spread"], GAMES["spread-grid"])
    count = 3 if large else 257 if variant.has_team else 1_001
    limit = 5 if large else LIMIT
    envs = [make_variant(make, variant, count, place, autoreset_mode=mode, max_episode_steps=limit) for _ in range(2)]
    for env in envs:
        env.reset(seed=seed)
        # the SPREAD schedule: one launch per phase over the full GPU
        assert any(name.startswith("scratch.") for name in env.simulation.buffers) == large
    return envs


def cloned(env: Any, step: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Copies of a step's results, made on the current stream."""
    return [{role: values.clone() for role, values in split_by_role(env, part).items()} for part in step[:4]]


def tensors(actions: Actions) -> dict[str, Any]:
    """Actions by role as torch tensors."""
    return {role: to_place(values, TORCH) for role, values in actions.items()}


def fill(into: dict[str, Any], actions: dict[str, Any]) -> None:
    """Copies actions into the tensors that a graph reads."""
    for role, values in actions.items():
        into[role].copy_(values)


@pytest.fixture
def torch() -> Any:
    """The torch module, as Any: its CUDA functions lack type hints."""
    return pytest.importorskip("torch")


def captured(torch: Any, act: Callable[[], Any]) -> tuple[Any, Any]:
    """Captures ``act()`` in a CUDA graph; returns the graph and the result."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = act()
    return graph, result


# --- streams ---


@parametrize_variants(FEW)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_torch_streams(make: Make, torch: Any, variant: Variant, mode: str) -> None:
    """Steps run on torch's current stream, after earlier and before later work there."""
    plain, env = pair(make, variant, TORCH, mode)
    block = [tensors(action) for action in draw_actions(env, STEPS)]
    expected = [cloned(plain, plain.step(join_actions(plain, action))) for action in block]
    given = [{role: torch.zeros_like(values) for role, values in action.items()} for action in block]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # noqa: SLF001 - tens of milliseconds: work on another stream would overtake
        for into, action in zip(given, block, strict=True):
            fill(into, action)
        kept = [cloned(env, env.step(join_actions(env, action))) for action in given]
    stream.synchronize()
    assert_same_bits(kept, expected)
    assert_same_bits(env.get_state(), plain.get_state())


@parametrize_variants(FEW)
def test_changing_streams(make: Make, torch: Any, variant: Variant) -> None:
    """Each step uses the current stream."""
    plain, env = pair(make, variant, TORCH)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for t, action in enumerate(draw_actions(env, 2 * STEPS)):
        given = place_actions(env, action, TORCH)
        expected = [numpy_by_role(plain, part) for part in plain.step(given)[:4]]
        stream = streams[t % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = cloned(env, env.step(given))
        stream.synchronize()
        assert_same_bits(result, expected)


@parametrize_variants(FEW)
def test_cupy_streams(make: Make, variant: Variant) -> None:
    """With CuPy output, steps run on CuPy's current stream."""
    import cupy

    plain, env = pair(make, variant, CUPY)
    actions = [place_actions(env, action, CUPY) for action in draw_actions(env, STEPS)]

    def copied(env: Any) -> list[list[dict[str, Array]]]:
        return [
            [{r: v.copy() for r, v in split_by_role(env, part).items()} for part in env.step(a)[:4]] for a in actions
        ]

    expected = copied(plain)
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept = copied(env)
    stream.synchronize()
    assert_same_bits(kept, expected)


@pytest.mark.timing
def test_steps_with_some_restarts_are_fast(make: Make, torch: Any) -> None:
    """A step takes little longer if few replicas restart in it."""
    times: dict[bool, list[float]] = {}
    for staggered in (False, True):
        env = make("MountainCar-v0", 2**22, **TORCH._asdict(), autoreset_mode="SameStep")
        env.reset(seed=0)
        if staggered:
            env.stagger(seed=1)  # one in 200 ends in each step
            env.rollout(200)  # later episodes have no offset
        action = torch.zeros(2**22, dtype=torch.int64, device="cuda")
        env.step(action)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(16):
                env.step(action)
        times[staggered] = []
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[staggered].append(begin.elapsed_time(end))
    assert min(times[True]) < 1.25 * min(times[False]), times  # 1.04 on an H200; 1.75 before a fix


# --- graphs ---


@parametrize_variants(GAMES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_graph_replay_is_eager(make: Make, torch: Any, variant: Variant, mode: str) -> None:
    """16 steps, captured once and replayed, including restarts, equal the eager steps bit for bit."""
    plain, env = pair(make, variant, TORCH, mode)
    given = [tensors(action) for action in draw_actions(env, STEPS)]
    storage: dict[str, dict[str, Array]] = {name: {} for name in RESULTS}
    for name, by_role in storage.items():
        for role in roles_of(env):
            shape, kind = shape_of(env, name, role)
            by_role[role] = torch.zeros((STEPS, *shape), dtype=getattr(torch, kind), device="cuda")

    def all_steps() -> None:
        for t, action in enumerate(given):
            rows = {
                name: join_actions(env, {role: values[t] for role, values in by_role.items()})
                for name, by_role in storage.items()
            }
            env.step(join_actions(env, action), out=Step(**rows))

    start = env.get_state()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        all_steps()
    torch.cuda.current_stream().wait_stream(warm)
    env.set_state(start)
    graph, _ = captured(torch, all_steps)
    assert_same_bits(env.get_state()["state"], start["state"])  # a capture runs nothing
    ends = 0
    for replay in range(4):
        block = draw_actions(env, STEPS, seed=replay)
        for into, action in zip(given, block, strict=True):
            fill(into, tensors(action))
        graph.replay()
        steps = [cloned(plain, plain.step(place_actions(plain, action, TORCH))) for action in block]
        for name, column in zip(RESULTS, zip(*steps, strict=True), strict=True):
            expected = {role: np.stack([numpy_of(part[role]) for part in column]) for role in column[0]}
            assert_same_bits(storage[name], expected, f"{name} of replay {replay}")
            ends += int(expected[roles_of(env)[0]].sum()) if name in ("terminations", "truncations") else 0
    assert ends
    assert_same_bits(env.get_state(), plain.get_state())


@parametrize_variants(FEW)
def test_graph_of_the_simulators_memory(make: Make, torch: Any, variant: Variant) -> None:
    """A captured step may return the simulator's memory, infos included."""
    plain, env = pair(make, variant, TORCH)
    given = tensors(draw_actions(env, 1)[0])
    for one in (env, plain):
        one.step(join_actions(one, given))
    graph, kept = captured(torch, lambda: env.step(join_actions(env, given)))
    for action in draw_actions(env, STEPS, seed=1):
        fill(given, tensors(action))
        graph.replay()
        expected = plain.step(place_actions(plain, action, TORCH))
        assert_same_bits(step_outcome(env, kept), step_outcome(plain, expected))
        assert_same_bits(kept[4]["episode"], expected[4]["episode"])
        assert_same_bits(kept[4]["_episode"], expected[4]["_episode"])


# --- invalid actions on the device ---


def offend(env: Any, actions: dict[str, Any], replica: int, role: str, number: int) -> None:
    """Sets an agent's action to an invalid one."""
    at = (replica, number) if env.env_spec.has_team else replica
    actions[role][at] = 99 if has_integer_actions(env) else float("nan")


def named(env: Any, replica: int, role: str, number: int) -> str:
    """The agent's description in the error message."""
    return f"replica {replica}, {role}_{number}" if env.env_spec.has_team else f"replica {replica}"


def ends_of(env: Any) -> list[tuple[str, int]]:
    """The first and the last agent of each role."""
    return [(role, i) for role, seen in RoleInterface(env).roles.items() for i in (0, len(seen.agents) - 1)]


@parametrize_variants(FEW)
def test_the_first_invalid_action_is_reported_by_check(make: Make, variant: Variant) -> None:
    """Invalid actions on the device are clipped, NaN becomes zero; ``check`` reports the first one."""
    plain, env = pair(make, variant, TORCH)
    for one in (plain, env):
        one.reset(seed=3, options=distant_starts(one) if variant != GAMES["spread"] else None)
    first, last = ends_of(env)[0][0], ends_of(env)[-1]
    third = 2 if variant.has_team else 0
    block = [zero_actions(env), zero_actions(env), *draw_actions(env, 2)]  # no agent is tagged earlier
    mended = [{role: values.copy() for role, values in action.items()} for action in block]
    for step, replica, role, number in (
        *((1, env.num_envs - 1, first, 0), (1, 1, first, third), (1, 1, *last), (2, 0, first, third // 2)),
    ):
        offend(env, block[step], replica, role, number)
        space: Any = RoleInterface(env).roles[role].action
        top = (space.nvec - 1 if hasattr(space, "nvec") else space.n - 1) if has_integer_actions(env) else 0
        mended[step][role][(replica, number) if variant.has_team else replica] = top
    for action, right in zip(block, mended, strict=True):
        assert_same_bits(take_step(env, action, TORCH), take_step(plain, right, TORCH))
    with pytest.raises(ActionError, match=rf"{named(env, 1, first, third)}, step 1 "):
        env.check()
    env.check()
    plain.check()


@parametrize_variants(FEW)
def test_invalid_actions_of_any_agent(make: Make, variant: Variant) -> None:
    """The message names the agent, the first or the last, and the step of its episode."""
    env = pair(make, variant, TORCH)[1]
    for role, number in ends_of(env):
        env.reset(seed=3)
        assert not variant.has_team or numpy_of(env.state["in_game"]).all()
        wrong = zero_actions(env)
        offend(env, wrong, 2, role, number)
        env.step(place_actions(env, wrong, TORCH))
        env.step(place_actions(env, zero_actions(env), TORCH))
        with pytest.raises(ActionError, match=rf"{named(env, 2, role, number)}, step 0 of"):
            env.check()


@parametrize_variants(FEW)
def test_graphs_report_invalid_actions(make: Make, torch: Any, variant: Variant) -> None:
    """``check`` also reports the first invalid action of a replayed step."""
    env = pair(make, variant, TORCH)[0]
    given = tensors(zero_actions(env))
    env.step(join_actions(env, given))
    graph, _ = captured(torch, lambda: env.step(join_actions(env, given)))
    graph.replay()
    env.check()
    role = roles_of(env)[0]
    offend(env, given, 2, role, 0)
    for _ in range(2):
        graph.replay()
        with pytest.raises(ActionError, match=named(env, 2, role, 0)):
            env.check()


# --- work that the host does not wait for ---


@parametrize_variants(FEW)
def test_step_does_not_wait(
    make: Make, torch: Any, sync_debug_mode: Callable[[str], None], variant: Variant, mode: str
) -> None:
    """With torch actions and outputs, a step, reset or rollout never synchronises the host."""
    env = pair(make, variant, TORCH, mode)[0]
    env.allow_frozen_steps()
    given = place_actions(env, draw_actions(env, 1)[0], TORCH)
    mask = torch.ones(env.num_envs, dtype=torch.bool, device="cuda")
    rewards = {role: torch.zeros(shape_of(env, "rewards", role)[0], device="cuda") for role in roles_of(env)}
    out = Step(rewards=join_actions(env, rewards))
    sync_debug_mode("error")
    with pytest.raises(RuntimeError):
        mask.cpu()  # the synchronisation check works
    for _ in range(LIMIT):
        infos = env.step(given)[4]
        env.step(given, out=out)
        assert set(infos) >= {"episode", "_episode", *(("alive",) if variant.has_team else ())}
    env.reset()
    env.reset(seed=5)
    env.reset(options={"reset_mask": mask})
    env.observe()
    if not variant.has_team and mode != "Disabled":
        env.rollout(4)
        env.rollout(2, given.expand(2, *given.shape).contiguous(), per_step=True)


@parametrize_variants(FEW)
def test_step_launches_while_the_device_is_busy(make: Make, torch: Any, variant: Variant) -> None:
    """A step returns before the device is done; torch's synchronisation check does not cover CuPy."""
    env = pair(make, variant, TORCH)[0]
    given = place_actions(env, draw_actions(env, 1)[0], TORCH)
    env.step(given)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # noqa: SLF001 - a quarter of a second and more
    done = torch.cuda.Event()
    for _ in range(10):
        env.step(given)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@parametrize_variants(SMALL)
def test_actions_are_read_where_they_are(make: Make, torch: Any, variant: Variant) -> None:
    """A tensor of the kernel's dtype is not copied: the step reads its memory when it runs."""
    env = pair(make, variant, TORCH)[0]
    by_role = tensors(draw_actions(env, 1)[0])
    given = join_actions(env, by_role)
    env.step(given)
    call = env.simulation.program.args["step"]
    for role, kernel in zip(roles_of(env), call.role if variant.has_team else [call], strict=True):
        assert kernel.actions == by_role[role].data_ptr()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        env.step(given)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.usefixtures("torch")
@parametrize_variants(SMALL)
def test_libraries_share_memory(make: Make, variant: Variant) -> None:
    """CuPy reads a tensor that the simulator writes, without a copy."""
    import cupy

    env = pair(make, variant, TORCH)[0]
    field = next(iter(env.state))
    seen = cupy.from_dlpack(env.state[field])
    env.step(place_actions(env, draw_actions(env, 1)[0], TORCH))
    assert_same_bits(seen.get(), env.state[field])


class Counted:
    """Device memory that counts transfers to the host."""

    def __init__(self, array: Any, transfers: list[Any]) -> None:
        self.array, self.transfers = array, transfers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def get(self, **how: Any) -> Any:
        """Copies to the host."""
        self.transfers.append(self)
        return self.array.get(**how)


@parametrize_variants(SMALL)
def test_numpy_output_comes_in_one_transfer(make: Make, variant: Variant) -> None:
    """One transfer per step, and a second one if episodes end; arrays that were returned do not change."""
    envs = [
        make_variant(make, variant, 5, place, autoreset_mode="SameStep") for place in (Place("cuda", "numpy"), HOST)
    ]
    transfers: list[Any] = []
    for memory in envs[0].simulation.arrays._blocks:  # noqa: SLF001 - the blocks of memory that results share
        memory.device = Counted(memory.device, transfers)
    for env in envs:
        env.reset(seed=1)
    given = []
    for actions in draw_actions(envs[0], 2 * LIMIT):
        transfers.clear()
        given.append([env.step(place_actions(env, actions)) for env in envs])
        assert len(transfers) == (2 if "final_obs" in given[-1][0][4] else 1)
    assert any("final_obs" in one[4] for one, _ in given)
    for one, other in given:
        assert_same_bits(step_outcome(envs[0], one), step_outcome(envs[1], other))


# --- memory around the outputs of a step ---

SIZES = {n: GAMES[n] for n in (*IDS, "grid-full", "grid-nearest", "continuous-nearest", "continuous-full", "block")}


@parametrize_variants(SIZES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_sizes_around_a_block(make: Make, variant: Variant, mode: str) -> None:
    """Batches that end within a warp, at a block or one past it are complete and write only their arrays."""
    for count in (1, 31, 32, 33, *((51, 52) if variant.has_team else (4097,)), 127, 128, 129):
        env = make_variant(make, variant, count, CUPY, autoreset_mode=mode, max_episode_steps=3)
        cpu = make_variant(make, variant, count, autoreset_mode=mode, max_episode_steps=3)
        names = (*RESULTS, *(("final_obs",) if mode == "SameStep" else ()))
        targets = {
            name: {role: guarded_array(CUPY, *shape_of(env, name, role)) for role in roles_of(env)} for name in names
        }
        out = Step(
            **{name: join_actions(env, {role: two[1] for role, two in both.items()}) for name, both in targets.items()}
        )
        assert_same_bits(numpy_by_role(env, env.reset(seed=1)[0]), numpy_by_role(cpu, cpu.reset(seed=1)[0]))
        for t, action in enumerate(draw_actions(cpu, 5)):
            assert_same_bits(
                take_step(env, action, CUPY, out=out), take_step(cpu, action), f"{count} replicas, step {t}"
            )
            for by_role in targets.values():
                for whole, _ in by_role.values():
                    assert_guards(whole)
        assert_same_bits(env.get_state(), cpu.get_state())


@parametrize_variants(GAMES)
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_rows_of_any_alignment(make: Make, variant: Variant, first: int) -> None:
    """Arrays of any alignment, which vector stores must respect, get correct values in every schedule."""
    import cupy

    plain, env = pair(make, variant, CUPY)
    targets, wholes = {}, []
    for role in roles_of(env):
        shape, _ = shape_of(env, "observations", role)
        size = int(np.prod(shape))
        wholes.append(cupy.full(first + size + 1, 77, cupy.float32))
        targets[role] = wholes[-1][first : first + size].reshape(shape)
    for action in draw_actions(env, 6):
        env.step(place_actions(env, action, CUPY), out=Step(observations=join_actions(env, targets)))
        assert_same_bits(targets, take_step(plain, action, CUPY)["observations"])
    for whole in wholes:
        assert (whole[:first] == 77).all()
        assert whole[-1] == 77


@pytest.mark.parametrize(("env_id", "count"), [("CartPole-v1", 1_000_000), (CONTINUOUS, 1_000)])
def test_memory_runs_out(make: Make, torch: Any, env_id: str, count: int) -> None:
    """If the device has too little memory: a MemoryError, and all allocations are released."""
    gc.collect()
    others = torch.cuda.memory_allocated()
    env = make(env_id, count, **TORCH._asdict())
    size = (torch.cuda.memory_allocated() - others) // count  # bytes per replica, or slightly more
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(free * 3 // 4, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryError, match="GiB"):
        gpu_envs.make(env_id, total // size // 2, **TORCH._asdict())
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    env.reset(seed=0)
    del held
    torch.cuda.empty_cache()
