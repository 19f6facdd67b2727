"""The batched interface to teams of agents: what goes in, what comes out, what is refused, and the same bits always."""

import copy
import functools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from harness import (
    HAS_CUDA,
    HAS_TORCH,
    MODES,
    PLACES,
    TEAM_IDS,
    Array,
    Place,
    address,
    assert_all_same,
    assert_same_bits,
    empty,
    moved,
    numpy_of,
)
from tag_oracles import MakeTeam

import gpu_envs
from gpu_envs import ActionError, MultiAgentEnv, Step
from gpu_envs.backend.host import LEAST_PER_THREAD
from gpu_envs.results import OutReader

HOST = Place("cpu", "numpy")
LIMIT = 11
CONTINUOUS, GRID = "TagContinuous-v0", "TagGridWorld-v0"
RESULTS = ("observations", "rewards", "terminations", "truncations")
EXTRAS = ("final_obs", "episode_return", "episode_length")

SMALL: dict[str, dict[str, Any]] = {
    CONTINUOUS: {"num_taggers": 3, "num_runners": 12, "grid_length": 6.0, "tagging_distance": 0.3},
    GRID: {"grid_length": 4},
}
"""Worlds so small that even random agents tag and are tagged before the limit."""


class Variant(NamedTuple):
    """An environment, and what it is made with besides ``SMALL``."""

    env_id: str
    params: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """All of it, for ``make``; episodes end at ``LIMIT`` at the latest."""
        return {**SMALL[self.env_id], "episode_length": LIMIT, **self.params}


VARIANTS = {
    "continuous-nearest": Variant(CONTINUOUS, {}),
    "continuous-full": Variant(CONTINUOUS, {"use_full_observation": True}),
    "continuous-box": Variant(CONTINUOUS, {"actions": "continuous"}),
    "continuous-stay": Variant(CONTINUOUS, {"runner_exits_game_after_tagged": False}),
    "grid-full": Variant(GRID, {}),
    "grid-nearest": Variant(GRID, {"use_full_observation": False}),
}

each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
ByRole = dict[str, Any]


@pytest.fixture(params=TEAM_IDS)
def variant(request: pytest.FixtureRequest) -> Variant:
    """Each environment with a team; ``each_variant`` gives more."""
    return Variant(request.param, {})


def made(make: MakeTeam, variant: Variant, count: int, place: Place = HOST, **kwargs: Any) -> MultiAgentEnv:
    """An environment of a variant; ``kwargs`` come last."""
    return make(variant.env_id, count, **{**place._asdict(), **variant.arguments, **kwargs})


def draw(env: MultiAgentEnv, steps: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Uniformly random actions of every agent, step by step; those of a Box somewhat beyond its bounds too."""
    rng = np.random.default_rng(seed)
    block: dict[str, np.ndarray] = {}
    for role, space in env.single_action_spaces.items():
        shape = (steps, env.num_envs, env.counts[role], *(space.shape or ()))
        if isinstance(space, Box):
            block[role] = rng.uniform(1.2 * space.low, 1.2 * space.high, shape).astype(np.float32)
        else:
            block[role] = rng.integers(0, space.nvec if isinstance(space, MultiDiscrete) else space.n, shape)  # type: ignore[attr-defined]
    return [{role: values[t] for role, values in block.items()} for t in range(steps)]


def placed(actions: Mapping[str, np.ndarray], place: Place) -> ByRole:
    """Actions in the library of a place, on its device."""
    return {role: moved(values, place) for role, values in actions.items()}


def some(actions: Iterable[Mapping[str, np.ndarray]], replicas: slice) -> list[dict[str, np.ndarray]]:
    """The actions of some of the replicas."""
    return [{role: values[replicas] for role, values in step.items()} for step in actions]


def numpy_by_role(values: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """Copies, in NumPy."""
    return {role: numpy_of(array) for role, array in values.items()}


def outcome(step: tuple[Any, ...]) -> dict[str, dict[str, np.ndarray]]:
    """What a step gave, by name and role, in NumPy; ``final_obs`` zero where no episode ended."""
    found = {name: numpy_by_role(values) for name, values in zip(RESULTS, step, strict=False)}
    infos = step[4]
    found["alive"] = numpy_by_role(infos["alive"])
    final = {role: np.zeros_like(values) for role, values in found["observations"].items()}
    if "final_obs" in infos:
        mask = numpy_of(infos["_final_obs"])
        for role, values in infos["final_obs"].items():
            final[role][mask] = numpy_of(values)[mask]
    return {**found, "final_obs": final}


def over(step: Mapping[str, Mapping[str, Any]] | tuple[Any, ...]) -> np.ndarray:
    """Which replicas' episode a step has ended: every agent is terminated or truncated."""
    given = outcome(step) if isinstance(step, tuple) else step
    flags = [given["terminations"][role] | given["truncations"][role] for role in given["terminations"]]
    return np.asarray(np.concatenate(flags, axis=1).all(axis=1))


def record(
    env: MultiAgentEnv, actions: Iterable[Mapping[str, np.ndarray]], place: Place = HOST
) -> dict[str, dict[str, np.ndarray]]:
    """Takes a step with each of the actions: ``[steps, num_envs, ...]`` by name and role. Resets in Disabled mode."""
    steps = []
    for action in actions:
        steps.append(outcome(env.step(placed(action, place))))
        if env.autoreset_mode is AutoresetMode.DISABLED and over(steps[-1]).any():
            first = env.reset(options={"reset_mask": over(steps[-1])})[0]
            steps[-1]["restarted"] = numpy_by_role(first)
        else:
            steps[-1]["restarted"] = steps[-1]["observations"]
    return {name: {role: np.stack([s[name][role] for s in steps]) for role in env.roles} for name in steps[0]}


def part(recorded: Mapping[str, Mapping[str, np.ndarray]], replicas: slice) -> dict[str, dict[str, np.ndarray]]:
    """What was recorded of some of the replicas."""
    return {name: {role: v[:, replicas] for role, v in by_role.items()} for name, by_role in recorded.items()}


def assert_unchanged(env: MultiAgentEnv, act: Callable[[], object]) -> None:
    """Runs what should raise and change nothing, and fails where it changes anything a trajectory depends on."""
    before = env.get_state()
    try:
        act()
    finally:
        assert_same_bits(before, env.get_state(), "state")


def all_buffers(env: MultiAgentEnv) -> dict[str, np.ndarray]:
    """All memory of a simulation but for what it needs within a step."""
    return {name: numpy_of(array) for name, array in env._sim.buffers.items() if not name.startswith("scratch.")}


def joined(env: MultiAgentEnv, by_role: Mapping[str, Array]) -> np.ndarray:
    """Arrays of the roles in one, agents in their order."""
    return np.concatenate([numpy_of(by_role[role]) for role in env.roles], axis=1)


# --- the same bits ---

STEPS = 40


@each_variant
@pytest.mark.parametrize(
    ("automatic", "precision"), [("NextStep", "float32"), ("SameStep", "float32"), ("SameStep", "float64")]
)
def test_replica_is_single_environment(
    make: MakeTeam, variant: Variant, device: str, automatic: str, precision: str
) -> None:
    """Replica i of 70 seeded s is the single environment seeded s + i, and a batch of 7 is the first 7."""
    place, arguments = Place(device, "numpy"), {"autoreset_mode": automatic, "precision": precision}
    batch = made(make, variant, 70, place, **arguments)
    first = batch.reset(seed=11)[0]
    actions = draw(batch, STEPS)
    whole = record(batch, actions)
    assert whole["terminations"]["runner"].any() == (variant != VARIANTS["continuous-stay"])
    for index, count in ((0, 7), (0, 1), (1, 1), (69, 1)):
        here = slice(index, index + count)
        env = made(make, variant, count, place, **arguments)
        start = env.reset(seed=11 + index)[0]
        assert_same_bits({role: values[here] for role, values in first.items()}, start)
        assert_same_bits(part(whole, here), record(env, some(actions, here)), f"replica {index}")


def test_thread_count_changes_nothing(make: MakeTeam, variant: Variant, mode: str) -> None:
    """One thread and two give the same."""
    results = []
    for threads in (1, 2):
        env = made(make, variant, 201, threads=threads, autoreset_mode=mode)
        assert env.num_envs * 32 * env.num_agents >= 2 * LEAST_PER_THREAD  # enough for two
        results.append((env.reset(seed=5)[0], record(env, draw(env, 25)), env.get_state(), all_buffers(env)))
    assert_all_same(results)


@each_variant
def test_runs_are_the_same(make: MakeTeam, variant: Variant, device: str) -> None:
    """A reset with a seed begins anew, whatever was before; so does another environment."""
    env, other = (made(make, variant, 33, Place(device, "numpy")) for _ in range(2))
    actions = draw(env, STEPS)
    runs = [(each.reset(seed=4)[0], record(each, actions)) for each in (env, env, other)]
    assert_all_same(runs)
    different = env.reset(seed=5)[0]
    assert (joined(env, runs[0][0]) != joined(env, different)).any(axis=(1, 2)).all()


@each_variant
def test_modes_agree(make: MakeTeam, variant: Variant, device: str) -> None:
    """Every replica's trajectory is one and the same in NextStep, SameStep and, reset by its user, Disabled mode.

    The restart steps of NextStep mode get actions that are none.
    """
    count, steps = 23, 60
    same, following, disabled = (
        made(make, variant, count, Place(device, "numpy"), autoreset_mode=mode)
        for mode in ("SameStep", "NextStep", "Disabled")
    )
    assert_all_same(env.reset(seed=17)[0] for env in (same, following, disabled))
    actions = draw(same, steps)
    expected, by_hand = record(same, actions), record(disabled, actions)
    for name in ("rewards", "terminations", "truncations"):
        assert_same_bits(expected[name], by_hand[name], name)
    assert_same_bits(expected["observations"], by_hand["restarted"], "observations")
    ends = np.array(
        [over({name: {r: v[t] for r, v in e.items()} for name, e in expected.items()}) for t in range(steps)]
    )
    assert ends.sum() > 3 * count
    for role in same.roles:  # the last observation of an episode is the one that a frozen replica shows
        assert_same_bits(expected["final_obs"][role][ends], by_hand["observations"][role][ends], "final_obs")

    done = np.zeros(count, int)  # steps taken of each replica's sequence
    pending = np.zeros(count, bool)
    everybody = np.arange(count)
    while done.min() < steps:
        taken = np.minimum(done, steps - 1)
        given = {role: np.stack([a[role] for a in actions])[taken, everybody] for role in same.roles}
        for values in given.values():
            values[pending] = 99 if values.dtype.kind == "i" else np.nan
        result = outcome(following.step(given))
        looked_at = done < steps  # who is done repeats the last of its actions until all are
        for role in same.roles:
            for name in ("rewards", "terminations", "truncations"):
                values = result[name][role]
                assert not values[pending].any(), "a restart step gives nothing"
                kept = looked_at & ~pending
                assert_same_bits(values[kept], expected[name][role][taken, everybody][kept], name)
            shown, ended = result["observations"][role], ends[taken, everybody]
            kept = looked_at & ~pending & ended
            assert_same_bits(shown[kept], expected["final_obs"][role][taken, everybody][kept], "final_obs")
            kept = looked_at & ~pending & ~ended
            assert_same_bits(shown[kept], expected["observations"][role][taken, everybody][kept], "observations")
            kept = pending & (done <= steps)
            before = np.clip(done - 1, 0, steps - 1)
            assert_same_bits(shown[kept], expected["observations"][role][before, everybody][kept], "restart")
            assert result["alive"][role][pending].all()
        assert not numpy_of(following.state["elapsed"])[pending].any()
        done += ~pending
        pending = over(result)


class Team(NamedTuple):
    """A team size that calls for a schedule of its own."""

    taggers: int
    runners: int
    seen: int = 10
    full: bool = False
    box: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """For ``make``."""
        return {
            "num_taggers": self.taggers,
            "num_runners": self.runners,
            "num_other_agents_observed": self.seen,
            "use_full_observation": self.full,
            "actions": "continuous" if self.box else "discrete",
            "grid_length": 1.5 * math.sqrt(self.taggers + self.runners),
            "tagging_distance": 0.5 / math.sqrt(self.taggers + self.runners),
            "edge_hit_penalty": -0.1,
        }


TEAMS = [
    Team(1, 1),
    Team(1, 1, full=True),
    Team(2, 3, seen=2),
    Team(2, 3, seen=20),
    Team(3, 14),
    Team(3, 14, seen=16),
    Team(3, 14, full=True),
    Team(3, 14, box=True),
    Team(5, 28, seen=15),
    Team(5, 28, seen=17),
    Team(4, 60, seen=1),
    Team(14, 50, seen=32),
    Team(4, 60, full=True),
    Team(5, 60),
    Team(5, 60, full=True),
    Team(10, 100),
    Team(10, 100, seen=30),
    Team(10, 100, full=True),
    Team(20, 280),
    Team(20, 280, seen=100),
    Team(20, 280, full=True),
]


def compare_devices(make: MakeTeam, env_id: str, count: int, steps: int, **kwargs: Any) -> None:
    """Steps the CPU's and CUDA's, and compares all that they give and all that they hold."""
    envs = [make(env_id, count, device=device, **kwargs) for device in ("cpu", "cuda")]
    assert_all_same(env.reset(seed=21)[0] for env in envs)
    for t, action in enumerate(draw(envs[0], steps, seed=1)):
        results = [env.step(action) for env in envs]
        assert_all_same((outcome(result) for result in results), f"step {t}")
        assert_all_same((all_buffers(env) for env in envs), f"step {t}")
        ended = over(results[0])
        if envs[0].autoreset_mode is AutoresetMode.DISABLED and ended.any():
            assert_all_same((env.reset(options={"reset_mask": ended})[0] for env in envs), f"reset {t}")
            assert_all_same((all_buffers(env) for env in envs), f"reset {t}")


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        *((team, "SameStep") for team in TEAMS),
        *((team, mode) for team in TEAMS[2::6] for mode in ("NextStep", "Disabled")),
    ],
    ids=str,
)
def test_cpu_and_cuda_agree(make: MakeTeam, team: Team, automatic: str) -> None:
    """Teams of all sizes are the same on the CPU and on CUDA, over all memory, through restarts."""
    count = 37 if team.taggers + team.runners > 5 else 301  # more than a block of the smallest holds
    compare_devices(make, CONTINUOUS, count, 30, autoreset_mode=automatic, episode_length=13, **team.params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        (Team(2, 3), "NextStep"),
        (Team(5, 28, seen=17), "SameStep"),
        (Team(5, 60, full=True), "NextStep"),
        (Team(10, 100), "SameStep"),
    ],
    ids=str,
)
def test_cpu_and_cuda_agree_in_float64(make: MakeTeam, team: Team, automatic: str) -> None:
    """In float64 too."""
    compare_devices(
        make, CONTINUOUS, 37, 30, autoreset_mode=automatic, episode_length=13, precision="float64", **team.params
    )


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("taggers", "full", "automatic"),
    [
        *((taggers, full, "SameStep") for taggers in (1, 4, 16, 63, 64, 299) for full in (True, False)),
        *((taggers, full, mode) for taggers, full in ((4, True), (64, False)) for mode in ("NextStep", "Disabled")),
    ],
)
def test_cpu_and_cuda_agree_on_the_grid(make: MakeTeam, taggers: int, full: bool, automatic: str) -> None:
    """So is the grid world."""
    params = {"num_taggers": taggers, "grid_length": 2 + taggers, "use_full_observation": full}
    count = 37 if taggers > 4 else 301
    compare_devices(make, GRID, count, 30, autoreset_mode=automatic, episode_length=13, **params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("block_size", [64, 128, 256])
@pytest.mark.parametrize("team", [Team(1, 1), Team(3, 14), Team(10, 100), Team(10, 100, full=True)], ids=str)
def test_block_size_changes_nothing(make: MakeTeam, team: Team, block_size: int) -> None:
    """Blocks of other sizes, which hold other numbers of replicas, give the same."""
    arguments: dict[str, Any] = {"autoreset_mode": "SameStep", "episode_length": 13, **team.params}
    envs = [make(CONTINUOUS, 101, device="cuda", block_size=size, **arguments) for size in (None, block_size)]
    assert_all_same(env.reset(seed=2)[0] for env in envs)
    assert_all_same((record(env, draw(env, 30)), all_buffers(env)) for env in envs)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("team", "automatic"),
    [
        *((Team(1500, 600), mode) for mode in MODES),
        (Team(1100, 950, seen=17), "SameStep"),
        (Team(60, 1990, full=True), "NextStep"),
    ],
    ids=str,
)
def test_spread_team_agrees(make: MakeTeam, team: Team, automatic: str) -> None:
    """A team that is spread over the GPU, a launch for each phase, is the same, over the end of an episode too."""
    compare_devices(make, CONTINUOUS, 2, 4, autoreset_mode=automatic, episode_length=3, **team.params)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize("full", [True, False])
def test_spread_grid_agrees(make: MakeTeam, full: bool) -> None:
    """So is the grid world with thousands of taggers."""
    params = {"num_taggers": 2100, "grid_length": 900, "use_full_observation": full}
    compare_devices(make, GRID, 2, 4, autoreset_mode="SameStep", episode_length=3, **params)


# --- seeds and resets ---


def test_reset_without_seed_is_the_next_episode(make: MakeTeam, variant: Variant, place: Place) -> None:
    """A reset without a seed begins the episode that an automatic restart would, and all of them differ."""
    by_hand = made(make, variant, 33, place)
    by_itself = made(make, variant, 33, place, autoreset_mode="SameStep", episode_length=1)
    first = numpy_by_role(by_hand.reset(seed=4)[0])
    places = joined(by_hand, {role: first[role][..., :-1] for role in first})  # without the time
    by_itself.reset(seed=4)
    seen = [places]
    for action in draw(by_hand, 3):
        following = numpy_by_role(by_hand.reset()[0])
        by_itself.step(placed(action, place))
        assert_same_bits(
            [numpy_of(by_hand.state[name]) for name in by_hand.state],
            [numpy_of(by_itself.state[name]) for name in by_itself.state],
        )
        places = joined(by_hand, {role: following[role][..., :-1] for role in following})
        assert all((places != earlier).any(axis=(1, 2)).all() for earlier in seen)
        seen.append(places)


def test_replicas_differ(make: MakeTeam, variant: Variant, place: Place) -> None:
    """No two replicas begin alike, nor two environments without seeds."""
    env, other = (made(make, variant, 20, place) for _ in range(2))
    rows = [row.tobytes() for each in (env, other) for row in joined(each, each.reset()[0])]
    assert len(set(rows)) == 40


def test_list_of_seeds(make: MakeTeam, variant: Variant, place: Place) -> None:
    """A list gives each replica its seed, and None lets one go on with its own."""
    env = made(make, variant, 3, place)
    counted = joined(env, env.reset(seed=9)[0])
    assert_same_bits(counted, joined(env, env.reset(seed=[9, 10, 11])[0]))
    assert_same_bits(counted[::-1], joined(env, env.reset(seed=[11, 10, 9])[0]))
    following = joined(env, env.reset()[0])
    env.reset(seed=[11, 10, 9])
    mixed = joined(env, env.reset(seed=[3, None, 9])[0])
    assert_same_bits(mixed[1:2], following[1:2])
    assert_same_bits(mixed[2:], counted[:1])
    fresh = made(make, variant, 3, place)
    assert_same_bits(joined(fresh, fresh.reset(seed=[None, 10, None])[0])[1], counted[1])


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1, 2**70])
def test_long_seeds(make: MakeTeam, variant: Variant, device: str, seed: int) -> None:
    """A seed may be of any length; one longer than 64 bits is hashed, not cut."""
    env = made(make, variant, 3, Place(device, "numpy"))
    given, again, cut = (joined(env, env.reset(seed=s)[0]) for s in (seed, seed, seed % 2**64))
    assert_same_bits(given, again)
    assert (given == cut).all() == (seed < 2**64)


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (-1, ValueError),
        ([0, -1, 2], ValueError),
        ([0, 1], ValueError),
        ([0, 1, 2, 3], ValueError),
        (1.5, TypeError),
        ("1", TypeError),
        (True, TypeError),
        ([0, "1", 2], TypeError),
        ({"tagger": 1}, TypeError),
    ],
)
def test_bad_seeds(make: MakeTeam, variant: Variant, seed: Any, error: type[Exception]) -> None:
    """A seed that is none is refused, and changes nothing."""
    env = made(make, variant, 3)
    env.reset(seed=0)
    with pytest.raises(error, match="seed"):
        assert_unchanged(env, lambda: env.reset(seed=seed))


@each_variant
def test_partial_reset_leaves_the_others(make: MakeTeam, variant: Variant, place: Place, mode: str) -> None:
    """A mask leaves state, observations and future of the other replicas alone, bit for bit; restarts pending too."""
    count = 12
    env, plain = (made(make, variant, count, place, autoreset_mode=mode) for _ in range(2))
    for each in (env, plain):
        each.allow_frozen_steps()
        each.reset(seed=2)
    rng = np.random.default_rng(0)
    untouched = np.ones(count, bool)
    for t, action in enumerate(draw(env, 30)):
        before, expected = (outcome(each.step(placed(action, place))) for each in (env, plain))
        for name, by_role in before.items():
            for role, values in by_role.items():
                assert_same_bits(values[untouched], expected[name][role][untouched], f"{t} {name}")
        mask = rng.random(count) < 0.3 * (t % 4 == 3)
        if not mask.any():
            continue
        state = {name: numpy_of(values) for name, values in env.state.items()}
        after, infos = env.reset(seed=(None, 100 + t)[t % 2], options={"reset_mask": moved(mask, place)})
        for role, values in numpy_by_role(after).items():
            assert_same_bits(values[~mask], before["observations"][role][~mask])
            assert numpy_of(infos["alive"][role])[mask].all()
        for name, values in state.items():
            assert_same_bits(values[~mask], numpy_of(env.state[name])[~mask], name)
        assert not numpy_of(env.state["elapsed"])[mask].any()
        untouched &= ~mask
        if untouched.sum() < 3:
            plain.set_state(env.get_state())
            untouched[:] = True


def test_masked_seeds(make: MakeTeam, variant: Variant, device: str) -> None:
    """With a mask, seeds go to the replicas it names alone."""
    env = made(make, variant, 4, Place(device, "numpy"))
    env.reset(seed=0)
    mask = np.array([False, True, False, True])
    after = env.reset(seed=50, options={"reset_mask": mask})[0]
    fresh = made(make, variant, 4, Place(device, "numpy"))
    expected = fresh.reset(seed=[0, 51, 2, 53])[0]
    assert_same_bits(joined(env, after), joined(env, expected))
    assert_same_bits(joined(env, env.reset()[0]), joined(env, fresh.reset()[0]))


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, False, True], TypeError),
        (True, TypeError),
        (np.array([1, 0, 1]), TypeError),
        (np.array([True, False]), ValueError),
        (np.ones((3, 5), bool), ValueError),
        (np.zeros(3, bool), ValueError),
    ],
)
def test_bad_masks(make: MakeTeam, variant: Variant, place: Place, mask: Any, error: type[Exception]) -> None:
    """A mask that is none is refused, says why, and changes nothing."""
    env = made(make, variant, 3, place)
    env.reset(seed=0)
    with pytest.raises(error, match="reset_mask"):
        assert_unchanged(env, lambda: env.reset(options={"reset_mask": mask}))


def test_first_reset_is_of_all(make: MakeTeam, variant: Variant, device: str) -> None:
    """A mask before there is any episode leaves replicas without a state; there is nothing to step, either."""
    env = made(make, variant, 3, Place(device, "numpy"))
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(draw(env, 1)[0])


def layout_of(env: MultiAgentEnv, rows: int | None = None) -> dict[str, np.ndarray]:
    """A cell for each agent, the runners far from the taggers; ``rows``: of so many replicas, which differ."""
    taggers = np.arange(env.num_agents) < env.counts["tagger"]
    x = np.where(taggers, 0, 3)
    y = np.where(taggers, 0, 4)
    if rows is not None:
        x = x + (np.arange(rows) % 2)[:, None]
        y = np.broadcast_to(y, x.shape)
    return {"x": x, "y": y}


@pytest.mark.parametrize("own", [False, True])
def test_layouts(make: MakeTeam, variant: Variant, place: Place, own: bool) -> None:
    """A reset may say where the agents begin, in all replicas or in those of a mask, this once."""
    count = 4
    env, plain = (made(make, variant, count, place) for _ in range(2))
    mask = np.array([True, False, True, False])
    layout: dict[str, Any] = layout_of(env, count if own else None)
    if variant.env_id == CONTINUOUS:
        layout["heading"] = np.linspace(0, 3, env.num_agents).astype(np.float32)
    given = dict(layout)
    observations = numpy_by_role(env.reset(seed=1, options=given)[0])
    assert given.keys() == layout.keys()  # the caller's dict stays as it was
    for name, values in layout.items():
        state = numpy_of(env.state[name])
        assert_same_bits(state, np.broadcast_to(values, state.shape).astype(state.dtype), name)
    assert_same_bits(observations, env.observe())

    first = numpy_by_role(plain.reset(seed=1)[0])
    before = {name: numpy_of(values) for name, values in plain.state.items()}
    after = plain.reset(seed=1, options={**layout, "reset_mask": moved(mask, place)})[0]
    for role, values in numpy_by_role(after).items():
        assert_same_bits(values[mask], observations[role][mask])
        assert_same_bits(values[~mask], first[role][~mask])
    for name, values in before.items():
        assert_same_bits(numpy_of(plain.state[name])[mask], numpy_of(env.state[name])[mask], name)
        assert_same_bits(numpy_of(plain.state[name])[~mask], values[~mask], name)
    usual = made(make, variant, count, place)
    usual.reset(seed=1)
    assert_same_bits(env.reset()[0], usual.reset()[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda _: {"z": 0.0}, "z"),
        (lambda _: {"elapsed": np.zeros(3)}, "elapsed"),
        (lambda env: {"xs": np.zeros(env.num_agents)}, "xs"),
        (lambda env: {"x": np.zeros(env.num_agents + 1)}, "x.*shape"),
        (lambda _: {"x": 0.0}, "x.*shape"),
        (lambda env: {"x": np.zeros((2, env.num_agents))}, "x.*shape"),
        (lambda env: {"y": np.full(env.num_agents, -1)}, "y.*within 0|y.*from 0"),
        (lambda env: {"y": np.full(env.num_agents, 7)}, "y.*within 0|y.*from 0"),
        (lambda env: {"x": np.full(env.num_agents, np.nan)}, "x.*expected"),
        (lambda env: {"x": ["a"] * env.num_agents}, "x.*dtype"),
    ],
)
def test_bad_options(
    make: MakeTeam, variant: Variant, options: Callable[[MultiAgentEnv], dict[str, Any]], message: str
) -> None:
    """An unknown option, and a layout that cannot be, are refused, and change nothing."""
    env = made(make, variant, 3)
    env.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        assert_unchanged(env, lambda: env.reset(options=options(env)))


# --- ends of episodes ---


@each_variant
@pytest.mark.parametrize("live", [False, True])
def test_episodes_of_agents(make: MakeTeam, variant: Variant, place: Place, mode: str, live: bool) -> None:
    """Return, length, flags, ``alive`` and last observations of every agent are what its own steps add up to."""
    if live and place == ("cuda", "numpy"):
        pytest.skip("NumPy arrays cannot be memory of a GPU")
    env = made(make, variant, 9, place, autoreset_mode=mode, statistics=True, copy=not live)
    infos = env.reset(seed=1)[1]
    assert set(infos) == {"alive"}
    assert joined(env, infos["alive"]).all()
    shape = (9, env.num_agents)
    total, length = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    latest_r, latest_l = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
    here, fresh = np.ones(shape, bool), np.zeros(9, bool)  # whose action counts; who restarts in this step
    uneven = 0
    for action in draw(env, 40):
        step = env.step(placed(action, place))
        infos, result = step[4], outcome(step)
        rewards, terminated, truncated, alive, rows = (
            joined(env, result[name]) for name in ("rewards", "terminations", "truncations", "alive", "observations")
        )
        took_part = here & ~fresh[:, None]
        assert not rewards[~took_part].any()
        total += rewards
        length += took_part
        ended = over(result) & ~fresh
        if mode != "SameStep":
            assert not rows[~took_part & ~fresh[:, None]].any(), "who was out observes zeros"
            assert rows[took_part].any(axis=-1).all(), "who was in sees the step in which it goes out"
        out_now = terminated | truncated
        assert (terminated[~fresh] | took_part[~fresh]).all(), "who is out stays terminated"
        assert not (truncated & ~took_part).any()
        if mode != "SameStep":
            assert_same_bits(numpy_of(env.state["in_game"]), alive)
        final = joined(env, result["final_obs"])
        if mode == "SameStep":
            assert alive[ended].all()
            assert not final[~(took_part & ended[:, None])].any()
            assert final[took_part & ended[:, None]].any(axis=-1).all()
        latest_r, latest_l = (
            np.where(ended[:, None], now, then) for now, then in ((total, latest_r), (length, latest_l))
        )
        assert_same_bits(joined(env, env.episode_return), latest_r, "episode_return")
        assert_same_bits(joined(env, env.episode_length), latest_l, "episode_length")
        uneven += int((length[ended].min(axis=1) < length[ended].max(axis=1)).sum())
        always = place.output != "numpy"
        keys = {"alive"}
        if always or ended.any():
            keys |= {"episode", "_episode"} | ({"final_obs", "_final_obs"} if mode == "SameStep" else set())
        assert set(infos) == keys
        if "episode" in infos:
            assert_same_bits(numpy_of(infos["_episode"]), ended)
            for key, values in (("r", total), ("l", length)):
                given = joined(env, infos["episode"][key])
                assert_same_bits(given[ended], values[ended])
                assert always or not given[~ended].any()
            if mode == "SameStep":
                assert_same_bits(numpy_of(infos["_final_obs"]), ended)
        if "final_obs" in infos and not always:
            assert not joined(env, infos["final_obs"])[~ended].any(), "nothing that an earlier step left"
        total[ended], length[ended] = 0, 0
        here = np.where(fresh[:, None], True, here & ~out_now)
        fresh = ended & (mode == "NextStep")
        here[ended] = True
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
    assert latest_l.all()
    exits = variant.env_id == CONTINUOUS and variant.params.get("runner_exits_game_after_tagged", True)
    assert (uneven > 0) == exits, "some were tagged before the end"


@pytest.mark.parametrize("wanted", [None, False, True])
def test_statistics(make: MakeTeam, variant: Variant, place: Place, mode: str, wanted: bool | None) -> None:
    """``infos["episode"]`` is given where it is wanted: by default not with NumPy."""
    env = made(make, variant, 4, place, autoreset_mode=mode, statistics=wanted, episode_length=2)
    env.reset(seed=0)
    for action in draw(env, 2):
        if mode == "Disabled":
            env.allow_frozen_steps()
        infos = env.step(placed(action, place))[4]
    expected = (place.output != "numpy") if wanted is None else wanted
    assert ("episode" in infos, "_episode" in infos) == (expected, expected)
    assert ("final_obs" in infos, "_final_obs" in infos) == ((mode == "SameStep"),) * 2


def test_disabled_refuses_finished_replicas(make: MakeTeam, variant: Variant, device: str) -> None:
    """Stepping a replica whose episode is over raises, changes nothing, and a reset mends it."""
    env = made(make, variant, 3, Place(device, "numpy"), autoreset_mode="Disabled", episode_length=2)
    far = {**layout_of(env)}
    env.reset(seed=0, options=far)
    still = {role: np.zeros_like(values) for role, values in draw(env, 1)[0].items()}
    env.step(still)
    env.reset(options={"reset_mask": np.array([True, False, True]), **far})
    assert over(env.step(still)).tolist() == [False, True, False]
    for _ in range(2):
        with pytest.raises(ActionError, match=r"replica 1, step 2 .*over.*reset"):
            assert_unchanged(env, lambda: env.step(still))
    env.reset(options={"reset_mask": np.array([False, True, False]), **far})
    assert over(env.step(still)).tolist() == [True, False, True]


@each_variant
def test_disabled_freezes_finished_replicas(make: MakeTeam, variant: Variant, place: Place) -> None:
    """Where frozen steps are allowed, a finished replica keeps state, observations and flags, for no reward."""
    env = made(make, variant, 30, place, autoreset_mode="Disabled")
    env.allow_frozen_steps()
    env.reset(seed=0)
    actions = draw(env, LIMIT + 4)
    frozen = np.zeros(30, bool)
    last: dict[str, dict[str, np.ndarray]] = {}
    kept: dict[str, np.ndarray] = {}
    early = 0
    for action in actions:
        for values in action.values():
            values[frozen] = 99 if values.dtype.kind == "i" else np.nan
        result = outcome(env.step(placed(action, place)))
        state = {name: numpy_of(values) for name, values in env.state.items()}
        for role in env.roles:
            assert not result["rewards"][role][frozen].any()
            for name in ("observations", "terminations", "truncations", "alive"):
                if last:
                    assert_same_bits(result[name][role][frozen], last[name][role][frozen], name)
        for name, values in kept.items():
            assert_same_bits(values[frozen], state[name][frozen], name)
        last, kept, frozen = result, state, over(result)
        early += int(frozen.any() and not frozen.all())
    assert frozen.all()
    assert early or variant.env_id == CONTINUOUS
    before = env.get_state()
    env.step(placed(actions[0], place))
    after = env.get_state()
    for snapshot in (before, after):
        snapshot["episode"].pop("finished")  # the mask of the last step's ends
    assert_same_bits(before, after)
    env.check()


def test_partial_reset_clears_a_pending_restart(make: MakeTeam, variant: Variant, place: Place) -> None:
    """In NextStep mode a replica that was reset by mask after its end takes an ordinary step next."""
    env = made(make, variant, 3, place, episode_length=2)
    env.reset(seed=0)
    actions = [placed(action, place) for action in draw(env, 3)]
    env.state["elapsed"] = 1
    assert over(env.step(actions[0])).all()
    env.reset(options={"reset_mask": moved(np.array([True, False, True]), place)})
    env.step(actions[1])
    assert numpy_of(env.state["elapsed"]).tolist() == [1, 0, 1]


def test_last_tag_at_the_limit(make: MakeTeam, mode: str) -> None:
    """At the limit both flags may be true for taggers, while a runner tagged there is only terminated."""
    env = make(
        CONTINUOUS,
        2,
        device="cpu",
        autoreset_mode=mode,
        num_taggers=1,
        num_runners=2,
        grid_length=6.0,
        episode_length=1,
    )
    env.reset(seed=0, options={"x": [[1, 1, 1], [1, 1, 5]], "y": [1, 1, 1] * np.ones((2, 1))})
    still = {"tagger": np.zeros((2, 1, 2), int), "runner": np.zeros((2, 2, 2), int)}
    _, rewards, terminations, truncations, _ = env.step(still)
    assert joined(env, terminations).tolist() == [[True, True, True], [False, True, False]]
    assert joined(env, truncations).tolist() == [[True, False, False], [True, False, True]]
    assert joined(env, rewards).tolist() == [[20, -10, -10], [10, -10, 1]]


# --- limits ---


def test_limits(make: MakeTeam, variant: Variant) -> None:
    """``max_episode_steps`` and ``episode_length`` are one thing, and -1 lifts the limit."""
    default = gpu_envs.spec(variant.env_id).max_episode_steps
    for given, expected in [
        ({}, default),
        ({"episode_length": 9}, 9),
        ({"max_episode_steps": 9}, 9),
        ({"max_episode_steps": 9, "episode_length": 9}, 9),
        ({"max_episode_steps": -1}, None),
    ]:
        env = make(variant.env_id, 2, device="cpu", **given)
        assert env.max_episode_steps == expected
        assert env.params["episode_length"] == expected or expected is None
        env.reset(seed=0, options=layout_of(env))
        assert default is not None
        for elapsed in (default - 1, (expected or 2 * default) - 1):
            env.reset(seed=0, options=layout_of(env))
            env.state["elapsed"] = elapsed
            still = {role: np.zeros_like(values) for role, values in draw(env, 1)[0].items()}
            truncations = env.step(still)[3]
            assert joined(env, truncations).all() == (expected is not None)
    with pytest.raises(ValueError, match=r"max_episode_steps is 9.*episode_length.*10"):
        make(variant.env_id, 2, device="cpu", max_episode_steps=9, episode_length=10)


@pytest.mark.parametrize("limit", [0, -2, 1.5, True, "5"])
@pytest.mark.parametrize("name", ["max_episode_steps", "episode_length"])
def test_bad_limits(variant: Variant, name: str, limit: Any) -> None:
    """A limit that is none is refused."""
    with pytest.raises(ValueError, match=name):
        gpu_envs.make(variant.env_id, device="cpu", **{name: limit})


# --- what comes out ---


def library(array: Array) -> str:
    """The library an array belongs to."""
    return type(array).__module__.partition(".")[0]


def dtype(array: Array) -> str:
    """The name of an array's element type."""
    return str(array.dtype).rpartition(".")[2]


@each_variant
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_types_of_results(make: MakeTeam, variant: Variant, place: Place, precision: str) -> None:
    """Arrays are of the library, shape, type and device promised, within the spaces; rewards of the precision."""
    env = made(
        make, variant, 5, place, precision=precision, autoreset_mode="SameStep", statistics=True, episode_length=1
    )
    first, infos = env.reset(seed=0)
    step = env.step(placed(draw(env, 1)[0], place))
    for role in env.roles:
        rows, count = (5, env.counts[role]), env.counts[role]
        features = env.single_observation_spaces[role].shape
        assert features is not None
        for array, kind, expected in [
            (first[role], "float32", (*rows, *features)),
            (step[0][role], "float32", (*rows, *features)),
            (step[1][role], precision, rows),
            (step[2][role], "bool", rows),
            (step[3][role], "bool", rows),
            (infos["alive"][role], "bool", rows),
            (step[4]["alive"][role], "bool", rows),
            (step[4]["final_obs"][role], "float32", (*rows, *features)),
            (step[4]["episode"]["r"][role], precision, rows),
            (step[4]["episode"]["l"][role], "int32", rows),
            (env.episode_return[role], precision, rows),
            (env.episode_length[role], "int32", rows),
        ]:
            assert (dtype(array), tuple(array.shape), library(array)) == (kind, expected, place.output)
            assert place.output != "torch" or array.device.type == place.device
        assert numpy_of(first[role]) in env.observation_spaces[role]
        assert numpy_of(step[0][role]) in env.observation_spaces[role]
        assert env.observation_spaces[role].shape == (5, count, *features)
    for mask in ("_final_obs", "_episode"):
        assert (dtype(step[4][mask]), tuple(step[4][mask].shape)) == ("bool", (5,))
    kinds = dict.fromkeys(("speed", "heading", "acceleration"), precision)
    kinds |= dict.fromkeys(("x", "y"), precision if variant.env_id == CONTINUOUS else "int32")
    kinds |= {"in_game": "bool", "elapsed": "int32", "runners_left": "int32"}
    assert tuple(env.state) == gpu_envs.spec(variant.env_id).fields
    for name, field in env.state.items():
        each = () if name in ("elapsed", "runners_left") else (env.num_agents,)
        assert (dtype(field), tuple(field.shape)) == (kinds[name], (5, *each))
        assert library(field) == ("cupy" if place == ("cuda", "numpy") else place.output)


@each_variant
def test_spaces(make: MakeTeam, variant: Variant, device: str) -> None:
    """Spaces are batches of the single ones, and samples are accepted."""
    env = made(make, variant, 3, Place(device, "numpy"))
    env.reset(seed=0)
    for role in env.roles:
        for many, single in (
            (env.observation_spaces, env.single_observation_spaces),
            (env.action_spaces, env.single_action_spaces),
        ):
            assert many[role] == batch_space(batch_space(single[role], env.counts[role]), 3)
        env.action_spaces[role].seed(0)
    for _ in range(3):
        observations = env.step({role: space.sample() for role, space in env.action_spaces.items()})[0]
        assert all(observations[role] in env.observation_spaces[role] for role in env.roles)


def test_names(make: MakeTeam, variant: Variant) -> None:
    """Roles, counts and agents in their order, and what the environment is."""
    env = made(make, variant, 3)
    taggers, runners = (3, 12) if variant.env_id == CONTINUOUS else (4, 1)
    assert env.roles == ("tagger", "runner")
    assert env.counts == {"tagger": taggers, "runner": runners}
    assert env.num_agents == taggers + runners == len(env.possible_agents)
    names = [*(f"tagger_{i}" for i in range(taggers)), *(f"runner_{i}" for i in range(runners))]
    assert env.possible_agents == names
    assert env.render_mode is None
    assert (env.num_envs, env.device, env.output, env.precision) == (3, "cpu", "numpy", "float32")
    assert env.spec is gpu_envs.spec(variant.env_id)
    for word in (variant.env_id, "num_envs=3", "'cpu'", "'numpy'", "'NextStep'", "MultiAgentEnv"):
        assert word in repr(env)


def test_mode_is_told(make: MakeTeam, variant: Variant, mode: str) -> None:
    """The mode is Gymnasium's enum, as an attribute and in the metadata; it may be given as enum or string."""
    for given in (mode, AutoresetMode(mode)):
        env = made(make, variant, 1, autoreset_mode=given)
        assert env.autoreset_mode is env.metadata["autoreset_mode"] is AutoresetMode(mode)


@pytest.mark.parametrize("copied", [None, True, False])
def test_copy(make: MakeTeam, variant: Variant, place: Place, copied: bool | None) -> None:
    """With ``copy`` results are fresh arrays; without they are the simulator's memory, the same every step."""
    if place == ("cuda", "numpy") and copied is False:
        with pytest.raises(ValueError, match="copy=False"):
            made(make, variant, 5, place, copy=False)
        return
    env = made(make, variant, 5, place, copy=copied, autoreset_mode="SameStep")
    fresh = place.output == "numpy" if copied is None else copied
    first, infos = env.reset(seed=0)
    steps = [env.step(placed(action, place)) for action in draw(env, 3)]
    for role, call in zip(env.roles, env._sim._calls["step"].role, strict=True):
        columns = [[step[i][role] for step in steps] for i in range(4)]
        columns[0].append(first[role])
        columns.append([infos["alive"][role], *(step[4]["alive"][role] for step in steps)])
        for name, column in zip((*RESULTS, "alive"), columns, strict=True):
            assert len({address(array) for array in column}) == (len(column) if fresh else 1)
            if not fresh:
                assert address(column[0]) == address(env._sim.buffers[f"{name}.{role}"])
        if not fresh:
            assert call.observations == address(first[role])  # what the kernel writes to
    if not fresh:
        assert address(infos["alive"]["tagger"]) == address(env.state["in_game"])


def test_returned_copies_are_kept(make: MakeTeam, variant: Variant, place: Place, mode: str) -> None:
    """Copies do not change with the next step, or reset."""
    env = made(make, variant, 5, place, copy=True, autoreset_mode=mode, statistics=True, episode_length=2)
    env.allow_frozen_steps()
    env.reset(seed=0)
    actions = [placed(action, place) for action in draw(env, 6)]
    env.step(actions[0])
    kept = env.step(actions[1])
    flat = {**{str(i): part for i, part in enumerate(kept[:4])}, "infos": kept[4]}
    before = copy.deepcopy(flat)
    for action in actions[2:]:
        env.step(action)
    env.reset(seed=1)
    assert_same_bits(before, flat)


def test_alive_is_live(make: MakeTeam, place: Place) -> None:
    """Without copies ``alive`` is the state's own memory; with them it is that step's."""
    env = made(make, Variant(CONTINUOUS, {}), 2, place)
    alive = env.reset(seed=0)[1]["alive"]["runner"]
    env.state["in_game"] = np.zeros((2, 15), bool)
    assert numpy_of(alive).all() == (place.output == "numpy")


# --- step into memory of the user's own ---


def storage_place(place: Place) -> Place:
    """Where the user's arrays may be: those of a GPU are not NumPy's."""
    return Place("cuda", "cupy") if place == ("cuda", "numpy") else place


def guarded(place: Place, shape: tuple[int, ...], kind: str) -> tuple[Array, Array]:
    """An array within a longer one, an element from its ends: the longer one, and the array."""
    whole = empty(storage_place(place), (math.prod(shape) + 2,), kind)
    return whole, whole[1:-1].reshape(shape)


def assert_guards(whole: Array) -> None:
    """Fails where the elements around a guarded array were written."""
    ends = numpy_of(whole)[[0, -1]]
    assert (ends == np.full(2, 77).astype(ends.dtype)).all()


@each_variant
@pytest.mark.parametrize("count", [1, 3, 67])
def test_out(make: MakeTeam, variant: Variant, place: Place, count: int) -> None:
    """A step writes straight into rows of the user's storage, whatever their alignment, and gives those rows back."""
    steps = LIMIT + 3
    plain, env = (made(make, variant, count, place, autoreset_mode="SameStep") for _ in range(2))
    wholes, storage = {}, {}
    for name in RESULTS:
        for role in env.roles:
            shape, kind = env._sim.shapes[f"{name}.{role}"]
            wholes[name, role], storage[name, role] = guarded(place, (steps + 1, *shape), kind)
    plain.reset(seed=0), env.reset(seed=0)
    actions = draw(env, steps)
    expected = record(plain, actions, place)
    untouched = {(name, role): numpy_of(env._sim.buffers[f"{name}.{role}"]) for name, role in storage}
    for t, action in enumerate(actions):
        rows = {name: {role: storage[name, role][t + 1] for role in env.roles} for name in RESULTS}
        results = env.step(placed(action, place), out=Step(**rows))
        for name, result in zip(RESULTS, results, strict=False):
            assert all(result[role] is rows[name][role] for role in env.roles)
    for (name, role), values in storage.items():
        given = numpy_of(values)
        assert_same_bits(given[1:], expected[name][role], f"{name}.{role}")
        assert (given[0] == np.full(1, 77).astype(given.dtype)).all()
        assert_guards(wholes[name, role])
        assert_same_bits(untouched[name, role], env._sim.buffers[f"{name}.{role}"], "no further copy")


@pytest.mark.parametrize("role", ["tagger", "runner"])
@pytest.mark.parametrize("name", [*RESULTS, *EXTRAS])
def test_any_subset_of_out(make: MakeTeam, variant: Variant, place: Place, name: str, role: str) -> None:
    """One array of one role alone may be given; the next step without it goes where it always went."""
    count = 7
    plain, env = (
        made(make, variant, count, place, autoreset_mode="SameStep", episode_length=2, statistics=True)
        for _ in range(2)
    )
    far = {"seed": 0, "options": layout_of(env)}
    whole, target = guarded(place, *env._sim.shapes[f"{name}.{role}"])
    plain.reset(**far), env.reset(**far)  # type: ignore[arg-type]
    for t, action in enumerate(draw(env, 4)):
        expected = plain.step(placed(action, place))
        given = env.step(placed(action, place), out=Step(**{name: {role: target}}) if t < 2 else None)
        assert_same_bits(outcome(expected), outcome(given), f"step {t}")
        if t == 1:  # the first end of all episodes
            extras = {"final_obs": expected[4]["final_obs"]}
            extras |= {"episode_return": plain.episode_return, "episode_length": plain.episode_length}
            values: dict[str, Any] = {**dict(zip(RESULTS, expected, strict=False)), **extras}
            assert_same_bits(target, values[name][role], name)
            before = numpy_of(target)
        if t < 2:
            assert given[0 if name not in RESULTS else RESULTS.index(name)][role] is target or name in EXTRAS
        assert_same_bits(plain.episode_return, env.episode_return)
        assert_same_bits(plain.episode_length, env.episode_length)
    assert_same_bits(before, target)
    assert_guards(whole)


def test_final_values_go_out_where_episodes_end(make: MakeTeam, variant: Variant, place: Place) -> None:
    """``final_obs`` and the statistics are written only where an episode ended; other rows stay."""
    env = made(make, variant, 3, place, autoreset_mode="SameStep", statistics=True)
    env.reset(seed=0, options=layout_of(env))
    elapsed = numpy_of(env.state["elapsed"])
    elapsed[1] = LIMIT - 1
    env.state["elapsed"] = elapsed
    targets = {
        name: {role: guarded(place, *env._sim.shapes[f"{name}.{role}"]) for role in env.roles} for name in EXTRAS
    }
    still = {role: np.zeros_like(values) for role, values in draw(env, 1)[0].items()}
    out = Step(**{name: {role: pair[1] for role, pair in by_role.items()} for name, by_role in targets.items()})
    infos = env.step(placed(still, place), out=out)[4]
    assert numpy_of(infos["_final_obs"]).tolist() == [False, True, False]
    for name, by_role in targets.items():
        for role, (whole, target) in by_role.items():
            values = numpy_of(target)
            assert (values[[0, 2]] == 77).all(), name
            assert (values[1] != 77).any(), name
            assert_guards(whole)
            if place.output != "numpy" and name == "final_obs":
                assert infos["final_obs"][role] is target
    assert (numpy_of(out.episode_length["runner"])[1] == LIMIT).all()


def bad_outs(env: MultiAgentEnv, place: Place) -> dict[str, tuple[Step, type[Exception], str]]:
    """Storage that no step can write into, the error it deserves, and a word of its message."""
    place = storage_place(place)
    n, count = env.num_envs, env.counts["tagger"]
    features = (env.single_observation_spaces["tagger"].shape or (0,))[0]

    def rewards(shape: tuple[int, ...], kind: str = "float32") -> Step:
        return Step(rewards={"tagger": empty(place, shape, kind)})

    good = empty(place, (n, count), "float32")
    wide = empty(place, (n, 2 * count), "float32")[:, ::2]
    return {
        "replicas": (rewards((n + 1, count)), ValueError, r"out\.rewards\['tagger'\] has shape"),
        "agents": (rewards((n, count + 1)), ValueError, "shape"),
        "flat": (rewards((n * count,)), ValueError, "shape"),
        "row": (Step(observations={"tagger": empty(place, (n, count, features - 1), "float32")}), ValueError, "shape"),
        "dtype": (rewards((n, count), "float64"), TypeError, r"out\.rewards\['tagger'\] has dtype float64"),
        "dtype of flags": (Step(truncations={"tagger": empty(place, (n, count), "uint8")}), TypeError, "uint8"),
        "strided": (Step(rewards={"tagger": wide}), ValueError, "contiguous"),
        "list": (Step(rewards={"tagger": [[0.0] * count] * n}), TypeError, "list"),
        "no mapping": (Step(rewards=good), TypeError, r"out\.rewards.*mapping"),
        "unknown role": (Step(rewards={"taggers": good}), ValueError, r"'taggers'.*Did you mean 'tagger'"),
        "agent for a role": (Step(rewards={"tagger": good, "tagger_0": good}), ValueError, "tagger_0"),
        "no last ones": (Step(final_obs={"tagger": good}), ValueError, "SameStep"),
    }


BAD_OUTS = (
    *("replicas", "agents", "flat", "row", "dtype", "dtype of flags", "strided", "list", "no mapping"),
    *("unknown role", "agent for a role", "no last ones"),
)


@pytest.mark.parametrize("what", BAD_OUTS)
def test_bad_out(make: MakeTeam, variant: Variant, place: Place, what: str) -> None:
    """Storage of a wrong role, shape, type or layout is refused by name, and nothing has changed."""
    env = made(make, variant, 5, place)
    env.reset(seed=0)
    assert set(bad_outs(env, place)) == set(BAD_OUTS)
    out, error, word = bad_outs(env, place)[what]
    actions = placed(draw(env, 1)[0], place)
    with pytest.raises(error, match=word):
        assert_unchanged(env, lambda: env.step(actions, out=out))
    env.step(actions)


def test_read_only_out(make: MakeTeam, variant: Variant) -> None:
    """An array that must not be written is refused."""
    env = made(make, variant, 5)
    env.reset(seed=0)
    rewards = np.zeros((5, env.counts["runner"]), np.float32)
    rewards.flags.writeable = False
    with pytest.raises(ValueError, match=r"out\.rewards\['runner'\].*writable"):
        env.step(draw(env, 1)[0], out=Step(rewards={"runner": rewards}))


def test_out_on_another_device(make: MakeTeam, variant: Variant, place: Place) -> None:
    """Storage must be where the environment is, which is told by its device alone."""
    env = made(make, variant, 5, place)
    reader = OutReader(env._sim.shapes, [".tagger", ".runner"], "cuda:7")
    rewards = empty(storage_place(place), (5, env.counts["runner"]), "float32")
    with pytest.raises(ValueError, match=r"out\.rewards\['runner'\] is on .*cuda:7"):
        reader.read(Step(rewards={"runner": rewards}))
    if HAS_CUDA:
        other = Place("cpu", "numpy") if place.device == "cuda" else Place("cuda", "cupy")
        env.reset(seed=0)
        elsewhere = Step(rewards={"runner": empty(other, (5, env.counts["runner"]), "float32")})
        actions = placed(draw(env, 1)[0], place)
        with pytest.raises(ValueError, match="is on"):
            assert_unchanged(env, lambda: env.step(actions, out=elsewhere))


# --- actions ---

WHOLE = ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
REAL = ["float32", "float64", "float16", "int64", "int32"]
ACTION_VARIANTS = {name: VARIANTS[name] for name in ("continuous-nearest", "continuous-box", "grid-full")}
each_action = pytest.mark.parametrize("variant", ACTION_VARIANTS.values(), ids=ACTION_VARIANTS)


def is_whole(env: MultiAgentEnv) -> bool:
    """Whether the actions are whole numbers."""
    return not isinstance(env.single_action_spaces["tagger"], Box)


def one_and_zero(env: MultiAgentEnv) -> dict[str, np.ndarray]:
    """Actions that every element type can hold."""
    return {role: np.arange(a.size).reshape(a.shape) % 2 for role, a in draw(env, 1)[0].items()}


@each_action
@pytest.mark.parametrize("kind", [*WHOLE, *(name for name in REAL if name not in WHOLE)])
def test_action_types(make: MakeTeam, variant: Variant, place: Place, kind: str) -> None:
    """Every element type that can stand for an action does, to the same effect, and each role's may differ."""
    env = made(make, variant, 9, place)
    env.reset(seed=0)
    wide = {role: a.astype(np.int64 if is_whole(env) else np.float32) for role, a in one_and_zero(env).items()}
    expected = outcome(env.step(placed(wide, place)))
    actions = {role: a.astype(kind) for role, a in one_and_zero(env).items()}
    for roles in (env.roles, env.roles[:1], env.roles[1:]):
        env.reset(seed=0)
        given = placed({**wide, **{role: actions[role] for role in roles}}, place)
        if kind in ("float16", "float32", "float64") if is_whole(env) else kind == "bool":
            with pytest.raises(TypeError, match=f"role '{roles[0]}'.*dtype"):
                assert_unchanged(env, functools.partial(env.step, given))
        else:
            assert_same_bits(expected, outcome(env.step(given)), str(roles))


def forms(actions: np.ndarray, place: Place) -> dict[str, Any]:
    """The same actions in many forms."""
    found: dict[str, Any] = {
        "host": actions,
        "list": actions.tolist(),
        "tuple": tuple(actions.tolist()),
        "strided": np.repeat(actions, 2, axis=0)[::2],
        "strided agents": np.repeat(actions, 3, axis=1)[:, ::3],
        "reversed": np.ascontiguousarray(actions[:, ::-1])[:, ::-1],
        "Fortran": np.asfortranarray(actions),
        "big-endian": actions.astype(actions.dtype.newbyteorder(">")),
        "read-only": np.frombuffer(actions.tobytes(), actions.dtype).reshape(actions.shape),
        "unaligned": np.frombuffer(b"x" + actions.tobytes(), np.uint8)[1:].view(actions.dtype).reshape(actions.shape),
    }
    for other in PLACES:
        if other.device == place.device:
            found[f"{other}"] = moved(actions, other)
            found[f"strided {other}"] = moved(np.repeat(actions, 3, axis=1), other)[:, ::3]
    if HAS_TORCH:
        found["torch on the host"] = moved(actions, Place("cpu", "torch"))
    return found


@each_action
@pytest.mark.parametrize("count", [1, 9])
def test_action_forms(make: MakeTeam, variant: Variant, place: Place, count: int) -> None:
    """Lists, strided and foreign arrays, of the host and of the device, are all the same."""
    env = made(make, variant, count, place)
    action = draw(env, 1)[0]
    by_role = {role: forms(values, place) for role, values in action.items()}
    env.reset(seed=0)
    expected = outcome(env.step(action))
    for name in by_role["tagger"]:
        env.reset(seed=0)
        given = {role: by_role[role][name] for role in reversed(env.roles)}
        assert_same_bits(expected, outcome(env.step(given)), name)
    for name in by_role["tagger"]:  # one role's from the host, the other's from wherever
        env.reset(seed=0)
        given = {"tagger": action["tagger"], "runner": by_role["runner"][name]}
        assert_same_bits(expected, outcome(env.step(given)), f"mixed {name}")


@needs_torch
def test_actions_with_gradients(make: MakeTeam, device: str) -> None:
    """A policy's output may still require gradients."""
    import torch

    env = made(make, VARIANTS["continuous-box"], 3, Place(device, "torch"))
    env.reset(seed=0)
    actions = {r: torch.full((3, n, 2), 0.05, device=device, requires_grad=True) for r, n in env.counts.items()}
    assert not env.step(actions)[0]["tagger"].requires_grad


def wrong_actions(env: MultiAgentEnv) -> dict[str, tuple[Any, type[Exception], str]]:
    """What is no mapping of actions, the error it deserves, and its message."""
    good = draw(env, 1)[0]
    runner = good["runner"]
    return {
        "none": (None, TypeError, "NoneType.*mapping from roles"),
        "array": (runner, TypeError, "ndarray.*mapping"),
        "list": ([good["tagger"], runner], TypeError, "list.*mapping"),
        "empty": ({}, ValueError, "'tagger' are missing"),
        "missing": ({"tagger": good["tagger"]}, ValueError, r"'runner' are missing.*\['tagger'\]"),
        "unknown": ({**good, "runners": runner}, ValueError, "'runners'. Did you mean 'runner'.*tagger, runner"),
        "agents": ({"tagger_0": 0, "runner_0": 0}, ValueError, "missing"),
        "replicas": ({**good, "runner": runner[:-1]}, ValueError, "role 'runner'.*shape"),
        "team": ({**good, "runner": np.concatenate([runner, runner], 1)}, ValueError, "role 'runner'.*shape"),
        "dimensions": ({**good, "runner": runner[..., None]}, ValueError, "role 'runner'.*shape"),
        "flat": ({**good, "runner": runner.reshape(len(runner), -1, 1, 1)}, ValueError, "role 'runner'.*shape"),
        "ragged": ({**good, "runner": [[0], [0, 1]]}, ValueError, "role 'runner'.*shape"),
        "scalar": ({**good, "runner": 0}, TypeError, "role 'runner'.*scalar"),
        "None": ({**good, "runner": None}, TypeError, "role 'runner'.*dtype"),
        "text": ({**good, "runner": np.full(runner.shape, "a")}, TypeError, "role 'runner'.*dtype"),
        "complex": ({**good, "runner": runner.astype(complex)}, TypeError, "role 'runner'.*dtype"),
    }


WRONG = (
    *("none", "array", "list", "empty", "missing", "unknown", "agents", "replicas", "team", "dimensions", "flat"),
    *("ragged", "scalar", "None", "text", "complex"),
)


@each_action
@pytest.mark.parametrize("what", WRONG)
def test_wrong_actions(make: MakeTeam, variant: Variant, place: Place, what: str) -> None:
    """What is no mapping from the roles to arrays of the right shape and type is refused by the role's name."""
    env, plain = (made(make, variant, 6, place) for _ in range(2))
    for each in (env, plain):
        each.reset(seed=0)
    assert set(wrong_actions(env)) == set(WRONG)
    actions, error, word = wrong_actions(env)[what]
    for good in draw(env, 2):
        with pytest.raises(error, match=word):
            assert_unchanged(env, lambda: env.step(actions))
        env.check()
        assert_same_bits(outcome(env.step(good)), outcome(plain.step(good)))


@each_action
@pytest.mark.parametrize("agent", ["tagger_0", "tagger_2", "runner_0"])
@pytest.mark.parametrize("place_of", ["last", "first"])
def test_action_out_of_range(make: MakeTeam, variant: Variant, place: Place, agent: str, place_of: str) -> None:
    """From the host, an action that is none raises, names replica, agent and step, and changes nothing."""
    count = 70
    env, plain = (made(make, variant, count, place, autoreset_mode="SameStep") for _ in range(2))
    for each in (env, plain):
        each.reset(seed=0, options=layout_of(env))  # nobody is tagged in two steps
    role, number = agent.split("_")
    replica = count - 2 if place_of == "last" else 0
    wrong: list[tuple[Any, str]] = [(np.nan, "not a number")]
    if is_whole(env):
        wrong = [(value, "range") for value in (-1, 21, 2**40, -(2**63), 2**32)]
    for t, good in enumerate(draw(env, 2)):
        for value, word in wrong:
            bad = {name: values.copy() for name, values in good.items()}
            bad[role][replica, int(number)] = value
            bad[role][replica + 1, int(number)] = value  # the first is told
            with pytest.raises(ActionError, match=rf"replica {replica}, {agent}, step {t} .*{word}"):
                assert_unchanged(env, functools.partial(env.step, bad))
            env.check()
        assert_same_bits(outcome(env.step(good)), outcome(plain.step(good)))
    if is_whole(env):
        small = {name: np.full(values.shape, 200, np.uint8) for name, values in good.items()}
        with pytest.raises(ActionError, match=r"replica 0, tagger_0.*range.*200"):
            env.step(small)
        huge = {name: np.full(values.shape, 2**64 - 1, np.uint64) for name, values in good.items()}
        with pytest.raises(ActionError, match="range"):
            env.step(huge)


@pytest.mark.parametrize("role", ["tagger", "runner"])
def test_first_offence_is_told(make: MakeTeam, place: Place, role: str) -> None:
    """Taggers come before runners, replicas before agents, where several are wrong."""
    env = made(make, Variant(CONTINUOUS, {}), 5, place)
    env.reset(seed=0)
    actions = draw(env, 1)[0]
    actions["runner"][3, 4, 1] = 77
    if role == "tagger":
        actions["tagger"][3, 1, 0] = 77
    with pytest.raises(ActionError, match="replica 3, tagger_1" if role == "tagger" else "replica 3, runner_4"):
        env.step(actions)


@pytest.mark.parametrize("name", ["continuous-nearest", "continuous-box"])
def test_actions_of_who_is_out_are_ignored(make: MakeTeam, place: Place, mode: str, name: str) -> None:
    """An agent that is out may be given anything, even what is no action."""
    env, plain = (made(make, VARIANTS[name], 20, place, autoreset_mode=mode) for _ in range(2))
    for each in (env, plain):
        each.reset(seed=3)
    junk: Any = -7 if is_whole(env) else np.nan
    given = 0
    for action in draw(env, LIMIT):
        alive = {role: numpy_of(env.state["in_game"])[:, own] for role, own in slices(env).items()}
        odd = {role: values.copy() for role, values in action.items()}
        for role, values in odd.items():
            values[~alive[role]] = junk
            given += int((~alive[role]).sum())
        steps = [outcome(env.step(placed(odd, place))), outcome(plain.step(placed(action, place)))]
        assert_all_same(steps)
        if mode == "Disabled" and over(steps[0]).any():
            for each in (env, plain):
                each.reset(options={"reset_mask": over(steps[0])})
    env.check()
    assert given > 50
    assert_same_bits(env.get_state(), plain.get_state())


def slices(env: MultiAgentEnv) -> dict[str, slice]:
    """Which columns of the state are a role's."""
    taggers = env.counts["tagger"]
    return {"tagger": slice(0, taggers), "runner": slice(taggers, env.num_agents)}


@pytest.mark.parametrize("value", [-5.0, 5.0, np.inf, -np.inf])
def test_box_actions_beyond_the_bounds(make: MakeTeam, device: str, value: float) -> None:
    """A real action outside its bounds is no error: the rules clip it."""
    env = made(make, VARIANTS["continuous-box"], 3, Place(device, "numpy"))
    space = env.single_action_spaces["tagger"]
    assert isinstance(space, Box)
    results = []
    for each in (np.float32(value), np.clip(np.float32(value), space.low, space.high)):
        env.reset(seed=0)
        results.append(outcome(env.step({r: np.broadcast_to(each, (3, n, 2)).copy() for r, n in env.counts.items()})))
    assert_all_same(results)


# --- state ---

PLACES_OF_STATE = [
    Place(device, output)
    for device, output in PLACES
    if (device, output) in {("cpu", "numpy"), ("cpu", "torch"), ("cuda", "cupy"), ("cuda", "torch")}
]


def test_state_is_live(make: MakeTeam, variant: Variant, place: Place) -> None:
    """``state`` is the simulator's memory: it follows steps, and assignments to it are obeyed."""
    env = made(make, variant, 4, place)
    env.reset(seed=0)
    fields = dict(env.state)
    env.step(placed(draw(env, 1)[0], place))
    assert numpy_of(fields["elapsed"]).max() == 1
    own = fields["x"]
    values = (np.arange(4 * env.num_agents) % 4).reshape(4, -1)
    for assigned in (values, values.tolist(), moved(values, place), values.astype(np.float64)):
        env.state["x"] = 0
        assert not numpy_of(own).any()
        env.state["x"] = assigned
        assert_same_bits(own, values.astype(numpy_of(own).dtype))
    own[1, 0] = 3
    assert numpy_of(env.state["x"])[1, 0] == 3
    env.state["elapsed"] = [1, 2, 3, 4]
    assert numpy_of(fields["elapsed"]).tolist() == [1, 2, 3, 4]


@each_variant
def test_observe(make: MakeTeam, variant: Variant, place: Place) -> None:
    """``observe`` shows the state as it was assigned, who is out included, and changes nothing else."""
    env, other = (made(make, variant, 8, place, autoreset_mode="Disabled") for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=9)
    other.allow_frozen_steps()
    for action in draw(other, 6):
        expected = numpy_by_role(other.step(placed(action, place))[0])
        assert_same_bits(other.observe(), expected)
    for name, field in other.state.items():
        env.state[name] = field
    before = env.get_state()
    seen = numpy_by_role(env.observe())
    assert_same_bits(before, env.get_state())
    there = numpy_of(env.state["in_game"])  # who has just gone out would still see, but that is no part of the state
    assert_same_bits(joined(env, seen)[there], joined(env, expected)[there])
    assert not joined(env, seen)[~there].any()


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("x", np.zeros(4), ValueError),
        ("x", np.zeros((4, 2)), ValueError),
        ("elapsed", np.zeros((4, 5)), ValueError),
        ("y", "here", TypeError),
    ],
)
def test_bad_state(make: MakeTeam, variant: Variant, name: str, values: Any, error: type[Exception]) -> None:
    """Values of another shape, or that are no numbers, are refused by the field's name."""
    env = made(make, variant, 4)
    env.reset(seed=0)
    with pytest.raises(error, match=name):
        env.state[name] = values
    with pytest.raises(KeyError, match="mass"):
        env.state["mass"] = 1.0


@each_variant
@pytest.mark.parametrize("place_of_state", PLACES_OF_STATE, ids=lambda place: f"{place.device}-{place.output}")
def test_snapshots_continue(make: MakeTeam, variant: Variant, mode: str, place_of_state: Place) -> None:
    """A state set again, here or elsewhere, a pickled and a deep copy go on as the original does."""
    place = place_of_state
    env, elsewhere = (made(make, variant, 30, place, autoreset_mode=mode) for _ in range(2))
    env.reset(seed=6)
    actions = draw(env, STEPS)
    record(env, actions[: 2 * LIMIT - 1], place)  # in the midst, with agents out and restarts pending
    state = env.get_state()
    elsewhere.set_state(state)
    copies = [elsewhere, pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    shown = numpy_by_role(env.observe())
    expected = record(env, actions, place), env.get_state()
    for other in copies:
        assert (other.device, other.output, other.autoreset_mode) == (env.device, env.output, env.autoreset_mode)
        assert_same_bits(shown, numpy_by_role(other.observe()))
        assert_same_bits(expected, (record(other, actions, place), other.get_state()))
    env.set_state(state)
    assert_same_bits(expected, (record(env, actions, place), env.get_state()))


def test_pickled_frozen_replicas(make: MakeTeam, variant: Variant) -> None:
    """A copy of a Disabled environment knows which episodes are over."""
    env = made(make, variant, 2, autoreset_mode="Disabled", episode_length=1)
    env.reset(seed=0)
    action = draw(env, 1)[0]
    env.step(action)
    twin = pickle.loads(pickle.dumps(env))
    with pytest.raises(ActionError, match="over"):
        twin.step(action)


def test_snapshot_is_a_copy(make: MakeTeam, variant: Variant, place: Place) -> None:
    """What ``get_state`` gave does not change with the environment."""
    env = made(make, variant, 5, place)
    env.reset(seed=6)
    state = env.get_state()
    frozen = copy.deepcopy(state)
    env.step(placed(draw(env, 1)[0], place))
    assert_same_bits(state, frozen)
    with pytest.raises(AssertionError):
        assert_same_bits(state, env.get_state())


def test_unused_copies(make: MakeTeam, variant: Variant) -> None:
    """Environments copied before their first reset, and after they were closed, stay what they were."""
    fresh = made(make, variant, 2, max_episode_steps=LIMIT)
    twin = pickle.loads(pickle.dumps(fresh))
    assert_same_bits(fresh.reset(seed=1)[0], twin.reset(seed=1)[0])
    fresh.close()
    assert pickle.loads(pickle.dumps(fresh)).closed


def test_pickled_parameters(make: MakeTeam) -> None:
    """A copy has the parameters of its original: its replicas' own, and those set since."""
    own = {"max_speed": np.array([0.5, 1.0, 2.0]), "runner_exits_game_after_tagged": [True, False, True]}
    env = made(make, Variant(CONTINUOUS, own), 3, max_episode_steps=-1, episode_length=5)
    env.set_attr("tag_reward_for_tagger", 3.0)
    twin = pickle.loads(pickle.dumps(env))
    assert twin.max_episode_steps is None
    assert_same_bits(env.params, twin.params)
    assert_all_same((e.reset(seed=2)[0], record(e, draw(e, 15))) for e in (env, twin))


def test_bad_snapshots(make: MakeTeam, variant: Variant) -> None:
    """A state of another size, kind or shape is refused, and changes nothing."""
    env, larger = (made(make, variant, count) for count in (3, 4))
    wider = made(make, variant, 3, num_taggers=6)
    other = next(v for v in VARIANTS.values() if v.env_id != variant.env_id)
    stranger = made(make, other, 3)
    for each in (env, larger, wider, stranger):
        each.reset(seed=0)
    good = env.get_state()
    partial = {name: values for name, values in good.items() if name != "episode"}
    renamed = {**good, "state": {**good["state"], "mass": np.zeros(3)}}
    shorter = {**good, "state": {**good["state"], "x": good["state"]["x"][:, 1:]}}
    for bad in (larger.get_state(), wider.get_state(), stranger.get_state(), partial, renamed, shorter, {}):
        with pytest.raises(ValueError, match="state"):
            assert_unchanged(env, functools.partial(env.set_state, bad))


def test_snapshots_keep_fixed_parameters(make: MakeTeam, variant: Variant) -> None:
    """A state whose fixed parameters are another environment's is refused: shapes may agree by chance."""
    env = made(make, variant, 3)
    longer = made(make, variant, 3, episode_length=LIMIT + 1)
    for each in (env, longer):
        each.reset(seed=0)
    with pytest.raises(ValueError, match="episode_length"):
        assert_unchanged(env, lambda: env.set_state(longer.get_state()))
    assert env.params["episode_length"] == LIMIT


# --- parameters and attributes ---


def own_params(env_id: str, count: int) -> dict[str, np.ndarray]:
    """Values of each replica's own for every parameter that may have them."""
    rng = np.random.default_rng(3)
    found: dict[str, np.ndarray] = {}
    for name, param in gpu_envs.spec(env_id).params.items():
        default = SMALL[env_id].get(name, param.default)
        if param.fixed or param.kind == "choice":
            continue
        if param.kind == "bool":
            found[name] = rng.integers(0, 2, count).astype(bool)
        elif param.kind == "int":
            found[name] = rng.integers(3, 7, count)
        elif default == 0:
            found[name] = rng.uniform(-0.1, 0, count) if param.maximum == 0 else rng.uniform(0, 0.1, count)
        else:
            found[name] = default * rng.uniform(1, 1.2, count)
    return found


def at_replica(params: Mapping[str, np.ndarray], index: int) -> dict[str, Any]:
    """One replica's values."""
    return {name: values[index].item() for name, values in params.items()}


@each_variant
def test_replicas_follow_their_own_parameters(make: MakeTeam, variant: Variant, device: str) -> None:
    """Replica i with arrays of parameters is the single environment with the i-th."""
    count, place = 70, Place(device, "numpy")
    params = own_params(variant.env_id, count)
    assert len(params) > 4
    batch = made(make, variant, count, place, **params)
    first = batch.reset(seed=2)[0]
    actions = draw(batch, 25)
    whole = record(batch, actions)
    for index in (0, 69):
        here = slice(index, index + 1)
        single = made(make, variant, 1, place, **at_replica(params, index))
        assert_same_bits({r: v[here] for r, v in first.items()}, single.reset(seed=2 + index)[0])
        assert_same_bits(part(whole, here), record(single, some(actions, here)), f"replica {index}")


def test_arrays_of_equal_parameters_change_nothing(make: MakeTeam, variant: Variant, device: str) -> None:
    """Parameters given to each replica, all the same, are the parameter given once."""
    place = Place(device, "numpy")
    one = at_replica(own_params(variant.env_id, 1), 0)
    results = []
    for params in (one, {name: [value] * 13 for name, value in one.items()}):
        env = made(make, variant, 13, place, **params)
        results.append((env.reset(seed=2)[0], record(env, draw(env, 25))))
    assert_all_same(results)


def test_fixed_start_is_shared(make: MakeTeam, variant: Variant, device: str) -> None:
    """``start="fixed"`` begins all replicas and episodes alike."""
    env = made(make, variant, 5, Place(device, "numpy"), start="fixed", autoreset_mode="SameStep", episode_length=1)
    first = joined(env, env.reset(seed=2)[0])
    assert (first == first[0]).all()
    assert_same_bits(first, joined(env, env.step(draw(env, 1)[0])[0]))
    assert_same_bits(first, joined(env, env.reset()[0]))


def test_get_attr(make: MakeTeam, variant: Variant, place: Place) -> None:
    """One value for each replica: of a parameter, a field, an attribute."""
    env = made(make, variant, 3, place, tag_reward_for_tagger=[1.0, 2.0, 3.0])
    env.reset(seed=5)
    assert env.get_attr("tag_reward_for_tagger") == (1.0, 2.0, 3.0)
    assert env.get_attr("episode_length") == (LIMIT,) * 3
    assert env.get_attr("x") == tuple(numpy_of(env.state["x"]).tolist())
    assert env.get_attr("elapsed") == (0, 0, 0)
    assert env.get_attr("device") == (env.device,) * 3
    assert env.get_attr("num_agents") == (env.num_agents,) * 3
    with pytest.raises(AttributeError):
        env.get_attr("no_such_thing")


def test_set_attr(make: MakeTeam, variant: Variant, device: str) -> None:
    """A parameter may be changed for all or for each, at any time, as if the environment had been made with it."""
    place, name = Place(device, "numpy"), "tag_reward_for_tagger"
    for value in (3.5, np.array([1.0, 2.0, 4.0]), 10.0):
        changed, new = made(make, variant, 3, place), made(make, variant, 3, place, **{name: value})
        changed.reset(seed=1)
        changed.set_attr(name, value)
        assert_same_bits(changed.reset(seed=1)[0], new.reset(seed=1)[0])
        assert_all_same(record(env, draw(env, 20)) for env in (changed, new))
        assert changed.get_attr(name) == tuple(np.broadcast_to(value, 3))
    places = np.arange(3 * changed.num_agents).reshape(3, -1) % 4
    changed.set_attr("x", places)
    assert_same_bits(numpy_of(changed.state["x"]), places.astype(numpy_of(changed.state["x"]).dtype))
    changed.set_attr("elapsed", 4)
    assert changed.get_attr("elapsed") == (4, 4, 4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_taggers", 5, "num_taggers"),
        ("use_full_observation", False, "use_full_observation"),
        ("episode_length", 5, "episode_length"),
        ("tag_reward_for_tagger", np.nan, "tag_reward_for_tagger"),
        ("tag_reward_for_tagger", [1.0, 2.0], "tag_reward_for_tagger.*shape"),
        ("tag_reward_for_taggers", 1.0, "Did you mean 'tag_reward_for_tagger'"),
        ("grid_length", 0, "grid_length.*above 0"),
        ("start", "centre", "'random', 'fixed'"),
    ],
)
def test_bad_attributes(make: MakeTeam, variant: Variant, name: str, value: Any, message: str) -> None:
    """What shapes depend on stays; values that cannot be, and unknown names, are refused; nothing changes."""
    env = made(make, variant, 3)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        assert_unchanged(env, lambda: env.set_attr(name, value))


# --- making and closing ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"num_envs": 2.0}, "num_envs"),
        ({"num_envs": True}, "num_envs"),
        ({"device": "gpu"}, "'gpu'.*'auto', 'cpu', 'cuda'"),
        ({"output": "pytorch"}, "Did you mean 'torch'"),
        ({"output": "cupy"}, "cupy"),
        ({"autoreset_mode": "Samestep"}, "Did you mean 'SameStep'"),
        ({"precision": "float16"}, "'float32', 'float64'"),
        ({"threads": 0}, "threads"),
        ({"render_mode": "ansi"}, "render_mode"),
        ({"num_tagger": 3}, "no parameter 'num_tagger'. Did you mean 'num_taggers'"),
        ({"num_taggers": 0}, "num_taggers.*above 0"),
        ({"num_taggers": 2.5}, "num_taggers.*whole number"),
        ({"num_taggers": [3, 3]}, "num_taggers.*one for all"),
        ({"use_full_observation": "yes"}, "use_full_observation.*True or False"),
        ({"grid_length": -1}, "grid_length.*above 0"),
        ({"grid_length": np.nan}, "grid_length"),
        ({"start": "centre"}, "'random', 'fixed'"),
        ({"tag_penalty_for_runner": "much"}, "tag_penalty_for_runner"),
    ],
)
def test_bad_choices(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """What cannot be made is refused, with what was given and what is allowed."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"num_envs": 2, "device": "cpu", **arguments})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"actions": "box"}, "'discrete', 'continuous'"),
        ({"tag_penalty_for_runner": 1.0}, "tag_penalty_for_runner"),
        ({"min_turn": 3.0}, "'min_turn' must not exceed 'max_turn'"),
        ({"max_acceleration": [0.1, -1.0]}, "'min_acceleration' must not exceed 'max_acceleration'"),
        ({"num_runners": 0}, "num_runners"),
        ({"num_other_agents_observed": 0}, "num_other_agents_observed"),
    ],
)
def test_bad_choices_of_tag(params: dict[str, Any], message: str) -> None:
    """So are parameters that contradict each other, or the game."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(CONTINUOUS, 2, device="cpu", **params)


@pytest.mark.parametrize(
    ("given", "closest"), [("TagContinous-v0", CONTINUOUS), ("TagGridworld-v0", GRID), ("tagcontinuous-v0", CONTINUOUS)]
)
def test_unknown_environment(given: str, closest: str) -> None:
    """An id that is none gets the closest."""
    with pytest.raises(KeyError, match=f"Did you mean '{closest}'"):
        gpu_envs.make(given)


@needs_cuda
@pytest.mark.cuda
@pytest.mark.parametrize(
    ("arguments", "message"), [({"device": "cuda:99"}, "cuda:99"), ({"block_size": 33}, "block_size")]
)
def test_bad_choices_on_cuda(variant: Variant, arguments: dict[str, Any], message: str) -> None:
    """So is what cannot be made on a GPU."""
    with pytest.raises(ValueError, match=message):
        gpu_envs.make(variant.env_id, **{"device": "cuda", **arguments})


@each_variant
def test_more_replicas_than_fit(make: MakeTeam, variant: Variant, place: Place) -> None:
    """Out of memory is a MemoryError that says how much it would take, and leaves others usable."""
    env = made(make, variant, 8, place)
    env.reset(seed=0)
    with pytest.raises(MemoryError, match=r"1,000,000,000,000 replicas.*GiB"):
        made(make, variant, 10**12, place)
    with pytest.raises(MemoryError, match="GiB"):
        made(make, variant, 10**30, place)
    env.step(draw(env, 1)[0])


def test_larger_teams_than_fit(place: Place) -> None:
    """A team may be too large, too."""
    with pytest.raises(MemoryError, match="GiB"):
        gpu_envs.make(CONTINUOUS, 1, **place._asdict(), num_runners=10**6, use_full_observation=True)


@pytest.mark.parametrize(
    ("env_id", "params", "agents"),
    [
        (CONTINUOUS, {"num_taggers": 1, "num_runners": 1}, 2),
        (CONTINUOUS, {"num_taggers": 1, "num_runners": 1, "use_full_observation": True}, 2),
        (CONTINUOUS, {"num_taggers": 500, "num_runners": 2500, "grid_length": 60.0}, 3000),
        (CONTINUOUS, {"num_taggers": 20, "num_runners": 500, "use_full_observation": True}, 520),
        (GRID, {"num_taggers": 1}, 2),
        (GRID, {"num_taggers": 2999, "grid_length": 200, "use_full_observation": False}, 3000),
        (GRID, {"num_taggers": 600}, 601),
    ],
)
def test_team_sizes(make: MakeTeam, place: Place, env_id: str, params: dict[str, Any], agents: int) -> None:
    """The smallest teams, and large ones, step, end and start again."""
    env = make(env_id, 2, **place._asdict(), **params, autoreset_mode="SameStep", episode_length=3)
    assert env.num_agents == agents
    env.reset(seed=0)
    for action in draw(env, 4):
        result = outcome(env.step(placed(action, place)))
        rows = [values for role in env.roles for values in (result["observations"][role], result["rewards"][role])]
        assert all(np.isfinite(values).all() for values in rows)
    assert numpy_of(env.state["x"]).shape == (2, agents)
    assert all((values > 0).all() for values in numpy_by_role(env.episode_length).values())


def uses(env: MultiAgentEnv) -> Iterator[Callable[[], object]]:
    """What needs an open environment."""
    state, actions = env.get_state(), draw(env, 1)[0]
    yield lambda: env.reset(seed=0)
    yield lambda: env.step(actions)
    yield env.observe
    yield env.get_state
    yield lambda: env.set_state(state)


def test_close(make: MakeTeam, variant: Variant, place: Place) -> None:
    """Closing twice is fine; use after it says so."""
    env = made(make, variant, 2, place)
    env.reset(seed=0)
    acts = list(uses(env))
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    for act in acts:
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            act()


def test_auto_device(make: MakeTeam, variant: Variant) -> None:
    """``auto`` is CUDA where there is a CUDA device, else the CPU."""
    env = make(variant.env_id)
    assert env.device.partition(":")[0] == ("cuda" if HAS_CUDA else "cpu")
    assert env.device in repr(env)


def test_there_is_no_picture(make: MakeTeam, variant: Variant) -> None:
    """Rendering says why there is nothing to see."""
    with pytest.raises(gymnasium.error.Error, match="render_mode"):
        made(make, variant, 1).render()


def test_float64_is_more_precise(make: MakeTeam, device: str) -> None:
    """The two precisions begin and go on in nearly the same way, and are not the same."""
    results: list[Sequence[np.ndarray]] = []
    for precision in ("float32", "float64"):
        env = made(make, VARIANTS["continuous-box"], 50, Place(device, "numpy"), precision=precision)
        env.reset(seed=0)
        env.step(draw(env, 1)[0])
        results.append([numpy_of(env.state[name]).astype(np.float64) for name in ("x", "y", "speed", "heading")])
    one, other = (np.stack(fields) for fields in results)
    assert np.abs(one - other).max() < 1e-5
    assert (one != other).any()
