"""Generates the source of single-agent environments: definitions from the spec, between the headers."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpu_envs.backend.contract import contract
from gpu_envs.backend.program import Program, headers, joined
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.header import common_parts, rules_part
from gpu_envs.codegen.layout import mode_enum
from gpu_envs.codegen.metrics import metrics_part, totals
from gpu_envs.codegen.observations import observation_members, observation_rows, observation_type
from gpu_envs.codegen.params import (
    RENAME_OBSERVE,
    append_params_code,
    drawn_struct,
    params_buffers,
    params_members,
    params_struct,
)
from gpu_envs.codegen.shared import RESET_MEMBERS, MemberDeclaration, Members, selection
from gpu_envs.codegen.single_layout import MODULES, SingleLayout
from gpu_envs.codegen.state import memory_type, state_structs

_ARGUMENT_STRUCTS = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall", "rollout": "RolloutCall"}


def generate(layout: SingleLayout, module: str) -> Program:
    """Return the program of one driver, whose source is the dialect, definitions from the spec, rules and driver."""
    argument_structs, spec = structs(layout), layout.spec
    drivers = headers(*(["drivers/one_step.cuh"] if module == "vector_env" else []), f"drivers/{module}.cuh")
    return Program(
        name=f"{spec.id}-{module}",
        source=joined([*before_drivers(layout, argument_structs), *drivers]),
        calls={kernel: argument_structs[_ARGUMENT_STRUCTS[kernel]].ctype() for kernel in MODULES[module]},
        contract=contract(
            spec.id, rules_part(layout.config)[0], team=False, masks=spec.masked, metrics=bool(spec.metrics)
        ),
        flush_denormals=layout.config.precision == "float32",
        staging_bytes=ctypes.sizeof(ctypes.c_float) * layout.parts[0].size if layout.staged else 0,
    )


def before_drivers(
    layout: SingleLayout, argument_structs: Mapping[str, Struct], parts_before: Sequence[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Return name and text of each part of a source before the driver: dialect, definitions, rules, tile headers.

    Args:
        layout: The environment's layout.
        argument_structs: Structs of the kernels' arguments.
        parts_before: Parts that only need the dialect, and must not depend on macros of an author's header.
    """
    observation_header = "drivers/staged.cuh" if layout.staged else "drivers/direct.cuh"
    drawn_header = "drivers/drawn.cuh" if layout.drawn else "drivers/undrawn.cuh"
    mask_header = "drivers/masks.cuh" if layout.choices else "drivers/unmasked.cuh"
    measured, unmeasured = ("drivers/metrics.cuh", "drivers/tile_metrics.cuh"), ("drivers/unmeasured.cuh",)
    metrics_headers = measured if layout.config.metrics else unmeasured
    rules = rules_part(layout.config)
    return [
        *common_parts(layout, rules[1]),
        *parts_before,
        *headers(*(["drivers/multi_discrete.cuh"] if isinstance(layout.action_space, MultiDiscrete) else [])),
        ("generated", _definitions(layout, argument_structs)),
        *([RENAME_OBSERVE, rules, ("generated", _append_params(layout))] if layout.spec.observe_params else [rules]),
        *headers("drivers/tile.cuh", drawn_header, observation_header, mask_header, *metrics_headers),
    ]


def _append_params(layout: SingleLayout) -> str:
    """Generate ``observe``, which calls the rules' function and appends parameters."""
    first = layout.parts[0].size - sum(layout.spec.observed_sizes(layout.config.params).values())
    lines = append_params_code(layout, f"observation[{first} + {{}}]")
    head = "FN void observe(const State& s, const Params& p, Observation& observation) {"
    return "\n".join(["#undef observe", head, "    observe_by_rules(s, p, observation);", *lines, "}"])


def _action_type(space: gymnasium.Space[Any], spec_id: str, choices: int) -> str:
    """Generate ``Actions`` and ``Action``, and with masks ``CHOICES``; raise a ValueError for another action space."""
    if isinstance(space, Discrete):
        flag = f", true>;\nconstexpr int CHOICES = {choices}" if choices else ">"
        return f"using Actions = DiscreteActions<{space.n}, {space.start}{flag};\nusing Action = Actions::Action;"
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1 and space.nvec.size:
        counts, starts = space.nvec.tolist(), space.start.tolist()
        mask_lines = [f"constexpr int CHOICES = {choices};"] if choices else []
        return _vector_actions("MultiDiscreteActions", "int", {"count": counts, "start": starts}, *mask_lines)
    if isinstance(space, Box) and len(space.shape) == 1 and space.dtype == np.float32:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(
                f"{spec_id}: the bounds of a Box of actions must be finite; got {space}: give low and high"
            )
        low, high = ([f"{bound!s}f" for bound in bounds] for bounds in (space.low, space.high))
        return _vector_actions("BoxActions", "float", {"low": low, "high": high})
    raise ValueError(
        f"{spec_id}: an action space must be Discrete, or a MultiDiscrete or float32 Box of one dimension; got {space}"
    )


def _vector_actions(kind: str, number: str, bounds: Mapping[str, Sequence[object]], *extra_lines: str) -> str:
    """Generate ``Actions``, the C++ class ``kind`` for several numbers, each with its own bounds."""
    getters = [
        f"    FN static constexpr {number} {name}([[maybe_unused]] int j) {{ return {selection(values, 'j')}; }}"
        for name, values in bounds.items()
    ]
    size = len(next(iter(bounds.values())))
    lines = ["struct ActionBounds {", *getters, "};", f"using Actions = {kind}<{size}, ActionBounds>;"]
    return "\n".join([*lines, *extra_lines, "using Action = Actions::Action;"])


def structs(layout: SingleLayout) -> dict[str, Struct]:
    """Return the structs that kernels' arguments consist of, by name, each after its members' structs."""
    real = layout.real

    def of(name: str, *fields: MemberDeclaration) -> Struct:
        return Struct.of(name, real, *fields)

    state = of("StateBuffers", *((f"{memory_type(cpp)}*", n) for n, cpp, _ in layout.state_fields))
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
        *([("real*", "running_metrics")] if layout.config.running_metrics else []),
        ("u8*", "ended"),
        ("u8*", "finished"),
        ("Record*", "records"),
        ("u64*", "seeds"),
        ("int*", "counted"),
        ("u32*", "episodes"),
        ("u64*", "offence"),
    )
    buffer_members: Members = ((buffers, "buffers"), (params, "params"))
    step_members: Members = (("const void*", "actions"), ("int", "action_kind"), ("int", "limit"), ("u64", "launch"))
    observations, final_members = observation_members(layout.parts)
    result_members: Members = (*observations, ("real*", "rewards"), ("u8*", "terminations"), ("u8*", "truncations"))
    episode_members: Members = (  # null, or arrays of the user
        *final_members,
        ("real*", "episode_return"),
        ("int*", "episode_length"),
        *([("real*", "episode_metrics")] if layout.config.metrics else []),
    )
    masks: Members = (("bool*", "action_mask"),) if layout.choices else ()
    flag_members: Members = (("int", "report_frozen"), ("int", "clear_final"))
    step = of("StepCall", *buffer_members, *step_members, *flag_members, *result_members, *episode_members, *masks)
    reset = of("ResetCall", *buffer_members, *RESET_MEMBERS, *observations, *masks)
    rollout = of(
        "RolloutCall",
        *buffer_members,
        *step_members,
        ("int", "steps"),
        ("int", "per_step"),
        ("void*", "random_actions"),
        *result_members,
        ("real*", "reward_sum"),
        ("int*", "episodes"),
        ("int*", "terminated"),
        ("int*", "truncated"),
        ("real*", "return_sum"),
        ("int*", "length_sum"),
        *masks,
    )
    parts = [kind for kind, *_ in observations if isinstance(kind, Struct)]
    return {s.name: s for s in (state, params, buffers, *parts, step, reset, rollout)}


def _definitions(layout: SingleLayout, argument_structs: Mapping[str, Struct]) -> str:
    """Generate C++ from the spec: state, parameters, actions, observations, metrics, records and argument structs."""
    spec, config = layout.spec, layout.config
    bodies = {"ParamBuffers": params_members(layout)}
    return "\n\n".join(
        [
            f"// {spec.id}, {config.precision}, {config.autoreset_mode}",
            mode_enum(config.autoreset_mode),
            state_structs(layout.state_fields, checked=config.checked),
            f"constexpr bool INDEXED = {str(layout.indexed).lower()};  // the rules have arrays or tables to index",
            params_struct(config),
            _action_type(layout.action_space, spec.id, layout.choices),
            observation_type(layout.parts, checked=config.checked),
            "// The result of a step of one replica.\n"
            "struct Outcome {\n    real reward;\n"
            "    int  terminated;  // 0 or 1, in a type as wide as the reward, so that GCC vectorises it\n};",
            *([metrics_part(spec, recorded=config.statistics, running=config.running_metrics)] if spec.metrics else []),
            _totals_struct(layout),
            _record_struct(layout),
            *([drawn_struct(layout)] if layout.drawn else []),
            *(s.cpp(bodies.get(s.name, ())) for s in argument_structs.values()),
            *([] if layout.staged else [observation_rows(layout.parts)]),
        ]
    )


def _totals_struct(layout: SingleLayout) -> str:
    """Generate the C++ struct ``Totals``: totals of the metrics in the current episodes of a tile of replicas."""
    metrics = layout.config.metrics
    rows = f"real of[{max(1, len(totals(metrics)))}][LANES];"
    return f"struct Totals {{ {rows} }};" if metrics else "struct Totals {};"


def _record_struct(layout: SingleLayout) -> str:
    """Generate the C++ structs ``Record``, an episode's results, and ``Key``, seed and episode for random numbers."""
    padding = ["    int  padding;"] * (layout.real_words - 1)
    statistics = ["    real episode_return;", "    int  episode_length;", *padding]
    final_words, words = layout.record_final, layout.record_words
    members = [
        *(statistics if layout.config.statistics else []),
        *(["    real metrics[METRICS];"] if layout.config.metrics else []),
        *([f"    float final_obs[{final_words}];"] if final_words else []),
        *([f"    int filling[{filling}];"] if (filling := words - layout.record_head - final_words) else []),
    ]
    alignment = f"alignas({64 if words % 16 == 0 else 32}) " if words else ""
    size = f'static_assert(sizeof(Record) == {4 * words}, "Record has another layout in Python");'
    lines = [
        "// Seed and episode, which determine a replica's random numbers.",
        "struct Key {\n    u64 seed;\n    u32 episode;\n};",
        "// The results of an episode, written together at its end: full 32-byte sectors of memory.",
        f"struct {alignment}Record {{",
        *members,
        "};",
        *([size] if words else []),
    ]
    return "\n".join(lines)
