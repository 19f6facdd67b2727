"""What the arguments of the rules have, which follows from the spec: fields of the state, parameters, tables."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.program import CPP_TYPES
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.fields import Field
from gpu_envs.specs.names import camel
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.spaces import space_of
from gpu_envs.specs.team import TeamSpec
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.values import (
    BOOL,
    INT,
    REAL,
    Choice,
    Elements,
    Level,
    Number,
    Thing,
    Type,
    Value,
    literal,
)

KINDS = {"real": REAL, "int": INT, "byte": INT, "agent": INT, "bool": BOOL}
_BOXES = {"float32": (REAL, "float"), "uint8": (INT, "u8"), "int32": (INT, "int")}

PARAMETERS_STAY = "parameters are not written by rules; keep what changes in the state"


def element(of: Value, indices: list[Value]) -> Value:
    """An element of what is indexed."""
    kind = of.type
    assert isinstance(kind, Elements)
    form, sizes = kind.form, kind.sizes
    if len(indices) != len(kind.sizes):
        if len(indices) != 1 or not kind.flat:
            wanted = ", ".join(("i", "j", "k")[: len(kind.sizes)])
            raise RefusedError(f"this has {len(kind.sizes)} dimensions and got {len(indices)}", f"Write [{wanted}]")
        form, sizes = kind.flat, (_product(kind.sizes),)
    codes = [index_code(index, size) for index, size in zip(indices, sizes, strict=True)]
    code = form.format(of.code, *codes)
    read = f"int({code})" if kind.stored in ("u8", "AgentNumber") else code
    return Value(
        read,
        kind.kind,
        place=code if kind.stored else "",
        stored=kind.stored,
        refusal=kind.refusal,
        owner=kind.owner,
        write_only=kind.write_only,
    )


def _product(sizes: tuple[int | None, ...]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def index_code(index: Value, size: int | None) -> str:
    """An index in C++; a constant one is counted from the end where it is negative."""
    if index.type is not INT or index.write_only:
        raise RefusedError("an index must be an int", "Write int(...)")
    known = index.constant
    if known is None or size is None:
        return index.within(Level.UNARY)
    if not -size <= known < size:
        raise RefusedError(f"index {known} is outside: there are {size} elements")
    return index.text if known >= 0 else str(known + size)


def field_of(value: Value, name: str) -> Value:
    """A field of an argument."""
    thing = value.type
    assert isinstance(thing, Thing)
    if name not in thing.fields:
        known = ", ".join(thing.fields) or "none"
        what = f"the {thing.name} has no field {name!r}{did_you_mean(name, thing.fields)}".rstrip(".")
        raise RefusedError(what, f"Its fields are: {known}")
    return thing.fields[name]


@final
@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of the rules of one spec."""

    spec: Spec
    params: Mapping[str, Any]

    @functools.cached_property
    def all(self) -> dict[str, Thing | Elements | Number]:
        """Every argument that a function of rules may have, by the name of its annotation."""
        found: dict[str, Thing | Elements | Number] = {
            "Params": Thing("Params", "const Params&", self._params(), "params"),
            "Random": Thing("Random", "Random&"),
        }
        if isinstance(self.spec, TeamSpec):
            return found | self._of_team(self.spec)
        assert isinstance(self.spec, EnvSpec)
        return found | self._of_one(self.spec)

    def _params(self) -> dict[str, Value]:
        fields = {name: self._param(name, param) for name, param in self.spec.settings.items()}
        for name, table in self.spec.tables.items():
            sizes = self.spec.table(name, self.params).shape
            indices = ", ".join(f"{{{n + 1}}}" for n in range(len(sizes)))
            form = "{0}[{1}]" if len(sizes) == 1 else "{0}(" + indices + ")"
            stored = CPP_TYPES[table.type]
            if stored == "u8":
                form = f"int({form})"
            kind = Elements(KINDS[table.type], sizes, form, refusal="tables are not written by rules")
            fields[name] = Value(f"p.{name}", kind)
        return fields

    def _param(self, name: str, param: Param) -> Value:
        code = name.upper() if param.fixed and isinstance(self.spec, TeamSpec) else f"p.{name}"
        return _constant(code, name, param, self.params)

    @functools.cached_property
    def capitals(self) -> dict[str, Value]:
        """Constants that are named in capitals, as in C++."""
        found = {}
        if isinstance(self.spec, TeamSpec):
            counts = self.spec.counts(self.params)
            found["AGENTS"] = Value("AGENTS", INT, constant=sum(counts.values()))
            found |= {name.upper(): Value(name.upper(), INT, constant=r) for r, name in enumerate(counts)}
        return found | {n.upper(): self._param(n, p) for n, p in self.spec.params.items() if p.fixed}

    def _of_one(self, spec: EnvSpec) -> dict[str, Thing | Elements | Number]:
        state = {}
        for name, field in spec.typed_state.items():
            place, kind, stored = f"s.{name}", KINDS[field.type], CPP_TYPES[field.type]
            if field.is_array:
                sizes = (self.spec.length(name, field, self.params),)
                state[name] = Value(place, Elements(kind, sizes, stored=stored, owner="State"))
            else:
                code = f"int({place})" if stored == "u8" else place
                state[name] = Value(code, kind, place=place, stored=stored, owner="State")
        action = space_of(spec.action, self.params)
        discrete = isinstance(action, gymnasium.spaces.Discrete)
        size = int(getattr(action, "n", 0))
        return {
            "State": Thing("State", "State&", state, "State"),
            "Action": INT if discrete else Elements(REAL, (int(np.prod(action.shape or (1,))),), cpp="Action"),
            "Observation": self._observation(space_of(spec.observation, self.params)),
            "Mask": Elements(BOOL, (size or None,), stored="bool", owner="Mask", write_only=True),
        }

    def _observation(self, space: gymnasium.Space[Any]) -> Thing | Elements:
        if isinstance(space, gymnasium.spaces.Dict):
            boxes = {name: self._observation(box) for name, box in space.spaces.items()}
            fields = {name: Value(f"observation.{name}", box) for name, box in boxes.items()}
            return Thing("Observation", "Observation&", fields, "Observation")
        kind, stored = _BOXES.get(str(space.dtype), (REAL, "float"))
        shape = space.shape or (1,)
        at = "{1}"
        for n, size in enumerate(shape[1:], 2):
            at = f"{at} * {size} + {{{n}}}" if n == 2 else f"({at}) * {size} + {{{n}}}"
        flat = "{0}[{1}]" if len(shape) > 1 else ""
        return Elements(kind, shape, f"{{0}}[{at}]", stored, owner="Observation", write_only=True, flat=flat)

    def _of_team(self, spec: TeamSpec) -> dict[str, Thing | Elements | Number]:
        agents, yes = sum(spec.counts(self.params).values()), Field("bool")
        fields: dict[str, Value] = {
            "in_game": self._world("in_game", yes, agents),
            "present": self._world("present", yes, agents, "which agents are present is not written by rules"),
            "reward": self._world("reward", Field(), agents),
            "elapsed": self._world("elapsed", Field("int"), 0, "steps are not counted by rules"),
            "terminated": self._world("terminated", yes, 0),
        }
        for group, count in ((spec.state, agents), (spec.scratch, agents), (spec.shared, 0), (spec.shared_scratch, 0)):
            fields |= {name: self._world(name, field, count) for name, field in group.items()}
        spaces = [space_of(role.action, self.params) for role in spec.roles]
        alone = all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces)
        whole = not all(isinstance(space, gymnasium.spaces.Box) for space in spaces)
        size = max(int(np.prod(space.shape or (1,))) for space in spaces)
        action = INT if alone else Elements(INT if whole else REAL, (size,), cpp="Action")
        form = "int({0}[{1}])" if alone else "{0}[{1}]"
        widest = max(int(np.prod(space_of(role.observation, self.params).shape or (1,))) for role in spec.roles)
        return {
            "World": Thing("World", "World&", fields, "World"),
            "Team": Thing("Team", "Team&", {"last_step": Value("team.last_step", BOOL)}),
            "TeamActions": Elements(action, (agents,), form),
            "Action": action,
            "Row": Elements(REAL, (widest,), stored="float", owner="Row", write_only=True),
            "Mask": Elements(BOOL, (None,), stored="bool", owner="Mask", write_only=True),
        }

    def held(self, name: str) -> int | None:
        """How many elements of a field an agent has; 0 of an array that the replica has, None of a single number."""
        assert isinstance(self.spec, TeamSpec)
        own = {**self.spec.state, **self.spec.scratch, "in_game": Field("bool"), "reward": Field()}
        if name in own:
            return self.spec.length(name, own[name], self.params)
        shared = {**self.spec.shared, **self.spec.shared_scratch}
        return 0 if name in shared and shared[name].is_array else None

    def _world(self, name: str, field: Field, agents: int, refusal: str = "") -> Value:
        """A field of ``World``: of agents, or (0 of them) of the replica."""
        place, kind = f"w.{name}", KINDS[field.type]
        stored = "" if refusal else CPP_TYPES[field.type]
        if agents == 0 and not field.is_array:
            code = f"int({place})" if CPP_TYPES[field.type] in ("u8", "AgentNumber") else place
            return Value(code, kind, place=place if stored else "", stored=stored, refusal=refusal, owner="World")
        length = self.spec.length(name, field, self.params)
        sizes: tuple[int, ...] = (agents,) if agents else (length,)
        form, flat = "{0}[{1}]", ""
        if agents and field.is_array:
            sizes, form, flat = (agents, length), f"{{0}}[{{1}} * {length} + {{2}}]", "{0}[{1}]"
        if not stored and CPP_TYPES[field.type] in ("u8", "AgentNumber"):
            form = f"int({form})"
        array = Elements(kind, sizes, form, stored, refusal, "World", flat=flat, agents=agents > 0)
        return Value(place, array)


def _constant(code: str, name: str, param: Param, params: Mapping[str, Any]) -> Value:
    """A parameter; of fixed whole numbers and switches it is known what they are."""
    if param.kind == "choice":
        return Value(code, Choice(camel(name), param.choices), refusal=PARAMETERS_STAY)
    kind: Type = {"bool": BOOL, "int": INT, "real": REAL}[param.kind]
    if not param.fixed or param.kind == "real":
        return Value(code, kind, refusal=PARAMETERS_STAY)
    known = literal(bool(params[name]) if param.kind == "bool" else int(params[name]))
    return dataclasses.replace(known, code=code, level=Level.ATOM, refusal=PARAMETERS_STAY)
