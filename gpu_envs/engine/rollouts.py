"""Many steps at once: what both kinds of environment allocate for them, and a team's, which are launches in a row."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, dtype_name
from gpu_envs.backend.program import ArrayShape, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen import TeamLayout
from gpu_envs.engine.actions import KINDS, Actions
from gpu_envs.engine.number_check import NumberCheck
from gpu_envs.engine.random_actions import bounds, choices
from gpu_envs.engine.results import Step
from gpu_envs.engine.simulation import NO_LIMIT, Simulation

_EACH_STEP = ("rewards", "terminations", "truncations")
_SUMS = ("reward_sum", "terminated", "truncated", "return_sum", "length_sum")
_READ = ("seeds", "elapsed", "ended", "finished", "episode_return", "episode_length")

_ROLE = Struct.of(
    "RoleOfRollout",
    "float",
    ("int", "first"),
    ("int", "agents"),
    ("int", "size"),
    ("int", "choices"),
    ("const int*", "starts"),
    ("const int*", "counts"),
    ("const float*", "low"),
    ("const float*", "high"),
    ("const bool*", "action_mask"),
    ("void*", "actions"),
    ("const Sum*", "rewards"),
    ("const bool*", "terminations"),
    ("const bool*", "truncations"),
    ("Sum*", "reward_sum"),
    ("int*", "terminated"),
    ("int*", "truncated"),
    ("Sum*", "return_sum"),
    ("int*", "length_sum"),
)


def joined(sim: Simulation, program: Program) -> tuple[Any, Callable[[], None]]:
    """Compiles a kernel that takes many steps of these replicas, and does more.

    Args:
        sim: The replicas.
        program: Its one kernel's struct has a ``step``, what a step is called with.

    Returns:
        What it is called with, and its launch.
    """
    call, launch = sim.program.join(program)
    sim.prepare([call.step])

    def run() -> None:
        sim.launches += 1
        call.step.launch = sim.launches
        launch(sim.arrays.stream())

    return call, run


def checked_steps(steps: Any) -> int:
    """How many steps a rollout has, or raises what is wrong with what was given."""
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps <= NO_LIMIT:
        raise ValueError(f"steps is {steps!r}; a whole number from 1 to {NO_LIMIT}; for more, several rollouts")
    return int(steps)


def rollout_arrays(sim: Simulation, steps: int, shapes: Mapping[str, ArrayShape]) -> dict[str, Array]:
    """Allocates what a rollout writes, or says that it is too much."""
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
    replicas = f"{steps:,} steps of {sim.config.num_envs:,} replicas"
    refusal = f"the results of {replicas} need {needed / 2**30:,.1f} GiB; take fewer steps"
    if needed > sim.backend.memory():
        raise MemoryError(refusal)
    try:
        return {name: sim.arrays.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
    except (MemoryError, RuntimeError) as error:
        raise MemoryError(f"{refusal} ({error})") from error


def program(roles: int, real: str) -> Program:
    """The source of what stands between the steps of a team with so many roles."""
    call = Struct.of(
        "BetweenCall",
        "float",
        ("Index", "count"),
        ("int", "agents"),
        ("int", "after_step"),
        ("int", "before_step"),
        ("const u64*", "seeds"),
        ("const u32*", "episode"),
        ("const int*", "elapsed"),
        ("const bool*", "in_game"),
        ("const u8*", "ended"),
        ("const bool*", "finished"),
        ("const Sum*", "episode_return"),
        ("const int*", "episode_length"),
        ("bool*", "playing"),
        ("int*", "episodes"),
        (_ROLE, "role", roles),
    )
    settings = KernelSettings(f"constexpr int ROLES = {roles};", (_ROLE,), {"Sum": real})
    made = program_of(("drivers/actions.cuh", "drivers/team_rollout.cuh"), {"between": call}, settings)
    return dataclasses.replace(made, flush_denormals=real == "float")


@final
class TeamRollout:
    """Steps of a team's replicas one after another, for which the host waits nowhere."""

    def __init__(self, sim: Simulation) -> None:
        """Compiles what stands between them."""
        layout, arrays, buffers = sim.layout, sim.arrays, sim.buffers
        assert isinstance(layout, TeamLayout)
        made = program(len(layout.roles), layout.real)
        self._sim, self._roles, self._call = sim, layout.roles, made.calls["between"]()
        self._limits: list[Array] = []
        call, count = self._call, sim.config.num_envs * layout.agents
        call.count, call.agents = count, layout.agents
        for name, buffer in {**{n: n for n in _READ}, "episode": "episodes", "in_game": "state.in_game"}.items():
            setattr(call, name, arrays.address(buffers[buffer]) if buffer in buffers else None)
        for role, place in zip(layout.roles, call.role, strict=True):
            place.first, place.agents, place.choices = role.first, role.size, role.choices
            for name in (*_EACH_STEP, "action_mask"):
                own = f"{name}.{role.name}"
                setattr(place, name, arrays.address(buffers[own]) if own in buffers else None)
            for name, values in _limits(role.action).items():
                self._limits.append(arrays.from_numpy(values))
                place.size = len(values)
                setattr(place, name, arrays.address(self._limits[-1]))
        self._launch = sim.backend.load(made).bind("between", call, count)

    def run(
        self, steps: int, actions: Sequence[Actions] | None, *, per_step: bool, numbers: NumberCheck | None
    ) -> dict[str, Array]:
        """Takes the steps, and gives what they wrote.

        Args:
            steps: How many.
            actions: By role, of all steps; None: drawn.
            per_step: Keep every step's results instead of their sums.
            numbers: Looks at all of them.
        """
        sim, roles = self._sim, self._roles
        shapes = self._shapes(steps, per_step=per_step, drawn=actions is None)
        results = rollout_arrays(sim, steps, shapes)
        self._begin(results)
        kept = ("observations", *(_EACH_STEP if per_step else ()))
        written = [
            (r, n, *self._rows(results[f"{n}.{role.name}"], per_step)) for r, role in enumerate(roles) for n in kept
        ]
        if actions is None:
            drawn = [results[f"random_actions.{role.name}"] for role in roles]
            read = [(*self._rows(array, per_step), KINDS[dtype_name(array)]) for array in drawn]
        else:
            read = [(part.address, part.owner.nbytes // steps, part.kind) for part in actions]
        restarts = sim.config.autoreset_mode == "NextStep"  # for which no step of the rollout is spent
        if restarts:
            sim.reset(None, sim.buffers["ended"], {})
        elif sim.config.spec.masked and actions is None:
            sim.observe()  # the masks: a step may have written them elsewhere
        for t in range(steps):
            places = [(at + t * stride, kind) for at, stride, kind in read]
            out = [(r, name, at + t * stride) for r, name, at, stride in written]
            self._between([at for at, _ in places] if actions is None else (), after_step=t > 0)
            sim.step(places, out)
            if numbers is not None:
                arrays = {n: {role.name: results[f"{n}.{role.name}"] for role in roles} for n in kept}
                rows = {n: {role: a[t] if per_step else a for role, a in of.items()} for n, of in arrays.items()}
                numbers.look(stepped=True, out=Step(**rows))
            if restarts:
                sim.reset(None, sim.buffers["ended"], {}, [each for each in out if each[1] == "observations"])
        self._between(after_step=True, before_step=False)
        return results

    def _shapes(self, steps: int, *, per_step: bool, drawn: bool) -> dict[str, ArrayShape]:
        """What a rollout writes, and what it needs meanwhile."""
        config, known = self._sim.config, self._sim.shapes
        n, real, rows = config.num_envs, config.precision, (steps,) if per_step else ()
        found: dict[str, ArrayShape] = {"episodes": ((n,), "int32"), "playing": ((n, self._call.agents), "bool")}
        for role in self._roles:
            one = (n, role.size)
            of = {name: known[f"{name}.{role.name}"] for name in ("observations", *_EACH_STEP)}
            if drawn:
                kind = "int64" if choices(role.action) else "float32"
                of["random_actions"] = ((*one, *(role.action.shape or ())), kind)
            of = {name: ((*rows, *shape), dtype) for name, (shape, dtype) in of.items()}
            sums = dict(zip(_SUMS, (real, "int32", "int32", real, "int32"), strict=True))
            left_out = (_SUMS[:3] if per_step else _EACH_STEP) + (() if config.statistics else _SUMS[3:])
            of |= {name: (one, dtype) for name, dtype in sums.items()}
            found |= {f"{name}.{role.name}": shape for name, shape in of.items() if name not in left_out}
        return found

    def _begin(self, results: Mapping[str, Array]) -> None:
        """Says where the kernel writes, and zeroes what it adds to."""
        arrays, call = self._sim.arrays, self._call
        call.playing, call.episodes = arrays.address(results["playing"]), arrays.address(results["episodes"])
        arrays.fill(results["episodes"], 0)
        for role, place in zip(self._roles, call.role, strict=True):
            place.actions = None
            for name in _SUMS:
                array = results.get(f"{name}.{role.name}")
                setattr(place, name, None if array is None else arrays.address(array))
                if array is not None:
                    arrays.fill(array, 0)

    def _rows(self, array: Array, per_step: bool) -> tuple[int, int]:
        """Where the first step's part is, and bytes from one to the next; 0: all write the same."""
        return self._sim.arrays.address(array), array.nbytes // array.shape[0] if per_step else 0

    def _between(self, drawn: Sequence[int] = (), *, after_step: bool, before_step: bool = True) -> None:
        call = self._call
        call.after_step, call.before_step = int(after_step), int(before_step)
        for r, address in enumerate(drawn):
            call.role[r].actions = address
        self._launch(self._sim.arrays.stream())


def _limits(space: gymnasium.Space[Any]) -> dict[str, np.ndarray]:
    """Of each element of an action: its first choice and how many it has, or its bounds."""
    if counts := choices(space):
        starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), len(counts))
        return {"counts": np.array(counts, np.int32), "starts": starts.astype(np.int32)}
    low, high = bounds(space)
    return {"low": low.astype(np.float32), "high": high.astype(np.float32)}
