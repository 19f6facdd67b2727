"""The structs that cross from Python to the kernels: the C++ declaration and the ctypes class, made from one list."""

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

_C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "Index": ctypes.c_longlong,
    "u64": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct on both sides."""

    name: str
    fields: tuple[tuple[str, "str | Struct", str, int], ...]
    """Type in C++, type it stands for, name, and how many of them (0: one, and no array)."""

    @classmethod
    def of(cls, name: str, real: str, *fields: "tuple[str | Struct, str] | tuple[Struct, str, int]") -> "Struct":
        """Makes a struct of (type, name) pairs, in which ``real`` stands for float or double."""
        resolved: list[tuple[str, str | Struct, str, int]] = []
        for kind, field, *count in fields:
            if isinstance(kind, Struct):
                resolved.append((kind.name, kind, field, count[0] if count else 0))
            else:
                cpp = kind.replace("real", real) if kind.rstrip("*").removeprefix("const ") == "real" else kind
                resolved.append((kind, cpp, field, 0))
        if not resolved:  # an empty struct has a size in C++ and none in ctypes
            resolved.append(("int", "int", "nothing", 0))
        return cls(name, tuple(resolved))

    def cpp(self, body: Sequence[str] = ()) -> str:
        """The declaration in C++."""
        lines = [f"    {kind} {field}{f'[{count}]' if count else ''};" for kind, _, field, count in self.fields]
        return "\n".join([f"struct {self.name} {{", *lines, *(f"    {line}" for line in body), "};"])

    def ctype(self) -> type[ctypes.Structure]:
        """The same struct for ctypes; pointers are addresses."""
        members: list[tuple[str, Any]] = []
        for _, kind, field, count in self.fields:
            if isinstance(kind, Struct):
                nested: Any = kind.ctype()
                members.append((field, nested * count if count else nested))
            else:
                members.append((field, ctypes.c_void_p if kind.endswith("*") else _C_TYPES[kind]))
        return type(self.name, (ctypes.Structure,), {"_fields_": members})
