"""The source of single-agent environments: what the spec says, in C++, between the headers."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpu_envs.backend.contract import contract
from gpu_envs.backend.program import Program, headers, joined
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.header import opening, rules_part
from gpu_envs.codegen.layout import mode_enum
from gpu_envs.codegen.metrics import metrics_part, totals
from gpu_envs.codegen.observed import observation_members, observation_rows, observation_type
from gpu_envs.codegen.params import (
    RENAMED,
    drawn_struct,
    observed_params,
    params_buffers,
    params_members,
    params_struct,
)
from gpu_envs.codegen.shared import RESETTING, MemberDeclaration, selection
from gpu_envs.codegen.single_layout import MODULES, SingleLayout
from gpu_envs.codegen.state import state_structs, stored

_CALLS = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall", "rollout": "RolloutCall"}


def generate(layout: SingleLayout, module: str) -> Program:
    """Writes the source of one driver: the dialect, what the spec says, the header with the rules, the driver."""
    declared = structs(layout)
    drivers = headers(*(["drivers/one_step.cuh"] if module == "vector_env" else []), f"drivers/{module}.cuh")
    return Program(
        name=f"{layout.spec.id}-{module}",
        source=joined([*before_drivers(layout, declared), *drivers]),
        calls={kernel: declared[_CALLS[kernel]].ctype() for kernel in MODULES[module]},
        contract=contract(
            layout.spec.id,
            rules_part(layout.config)[0],
            team=False,
            masks=layout.spec.masked,
            metrics=bool(layout.spec.metrics),
        ),
        flush_denormals=layout.config.precision == "float32",
        staging_bytes=ctypes.sizeof(ctypes.c_float) * layout.parts[0].size if layout.staged else 0,
    )


def before_drivers(
    layout: SingleLayout, declared: Mapping[str, Struct], first: Sequence[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """What drivers call: the dialect, what the spec says, the rules, and tiles of replicas.

    Args:
        layout: Of the environment.
        declared: Its structs.
        first: Parts that need the dialect alone, and are not to see what an author's header defines.
    """
    seen = "drivers/staged.cuh" if layout.staged else "drivers/direct.cuh"
    drawn = "drivers/drawn.cuh" if layout.drawn else "drivers/undrawn.cuh"
    possible = "drivers/masks.cuh" if layout.choices else "drivers/unmasked.cuh"
    measures = bool(layout.config.metrics)
    measured = ("drivers/metrics.cuh", "drivers/tile_metrics.cuh") if measures else ("drivers/unmeasured.cuh",)
    rules = rules_part(layout.config)
    return [
        *opening(layout, rules[1]),
        *first,
        *headers(*(["drivers/multi_discrete.cuh"] if isinstance(layout.action_space, MultiDiscrete) else [])),
        ("generated", _prologue(layout, declared)),
        *([RENAMED, rules, ("generated", _observing(layout))] if layout.spec.observe_params else [rules]),
        *headers("drivers/tile.cuh", drawn, seen, possible, *measured),
    ]


def _observing(layout: SingleLayout) -> str:
    """What the driver calls in place of the rules, whose observations end with parameters."""
    own = layout.parts[0].size - sum(layout.spec.observed_sizes(layout.config.params).values())
    lines = observed_params(layout, f"observation[{own} + {{}}]")
    head = "FN void observe(const State& s, const Params& p, Observation& observation) {"
    return "\n".join(["#undef observe", head, "    observe_by_rules(s, p, observation);", *lines, "}"])


def _number(value: float) -> str:
    return (
        f"{np.float32(value)!s}f" if "." in str(np.float32(value)) or "e" in str(np.float32(value)) else f"{value}.0f"
    )


def _action(space: gymnasium.Space[Any], spec_id: str, choices: int) -> str:
    if isinstance(space, Discrete):
        flag = f", true>;\nconstexpr int CHOICES = {choices}" if choices else ">"
        return f"using Actions = DiscreteActions<{space.n}, {space.start}{flag};\nusing Action = Actions::Action;"
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1 and space.nvec.size:
        counts, starts = space.nvec.tolist(), space.start.tolist()
        masks = [f"constexpr int CHOICES = {choices};"] if choices else []
        return _several("MultiDiscreteActions", "int", {"count": counts, "start": starts}, *masks)
    if isinstance(space, Box) and len(space.shape) == 1 and space.dtype == np.float32:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(f"{spec_id}: the bounds of a Box of actions must be finite; got {space}")
        low, high = ([_number(bound) for bound in bounds] for bounds in (space.low, space.high))
        return _several("BoxActions", "float", {"low": low, "high": high})
    raise ValueError(
        f"{spec_id}: an action space must be Discrete, or a MultiDiscrete or float32 Box of one dimension; got {space}"
    )


def _several(kind: str, number: str, bounds: Mapping[str, Sequence[object]], *more: str) -> str:
    """Actions of several numbers, each with bounds of its own."""
    getters = [
        f"    FN static constexpr {number} {name}([[maybe_unused]] int j) {{ return {selection(values, 'j')}; }}"
        for name, values in bounds.items()
    ]
    size = len(next(iter(bounds.values())))
    lines = ["struct ActionBounds {", *getters, "};", f"using Actions = {kind}<{size}, ActionBounds>;"]
    return "\n".join([*lines, *more, "using Action = Actions::Action;"])


def structs(layout: SingleLayout) -> dict[str, Struct]:
    """The structs that cross from Python to the kernels, in the order of declaration."""
    real = layout.real

    def of(name: str, *fields: MemberDeclaration) -> Struct:
        return Struct.of(name, real, *fields)

    state = of("StateBuffers", *((f"{stored(cpp)}*", n) for n, cpp, _ in layout.state_fields))
    params = params_buffers(layout)
    buffers = of(
        "Buffers",
        ("Index", "count"),
        (state, "state"),
        ("real*", "running_return"),
        ("int*", "elapsed"),
        ("int*", "offset"),
        ("u32*", "staggered"),
        *([("real*", "totals")] if layout.config.metrics else []),
        *([("real*", "so_far")] if layout.config.measured else []),
        ("u8*", "ended"),
        ("u8*", "finished"),
        ("Record*", "records"),
        ("u64*", "seeds"),
        ("int*", "counted"),
        ("u32*", "episodes"),
        ("u64*", "offence"),
    )
    world: tuple[MemberDeclaration, ...] = ((buffers, "buffers"), (params, "params"))
    stepping: tuple[MemberDeclaration, ...] = (
        ("const void*", "actions"),
        ("int", "action_kind"),
        ("int", "limit"),
        ("u64", "launch"),
    )
    seen, final = observation_members(layout.parts)
    results: tuple[MemberDeclaration, ...] = (
        *seen,
        ("real*", "rewards"),
        ("u8*", "terminations"),
        ("u8*", "truncations"),
    )
    extras: tuple[MemberDeclaration, ...] = (  # arrays of the user's, or null
        *final,
        ("real*", "episode_return"),
        ("int*", "episode_length"),
        *([("real*", "episode_metrics")] if layout.config.metrics else []),
    )
    masks: tuple[MemberDeclaration, ...] = (("bool*", "action_mask"),) if layout.choices else ()
    flags: tuple[MemberDeclaration, ...] = (("int", "report_frozen"), ("int", "clear_final"))
    step = of("StepCall", *world, *stepping, *flags, *results, *extras, *masks)
    reset = of(
        "ResetCall",
        *world,
        *RESETTING,
        *seen,
        *masks,
    )
    rollout = of(
        "RolloutCall",
        *world,
        *stepping,
        ("int", "steps"),
        ("int", "per_step"),
        ("void*", "random_actions"),
        *results,
        ("real*", "reward_sum"),
        ("int*", "episodes"),
        ("int*", "terminated"),
        ("int*", "truncated"),
        ("real*", "return_sum"),
        ("int*", "length_sum"),
        *masks,
    )
    parts = [kind for kind, *_ in seen if isinstance(kind, Struct)]
    return {s.name: s for s in (state, params, buffers, *parts, step, reset, rollout)}


def _prologue(layout: SingleLayout, declared: Mapping[str, Struct]) -> str:
    """What the spec says, in C++."""
    spec, config = layout.spec, layout.config
    bodies = {"ParamBuffers": params_members(layout)}
    return "\n\n".join(
        [
            f"// {spec.id}, {config.precision}, {config.autoreset_mode}",
            mode_enum(config.autoreset_mode),
            state_structs(layout.state_fields, checked=config.checked),
            f"constexpr bool INDEXED = {str(layout.indexed).lower()};  // the rules have arrays or tables to index",
            params_struct(config),
            _action(layout.action_space, spec.id, layout.choices),
            observation_type(layout.parts, checked=config.checked),
            "// What a step tells of one replica. `terminated`: the world has come to an end of its own.\n"
            "struct Outcome {\n    real reward;\n"
            "    int  terminated;  // true or false, in a type as wide as the reward: GCC vectorises that\n};",
            *([metrics_part(spec, kept=config.statistics, measured=config.measured)] if spec.metrics else []),
            _totals(layout),
            _record(layout),
            *([drawn_struct(layout)] if layout.drawn else []),
            *(s.cpp(bodies.get(s.name, ())) for s in declared.values()),
            *([] if layout.staged else [observation_rows(layout.parts)]),
        ]
    )


def _totals(layout: SingleLayout) -> str:
    """What a tile keeps of the metrics of episodes under way."""
    metrics = layout.config.metrics
    rows = f"real of[{max(1, len(totals(metrics)))}][LANES];"
    return f"struct Totals {{ {rows} }};" if metrics else "struct Totals {};"


def _record(layout: SingleLayout) -> str:
    """``Record``, and what else it takes to end an episode and to begin one."""
    statistics = [
        "    real episode_return;",
        "    int  episode_length;",
        *(["    int  padding;"] * (layout.real_words - 1)),
    ]
    final, words = layout.record_final, layout.record_words
    members = [
        *(statistics if layout.config.statistics else []),
        *(["    real metrics[METRICS];"] if layout.config.metrics else []),
        *([f"    float final_obs[{final}];"] if final else []),
        *([f"    int filling[{filling}];"] if (filling := words - layout.record_head - final) else []),
    ]
    whole = f"alignas({64 if words % 16 == 0 else 32}) " if words else ""
    size = f'static_assert(sizeof(Record) == {4 * words}, "Record is laid out otherwise in Python");'
    return "\n".join(
        [
            "// What a replica's random numbers depend on.",
            "struct Key {",
            "    u64 seed;",
            "    u32 episode;",
            "};",
            "// What is written when an episode ends, side by side: whole sectors of memory.",
            f"struct {whole}Record {{",
            *members,
            "};",
            *([size] if words else []),
        ]
    )
