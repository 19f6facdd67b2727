"""Rollouts: memory for their results, and the rollout of a team, which is a sequence of launches."""

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
from gpu_envs.engine.finite_check import FiniteCheck
from gpu_envs.engine.random_actions import bounds, choices
from gpu_envs.engine.results import Step
from gpu_envs.engine.simulation import NO_LIMIT, Simulation

_STEP_RESULTS = ("rewards", "terminations", "truncations")
_SUMS = ("reward_sum", "terminated", "truncated", "return_sum", "length_sum")
_INPUTS = ("seeds", "elapsed", "ended", "finished", "episode_return", "episode_length")

_ROLE = Struct.of(
    "RoleOfRollout",
    "float",
    ("int", "first, agents, size, choices"),
    ("const int*", "starts, counts"),
    ("const float*", "low, high"),
    ("const bool*", "action_mask"),
    ("void*", "actions"),
    ("const Sum*", "rewards"),
    ("const bool*", "terminations, truncations"),
    ("Sum*", "reward_sum"),
    ("int*", "terminated, truncated"),
    ("Sum*", "return_sum"),
    ("int*", "length_sum"),
)


def bind_stepping_kernel(sim: Simulation, program: Program) -> tuple[Any, Callable[[], None]]:
    """Compile a kernel that steps the replicas as part of its work; return its argument struct and its launch.

    Args:
        sim: The simulation of the replicas.
        program: A program with one kernel, whose argument struct has a member ``step`` with the arguments of a step.
    """
    args, launch = sim.program.bind_stepping_kernel(program)
    sim.prepare([args.step])

    def launch_stepping_kernel() -> None:
        sim.launches += 1
        args.step.launch = sim.launches
        launch(sim.arrays.stream())

    return args, launch_stepping_kernel


def check_num_steps(steps: Any) -> int:
    """Return the number of steps of a rollout as an int, or raise a ValueError unless it is 1 to ``NO_LIMIT``."""
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps <= NO_LIMIT:
        raise ValueError(f"steps is {steps!r}; give an integer from 1 to {NO_LIMIT}, and call rollout again for more")
    return int(steps)


def allocate_rollout(sim: Simulation, steps: int, shapes: Mapping[str, ArrayShape]) -> dict[str, Array]:
    """Allocate arrays, uninitialised, for a rollout's results; a MemoryError if the device is too small."""
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
    replicas = f"{steps:,} steps of {sim.config.num_envs:,} replicas"
    refusal = f"the results of {replicas} need {needed / 2**30:,.1f} GiB; take fewer steps"
    if needed > sim.backend.memory():
        raise MemoryError(refusal)
    try:
        return {name: sim.arrays.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
    except (MemoryError, RuntimeError) as error:
        raise MemoryError(f"{refusal} ({error})") from error


def between_steps_program(roles: int, real: str) -> Program:
    """The program that runs between the steps of a team's rollout: it adds up results and draws the next actions."""
    call = Struct.of(
        "BetweenCall",
        "float",
        ("Index", "count"),
        ("int", "agents, after_step, before_step"),
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
    program = program_of(("drivers/actions.cuh", "drivers/team_rollout.cuh"), {"between": call}, settings)
    return dataclasses.replace(program, flush_denormals=real == "float")


@final
class TeamRollout:
    """Rollouts of a team: a sequence of launches without synchronisation of host and device."""

    def __init__(self, sim: Simulation) -> None:
        """Compile the kernel that runs between steps, without a launch, and point it to the simulation's memory."""
        layout, arrays, buffers = sim.layout, sim.arrays, sim.buffers
        assert isinstance(layout, TeamLayout)
        program = between_steps_program(len(layout.roles), layout.real)
        self._sim, self._roles, self._args = sim, layout.roles, program.calls["between"]()
        self._bounds: list[Array] = []
        args, count = self._args, sim.config.num_envs * layout.agents
        args.count, args.agents = count, layout.agents
        for name, buffer in {**{n: n for n in _INPUTS}, "episode": "episodes", "in_game": "state.in_game"}.items():
            setattr(args, name, arrays.address(buffers[buffer]) if buffer in buffers else None)
        for role, role_args in zip(layout.roles, args.role, strict=True):
            role_args.first, role_args.agents, role_args.choices = role.first, role.size, role.choices
            for name in (*_STEP_RESULTS, "action_mask"):
                buffer = f"{name}.{role.name}"
                setattr(role_args, name, arrays.address(buffers[buffer]) if buffer in buffers else None)
            for name, values in _action_bounds(role.action).items():
                self._bounds.append(arrays.from_numpy(values))
                role_args.size = len(values)
                setattr(role_args, name, arrays.address(self._bounds[-1]))
        self._launch = sim.backend.load(program).bind("between", args, count)

    def run(
        self, steps: int, actions: Sequence[Actions] | None, *, per_step: bool, finite_check: FiniteCheck | None
    ) -> dict[str, Array]:
        """Take the steps and return their results, by result and role.

        Args:
            steps: Number of steps.
            actions: Actions of all steps, for each role; None to draw them at random.
            per_step: Return the results of every step instead of their sums.
            finite_check: Check of the results of every step, in checking mode.
        """
        sim, roles = self._sim, self._roles
        shapes = self._shapes(steps, per_step=per_step, drawn=actions is None)
        results = allocate_rollout(sim, steps, shapes)
        self._set_outputs(results)
        names = ("observations", *(_STEP_RESULTS if per_step else ()))
        outputs = [
            (r, n, *self._rows(results[f"{n}.{role.name}"], per_step)) for r, role in enumerate(roles) for n in names
        ]
        if actions is None:
            drawn = [results[f"random_actions.{role.name}"] for role in roles]
            inputs = [(*self._rows(array, per_step), KINDS[dtype_name(array)]) for array in drawn]
        else:
            inputs = [(part.address, part.owner.nbytes // steps, part.kind) for part in actions]
        reset_ended = sim.config.autoreset_mode == "NextStep"  # resets take no step of the rollout
        if reset_ended:
            sim.reset(None, sim.buffers["ended"], {})
        elif sim.config.spec.masked and actions is None:
            sim.observe()  # the last step may have written its action masks into the user's arrays only
        for t in range(steps):
            step_actions = [(address + t * stride, kind) for address, stride, kind in inputs]
            out = [(r, name, address + t * stride) for r, name, address, stride in outputs]
            self._between([address for address, _ in step_actions] if actions is None else (), after_step=t > 0)
            sim.step(step_actions, out)
            if finite_check is not None:
                arrays = {n: {role.name: results[f"{n}.{role.name}"] for role in roles} for n in names}
                rows = {n: {r: a[t] if per_step else a for r, a in by_role.items()} for n, by_role in arrays.items()}
                finite_check.check(stepped=True, out=Step(**rows))
            if reset_ended:
                sim.reset(None, sim.buffers["ended"], {}, [output for output in out if output[1] == "observations"])
        self._between(after_step=True, before_step=False)
        return results

    def _shapes(self, steps: int, *, per_step: bool, drawn: bool) -> dict[str, ArrayShape]:
        """Shape and dtype of each result of a rollout, by result and role, and of its working memory."""
        config, step_shapes = self._sim.config, self._sim.shapes
        n, real, rows = config.num_envs, config.precision, (steps,) if per_step else ()
        shapes: dict[str, ArrayShape] = {"episodes": ((n,), "int32"), "playing": ((n, self._args.agents), "bool")}
        for role in self._roles:
            per_agent = (n, role.size)
            of_role = {name: step_shapes[f"{name}.{role.name}"] for name in ("observations", *_STEP_RESULTS)}
            if drawn:
                dtype = "int64" if choices(role.action) else "float32"
                of_role["random_actions"] = ((*per_agent, *(role.action.shape or ())), dtype)
            of_role = {name: ((*rows, *shape), dtype) for name, (shape, dtype) in of_role.items()}
            sums = dict(zip(_SUMS, (real, "int32", "int32", real, "int32"), strict=True))
            left_out = (_SUMS[:3] if per_step else _STEP_RESULTS) + (() if config.statistics else _SUMS[3:])
            of_role |= {name: (per_agent, dtype) for name, dtype in sums.items()}
            shapes |= {f"{name}.{role.name}": shape for name, shape in of_role.items() if name not in left_out}
        return shapes

    def _set_outputs(self, results: Mapping[str, Array]) -> None:
        """Make the kernel between steps write into ``results``, and zero the sums there."""
        arrays, args = self._sim.arrays, self._args
        args.playing, args.episodes = arrays.address(results["playing"]), arrays.address(results["episodes"])
        arrays.fill(results["episodes"], 0)
        for role, role_args in zip(self._roles, args.role, strict=True):
            role_args.actions = None
            for name in _SUMS:
                array = results.get(f"{name}.{role.name}")
                setattr(role_args, name, None if array is None else arrays.address(array))
                if array is not None:
                    arrays.fill(array, 0)

    def _rows(self, array: Array, per_step: bool) -> tuple[int, int]:
        """The address of a result's first step, and the bytes to the next step's; 0 if all steps share the array."""
        return self._sim.arrays.address(array), array.nbytes // array.shape[0] if per_step else 0

    def _between(self, drawn: Sequence[int] = (), *, after_step: bool, before_step: bool = True) -> None:
        """Launch the kernel between two steps; ``drawn``: where it writes each role's random actions."""
        args = self._args
        args.after_step, args.before_step = int(after_step), int(before_step)
        for r, address in enumerate(drawn):
            args.role[r].actions = address
        self._launch(self._sim.arrays.stream())


def _action_bounds(space: gymnasium.Space[Any]) -> dict[str, np.ndarray]:
    """Arrays ``starts`` and ``counts`` of the choices of an action's elements, or ``low`` and ``high`` of a Box."""
    if counts := choices(space):
        starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), len(counts))
        return {"counts": np.array(counts, np.int32), "starts": starts.astype(np.int32)}
    low, high = bounds(space)
    return {"low": low.astype(np.float32), "high": high.astype(np.float32)}
