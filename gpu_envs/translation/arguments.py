"""Types of the arguments of rules, from the spec: fields of the state, parameters, tables, spaces."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from gpu_envs.backend.program import CPP_TYPES
from gpu_envs.specs import fields as specs
from gpu_envs.specs.base import Spec
from gpu_envs.specs.names import enum_name
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.spaces import mask_entries, space_of
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.arithmetic import write_only
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Constant, Element, Expr, Field
from gpu_envs.translation.types import BOOL, INT, RANDOM, REAL, Array, Choice, Record, Struct, Type
from gpu_envs.translation.walk import constant_value, literal

KINDS = {"real": REAL, "int": INT, "byte": INT, "agent": INT, "bool": BOOL}
_BOXES = {"float32": (REAL, "float"), "uint8": (INT, "u8"), "int32": (INT, "int")}

SMALL = ("u8", "AgentNumber")
"""C++ types that are stored in fewer bits than the int they are computed as."""

CPP_PARAMETERS = {
    "State": ("State&", "s"),
    "Params": ("const Params&", "p"),
    "Random": ("Random&", "random"),
    "World": ("World&", "w"),
    "Team": ("Team&", "team"),
    "Action": ("const Action&", "action"),
    "TeamActions": ("const TeamActions&", "actions"),
    "Observation": ("Observation&", "observation"),
    "Row": ("const Row&", "row"),
    "Mask": ("Mask&", "mask"),
    "Metrics": ("Metrics&", "metrics"),
}
"""Arguments by annotation: type of the C++ parameter, and its name."""

PARAMETERS_READ_ONLY = "rules must not write parameters; use a field of the state for values that change"


def element(of: Expr, indices: Sequence[Expr]) -> Expr:
    """Return an element of an array, or a row for fewer indices than dimensions; refuse invalid indices."""
    kind = of.kind
    assert isinstance(kind, Array)
    base, leading, sizes, flat = of, tuple[Expr, ...](), kind.sizes, False
    if isinstance(of, Element) and isinstance(of.of.kind, Array) and len(of.indices) < len(of.of.kind.sizes):  # a row
        base, leading = of.of, of.indices
    if kind.flat and len(indices) == 1 < len(sizes):
        sizes, flat = (math.prod(size or 0 for size in sizes),), True
    elif len(indices) > len(sizes) or (len(indices) < len(sizes) and kind.flat):
        example = ", ".join(("i", "j", "k")[: len(sizes)])
        raise RefusedError(f"this has {len(sizes)} dimensions and got {len(indices)} indices", f"Write [{example}]")
    all_indices = (*leading, *(_index(index, size) for index, size in zip(indices, sizes, strict=False)))
    rest = sizes[len(indices) :]
    return Element(dataclasses.replace(kind, sizes=rest) if rest else kind.kind, base, all_indices, flat)


def _index(index: Expr, size: int | None) -> Expr:
    """Return an int index, a negative constant counted from the end; refuse constants out of range, other types."""
    if index.kind is not INT or write_only(index):
        raise RefusedError("an index must be an int", "Write int(...)")
    position = constant_value(index)
    if position is None or size is None:
        return index
    if not -size <= position < size:
        raise RefusedError(f"index {position} is out of range: there are {size} elements", f"Write 0 to {size - 1}")
    return index if position >= 0 else literal(position + size)


class Arguments(Record):
    """Types of the arguments in the rules of one spec."""

    spec: Spec
    params: Mapping[str, Any]

    @functools.cached_property
    def all(self) -> dict[str, Type]:
        """Type of each argument that a function may have, by annotation."""
        metrics = {name: Field(REAL, "metrics", name, "Metrics", "real") for name in self.spec.metrics}
        types_: dict[str, Type] = {
            "Params": Struct("Params", self._params()),
            "Random": RANDOM,
            "Metrics": Struct("Metrics", metrics),
        }
        if isinstance(self.spec, TeamSpec):
            return types_ | self._team_types(self.spec)
        assert isinstance(self.spec, EnvSpec)
        return types_ | self._single_agent_types(self.spec)

    def _params(self) -> dict[str, Expr]:
        """Return how rules read each parameter and table, by name."""
        fields = {name: self._param(name, param) for name, param in self.spec.settings.items()}
        for name, table in self.spec.tables.items():
            sizes = self.spec.table(name, self.params).shape
            form = _indexed(sizes, CPP_TYPES[table.type])
            fields[name] = Field(
                Array(KINDS[table.type], sizes, form, refusal="rules must not write tables"), "p", name
            )
        return fields

    def _param(self, name: str, param: Param) -> Expr:
        """Return the field that rules read a parameter from; a constant for a fixed int or bool."""
        if param.rank:
            sizes = self.params[name].shape[-param.rank :]
            return Field(Array(KINDS[param.kind], sizes, _indexed(sizes), refusal=PARAMETERS_READ_ONLY), "p", name)
        of, cpp = ("", name.upper()) if param.fixed and isinstance(self.spec, TeamSpec) else ("p", name)
        kind = Choice(enum_name(name), param.choices) if param.kind == "choice" else KINDS[param.kind]
        if not param.fixed or kind not in (INT, BOOL):
            return Field(kind, of, cpp, refusal=PARAMETERS_READ_ONLY)
        value = self.params[name]
        return Constant(kind, bool(value) if kind is BOOL else int(value), f"{of}.{cpp}" if of else cpp)

    @functools.cached_property
    def spec_constants(self) -> dict[str, Expr]:
        """Constants of rules by name in upper case: AGENTS, roles and fixed parameters."""
        constants: dict[str, Expr] = {}
        if isinstance(self.spec, TeamSpec):
            counts = self.spec.counts(self.params)
            constants["AGENTS"] = Constant(INT, sum(counts.values()), "AGENTS")
            constants |= {name.upper(): Constant(INT, role, name.upper()) for role, name in enumerate(counts)}
        return constants | {n.upper(): self._param(n, p) for n, p in self.spec.params.items() if p.fixed}

    def _single_agent_types(self, spec: EnvSpec) -> dict[str, Type]:
        """Return the types of State, Action, Observation and Mask, by annotation."""
        action = space_of(spec.action, self.params)
        state = {name: self._field("State", name, field) for name, field in spec.typed_state.items()}
        return {
            "State": Struct("State", state),
            "Action": _action([action]),
            "Observation": self._observation(space_of(spec.observation, self.params)),
            "Mask": Array(BOOL, (mask_entries(action) or None,), stored_type="bool", owner="Mask"),
        }

    def _observation(self, space: gymnasium.Space[Any]) -> Struct | Array:
        """Return the type of an observation: an array, or for a Dict a struct with one array per key."""
        if isinstance(space, gymnasium.spaces.Dict):
            boxes = {name: self._observation(box) for name, box in space.spaces.items()}
            fields = {name: Field(box, "observation", name, "Observation") for name, box in boxes.items()}
            return Struct("Observation", fields)
        kind, stored_type = _BOXES.get(str(space.dtype), (REAL, "float"))
        shape = space.shape or (1,)
        at = "{1}"
        for n, size in enumerate(shape[1:], 2):
            at = f"{at} * {size} + {{{n}}}" if n == 2 else f"({at}) * {size} + {{{n}}}"
        flat = "{0}[{1}]" if len(shape) > 1 else ""
        return Array(kind, shape, f"{{0}}[{at}]", stored_type, owner="Observation", flat=flat)

    def _team_types(self, spec: TeamSpec) -> dict[str, Type]:
        """Return the types of World, Team, TeamActions, Action, Row and Mask, by annotation."""
        agents = sum(spec.counts(self.params).values())
        boolean, present = specs.Field("bool"), "rules must not write present"
        fields: dict[str, Expr] = {
            "in_game": self._field("World", "in_game", boolean, agents),
            "present": self._field("World", "present", boolean, agents, present),
            "reward": self._field("World", "reward", specs.Field(), agents),
            "elapsed": self._field("World", "elapsed", specs.Field("int"), 0, "rules must not write elapsed"),
            "terminated": self._field("World", "terminated", boolean),
        }
        groups = [(spec.state, agents), (spec.scratch, agents), (spec.shared, 0), (spec.shared_scratch, 0)]
        for group, count in (*groups, *((role.state, role.size(self.params)) for role in spec.roles)):
            fields |= {name: self._field("World", name, field, count) for name, field in group.items()}
        action = _action([space_of(role.action, self.params) for role in spec.roles])
        form = "int({0}[{1}])" if action is INT else "{0}[{1}]"
        observations = [spec.role_observation(role, self.params) for role in spec.roles]
        widest = max(max(observation.individual.shape[0], observation.shared_size) for observation in observations)
        return {
            "World": Struct("World", fields),
            "Team": Struct("Team", {"last_step": Field(BOOL, "team", "last_step")}),
            "TeamActions": Array(action, (agents,), form),
            "Action": action,
            "Row": Array(REAL, (widest,), stored_type="float", owner="Row"),
            "Mask": Array(BOOL, (None,), stored_type="bool", owner="Mask"),
        }

    def _field(self, owner: str, name: str, field: specs.Field, agents: int = 0, refusal: str = "") -> Expr:
        """Return a field of ``State`` or ``World``; with ``agents=0`` the replica has one, otherwise each agent."""
        of, kind, stored_type = CPP_PARAMETERS[owner][1], KINDS[field.type], "" if refusal else CPP_TYPES[field.type]
        if agents == 0 and not field.is_array:
            return Field(kind, of, name, owner, stored_type, refusal)
        element_shape = self.spec.sizes(name, field, self.params)
        sizes = (*((agents,) if agents else ()), *element_shape)
        form, flat = _indexed(sizes, "" if stored_type else CPP_TYPES[field.type]), "{0}[{1}]" if len(sizes) > 1 else ""
        array = Array(kind, sizes, form, stored_type, refusal, owner, flat)
        return Field(array, of, name, owner, per_agent=math.prod(element_shape) if agents else 0)


def _indexed(sizes: Sequence[int], cpp_type: str = "") -> str:
    """Return the C++ format of an array's element, from array and indices; ``SMALL`` types are converted to int."""
    form = "{0}[{1}]" if len(sizes) == 1 else f"{{0}}({', '.join(f'{{{n + 1}}}' for n in range(len(sizes)))})"
    return f"int({form})" if cpp_type in SMALL else form


def _action(spaces: Sequence[gymnasium.Space[Any]]) -> Type:
    """Return the type of an action: an int if all spaces are Discrete, otherwise an array."""
    if all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces):
        return INT
    integers = not all(isinstance(space, gymnasium.spaces.Box) for space in spaces)
    return Array(INT if integers else REAL, (max(map(_size, spaces)),), cpp="Action")


def _size(space: gymnasium.Space[Any]) -> int:
    return math.prod(space.shape or (1,))
