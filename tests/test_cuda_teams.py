"""What only a GPU has, of environments with a team of agents: streams, graphs, and work the host does not wait for."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import HAS_CUDA, TEAM_IDS, Array, Place, assert_same_bits, moved, numpy_of
from tag_oracles import MakeTeam
from test_multi_agent_env import (
    CONTINUOUS,
    GRID,
    LIMIT,
    RESULTS,
    VARIANTS,
    Team,
    Variant,
    assert_guards,
    draw,
    guarded,
    is_whole,
    layout_of,
    made,
    numpy_by_role,
    outcome,
    placed,
)

import gpu_envs
from gpu_envs import ActionError, MultiAgentEnv, Step

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")]

STEPS = 16
TORCH, CUPY = Place("cuda", "torch"), Place("cuda", "cupy")

GAMES = {
    **VARIANTS,
    "block": Variant(CONTINUOUS, Team(10, 100).params),
    "spread": Variant(CONTINUOUS, Team(1500, 600).params),
    "spread-grid": Variant(GRID, {"num_taggers": 2500, "grid_length": 900, "use_full_observation": False}),
}
"""Those of the other tests, a team with blocks of its own, and teams whose phases are launches."""

FEW = {name: GAMES[name] for name in ("continuous-nearest", "continuous-box", "grid-full", "block", "spread")}


def each_game(games: dict[str, Variant]) -> pytest.MarkDecorator:
    """Runs a test for each of the games."""
    return pytest.mark.parametrize("variant", games.values(), ids=games)


def is_spread(env: MultiAgentEnv) -> bool:
    """Whether a team has the whole GPU, with a launch for each phase."""
    return any(name.startswith("scratch.") for name in env._sim.buffers)


def pair(make: MakeTeam, variant: Variant, place: Place, mode: str = "SameStep", seed: int = 3) -> list[MultiAgentEnv]:
    """Two equal environments after their first reset; few replicas of large teams."""
    large = variant in (GAMES["spread"], GAMES["spread-grid"])
    limit = 5 if large else LIMIT
    envs = [
        made(make, variant, 3 if large else 257, place, autoreset_mode=mode, episode_length=limit) for _ in range(2)
    ]
    for env in envs:
        env.reset(seed=seed)
        assert is_spread(env) == large
    return envs


def cloned(step: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Copies of a step's results, made on the current stream."""
    return [{role: values.clone() for role, values in part.items()} for part in step[:4]]


@pytest.fixture
def torch() -> Any:
    """The module, which has few types where CUDA is concerned."""
    return pytest.importorskip("torch")


@pytest.fixture
def synchronising(torch: Any) -> Iterator[Callable[[str], None]]:
    """Says what torch does where the host would wait for the device: ``default`` or ``error``."""
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@each_game(FEW)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_torch_streams(make: MakeTeam, torch: Any, variant: Variant, mode: str) -> None:
    """Steps follow torch's current stream: behind what is queued there, before what comes after."""
    plain, env = pair(make, variant, TORCH, mode)
    block = draw(env, STEPS)
    expected = [cloned(plain.step(placed(action, TORCH))) for action in block]
    actions = [placed(action, TORCH) for action in block]
    given = [{role: torch.zeros_like(values) for role, values in action.items()} for action in actions]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds, in which another stream would run ahead
        for into, action in zip(given, actions, strict=True):
            for role, values in action.items():
                into[role].copy_(values)
        kept = [cloned(env.step(action)) for action in given]
    stream.synchronize()
    assert_same_bits(kept, expected)
    assert_same_bits(env.get_state(), plain.get_state())


@each_game(FEW)
def test_changing_streams(make: MakeTeam, torch: Any, variant: Variant) -> None:
    """Each step asks for the stream anew."""
    plain, env = pair(make, variant, TORCH)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for t, action in enumerate(draw(env, STEPS)):
        given = placed(action, TORCH)
        expected = [numpy_by_role(part) for part in plain.step(given)[:4]]
        stream = streams[t % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = cloned(env.step(given))
        stream.synchronize()
        assert_same_bits(result, expected)


@each_game(FEW)
def test_cupy_streams(make: MakeTeam, variant: Variant) -> None:
    """With CuPy output, steps follow CuPy's current stream."""
    import cupy

    plain, env = pair(make, variant, CUPY)
    actions = [placed(action, CUPY) for action in draw(env, STEPS)]

    def copied(env: MultiAgentEnv) -> list[list[dict[str, Array]]]:
        return [[{r: v.copy() for r, v in part.items()} for part in env.step(a)[:4]] for a in actions]

    expected = copied(plain)
    cupy.cuda.get_current_stream().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kept = copied(env)
    stream.synchronize()
    assert_same_bits(kept, expected)


@each_game(GAMES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_graph_replay_is_eager(make: MakeTeam, torch: Any, variant: Variant, mode: str) -> None:
    """16 steps captured once and replayed, through restarts, are the eager steps bit for bit."""
    plain, env = pair(make, variant, TORCH, mode)
    given = [placed(action, TORCH) for action in draw(env, STEPS)]
    storage: dict[str, dict[str, Array]] = {name: {} for name in RESULTS}
    for name, by_role in storage.items():
        for role in env.roles:
            shape, kind = env._sim.shapes[f"{name}.{role}"]
            by_role[role] = torch.zeros((STEPS, *shape), dtype=getattr(torch, kind), device="cuda")

    def all_steps() -> None:
        for t, action in enumerate(given):
            rows = {name: {role: values[t] for role, values in by_role.items()} for name, by_role in storage.items()}
            env.step(action, out=Step(**rows))

    start = env.get_state()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        all_steps()
    torch.cuda.current_stream().wait_stream(warm)
    env.set_state(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_steps()
    assert_same_bits(env.get_state()["state"], start["state"])  # a capture runs nothing
    ends = 0
    for replay in range(3):
        block = draw(env, STEPS, seed=replay)
        for into, action in zip(given, block, strict=True):
            for role, values in action.items():
                into[role].copy_(moved(values, TORCH))
        graph.replay()
        expected: dict[str, dict[str, list[np.ndarray]]] = {n: {r: [] for r in env.roles} for n in storage}
        for action in block:
            for name, part in zip(storage, plain.step(placed(action, TORCH)), strict=False):
                for role, values in part.items():
                    expected[name][role].append(numpy_of(values))
        stacked = {name: {r: np.stack(v) for r, v in by_role.items()} for name, by_role in expected.items()}
        assert_same_bits(storage, stacked, f"replay {replay}")
        ends += int(stacked["truncations"]["tagger"].sum())
    assert ends
    assert_same_bits(env.get_state(), plain.get_state())


@each_game(FEW)
def test_graph_of_the_simulators_memory(make: MakeTeam, torch: Any, variant: Variant) -> None:
    """A captured step may also leave its results where they are, infos included."""
    plain, env = pair(make, variant, TORCH)
    given = placed(draw(env, 1)[0], TORCH)
    env.step(given), plain.step(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = env.step(given)
    for action in draw(env, STEPS, seed=1):
        for role, values in action.items():
            given[role].copy_(moved(values, TORCH))
        graph.replay()
        expected = plain.step(placed(action, TORCH))
        assert_same_bits(outcome(captured), outcome(expected))
        assert_same_bits(captured[4]["episode"], expected[4]["episode"])
        assert_same_bits(captured[4]["_episode"], expected[4]["_episode"])


# --- offences of the device ---


def offend(env: MultiAgentEnv, actions: dict[str, Any], replica: int, agent: str) -> None:
    """Gives an agent an action that is none."""
    role, number = agent.split("_")
    actions[role][replica, int(number)] = 99 if is_whole(env) else float("nan")


@each_game(FEW)
def test_offences_are_kept(make: MakeTeam, variant: Variant) -> None:
    """On the device a wrong action counts as the nearest right one, NaN as zero; the first is kept for ``check``."""
    plain, env = pair(make, variant, TORCH)
    for each in (plain, env):
        each.reset(seed=3, options=layout_of(each) if variant != GAMES["spread"] else None)
    last = env.possible_agents[-1]
    block = draw(env, 4)
    block[1] = {role: np.zeros_like(values) for role, values in block[1].items()}  # nobody is tagged before
    block[0] = dict(block[1])
    mended = [{role: values.copy() for role, values in action.items()} for action in block]
    offenders = ((1, env.num_envs - 1, "tagger_0"), (1, 1, "tagger_2"), (1, 1, last), (2, 0, "tagger_1"))
    for step, replica, agent in offenders:
        block[step] = {role: values.copy() for role, values in block[step].items()}
        offend(env, block[step], replica, agent)
        role, number = agent.split("_")
        space: Any = env.single_action_spaces[role]
        top = (space.nvec - 1 if hasattr(space, "nvec") else space.n - 1) if is_whole(env) else 0
        mended[step][role][replica, int(number)] = top
    for action, right in zip(block, mended, strict=True):
        assert_same_bits(outcome(env.step(placed(action, TORCH))), outcome(plain.step(placed(right, TORCH))))
    with pytest.raises(ActionError, match=r"replica 1, tagger_2, step 1 "):
        env.check()
    env.check()
    plain.check()


@each_game(FEW)
def test_offence_of_any_agent(make: MakeTeam, variant: Variant) -> None:
    """The message names the agent, be it the first or the last, and the step of its episode."""
    env = pair(make, variant, TORCH)[1]
    right = {role: np.zeros_like(values) for role, values in draw(env, 1)[0].items()}
    for agent in (env.possible_agents[0], f"tagger_{env.counts['tagger'] - 1}", env.possible_agents[-1]):
        env.reset(seed=3)
        there = numpy_of(env.state["in_game"])
        assert there.all()
        wrong = {role: values.copy() for role, values in right.items()}
        offend(env, wrong, 2, agent)
        env.step(placed(wrong, TORCH))
        env.step(placed(right, TORCH))
        with pytest.raises(ActionError, match=rf"replica 2, {agent}, step 0 of"):
            env.check()


def test_who_is_out_offends_nobody(make: MakeTeam) -> None:
    """Whatever agents do that are out, or whose replica waits for its restart, is no offence."""
    for variant in (VARIANTS["continuous-nearest"], VARIANTS["continuous-box"]):
        for mode in ("NextStep", "SameStep"):
            plain, env = pair(make, variant, TORCH, mode)
            for action in draw(env, 2 * LIMIT):
                out = ~numpy_of(env.state["in_game"])
                taggers = env.counts["tagger"]
                odd = {role: values.copy() for role, values in action.items()}
                odd["tagger"][out[:, :taggers]] = 99 if is_whole(env) else np.nan
                odd["runner"][out[:, taggers:]] = 99 if is_whole(env) else np.nan
                assert_same_bits(outcome(env.step(placed(odd, TORCH))), outcome(plain.step(placed(action, TORCH))))
            env.check()


@each_game(FEW)
def test_graph_keeps_offences(make: MakeTeam, torch: Any, variant: Variant) -> None:
    """A replayed step keeps the first wrong action for ``check``, too."""
    env = pair(make, variant, TORCH)[0]
    given = placed({role: np.zeros_like(values) for role, values in draw(env, 1)[0].items()}, TORCH)
    env.step(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        env.step(given)
    graph.replay()
    env.check()
    offend(env, given, 2, "tagger_1")
    for _ in range(2):
        graph.replay()
        with pytest.raises(ActionError, match="replica 2, tagger_1"):
            env.check()


@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_wrong_device_actions_raise_with_host_output(make: MakeTeam, env_id: str) -> None:
    """With NumPy output a step reads the device anyway, so that a wrong action of the device raises at once."""
    env = made(make, Variant(env_id, {}), 5, Place("cuda", "numpy"))
    env.reset(seed=0)
    right = draw(env, 1)[0]
    wrong = {role: values.copy() for role, values in right.items()}
    offend(env, wrong, 3, "runner_0")
    with pytest.raises(ActionError, match="replica 3, runner_0"):
        env.step(placed(wrong, CUPY))
    mixed = {"tagger": moved(right["tagger"], CUPY), "runner": wrong["runner"]}
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ActionError, match="replica 3, runner_0"):
        env.step(mixed)  # the host's half is looked at beforehand
    assert_same_bits(before, env.get_state())
    env.step(right)


@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_device_actions_for_the_cpu(make: MakeTeam, env_id: str) -> None:
    """Actions on a GPU are refused by an environment on the CPU."""
    env = made(make, Variant(env_id, {}), 5)
    env.reset(seed=0)
    action = draw(env, 1)[0]
    for place in (CUPY, TORCH):
        if place == TORCH:
            pytest.importorskip("torch")
        with pytest.raises(ValueError, match=r"role 'runner'.*cuda"):
            env.step({**action, "runner": moved(action["runner"], place)})


# --- work that the host does not wait for ---


@each_game(FEW)
def test_step_does_not_wait(
    make: MakeTeam, torch: Any, synchronising: Callable[[str], None], variant: Variant, mode: str
) -> None:
    """With torch in and out, the host waits for nothing in a step or a reset."""
    env = pair(make, variant, TORCH, mode)[0]
    env.allow_frozen_steps()
    given = placed(draw(env, 1)[0], TORCH)
    mask = torch.ones(env.num_envs, dtype=torch.bool, device="cuda")
    rewards = {role: torch.zeros((env.num_envs, count), device="cuda") for role, count in env.counts.items()}
    out = Step(rewards=rewards)
    synchronising("error")
    with pytest.raises(RuntimeError):
        mask.cpu()  # so it is on guard
    for _ in range(LIMIT):
        infos = env.step(given)[4]
        env.step(given, out=out)
        assert set(infos) >= {"alive", "episode", "_episode"}
    env.reset()
    env.reset(seed=5)
    env.reset(options={"reset_mask": mask})
    env.observe()


@each_game(FEW)
def test_step_launches_while_the_device_is_busy(make: MakeTeam, torch: Any, variant: Variant) -> None:
    """The host is done with a step long before the device is, which torch's mode cannot see of CuPy's launches."""
    env = pair(make, variant, TORCH)[0]
    given = placed(draw(env, 1)[0], TORCH)
    env.step(given)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # a quarter of a second and more
    done = torch.cuda.Event()
    for _ in range(10):
        env.step(given)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["continuous-nearest", "continuous-box", "grid-full"])
def test_actions_are_read_where_they_are(make: MakeTeam, torch: Any, name: str) -> None:
    """A tensor of the kernel's type is not copied: the step reads what is at its address when it runs."""
    env = pair(make, VARIANTS[name], TORCH)[0]
    given = placed(draw(env, 1)[0], TORCH)
    env.step(given)
    for role, call in zip(env.roles, env._sim._calls["step"].role, strict=True):
        assert call.actions == given[role].data_ptr()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        env.step(given)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("env_id", TEAM_IDS)
def test_libraries_share_memory(make: MakeTeam, env_id: str) -> None:
    """CuPy reads a tensor that the simulator writes, where it is."""
    import cupy

    env = pair(make, Variant(env_id, {}), TORCH)[0]
    seen = cupy.from_dlpack(env.state["x"])
    env.step(placed(draw(env, 1)[0], TORCH))
    assert_same_bits(seen.get(), env.state["x"])


# --- memory around what a step writes ---

SIZES = {name: GAMES[name] for name in ("grid-full", "grid-nearest", "continuous-nearest", "continuous-full", "block")}


@each_game(SIZES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_sizes_around_a_block(make: MakeTeam, variant: Variant, mode: str) -> None:
    """Batches that end within a warp, at a block, one past it, are all whole, and write no more than their own."""
    for count in (1, 31, 32, 33, 51, 52, 127, 128, 129):
        env = made(make, variant, count, CUPY, autoreset_mode=mode, episode_length=3)
        cpu = made(make, variant, count, autoreset_mode=mode, episode_length=3)
        names = (*RESULTS, *(("final_obs",) if mode == "SameStep" else ()))
        targets = {
            name: {role: guarded(CUPY, *env._sim.shapes[f"{name}.{role}"]) for role in env.roles} for name in names
        }
        out = Step(**{name: {role: pair[1] for role, pair in by_role.items()} for name, by_role in targets.items()})
        assert_same_bits(numpy_by_role(env.reset(seed=1)[0]), cpu.reset(seed=1)[0])
        for t, action in enumerate(draw(cpu, 5)):
            expected = outcome(cpu.step(action))
            assert_same_bits(outcome(env.step(placed(action, CUPY), out=out)), expected, f"{count} replicas, step {t}")
            for by_role in targets.values():
                for whole, _ in by_role.values():
                    assert_guards(whole)
        assert_same_bits(env.get_state(), cpu.get_state())


@each_game(GAMES)
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_rows_of_any_alignment(make: MakeTeam, variant: Variant, first: int) -> None:
    """Storage that begins at any element, which vector writes must heed, gets what it should, in every schedule."""
    import cupy

    plain, env = pair(make, variant, CUPY)
    targets, wholes = {}, []
    for role in env.roles:
        shape, _ = env._sim.shapes[f"observations.{role}"]
        size = int(np.prod(shape))
        wholes.append(cupy.full(first + size + 1, 77, cupy.float32))
        targets[role] = wholes[-1][first : first + size].reshape(shape)
    for action in draw(env, 6):
        given = placed(action, CUPY)
        env.step(given, out=Step(observations=targets))
        assert_same_bits(targets, numpy_by_role(plain.step(given)[0]))
    for whole in wholes:
        assert (whole[:first] == 77).all()
        assert whole[-1] == 77


def test_memory_runs_out(make: MakeTeam, torch: Any) -> None:
    """Where others hold the memory that the device has: a MemoryError, and nothing is kept of what was begun."""
    gc.collect()
    others = torch.cuda.memory_allocated()
    env = make(CONTINUOUS, 1_000, **TORCH._asdict())
    each = (torch.cuda.memory_allocated() - others) // 1_000  # bytes a replica, or somewhat more
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(free * 3 // 4, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryError, match="GiB"):
        gpu_envs.make(CONTINUOUS, total // each // 2, **TORCH._asdict())
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    env.reset(seed=0)
    del held
    torch.cuda.empty_cache()
