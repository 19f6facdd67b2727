"""Generates the source of environments with a team of agents: definitions from the spec, between the headers."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from gpu_envs.backend.contract import contract
from gpu_envs.backend.program import CPP_TYPES, Grid, Program, headers, joined
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen.header import common_parts, rules_part
from gpu_envs.codegen.layout import SimulationConfig, mode_enum
from gpu_envs.codegen.metrics import metrics_part
from gpu_envs.codegen.params import (
    RENAME_OBSERVE,
    append_params_code,
    cpp_type,
    drawn_struct,
    params_buffers,
    params_members,
    params_struct,
)
from gpu_envs.codegen.schedule import staged_floats
from gpu_envs.codegen.shared import RESET_MEMBERS, MemberDeclaration, Members, selection
from gpu_envs.codegen.team_layout import TeamLayout
from gpu_envs.codegen.world import world_struct
from gpu_envs.specs.params import Param

_ARGUMENT_STRUCTS = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall"}
"""Argument struct of each kernel."""

_EMPTY_OBSERVE_SHARED = "FN void observe_shared(const World&, const Params&, int, const Row&) {}"
"""``observe_shared`` of teams without shared observations."""

_CHECKED_CALLS = """// Set the length of a row before the rules write it.
FN void observe_within(const World& w, const Params& p, int i, const Row& row) {
    observe(w, p, i, Row{row.at, row.lane, row.shared_at, row.shared, features_of(role_of(i))});
}
FN void observe_shared_within(const World& w, const Params& p, int role, const Row& row) {
    observe_shared(w, p, role, Row{row.at, row.lane, 0, 0, shared_features_of(role)});
}
#define observe observe_within
#define observe_shared observe_shared_within"""

_CHECKED_PHASES = """#ifdef TURNS
#undef gather
#undef add
#undef lower
FN void reset_in_turn(World& w, const Params& p, Team& team) {
    launch_phases("reset", [&] { reset(w, p, team); });
}
FN void step_in_turn(World& w, const Params& p, Team& team, const TeamActions& actions) {
    launch_phases("step", [&] { step(w, p, team, actions); });
}
FN void look_in_turn(World& w, const Params& p, Team& team) {
    launch_phases("look", [&] { look(w, p, team); });
}
#define reset(...) reset_in_turn(__VA_ARGS__)
#define step(...) step_in_turn(__VA_ARGS__)
#define look(...) look_in_turn(__VA_ARGS__)
%s#endif"""
"""Wrappers that run the phases of each function one after another, with checks."""

_CHECKED_MEASURE = """FN void measure_in_turn(World& w, const Params& p, Team& team, Metrics& metrics) {
    launch_phases("measure", [&] { measure(w, p, team, metrics); });
}
#define measure(...) measure_in_turn(__VA_ARGS__)
"""


def generate(layout: TeamLayout, module: str) -> Program:
    """Return the program of the driver, whose source is the dialect, definitions from the spec, rules and driver."""
    argument_structs = structs(layout)
    rules = rules_part(layout.config)
    parts = [
        *common_parts(layout, rules[1]),
        ("generated", _constants(layout)),
        *_team_headers(layout.config),
        *headers("environments/nearest.cuh"),
        ("generated", _definitions(layout, argument_structs)),
        *headers("drivers/team_actions.cuh", "environments/particles.cuh"),
        *([RENAME_OBSERVE, rules, ("generated", _append_params(layout))] if layout.spec.observe_params else [rules]),
        *([] if layout.spec.has_shared_observations else [("generated", _EMPTY_OBSERVE_SHARED)]),
        *_checked_calls(layout),
        *headers(*(["drivers/team_masks.cuh"] if layout.spec.masked else [])),
        *headers(*(["drivers/active_heads.cuh"] if layout.config.active_heads else [])),
        *headers("drivers/metrics.cuh", "drivers/team_metrics.cuh", "drivers/team_rows.cuh"),
        *headers("drivers/team_drawn.cuh" if layout.drawn else "drivers/team_undrawn.cuh", f"drivers/{module}.cuh"),
    ]
    schedule, spec = layout.schedule, layout.spec
    optional = {"active": spec.active_heads, "observe_shared": spec.has_shared_observations}
    required = [name for name, is_required in optional.items() if is_required]
    tiles = -(-layout.agents // schedule.threads) if schedule.kind == "SPREAD" else 1
    return Program(
        name=f"{layout.spec.id}-{module}",
        source=joined(parts),
        calls={kernel: argument_structs[struct].ctype() for kernel, struct in _ARGUMENT_STRUCTS.items()},
        contract=contract(spec.id, rules[0], team=True, masks=spec.masked, metrics=bool(spec.metrics), more=required),
        flush_denormals=layout.config.precision == "float32",
        grid=Grid(
            threads=schedule.threads,
            replicas=schedule.replicas,
            blocks=tiles,
            shared_bytes=schedule.shared_bytes,
            phased=schedule.kind == "SPREAD",
        ),
        weight=32 * layout.agents,
    )


def _append_params(layout: TeamLayout) -> str:
    """Generate ``observe``, which calls the rules' function and appends parameters to the row."""
    count = sum(layout.spec.observed_sizes(layout.config.params).values())
    return "\n".join(
        [
            "#undef observe",
            "FN void observe(const World& w, const Params& p, int i, const Row& row) {",
            "    observe_by_rules(w, p, i, row);",
            "    if (row.lane != 0) return;",
            f"    float* const last = row.at + row_size(role_of(i)) - {count};",
            *append_params_code(layout, "last[{}]"),
            "}",
        ]
    )


def _team_headers(config: SimulationConfig) -> list[tuple[str, str]]:
    """Return the headers that phases need; a checked build's headers check the lengths of rows."""
    team = headers("drivers/team.cuh")
    if not config.checked:
        return [*team, *headers("drivers/sums.cuh")]
    return [
        ("generated", "#define Row PlainRow\n#ifndef SCRATCH_FILL\n#define SCRATCH_FILL 0xfe\n#endif"),
        *team,
        ("generated", "#undef Row"),
        *headers("drivers/checked_turns.cuh", "drivers/sums.cuh"),
    ]


def _checked_calls(layout: TeamLayout) -> list[tuple[str, str]]:
    """Return the C++ wrappers between driver and rules in a checked build; otherwise an empty list."""
    if not layout.config.checked:
        return []
    phases = _CHECKED_PHASES % (_CHECKED_MEASURE if layout.spec.metrics else "")
    return [("generated", _CHECKED_CALLS if layout.device.on_gpu else f"{_CHECKED_CALLS}\n{phases}")]


def structs(layout: TeamLayout) -> dict[str, Struct]:
    """Return the structs that kernels' arguments consist of, by name, each after its members' structs."""
    real = layout.real

    def struct(name: str, *fields: MemberDeclaration) -> Struct:
        return Struct.of(name, real, *fields)

    def world_buffers(name: str, *, persistent: bool) -> Struct:
        return struct(
            name, *((f"{CPP_TYPES[f.type]}*", f.name) for f in layout.world.values() if f.persistent == persistent)
        )

    params = params_buffers(layout)
    state, scratch = world_buffers("StateBuffers", persistent=True), world_buffers("ScratchBuffers", persistent=False)
    spread = layout.schedule.kind == "SPREAD"
    buffers = struct(
        "Buffers",
        ("Index", "count"),
        (state, "state"),
        *([(scratch, "scratch")] if spread else []),
        ("bool*", "just_left"),
        ("real*", "running_return"),
        ("int*", "left_at"),
        ("int*", "offset"),
        ("u32*", "staggered"),
        ("real*", "episode_return"),
        ("int*", "episode_length"),
        ("u8*", "ended"),  # other flags are bools, as a stored byte may alias any type
        ("bool*", "finished"),
        ("u64*", "seeds"),
        ("u32*", "episodes"),
        ("u64*", "shared_seed"),
        ("u64*", "offence"),
        *([("real*", "last_metrics")] if layout.config.metrics else []),
        *([("real*", "running_metrics")] if layout.config.running_metrics else []),
    )
    role = struct(
        "RoleCall",
        ("const void*", "actions"),
        ("int", "action_kind"),
        ("float*", "observations"),
        ("real*", "rewards"),
        ("bool*", "terminations"),
        ("bool*", "truncations"),
        ("float*", "final_obs"),
        ("real*", "episode_return"),  # null, or an array of the user
        ("int*", "episode_length"),
        *([("bool*", "action_mask")] if layout.spec.masked else []),
        *([("float*", "shared_observations"), ("float*", "final_shared")] if layout.config.separate_shared else []),
    )
    common: Members = ((buffers, "buffers"), (params, "params"), ("int", "limit"), ("int", "phase"), ("int*", "phases"))
    roles = (role, "role", len(layout.roles))
    metric_members: Members = (("real*", "episode_metrics"),) if layout.config.metrics else ()
    step = struct(
        "StepCall", *common, ("u64", "launch"), ("int", "report_frozen"), ("int", "clear_final"), *metric_members, roles
    )
    reset = struct("ResetCall", *common, *RESET_MEMBERS, roles)
    return {s.name: s for s in (state, *([scratch] if spread else []), params, buffers, role, step, reset)}


def _constants(layout: TeamLayout) -> str:
    """Generate C++ constants of the team's size, roles and schedule."""
    schedule = layout.schedule
    agent_type = {"int8": "signed char", "int16": "short", "int32": "int"}[layout.agent_dtype]
    blocks = schedule.blocks(layout.device, double=layout.real == "double")
    return "\n".join(
        [
            "enum Schedule { HOST, BLOCK, SPREAD };",
            f"constexpr Schedule SCHEDULE = {schedule.kind};",
            f"constexpr int  AGENTS       = {layout.agents};",
            f"constexpr int  TEAMS        = {schedule.replicas};  // replicas per block",
            f"constexpr int  THREADS      = {schedule.threads};  // per block",
            f"constexpr int  BLOCKS       = {blocks};  // resident blocks per multiprocessor",
            f"constexpr int  ROW_LANES    = {schedule.lanes};  // threads that write a row of observations",
            "enum RowWriting { DIRECTLY, BY_BLOCK, BY_WARP };",
            f"constexpr RowWriting ROW_WRITING = {schedule.writing};",
            f"constexpr int  CHUNK_AGENTS = {schedule.chunk};  // agents whose rows a block stages together",
            f"constexpr int  WARP_FLOATS  = {schedule.warp_floats};  // staging memory of a warp",
            f"constexpr int  ROWS_AT      = {schedule.rows_at};  // byte offset of the staged rows in a block's memory",
            f"constexpr int  LOCAL_BYTES  = {schedule.shared_bytes};",
            f"constexpr int  ROLES        = {len(layout.roles)};",
            f"constexpr bool SHARED       = {str(layout.spec.has_shared_observations).lower()};  // observe_shared",
            f"constexpr bool SEPARATE_SHARED = {str(layout.config.separate_shared).lower()};  // not in rows",
            f"using AgentNumber = {agent_type};",
            f"using Element     = {'int' if layout.elements < 2**31 else 'Index'};  // index of an array element",
        ]
    )


def _by_role(name: str, values: Sequence[object]) -> str:
    """Generate a C++ function that returns the value of a role, given the role's number."""
    return f"FN constexpr int {name}([[maybe_unused]] int role) {{ return {selection(values, 'role')}; }}"


def _definitions(layout: TeamLayout, argument_structs: Mapping[str, Struct]) -> str:
    """Generate C++ from the spec: roles, parameters, actions, argument structs, ``World`` and metrics."""
    spec, config, schedule = layout.spec, layout.config, layout.schedule
    *all_but_last, _ = layout.roles
    chain = "".join(f"agent < {role.first + role.size} ? {r} : " for r, role in enumerate(all_but_last))
    names = ", ".join(role.name.upper() for role in layout.roles)
    bodies = {"ParamBuffers": params_members(layout)}
    observed_params_size = sum(spec.observed_sizes(config.params).values())  # appended to rows after observe
    fixed = [_constant(name, param, config.params[name]) for name, param in spec.params.items() if param.fixed]
    rows_per_warp = schedule.rows_per_warp
    batches = [-(-role.size // rows) for role, rows in zip(layout.roles, rows_per_warp, strict=True)]
    staged = [staged_floats(role, schedule.chunk, schedule.replicas) for role in layout.roles]
    parts = [role.observation_parts for role in layout.roles]
    return "\n\n".join(
        [
            f"// {spec.id}, {config.precision}, {config.autoreset_mode}",
            mode_enum(config.autoreset_mode),
            "\n".join(
                [
                    f"enum RoleNumber {{ {names} }};",
                    f"FN constexpr int role_of([[maybe_unused]] int agent) {{ return {chain}{len(all_but_last)}; }}",
                    _by_role("first_of", [role.first for role in layout.roles]),
                    _by_role("count_of", [role.size for role in layout.roles]),
                    _by_role("features_of", [part.individual.shape[0] - observed_params_size for part in parts]),
                    _by_role("shared_features_of", [part.shared_size for part in parts]),
                    _by_role("shared_at", [part.shared_at for part in parts]),
                    _by_role("row_size", [role.features for role in layout.roles]),
                    f"constexpr bool MASKED = {str(spec.masked).lower()};  // the rules have allow",
                    f"constexpr bool ACTIVE_HEADS = {str(config.active_heads).lower()};  // the rules have active",
                    *([_by_role("choices_of", [role.choices for role in layout.roles])] if spec.masked else []),
                    _by_role("rows_together", rows_per_warp),
                    _by_role("batches_before", _cumulative(batches)),
                    _by_role("staged_before", _cumulative(staged)[:-1]),
                ]
            ),
            params_struct(config),
            "\n".join(["// Fixed parameters.", *fixed]),
            _actions(layout),
            *([drawn_struct(layout)] if layout.drawn else []),
            *(s.cpp(bodies.get(s.name, ())) for s in argument_structs.values()),
            world_struct(
                layout.world.values(),
                layout.agents,
                schedule.offsets,
                copied=schedule.kind == "BLOCK",
                single_replica=schedule.replicas == 1,
                checked=config.checked,
            ),
            metrics_part(spec, recorded=config.statistics, running=config.running_metrics, watched=config.checked),
        ]
    )


MAX_COPIED_ACTION = 8
"""Maximum elements of an action that is copied to registers; longer actions are read from memory."""


def _cumulative(sizes: Iterable[int]) -> list[int]:
    """Return cumulative sums, starting with 0."""
    return [0, *itertools.accumulate(sizes)]


def _constant(name: str, param: Param, value: Any) -> str:
    """Generate the C++ constant of a fixed parameter, its name in upper case."""
    kind = cpp_type(name, param)
    return f"constexpr {kind} {name.upper()} = {kind}({value if param.kind == 'real' else param.index(value)});"


def _by_element(name: str, rows: Sequence[Sequence[int]], size: int) -> str:
    """Generate a C++ function from role and element of an action to an entry of ``rows``; 0 for missing elements."""
    if size > MAX_COPIED_ACTION and rows:
        entries = ", ".join(str(entry) for row in rows for entry in (*row, *[0] * (size - len(row))))
        code = f"static constexpr int values[] = {{{entries}}}; return values[role * {size} + j];"
        return f"FN int {name}(int role, int j) {{ {code} }}"
    value = "0"
    for r, row in enumerate(rows):
        for j, entry in enumerate(row):
            value = f"role == {r} && j == {j} ? {entry} : {value}"
    return f"FN constexpr int {name}([[maybe_unused]] int role, [[maybe_unused]] int j) {{ return {value}; }}"


def _actions(layout: TeamLayout) -> str:
    """Generate the C++ struct ``Action``, of the longest action, and functions with each role's sizes and bounds."""
    spaces = [role.action for role in layout.roles]
    counts: list[list[int]] = []
    starts: list[list[int]] = []
    for space in spaces:
        if isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
            counts.append(np.ravel(space.n if isinstance(space, gymnasium.spaces.Discrete) else space.nvec).tolist())
            starts.append(np.ravel(space.start).tolist())
    sizes = [int(np.prod(space.shape or (1,))) for space in spaces]
    kind = "int" if counts else "real"
    size, heads = max(sizes), layout.config.active_heads
    all_discrete = all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces)
    is_view = size > MAX_COPIED_ACTION
    value_member = f"const {CPP_TYPES[layout.world['action'].type]}* value" if is_view else f"{kind} value[ACTION_SIZE]"
    return "\n".join(
        [
            *(["#define _long_actions"] if is_view else []),
            f"constexpr bool INTEGER_ACTIONS = {str(bool(counts)).lower()};",
            f"constexpr int  ACTION_SIZE   = {size};",
            "struct Action {",
            f"    {value_member};",
            f"    FN {kind} operator[](int j) const {{ return value[j]; }}",
            *(["    FN operator int() const { return value[0]; }"] if all_discrete else []),
            "};",
            _by_role("action_size", sizes),
            _by_element("action_start", starts, size),
            _by_element("action_count", counts, size),
            *([_by_element("choices_before", [_cumulative(row)[:-1] for row in counts], size)] if heads else []),
        ]
    )
