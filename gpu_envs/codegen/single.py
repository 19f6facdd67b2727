"""Single-agent environments: what the spec says, in C++, and the memory of their replicas."""

import ctypes
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.arrays import Array, Arrays
from gpu_envs.codegen.contract import contract
from gpu_envs.codegen.layout import (
    CPP_TYPES,
    Config,
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
from gpu_envs.codegen.observed import (
    Part,
    is_staged,
    observation_members,
    observation_rows,
    observation_type,
    parts_of,
)
from gpu_envs.codegen.state import StateField, state_structs, stored
from gpu_envs.codegen.structs import Struct
from gpu_envs.spec import EnvSpec

MODULES = {"vector_env": ("step", "inspect", "reset"), "rollout": ("rollout",)}
"""The drivers that are compiled, each when first needed, and their kernels."""

_DTYPES = {"int": "int32", "u8": "uint8", "bool": "bool"}

_CALLS = {"step": "StepCall", "inspect": "StepCall", "reset": "ResetCall", "rollout": "RolloutCall"}


@final
@dataclasses.dataclass(frozen=True)
class SingleLayout(Layout):
    """Memory and programs of a single-agent environment."""

    config: Config
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]

    @property
    def spec(self) -> EnvSpec:
        """The environment."""
        assert isinstance(self.config.spec, EnvSpec)
        return self.config.spec

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The boxes of one replica's observation."""
        return parts_of(self.spec.observation_space(self.config.params), self.spec.id)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of those boxes; none where there is but one."""
        return tuple(part.key for part in self.parts if part.key)

    @property
    def staged(self) -> bool:
        """Whether the observation is a short row of floats."""
        return is_staged(self.parts)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one replica."""
        return self.spec.action_space(self.config.params)

    @property
    def choices(self) -> int:
        """Entries in an action mask; 0: there is none."""
        if not self.spec.masked:
            return 0
        choices = mask_entries(self.action_space)
        if not choices:
            raise ValueError(
                f"{self.spec.id}: action_mask=True, but the action space is {self.action_space}; "
                "masks are for Discrete actions"
            )
        return choices

    @property
    def modules(self) -> tuple[str, ...]:
        """The driver of single steps, and that of many."""
        return tuple(MODULES)

    @property
    def record_words(self) -> int:
        """The size of a ``Record`` in words of 32 bits: whole sectors of memory."""
        kept = self.parts[0].size if self.staged and self.config.autoreset_mode == "SameStep" else 0
        return 8 + -(-kept // 8) * 8

    @property
    def state_fields(self) -> list[StateField]:
        """The state's fields, as they are in C++."""
        params, found = self.config.params, []
        for name, field in self.spec.typed_state.items():
            length = self.spec.length(name, field, params) if field.is_array else 0
            found.append(StateField(name, CPP_TYPES[field.type], length))
        return found

    @property
    def indexed(self) -> bool:
        """Whether the rules have something to index besides actions and observations."""
        return bool(self.spec.tables) or any(field.length for field in self.state_fields)

    def buffers(self) -> dict[str, Shape]:
        """The arrays of the simulation."""
        n, real = self.config.num_envs, self.config.precision
        fields: dict[str, Shape] = {
            f"state.{name}": ((length, n) if length else (n,), real if cpp == "real" else _DTYPES[cpp])
            for name, cpp, length in self.state_fields
        }
        found = self.results()
        if self.staged:
            found.pop("final_obs", None)  # in the records
        return fields | {
            "running_return": ((n,), real),
            "elapsed": ((n,), "int32"),
            "ended": ((n,), "bool"),
            "finished": ((n,), "bool"),
            "records": ((n, self.record_words), "int32"),
            "offence": ((2,), "int64"),
            **{name: shape for name, shape in found.items() if not name.startswith("episode_")},
        }

    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Names the columns of the records, ``struct Record``; turns arrays of the state: ``[num_envs, length]``."""
        for name, _, length in self.state_fields:
            if length:
                buffers[f"state.{name}"] = buffers[f"state.{name}"].T
        records, viewed = buffers["records"], arrays.viewed
        real = self.config.precision
        wide = real == "float64"
        buffers["seeds"] = viewed(records, "int64")[:, 0]  # the bits of an unsigned seed
        buffers["episodes"] = records[:, 2]  # the bits of an unsigned counter
        buffers["episode_return"] = viewed(records, real)[:, 2 if wide else 4]
        buffers["episode_length"] = records[:, 6 if wide else 5]
        if self.config.autoreset_mode != "SameStep":
            return
        if self.staged:
            buffers["final_obs"] = viewed(records, "float32")[:, 8 : 8 + self.parts[0].size]
        else:
            buffers |= {f"kept_final{part.affix}": buffers[f"final_obs{part.affix}"] for part in self.parts}

    def results(self) -> dict[str, Shape]:
        """What a step writes."""
        n, real = self.config.num_envs, self.config.precision
        seen: dict[str, Shape] = {part.affix: ((n, *part.space.shape), part.dtype) for part in self.parts}
        found: dict[str, Shape] = {f"observations{affix}": shape for affix, shape in seen.items()}
        found |= {"rewards": ((n,), real), "terminations": ((n,), "bool"), "truncations": ((n,), "bool")}
        if self.config.autoreset_mode == "SameStep":
            found |= {f"final_obs{affix}": shape for affix, shape in seen.items()}
        if self.choices:
            found["action_mask"] = ((n, self.choices), "int8")
        return found | {"episode_return": ((n,), real), "episode_length": ((n,), "int32")}

    @property
    def episode(self) -> tuple[str, ...]:
        """What a snapshot holds beside the state."""
        return (
            *("running_return", "elapsed", "ended", "finished"),
            *("episodes", "seeds", "episode_return", "episode_length"),
        )

    def places(self, call: Any) -> list[tuple[str, Any]]:
        """The call itself names actions and results; each box of a Dict has its own place."""
        return [("", call), *((f".{key}", call.part[k]) for k, key in enumerate(self.keys))]

    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks an offence's place."""
        replica, step = divmod(place, 2**31)
        return replica, 0, step

    def who(self, agent: int) -> str:
        """There is but one."""
        del agent
        return ""

    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """The replica's action."""
        del agent
        return f" ({hosts[0][replica]})" if hosts else ""

    def allowed(self, agent: int) -> str:
        """The actions, in words."""
        del agent
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return f"{space.start} to {space.start + space.n - 1}"
        return str(space)

    def generate(self, module: str) -> Program:
        """Writes the source of one driver: the dialect, what the spec says, the header with the rules, the driver."""
        declared = structs(self)
        before = ("math.cuh", "philox.cuh", "actions.cuh", array_header(self.config))
        seen, possible = "staged.cuh" if self.staged else "direct.cuh", "masks.cuh" if self.choices else "unmasked.cuh"
        after = ("tile.cuh", seen, possible, f"{module}.cuh")
        rules = rules_part(self.config)
        parts = [
            *dialect(self.config),
            ("generated", f"using real = {self.real};"),
            *((name, header_text(name)) for name in before),
            ("generated", _prologue(self, declared)),
            rules,
            *((name, header_text(name)) for name in after),
        ]
        return Program(
            name=f"{self.spec.id}-{module}",
            source=joined(parts),
            calls={kernel: declared[_CALLS[kernel]].ctype() for kernel in MODULES[module]},
            contract=contract(self.spec.id, rules[0], team=False, masks=self.spec.masked),
            flush_denormals=self.config.precision == "float32",
            staging_bytes=ctypes.sizeof(ctypes.c_float) * self.parts[0].size if self.staged else 0,
        )


def _number(value: float) -> str:
    return (
        f"{np.float32(value)!s}f" if "." in str(np.float32(value)) or "e" in str(np.float32(value)) else f"{value}.0f"
    )


def _action(space: gymnasium.Space[Any], spec_id: str, choices: int) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        flag = f", true>;\nconstexpr int CHOICES = {choices}" if choices else ">"
        return f"using Actions = DiscreteActions<{space.n}, {space.start}{flag};\nusing Action = Actions::Action;"
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32:
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise ValueError(f"{spec_id}: the bounds of a Box of actions must be finite; got {space}")
        select = [
            " : ".join([*(f"j == {j} ? {_number(v)}" for j, v in enumerate(b[:-1])), _number(b[-1])])
            for b in (space.low, space.high)
        ]
        return "\n".join(
            [
                "struct ActionBounds {",
                f"    FN static constexpr float low([[maybe_unused]] int j) {{ return {select[0]}; }}",
                f"    FN static constexpr float high([[maybe_unused]] int j) {{ return {select[1]}; }}",
                "};",
                f"using Actions = BoxActions<{space.shape[0]}, ActionBounds>;",
                "using Action = Actions::Action;",
            ]
        )
    raise ValueError(f"{spec_id}: an action space must be Discrete or a float32 Box of one dimension; got {space}")


def structs(layout: SingleLayout) -> dict[str, Struct]:
    """The structs that cross from Python to the kernels, in the order of declaration."""
    real = layout.real

    def of(name: str, *fields: tuple[str | Struct, str] | tuple[Struct, str, int]) -> Struct:
        return Struct.of(name, real, *fields)

    state = of("StateBuffers", *((f"{stored(cpp)}*", n) for n, cpp, _ in layout.state_fields))
    params = params_buffers(layout)
    buffers = of(
        "Buffers",
        ("Index", "count"),
        (state, "state"),
        ("real*", "running_return"),
        ("int*", "elapsed"),
        ("u8*", "ended"),
        ("u8*", "finished"),
        ("Record*", "records"),
        ("u64*", "offence"),
    )
    world: tuple[tuple[str | Struct, str], ...] = ((buffers, "buffers"), (params, "params"))
    stepping: tuple[tuple[str | Struct, str], ...] = (
        ("const void*", "actions"),
        ("int", "action_kind"),
        ("int", "limit"),
        ("u64", "launch"),
    )
    seen, final = observation_members(layout.parts)
    results: tuple[tuple[str | Struct, str] | tuple[Struct, str, int], ...] = (
        *seen,
        ("real*", "rewards"),
        ("u8*", "terminations"),
        ("u8*", "truncations"),
    )
    extras: tuple[tuple[str | Struct, str], ...] = (  # arrays of the user's, or null
        *final,
        ("real*", "episode_return"),
        ("int*", "episode_length"),
    )
    masks: tuple[tuple[str | Struct, str], ...] = (("bool*", "action_mask"),) if layout.choices else ()
    flags: tuple[tuple[str | Struct, str], ...] = (("int", "report_frozen"), ("int", "clear_final"))
    step = of("StepCall", *world, *stepping, *flags, *results, *extras, *masks)
    reset = of(
        "ResetCall",
        *world,
        ("const u8*", "mask"),
        ("const u8*", "reseed"),
        ("const u64*", "new_seeds"),
        ("u64", "first_seed"),
        ("int", "reseed_all"),
        ("int", "observe_only"),
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
    bodies = {"ParamBuffers": [params_getter(layout)]}
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
            _record(layout.record_words),
            *(s.cpp(bodies.get(s.name, ())) for s in declared.values()),
            *([] if layout.staged else [observation_rows(layout.parts)]),
        ]
    )


def _record(words: int) -> str:
    return "\n".join(
        [
            "// What a replica's random numbers depend on.",
            "struct alignas(16) Key {",
            "    u64 seed;",
            "    u32 episode;",
            "    int padding = 0;",
            "};",
            "// What is touched only when an episode begins or ends, side by side: whole sectors of memory.",
            f"struct alignas({64 if words % 16 == 0 else 32}) Record {{",
            "    Key  key;",
            "    real last_return;",
            "    int  last_length;",
            f"    alignas(32) float final_obs[{words - 8}];"
            if words > 8
            else "    float final_obs[1];  // of no use in this mode",
            "};",
            f'static_assert(sizeof(Record) == {4 * words}, "Record is laid out otherwise in Python");',
        ]
    )
