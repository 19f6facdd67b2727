"""Environments with a team of agents: their ``World`` in C++, the schedule of their phases, and their memory."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import gymnasium
import numpy as np

from gpu_envs.arrays import Array, Arrays
from gpu_envs.codegen.contract import contract
from gpu_envs.codegen.layout import (
    CPP_TYPES,
    Config,
    Device,
    Grid,
    Layout,
    Program,
    Shape,
    array_header,
    dialect,
    header_text,
    joined,
    mask_entries,
    mode_enum,
    params_buffers,
    params_getter,
    params_struct,
    rules_part,
)
from gpu_envs.codegen.structs import Struct
from gpu_envs.codegen.world import WorldField, world_struct
from gpu_envs.fields import Field
from gpu_envs.names import camel
from gpu_envs.params import Param
from gpu_envs.spaces import space_of
from gpu_envs.spec import TeamSpec

KERNELS = ("step", "inspect", "reset")

NARROW_ROW = 32
"""Floats in a row of observations up to which a thread writes one; a warp writes several wider ones together."""

WIDE_ROW = 128
"""Floats from which all threads of a warp write a row together."""

BATCH_FLOATS = 1088
"""About so many floats of rows a warp keeps before it copies them out."""

SMALL_TEAM = 64
"""Agents up to which several replicas share a block."""

BLOCK_THREADS = 256
"""The most threads in a block, where the user says nothing."""

NARROW_THREADS = 384
"""The same for a team with narrow rows of observations, whose phases are short."""

SEVERAL_BYTES = 40 * 1024
"""Shared memory that replicas in one block may have together: more would leave a multiprocessor too few blocks."""

LARGE_TEAM = 2048
"""Agents from which a team is spread over the whole GPU, where there are fewer replicas than multiprocessors."""

RESERVED_BYTES = 1024 + 128
"""Shared memory of a block beside its own: the system's, and the dialect's."""

MOST_THREADS = {"BY_BLOCK": 1536, "BY_WARP": 896, "DIRECTLY": 1024}
"""On a multiprocessor at a time, by how rows are written: what was quickest on an H200; with more, fewer registers."""


class RoleRows(NamedTuple):
    """The agents of one role, and their rows."""

    name: str
    first: int
    size: int
    observation: gymnasium.spaces.Box
    action: gymnasium.Space[Any]

    @property
    def features(self) -> int:
        """Floats in one row of observations."""
        return int(self.observation.shape[0])

    @property
    def choices(self) -> int:
        """Entries in one action mask."""
        return mask_entries(self.action)


@final
@dataclasses.dataclass(frozen=True)
class TeamLayout(Layout):
    """Memory and programs of an environment with a team of agents."""

    config: Config
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]
    device: Device

    @property
    def spec(self) -> TeamSpec:
        """The environment."""
        assert isinstance(self.config.spec, TeamSpec)
        return self.config.spec

    @functools.cached_property
    def roles(self) -> tuple[RoleRows, ...]:
        """The roles, with their agents and spaces."""
        spec, params = self.spec, self.config.params
        found, first = [], 0
        for role in spec.roles:
            what = f"{self.spec.id}: the role {role.name!r}:"
            observation = space_of(role.observation, params, f"{what} observation")
            action = space_of(role.action, params, f"{what} action")
            if not (
                isinstance(observation, gymnasium.spaces.Box)
                and len(observation.shape) == 1
                and observation.dtype == np.float32
            ):
                raise ValueError(
                    f"{spec.id}: the observation space of the role {role.name!r} is {observation}; a team's must be "
                    "float32 Boxes of one dimension, such as Box(-1, 1, (8,), numpy.float32)"
                )
            if spec.masked and not mask_entries(action):
                raise ValueError(
                    f"{spec.id}: action_mask=True, but the action space of the role {role.name!r} is {action}; masks "
                    "are for Discrete and MultiDiscrete actions"
                )
            count = role.size(params)
            found.append(RoleRows(role.name, first, count, observation, action))
            first += count
        return tuple(found)

    @property
    def agents(self) -> int:
        """How many agents a replica has."""
        return self.roles[-1].first + self.roles[-1].size

    @property
    def elements(self) -> int:
        """How many elements the largest array has."""
        return max(int(np.prod(shape, dtype=np.float64)) for shape, _ in self.buffers().values())

    @property
    def modules(self) -> tuple[str, ...]:
        """There is one driver."""
        return ("multi_agent",)

    # --- memory ---

    def _dtype(self, field: Field) -> str:
        return {"real": self.config.precision, "int": "int32", "agent": self.number, "byte": "uint8", "bool": "bool"}[
            field.type
        ]

    @property
    def number(self) -> str:
        """The type of an agent's number."""
        return "int8" if self.agents < 2**7 else "int16" if self.agents < 2**15 else "int32"

    @functools.cached_property
    def world(self) -> dict[str, WorldField]:
        """Every field of ``World``: the spec's, and those that the driver keeps in every world."""
        spec, params = self.spec, self.config.params
        real, yes, whole = Field(), Field("bool"), Field("int")
        groups = (
            ({**spec.state, "in_game": yes}, True, True),
            ({**spec.shared, "elapsed": whole}, False, True),
            (
                {"present": yes, "reward": real, "gain": real, "action": self._action_field(), **spec.scratch},
                True,
                False,
            ),
            ({"terminated": yes, "pending": yes, "finished": yes, **spec.shared_scratch}, False, False),
        )
        return {
            name: WorldField(
                name, field.type, self._dtype(field), spec.length(name, field, params), field.is_array, team, kept
            )
            for fields, team, kept in groups
            for name, field in fields.items()
        }

    def _action_field(self) -> Field:
        """What holds an agent's action from the first phase of a step on."""
        spaces = [role.action for role in self.roles]
        size = max(int(np.prod(space.shape or (1,))) for space in spaces)
        if all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
            return Field("real", size)
        few = all(int(np.max(getattr(space, "nvec", getattr(space, "n", 0)))) <= 256 for space in spaces)
        starts = all(int(np.min(getattr(space, "start", 0))) == 0 for space in spaces)
        return Field("byte" if few and starts else "int", size)

    def buffers(self) -> dict[str, Shape]:
        """The arrays of the simulation."""
        n, team, real = self.config.num_envs, self.agents, self.config.precision
        found: dict[str, Shape] = {}
        for field in self.world.values():
            rows = (team,) if field.team else ()
            if field.kept:
                elements = (field.length,) if field.is_array else ()
                found[f"state.{field.name}"] = ((n, *rows, *elements), field.dtype)
            elif self.schedule.kind == "SPREAD":
                found[f"scratch.{field.name}"] = (
                    (n, *rows, *((field.length,) if field.length > 1 else ())),
                    field.dtype,
                )
        found |= {
            "just_left": ((n, team), "bool"),
            "running_return": ((n, team), real),
            "left_at": ((n, team), "int32"),
            "last_return": ((n, team), real),
            "last_length": ((n, team), "int32"),
            "over": ((n,), "uint8"),
            "finished": ((n,), "bool"),
            "seeds": ((n,), "int64"),
            "episodes": ((n,), "int32"),
            "layout_seed": ((2,), "int64"),  # and a zero, the episode of what all episodes share
            "offence": ((2,), "int64"),
        }
        return found | {name: shape for name, shape in self.results().items() if not name.startswith("episode_")}

    def results(self) -> dict[str, Shape]:
        """What a step writes, role by role."""
        n, real = self.config.num_envs, self.config.precision
        found: dict[str, Shape] = {}
        for role in self.roles:
            of: dict[str, Shape] = {
                "observations": ((n, role.size, role.features), "float32"),
                "rewards": ((n, role.size), real),
                "terminations": ((n, role.size), "bool"),
                "truncations": ((n, role.size), "bool"),
            }
            if self.config.autoreset_mode == "SameStep":
                of["final_obs"] = of["observations"]
            if self.spec.masked:
                of["action_mask"] = ((n, role.size, role.choices), "int8")
            of |= {"episode_return": ((n, role.size), real), "episode_length": ((n, role.size), "int32")}
            found |= {f"{name}.{role.name}": shape for name, shape in of.items()}
        return found

    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Names what belongs to each role of the arrays that hold all agents."""
        del arrays
        for role in self.roles:
            own = slice(role.first, role.first + role.size)
            buffers[f"episode_return.{role.name}"] = buffers["last_return"][:, own]
            buffers[f"episode_length.{role.name}"] = buffers["last_length"][:, own]
            buffers[f"alive.{role.name}"] = buffers["state.in_game"][:, own]

    @property
    def episode(self) -> tuple[str, ...]:
        """What a snapshot holds beside the state."""
        return (
            *("just_left", "running_return", "left_at", "last_return", "last_length"),
            *("over", "finished", "seeds", "episodes", "layout_seed"),
        )

    # --- the launch ---

    @functools.cached_property
    def schedule(self) -> "Schedule":
        """How the phases of a step are run on the device."""
        device, team = self.device, self.agents
        if not device.on_gpu:
            return self._schedule("HOST", 1, 1)
        asked = device.block_size
        widest = max(role.features for role in self.roles)
        if team <= SMALL_TEAM and widest <= WIDE_ROW:
            replicas = 1 << max(0, ((asked or BLOCK_THREADS) // team).bit_length() - 1)
            while replicas > 1 and self._schedule("BLOCK", replicas, 32).shared_bytes > SEVERAL_BYTES:
                replicas //= 2
            block = self._block(replicas, -(-replicas * team // 32) * 32)
        else:
            most = NARROW_THREADS if widest <= NARROW_ROW else BLOCK_THREADS
            threads = asked or (BLOCK_THREADS if widest > WIDE_ROW else min(most, -(-team // 32) * 32))
            block = self._block(1, threads)
        lonely = team > LARGE_TEAM and self.config.num_envs < device.processors
        if lonely or block.shared_bytes > device.shared_bytes:
            return self._schedule("SPREAD", 1, asked or 128)
        return block

    def _block(self, replicas: int, threads: int) -> "Schedule":
        """A block's schedule. Arrays that last stay where they are if there is no room for them in its memory."""
        block = self._schedule("BLOCK", replicas, threads)
        if block.shared_bytes <= self.device.shared_bytes:
            return block
        return self._schedule("BLOCK", replicas, threads, arrays_in_place=True)

    def _schedule(self, kind: str, replicas: int, threads: int, *, arrays_in_place: bool = False) -> "Schedule":
        """Lays a block's memory out: its Worlds, then the rows of observations on their way out."""
        offsets, at = {}, 0
        for field in self.world.values():
            in_place = kind == "SPREAD" or (field.kept and (kind == "HOST" or (field.is_array and arrays_in_place)))
            if not in_place:
                offsets[field.name] = at
                size = field.elements(self.agents) * replicas * np.dtype(field.dtype).itemsize
                at += -(-size // 64) * 64  # so that on a CPU each begins a cache line
        widest, rows_at = max(role.features for role in self.roles), at
        lanes, together = self._row_lanes(kind, widest), max(1, BATCH_FLOATS // widest)
        together = min(32, together // (32 // lanes) * (32 // lanes) or together)
        by_warp = 4 * _batch_floats(together, widest) * -(-threads // 32)
        if kind != "BLOCK" or (replicas == 1 and lanes > 1 and by_warp > SEVERAL_BYTES):
            writing = "DIRECTLY"
        elif replicas == 1 and lanes > 1:
            writing, at = "BY_WARP", at + by_warp
        else:
            writing, lanes = "BY_BLOCK", 1
            together = (
                max(threads, SEVERAL_BYTES // (4 * widest) // threads * threads) if replicas == 1 else self.agents
            )
            together = min(together, self.agents)
            at += 4 * sum(_staged_floats(role, together, replicas) for role in self.roles)
        return Schedule(kind, replicas, threads, writing, lanes, together, offsets, rows_at, at)

    def _row_lanes(self, kind: str, widest: int) -> int:
        """How many threads write a row of observations."""
        if kind == "HOST" or widest <= NARROW_ROW:
            return 1
        columns = self.spec.columns(self.config.params) if self.spec.columns is not None else widest
        return max(1, min(32, columns)) if kind == "BLOCK" else 32 if widest > WIDE_ROW else 1

    # --- messages ---

    def places(self, call: Any) -> list[tuple[str, Any]]:
        """Each role's struct."""
        return [(f".{role.name}", call.role[r]) for r, role in enumerate(self.roles)]

    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks an offence's place; agents and steps beyond what it holds come out as the greatest it does."""
        return place >> 36, place >> 20 & 0xFFFF, place & 0xFFFFF

    def who(self, agent: int) -> str:
        """The agent's name."""
        role = self._role_of(agent)
        return f"{role.name}_{agent - role.first}, "

    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """The agent's action."""
        role = self._role_of(agent)
        return f" ({hosts[self.roles.index(role)][replica, agent - role.first]})" if hosts else ""

    def allowed(self, agent: int) -> str:
        """The actions of an agent, in words."""
        return str(self._role_of(agent).action)

    def _role_of(self, agent: int) -> RoleRows:
        return [role for role in self.roles if role.first <= agent][-1]

    # --- source ---

    def generate(self, module: str = "multi_agent") -> Program:
        """Writes the source of the driver: the dialect, what the spec says, the header with the rules, the driver."""
        declared = structs(self)
        before = ("math.cuh", "philox.cuh", "actions.cuh", array_header(self.config))
        rules = rules_part(self.config)
        parts = [
            *dialect(self.config),
            ("generated", f"using real = {self.real};"),
            *((name, header_text(name)) for name in before),
            ("generated", _constants(self)),
            *self._team_headers(),
            ("nearest.cuh", header_text("nearest.cuh")),
            ("generated", _prologue(self, declared)),
            ("team_actions.cuh", header_text("team_actions.cuh")),
            rules,
            *self._checked_calls(),
            (f"{module}.cuh", header_text(f"{module}.cuh")),
        ]
        if self.spec.masked:
            parts.insert(-1, ("team_masks.cuh", header_text("team_masks.cuh")))
        schedule = self.schedule
        tiles = -(-self.agents // schedule.threads) if schedule.kind == "SPREAD" else 1
        calls = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall"}
        return Program(
            name=f"{self.spec.id}-{module}",
            source=joined(parts),
            calls={kernel: declared[calls[kernel]].ctype() for kernel in KERNELS},
            contract=contract(self.spec.id, rules[0], team=True, masks=self.spec.masked),
            flush_denormals=self.config.precision == "float32",
            grid=Grid(schedule.threads, schedule.replicas, tiles, schedule.shared_bytes, schedule.kind == "SPREAD"),
            weight=32 * self.agents,
        )

    def _team_headers(self) -> list[tuple[str, str]]:
        """The phases; in a checked build rows know their lengths."""
        team = ("team.cuh", header_text("team.cuh"))
        if not self.config.checked:
            return [team]
        return [
            ("generated", "#define Row PlainRow\n#ifndef SCRATCH_FILL\n#define SCRATCH_FILL 0xfe\n#endif"),
            team,
            ("generated", "#undef Row"),
            ("checked_team.cuh", header_text("checked_team.cuh")),
            *(
                []
                if self.device.on_gpu
                else [("checked_turns.cuh", f"#ifdef TURNS\n{header_text('checked_turns.cuh')}#endif")]
            ),
        ]

    def _checked_calls(self) -> list[tuple[str, str]]:
        """What stands between the driver and the rules in a checked build."""
        if not self.config.checked:
            return []
        return [("generated", _CHECKED_CALLS if self.device.on_gpu else f"{_CHECKED_CALLS}\n{_CHECKED_PHASES}")]


_CHECKED_CALLS = """// Tells a row its length on the way from the driver to the rules.
FN void observe_within(const World& w, const Params& p, int i, const Row& row) {
    observe(w, p, i, Row{row.at, row.lane, features_of(role_of(i))});
}
#define observe observe_within"""

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
#endif"""
"""What goes through the phases of the rules one by one."""


class Schedule(NamedTuple):
    """How the phases of a step are run."""

    kind: str
    """``HOST``, ``BLOCK`` or ``SPREAD``."""
    replicas: int
    """In a block."""
    threads: int
    """In a block."""
    writing: str
    """How rows of observations are written: ``DIRECTLY``, ``BY_BLOCK`` or ``BY_WARP``."""
    lanes: int
    """Threads that write a row together."""
    together: int
    """Rows that a warp, or a block, copies out together."""
    offsets: Mapping[str, int]
    """Where in a block's memory each field of its Worlds begins."""
    rows_at: int
    """Where the rows begin."""
    shared_bytes: int
    """The size of it all."""

    def blocks(self, device: Device, *, double: bool) -> int:
        """How many blocks a multiprocessor should have room for, which limits what registers a thread may have."""
        fitting = device.shared_bytes // (self.shared_bytes + RESERVED_BYTES) if device.on_gpu else 1
        most = MOST_THREADS[self.writing] // (2 if double else 1)
        return max(1, min(fitting, most // self.threads))


def _staged_floats(role: RoleRows, together: int, replicas: int) -> int:
    """The room for a role's rows of a chunk of agents, wherever between multiples of 16 bytes they begin."""
    return -(-min(role.size, together) * role.features * replicas // 4) * 4 + 4


def _batch_floats(rows: int, features: int) -> int:
    """The room for a warp's rows, wherever between multiples of 16 bytes they begin."""
    return -(-rows * features // 4) * 4 + 4


def structs(layout: TeamLayout) -> dict[str, Struct]:
    """The structs that cross from Python to the kernels, in the order of declaration."""
    real = layout.real

    def of(name: str, *fields: tuple[str | Struct, str] | tuple[Struct, str, int]) -> Struct:
        return Struct.of(name, real, *fields)

    def world(name: str, begins: str) -> Struct:
        kept = begins == "state."
        fields = [f for f in layout.world.values() if f.kept == kept]
        return of(name, *((f"{CPP_TYPES[f.type]}*", f.name) for f in fields))

    params = params_buffers(layout)
    state, scratch = world("StateBuffers", "state."), world("ScratchBuffers", "scratch.")
    spread = layout.schedule.kind == "SPREAD"
    buffers = of(
        "Buffers",
        ("Index", "count"),
        (state, "state"),
        *([(scratch, "scratch")] if spread else []),
        ("bool*", "just_left"),
        ("real*", "running_return"),
        ("int*", "left_at"),
        ("real*", "last_return"),
        ("int*", "last_length"),
        ("u8*", "over"),
        ("bool*", "finished"),
        ("u64*", "seeds"),
        ("u32*", "episodes"),
        ("u64*", "layout_seed"),
        ("u64*", "offence"),
    )
    role = of(
        "RoleCall",
        ("const void*", "actions"),
        ("int", "action_kind"),
        ("float*", "observations"),
        ("real*", "rewards"),
        ("bool*", "terminations"),
        ("bool*", "truncations"),
        ("float*", "final_obs"),
        ("real*", "episode_return"),  # of the user's, or null
        ("int*", "episode_length"),
        *([("bool*", "action_mask")] if layout.spec.masked else []),
    )
    common: tuple[tuple[str | Struct, str], ...] = (
        (buffers, "buffers"),
        (params, "params"),
        ("int", "limit"),
        ("int", "phase"),
        ("int*", "phases"),
    )
    roles = (role, "role", len(layout.roles))
    step = of("StepCall", *common, ("u64", "launch"), ("int", "report_frozen"), ("int", "clear_final"), roles)
    reset = of(
        "ResetCall",
        *common,
        ("const u8*", "mask"),
        ("const u8*", "reseed"),
        ("const u64*", "new_seeds"),
        ("u64", "first_seed"),
        ("int", "reseed_all"),
        ("int", "observe_only"),
        roles,
    )
    return {s.name: s for s in (state, *([scratch] if spread else []), params, buffers, role, step, reset)}


def _constants(layout: TeamLayout) -> str:
    """The size of the team, and how its phases are run."""
    schedule = layout.schedule
    number = {"int8": "signed char", "int16": "short", "int32": "int"}[layout.number]
    blocks = schedule.blocks(layout.device, double=layout.real == "double")
    return "\n".join(
        [
            "enum Schedule { HOST, BLOCK, SPREAD };",
            f"constexpr Schedule SCHEDULE = {schedule.kind};",
            f"constexpr int  AGENTS       = {layout.agents};",
            f"constexpr int  TEAMS        = {schedule.replicas};  // replicas in a block",
            f"constexpr int  THREADS      = {schedule.threads};  // in a block",
            f"constexpr int  BLOCKS       = {blocks};  // on a multiprocessor at a time",
            f"constexpr int  ROW_LANES    = {schedule.lanes};  // threads that write a row of observations",
            "enum RowWriting { DIRECTLY, BY_BLOCK, BY_WARP };",
            f"constexpr RowWriting ROW_WRITING = {schedule.writing};",
            f"constexpr int  ROWS_TOGETHER = {schedule.together};  // that are copied out together",
            f"constexpr int  WARP_FLOATS  = {_batch_floats(schedule.together, max(r.features for r in layout.roles))};",
            f"constexpr int  ROWS_AT      = {schedule.rows_at};  // bytes of a block's memory before the rows",
            f"constexpr int  LOCAL_BYTES  = {schedule.shared_bytes};",
            f"constexpr int  ROLES        = {len(layout.roles)};",
            f"using AgentNumber = {number};",
            f"using Element     = {'int' if layout.elements < 2**31 else 'Index'};  // counts the elements of an array",
        ]
    )


def _by_role(layout: TeamLayout, name: str, value: Callable[[RoleRows], object], kind: str = "int") -> str:
    """A function from a role's number to a constant."""
    *others, final = [str(value(role)) for role in layout.roles]
    chain = "".join(f"role == {r} ? {v} : " for r, v in enumerate(others))
    return f"FN constexpr {kind} {name}([[maybe_unused]] int role) {{ return {chain}{final}; }}"


def _prologue(layout: TeamLayout, declared: Mapping[str, Struct]) -> str:
    """What the spec says, in C++."""
    spec, config, schedule = layout.spec, layout.config, layout.schedule
    *others, _ = layout.roles
    chain = "".join(f"agent < {role.first + role.size} ? {r} : " for r, role in enumerate(others))
    names = ", ".join(role.name.upper() for role in layout.roles)
    bodies = {"ParamBuffers": [params_getter(layout)]}
    fixed = [_fixed(name, param, config.params[name]) for name, param in spec.params.items() if param.fixed]
    return "\n\n".join(
        [
            f"// {spec.id}, {config.precision}, {config.autoreset_mode}",
            mode_enum(config.autoreset_mode),
            "\n".join(
                [
                    f"enum RoleNumber {{ {names} }};",
                    f"FN constexpr int role_of([[maybe_unused]] int agent) {{ return {chain}{len(others)}; }}",
                    _by_role(layout, "first_of", lambda role: role.first),
                    _by_role(layout, "count_of", lambda role: role.size),
                    _by_role(layout, "features_of", lambda role: role.features),
                    f"constexpr bool MASKED = {str(spec.masked).lower()};  // the rules say what is possible",
                    *([_by_role(layout, "choices_of", lambda role: role.choices)] if spec.masked else []),
                    _batches(layout),
                    _by_role(layout, "staged_before", _staged_before(layout)),
                ]
            ),
            params_struct(config),
            "\n".join(["// Parameters on which shapes depend.", *fixed]),
            _actions(layout),
            *(s.cpp(bodies.get(s.name, ())) for s in declared.values()),
            world_struct(
                layout.world.values(),
                layout.agents,
                schedule.offsets,
                copied=schedule.kind == "BLOCK",
                checked=config.checked,
            ),
        ]
    )


def _batches(layout: TeamLayout) -> str:
    """A function from a role's number to the batches of rows before its first."""
    before, value = 0, ""
    for r, role in enumerate(layout.roles):
        value += f"role == {r} ? {before} : "
        before += -(-role.size // layout.schedule.together)
    return f"FN constexpr int batches_before(int role) {{ return {value}{before}; }}"


def _staged_before(layout: TeamLayout) -> Callable[[RoleRows], int]:
    """Floats that wait in a block's memory before those of a role."""
    schedule = layout.schedule

    def before(role: RoleRows) -> int:
        earlier = (other for other in layout.roles if other.first < role.first)
        return sum(_staged_floats(other, schedule.together, schedule.replicas) for other in earlier)

    return before


def _fixed(name: str, param: Param, value: Any) -> str:
    """A parameter that is the same for all replicas, as a constant."""
    if param.choices:
        return f"constexpr {camel(name)} {name.upper()} = {camel(name)}({param.index(value)});"
    kind = {"bool": "bool", "int": "int", "real": "real"}[param.kind]
    return f"constexpr {kind} {name.upper()} = {kind}({value if param.kind == 'real' else param.index(value)});"


def _table(name: str, rows: Iterable[Iterable[int]]) -> str:
    """A function from a role's number and an action's element to a constant."""
    value = "0"
    for r, row in enumerate(rows):
        for j, entry in enumerate(row):
            value = f"role == {r} && j == {j} ? {entry} : {value}"
    return f"FN constexpr int {name}([[maybe_unused]] int role, [[maybe_unused]] int j) {{ return {value}; }}"


def _actions(layout: TeamLayout) -> str:
    """``Action``, and what is allowed of it."""
    spaces = [role.action for role in layout.roles]
    counts: list[list[int]] = []
    starts: list[list[int]] = []
    if all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
        sizes = [int(np.prod(space.shape or ())) for space in spaces]
    else:
        for role, space in zip(layout.roles, spaces, strict=True):
            if isinstance(space, gymnasium.spaces.Discrete):
                counts.append([int(space.n)])
                starts.append([int(space.start)])
            elif isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
                counts.append([int(n) for n in space.nvec])
                starts.append([int(n) for n in space.start])
            else:
                raise ValueError(
                    f"{layout.spec.id}: the actions of all roles must be Discrete or MultiDiscrete, or of all roles "
                    f"Boxes; a {role.name}'s are {space}"
                )
        sizes = [len(row) for row in counts]
    kind = "int" if counts else "real"
    size = max(sizes)
    alone = all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces)
    return "\n".join(
        [
            f"constexpr bool WHOLE_ACTIONS = {str(bool(counts)).lower()};",
            f"constexpr int  ACTION_SIZE   = {size};",
            "struct Action {",
            f"    {kind} value[ACTION_SIZE];",
            f"    FN {kind} operator[](int j) const {{ return value[j]; }}",
            *(["    FN operator int() const { return value[0]; }"] if alone else []),
            "};",
            _by_role(layout, "action_size", lambda role: sizes[layout.roles.index(role)]),
            _table("action_start", starts),
            _table("action_count", counts),
        ]
    )
