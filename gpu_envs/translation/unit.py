"""Translation unit: the functions, tables and structs of the header of one spec."""

import math
import types
from typing import Any, final

import numpy as np

from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Field, Function
from gpu_envs.translation.types import BOOL, INT, REAL, Array, Number, Record, Tuple

MAX_CONSTANTS = 4096
"""Maximum size of a table of constants from the author's module."""


class SourceLine(Record):
    """A line of C++ with the author's line that it comes from."""

    number: int
    """Line number; 0: the same line as before."""
    text: str


@final
class Unit:
    """The translated rules of one spec."""

    def __init__(self, argument_types: Arguments) -> None:
        self.arguments = argument_types
        self.parts: list[tuple[str, list[SourceLine]]] = []
        """Author's file and lines of C++, in order of declaration."""
        self.functions: dict[types.FunctionType, Function | None] = {}
        """Functions that rules call; None: still being translated."""
        self._tables: dict[str, Field] = {}
        self._structs: dict[tuple[Number, ...], Tuple] = {}

    def tuple_type(self, kinds: tuple[Number, ...]) -> Tuple:
        """Return the type of tuples of these numbers; a new one adds its struct to the header."""
        if kinds not in self._structs:
            name = f"Results_{len(self._structs) + 1}"
            self._structs[kinds] = Tuple(name, kinds)
            fields = " ".join(f"{kind.cpp} value{n};" for n, kind in enumerate(kinds))
            self.parts.append(("generated", [SourceLine(1, f"struct {name} {{ {fields} }};")]))
        return self._structs[kinds]

    def constant_table(self, values: Any) -> Field:
        """Return a field for a table of constants, of one or two dimensions, and add a new one to the header."""
        try:
            array = np.asarray(values)
        except ValueError:
            raise RefusedError("this has rows of different lengths", "Make all rows the same length") from None
        if array.dtype.kind not in "biuf" or not 1 <= array.ndim <= 2 or not 1 <= array.size <= MAX_CONSTANTS:
            raise RefusedError(
                f"this has {array.dtype} elements of shape {array.shape}",
                f"Index a tuple of at most {MAX_CONSTANTS} numbers; put larger tables in EnvSpec(tables=...)",
            )
        key = f"{array.dtype} {array.tolist()}"
        if key not in self._tables:
            kind = {"b": BOOL, "f": REAL}.get(array.dtype.kind, INT)
            name = f"Constants_{len(self._tables) + 1}"
            literals = ", ".join(map(_literal, array.ravel().tolist()))
            code = f"static constexpr {kind.cpp} values[] = {{{literals}}}; return values[i];"
            self.parts.append(("generated", [SourceLine(1, f"FN {kind.cpp} {name}(int i) {{ {code} }}")]))
            form = "{0}({1})" if array.ndim == 1 else f"{{0}}({{1}} * {array.shape[1]} + {{2}})"
            self._tables[key] = Field(Array(kind, array.shape, form), "", name)
        return self._tables[key]


def _literal(value: Any) -> str:
    """Return the C++ literal of a table's number; refuse infinity, NaN and large ints."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError("this has numbers that are not finite", "Use finite numbers")
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise RefusedError(f"this has {value}, which does not fit 32 bits", "Use floats, or smaller numbers")
    return f"real({value!r})" if isinstance(value, float) else str(value)
