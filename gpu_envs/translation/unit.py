"""All that becomes of the rules of one spec: the functions, tables and structs of its header."""

import math
import types
from typing import Any, final

import numpy as np

from gpu_envs.translation.arguments import Arguments
from gpu_envs.translation.sources import RefusedError
from gpu_envs.translation.tree import Field, Function
from gpu_envs.translation.types import BOOL, INT, REAL, Array, Number, Record, Several

MOST_CONSTANTS = 4096
"""Numbers in a tuple of the module's."""


class SourceLine(Record):
    """A line of C++, and the line that it comes from (0: that of the one before)."""

    number: int
    text: str


@final
class Unit:
    """All that becomes of the rules of one spec."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.parts: list[tuple[str, list[SourceLine]]] = []
        """Files and their lines, in the order in which they are needed."""
        self.functions: dict[types.FunctionType, Function | None] = {}
        """Functions that rules call; None of one that is being translated."""
        self._tables: dict[str, Field] = {}
        self._structs: dict[tuple[Number, ...], Several] = {}

    def several(self, kinds: tuple[Number, ...]) -> Several:
        """The struct that holds numbers of these types."""
        if kinds not in self._structs:
            name = f"Results_{len(self._structs) + 1}"
            self._structs[kinds] = Several(name, kinds)
            fields = " ".join(f"{kind.cpp} value{n};" for n, kind in enumerate(kinds))
            self.parts.append(("generated", [SourceLine(1, f"struct {name} {{ {fields} }};")]))
        return self._structs[kinds]

    def constants(self, values: Any) -> Field:
        """A table of the module's numbers, which the source holds."""
        try:
            array = np.asarray(values)
        except ValueError:
            raise RefusedError("this has rows of different lengths", "Make them of one length") from None
        if array.dtype.kind not in "biuf" or not 1 <= array.ndim <= 2 or not 1 <= array.size <= MOST_CONSTANTS:
            raise RefusedError(
                f"this has {array.dtype} elements of shape {array.shape}",
                f"Tuples of up to {MOST_CONSTANTS} numbers are indexed; more of them belong in EnvSpec(tables=...)",
            )
        key = f"{array.dtype} {array.tolist()}"
        if key not in self._tables:
            kind = {"b": BOOL, "f": REAL}.get(array.dtype.kind, INT)
            name = f"Constants_{len(self._tables) + 1}"
            texts = ", ".join(map(_text, array.ravel().tolist()))
            code = f"static constexpr {kind.cpp} values[] = {{{texts}}}; return values[i];"
            self.parts.append(("generated", [SourceLine(1, f"FN {kind.cpp} {name}(int i) {{ {code} }}")]))
            form = "{0}({1})" if array.ndim == 1 else f"{{0}}({{1}} * {array.shape[1]} + {{2}})"
            self._tables[key] = Field(Array(kind, array.shape, form), "", name)
        return self._tables[key]


def _text(value: Any) -> str:
    """A number of a table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError("this has numbers that are not finite", "Give finite ones")
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise RefusedError(f"this has {value}, which does not fit 32 bits", "Give floats, or smaller numbers")
    return f"real({value!r})" if isinstance(value, float) else str(value)
