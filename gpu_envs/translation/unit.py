"""All that becomes of the rules of one spec: the functions, tables and structs of its header."""

import ast
import dataclasses
import types
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.effects import Effects
from gpu_envs.translation.sources import RefusedError, Written, read
from gpu_envs.translation.values import BOOL, INT, REAL, Elements, Number, Several, Type, Value, literal

MOST_CONSTANTS = 4096
"""Numbers in a tuple of the module's."""


@final
@dataclasses.dataclass(frozen=True)
class SourceLine:
    """A line of C++, and the line that it comes from (0: that of the one before)."""

    number: int
    text: str


@final
@dataclasses.dataclass(frozen=True)
class Helper:
    """A function that rules call, translated."""

    written: Written
    cpp: str
    kinds: Mapping[str, Type]
    """The types of its arguments, by name."""
    defaults: Mapping[str, Any]
    result: Type
    effects: Effects


@final
class Unit:
    """All that becomes of the rules of one spec."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.parts: list[tuple[str, list[SourceLine]]] = []
        """Files and their lines, in the order in which they are needed."""
        self.helpers: dict[types.FunctionType, Helper | None] = {}
        """Functions that rules call; None of one that is being translated."""
        self._tables: dict[str, Value] = {}
        self._structs: dict[tuple[Number, ...], Several] = {}
        self._phases: dict[types.FunctionType, bool] = {}

    def has_phases(self, written: Written, name: str) -> bool:
        """Whether a function of that name has a loop over a team's agents."""
        try:
            function = written.find(name)
        except KeyError:
            return False
        if not isinstance(function, types.FunctionType):
            return False
        if function not in self._phases:
            self._phases[function] = False
            try:
                self._phases[function] = self.has_phases_of(read(function, name))
            except ValueError:
                return False
        return self._phases[function]

    def has_phases_of(self, written: Written) -> bool:
        """Whether a function has a loop over a team's agents, or calls one that has."""
        calls = (n.func.id for n in ast.walk(written.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
        return any(_over_agents(node) for node in ast.walk(written.tree)) or any(
            self.has_phases(written, name) for name in calls
        )

    def several(self, kinds: tuple[Number, ...]) -> Several:
        """The struct that holds numbers of these types."""
        if kinds not in self._structs:
            name = f"Results_{len(self._structs) + 1}"
            self._structs[kinds] = Several(name, kinds)
            fields = " ".join(f"{kind.cpp} value{n};" for n, kind in enumerate(kinds))
            self.parts.append(("generated", [SourceLine(1, f"struct {name} {{ {fields} }};")]))
        return self._structs[kinds]

    def constants(self, values: Any) -> Value:
        """A table of the module's numbers, which the source holds."""
        array = np.asarray(values)
        if array.dtype.kind not in "biuf" or not 1 <= array.ndim <= 2 or not 1 <= array.size <= MOST_CONSTANTS:
            raise RefusedError(
                f"this has {array.dtype} elements of shape {array.shape}",
                f"Tuples of up to {MOST_CONSTANTS} numbers are indexed; more of them belong in EnvSpec(tables=...)",
            )
        key = f"{array.dtype} {array.tolist()}"
        if key not in self._tables:
            kind = {"b": BOOL, "f": REAL}.get(array.dtype.kind, INT)
            name = f"Constants_{len(self._tables) + 1}"
            texts = ", ".join(literal(value).text for value in array.ravel().tolist())
            code = f"static constexpr {kind.cpp} values[] = {{{texts}}}; return values[i];"
            self.parts.append(("generated", [SourceLine(1, f"FN {kind.cpp} {name}(int i) {{ {code} }}")]))
            form = "{0}({1})" if array.ndim == 1 else f"{{0}}({{1}} * {array.shape[1]} + {{2}})"
            self._tables[key] = Value(name, Elements(kind, array.shape, form))
        return self._tables[key]


def _over_agents(node: ast.AST) -> bool:
    match node:
        case ast.For(iter=ast.Call(func=ast.Attribute(attr="agents"))):
            return True
    return False
