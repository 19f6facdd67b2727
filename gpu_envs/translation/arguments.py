"""What the arguments of the rules have, which follows from the spec: fields of the state, parameters, tables."""

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
from gpu_envs.translation.types import BOOL, INT, RANDOM, REAL, Array, Choice, Record, Thing, Type
from gpu_envs.translation.walk import known, literal

KINDS = {"real": REAL, "int": INT, "byte": INT, "agent": INT, "bool": BOOL}
_BOXES = {"float32": (REAL, "float"), "uint8": (INT, "u8"), "int32": (INT, "int")}

SMALL = ("u8", "AgentNumber")
"""Types that are stored in fewer bits than they are computed in."""

PLACES = {
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
"""How arguments are passed, and their names in C++."""

PARAMETERS_STAY = "parameters are not written by rules; keep what changes in the state"


def element(of: Expr, indices: Sequence[Expr]) -> Expr:
    """An element of what is indexed, or with fewer indices than it has a row, which is indexed in turn."""
    kind = of.kind
    assert isinstance(kind, Array)
    base, given, sizes, flat = of, tuple[Expr, ...](), kind.sizes, False
    if isinstance(of, Element) and isinstance(of.of.kind, Array) and len(of.indices) < len(of.of.kind.sizes):  # a row
        base, given = of.of, of.indices
    if kind.flat and len(indices) == 1 < len(sizes):
        sizes, flat = (math.prod(size or 0 for size in sizes),), True
    elif len(indices) > len(sizes) or (len(indices) < len(sizes) and kind.flat):
        wanted = ", ".join(("i", "j", "k")[: len(sizes)])
        raise RefusedError(f"this has {len(sizes)} dimensions and got {len(indices)}", f"Write [{wanted}]")
    made = (*given, *(_index(index, size) for index, size in zip(indices, sizes, strict=False)))
    rest = sizes[len(indices) :]
    return Element(dataclasses.replace(kind, sizes=rest) if rest else kind.kind, base, made, flat)


def _index(index: Expr, size: int | None) -> Expr:
    """An index; a constant one is counted from the end where it is negative."""
    if index.kind is not INT or write_only(index):
        raise RefusedError("an index must be an int", "Write int(...)")
    at = known(index)
    if at is None or size is None:
        return index
    if not -size <= at < size:
        raise RefusedError(f"index {at} is outside: there are {size} elements")
    return index if at >= 0 else literal(at + size)


class Arguments(Record):
    """The arguments of the rules of one spec."""

    spec: Spec
    params: Mapping[str, Any]

    @functools.cached_property
    def all(self) -> dict[str, Type]:
        """Every argument that a function of rules may have, by the name of its annotation."""
        metrics = {name: Field(REAL, "metrics", name, "Metrics", "real") for name in self.spec.metrics}
        found: dict[str, Type] = {
            "Params": Thing("Params", self._params()),
            "Random": RANDOM,
            "Metrics": Thing("Metrics", metrics),
        }
        if isinstance(self.spec, TeamSpec):
            return found | self._of_team(self.spec)
        assert isinstance(self.spec, EnvSpec)
        return found | self._of_one(self.spec)

    def _params(self) -> dict[str, Expr]:
        fields = {name: self._param(name, param) for name, param in self.spec.settings.items()}
        for name, table in self.spec.tables.items():
            sizes = self.spec.table(name, self.params).shape
            form = _indexed(sizes)
            if CPP_TYPES[table.type] == "u8":
                form = f"int({form})"
            kind = Array(KINDS[table.type], sizes, form, refusal="tables are not written by rules")
            fields[name] = Field(kind, "p", name)
        return fields

    def _param(self, name: str, param: Param) -> Expr:
        """A parameter; of fixed whole numbers and switches it is known what they are."""
        if param.rank:
            sizes = self.params[name].shape[-param.rank :]
            return Field(Array(KINDS[param.kind], sizes, _indexed(sizes), refusal=PARAMETERS_STAY), "p", name)
        of, cpp = ("", name.upper()) if param.fixed and isinstance(self.spec, TeamSpec) else ("p", name)
        kind = Choice(enum_name(name), param.choices) if param.kind == "choice" else KINDS[param.kind]
        if not param.fixed or kind not in (INT, BOOL):
            return Field(kind, of, cpp, refusal=PARAMETERS_STAY)
        value = self.params[name]
        return Constant(kind, bool(value) if kind is BOOL else int(value), f"{of}.{cpp}" if of else cpp)

    @functools.cached_property
    def capitals(self) -> dict[str, Expr]:
        """Constants that are named in capitals, as in C++."""
        found: dict[str, Expr] = {}
        if isinstance(self.spec, TeamSpec):
            counts = self.spec.counts(self.params)
            found["AGENTS"] = Constant(INT, sum(counts.values()), "AGENTS")
            found |= {name.upper(): Constant(INT, role, name.upper()) for role, name in enumerate(counts)}
        return found | {n.upper(): self._param(n, p) for n, p in self.spec.params.items() if p.fixed}

    def _of_one(self, spec: EnvSpec) -> dict[str, Type]:
        action = space_of(spec.action, self.params)
        state = {name: self._held("State", name, field) for name, field in spec.typed_state.items()}
        return {
            "State": Thing("State", state),
            "Action": _action([action]),
            "Observation": self._observation(space_of(spec.observation, self.params)),
            "Mask": Array(BOOL, (mask_entries(action) or None,), stored="bool", owner="Mask"),
        }

    def _observation(self, space: gymnasium.Space[Any]) -> Thing | Array:
        if isinstance(space, gymnasium.spaces.Dict):
            boxes = {name: self._observation(box) for name, box in space.spaces.items()}
            fields = {name: Field(box, "observation", name, "Observation") for name, box in boxes.items()}
            return Thing("Observation", fields)
        kind, stored = _BOXES.get(str(space.dtype), (REAL, "float"))
        shape = space.shape or (1,)
        at = "{1}"
        for n, size in enumerate(shape[1:], 2):
            at = f"{at} * {size} + {{{n}}}" if n == 2 else f"({at}) * {size} + {{{n}}}"
        flat = "{0}[{1}]" if len(shape) > 1 else ""
        return Array(kind, shape, f"{{0}}[{at}]", stored, owner="Observation", flat=flat)

    def _of_team(self, spec: TeamSpec) -> dict[str, Type]:
        agents = sum(spec.counts(self.params).values())
        yes, present = specs.Field("bool"), "which agents are present is not written by rules"
        fields: dict[str, Expr] = {
            "in_game": self._held("World", "in_game", yes, agents),
            "present": self._held("World", "present", yes, agents, present),
            "reward": self._held("World", "reward", specs.Field(), agents),
            "elapsed": self._held("World", "elapsed", specs.Field("int"), 0, "steps are not counted by rules"),
            "terminated": self._held("World", "terminated", yes),
        }
        for group, count in ((spec.state, agents), (spec.scratch, agents), (spec.shared, 0), (spec.shared_scratch, 0)):
            fields |= {name: self._held("World", name, field, count) for name, field in group.items()}
        for role in spec.roles:
            size = role.size(self.params)
            fields |= {name: self._held("World", name, field, size) for name, field in role.state.items()}
        action = _action([space_of(role.action, self.params) for role in spec.roles])
        form = "int({0}[{1}])" if action is INT else "{0}[{1}]"
        seen = [spec.role_observation(role, self.params) for role in spec.roles]
        widest = max(max(each.individual.shape[0], each.shared_size) for each in seen)
        return {
            "World": Thing("World", fields),
            "Team": Thing("Team", {"last_step": Field(BOOL, "team", "last_step")}),
            "TeamActions": Array(action, (agents,), form),
            "Action": action,
            "Row": Array(REAL, (widest,), stored="float", owner="Row"),
            "Mask": Array(BOOL, (None,), stored="bool", owner="Mask"),
        }

    def _held(self, owner: str, name: str, field: specs.Field, agents: int = 0, refusal: str = "") -> Expr:
        """A field of ``State`` or ``World``: of each of the agents, or (0 of them) of the replica."""
        of, kind, stored = PLACES[owner][1], KINDS[field.type], "" if refusal else CPP_TYPES[field.type]
        if agents == 0 and not field.is_array:
            return Field(kind, of, name, owner, stored, refusal)
        own = self.spec.sizes(name, field, self.params)
        sizes = (*((agents,) if agents else ()), *own)
        form, flat = _indexed(sizes), "{0}[{1}]" if len(sizes) > 1 else ""
        if not stored and CPP_TYPES[field.type] in SMALL:
            form = f"int({form})"
        array = Array(kind, sizes, form, stored, refusal, owner, flat)
        return Field(array, of, name, owner, held=math.prod(own) if agents else 0)


def _indexed(sizes: Sequence[int]) -> str:
    """How an element of an array is named in C++: its own name, then its indices."""
    return "{0}[{1}]" if len(sizes) == 1 else f"{{0}}({', '.join(f'{{{n + 1}}}' for n in range(len(sizes)))})"


def _action(spaces: Sequence[gymnasium.Space[Any]]) -> Type:
    """An action of one of these spaces: a number where all are Discrete."""
    if all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces):
        return INT
    whole = not all(isinstance(space, gymnasium.spaces.Box) for space in spaces)
    return Array(INT if whole else REAL, (max(map(_size, spaces)),), cpp="Action")


def _size(space: gymnasium.Space[Any]) -> int:
    return math.prod(space.shape or (1,))
