"""The structs that cross from Python to the kernels: the C++ declaration and the ctypes class, made from one list."""

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Dimensions: TypeAlias = tuple[int | str, ...]
"""The shape of an array: numbers, and names of numbers that are known when the kernel is compiled or launched."""

_C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "Index": ctypes.c_longlong,
    "u64": ctypes.c_ulonglong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}

_DTYPES: dict[str, tuple[str, ...]] = {
    "int": ("int32",),
    "Index": ("int64",),
    "i64": ("int64",),
    "u64": ("int64",),
    "float": ("float32",),
    "double": ("float64",),
    "u8": ("bool", "uint8"),
}
"""What the elements of an array may be in Python. torch has no use for u64, and a u8 is a flag."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a struct."""

    declared: str
    """Its type in C++."""
    kind: "str | Struct"
    """What this type stands for."""
    name: str
    count: int = 0
    """How many of them (0: one, and no array)."""
    dimensions: Dimensions | None = None
    """Of the array that it points to; None: it is no pointer, or an address that nobody checks."""
    nullable: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """What the elements of the array may be."""
        assert isinstance(self.kind, str)
        return _DTYPES[_base(self.kind)]


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct on both sides."""

    name: str
    members: tuple[Member, ...]

    @classmethod
    def of(
        cls,
        name: str,
        real: str,
        *fields: "tuple[str | Struct, str] | tuple[Struct, str, int] | tuple[str, str, Dimensions]",
    ) -> "Struct":
        """Makes a struct of (type, name) pairs, in which ``real`` stands for float or double.

        A struct may be followed by how many there are of it, a pointer by the dimensions of its array; a pointer whose
        type ends in ``?`` may be null.
        """
        members: list[Member] = []
        for kind, field, *rest in fields:
            more: Any = rest[0] if rest else None
            if isinstance(kind, Struct):
                members.append(Member(kind.name, kind, field, count=more or 0))
            else:
                declared = kind.removesuffix("?")
                members.append(Member(declared, declared, field, dimensions=more, nullable=kind != declared))
        if not members:  # an empty struct has a size in C++ and none in ctypes
            members.append(Member("int", "int", "nothing"))
        return cls(name, tuple(members)).resolved({"real": real}, {})

    def resolved(self, types: Mapping[str, str], sizes: Mapping[str, int]) -> "Struct":
        """The same struct where these names of types and of dimensions are known."""

        def known(member: Member) -> Member:
            if isinstance(member.kind, Struct):
                return member
            base = _base(member.kind)
            dimensions = member.dimensions
            if dimensions is not None:
                dimensions = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in dimensions)
            kind = member.kind.replace(base, types[base]) if base in types else member.kind
            return dataclasses.replace(member, kind=kind, dimensions=dimensions)

        return Struct(self.name, tuple(known(member) for member in self.members))

    def cpp(self, body: Sequence[str] = ()) -> str:
        """The declaration in C++."""
        lines = [f"    {m.declared} {m.name}{f'[{m.count}]' if m.count else ''};" for m in self.members]
        return "\n".join([f"struct {self.name} {{", *lines, *(f"    {line}" for line in body), "};"])

    def ctype(self) -> type[ctypes.Structure]:
        """The same struct for ctypes; pointers are addresses."""
        members: list[tuple[str, Any]] = []
        for member in self.members:
            if isinstance(member.kind, Struct):
                nested: Any = member.kind.ctype()
                members.append((member.name, nested * member.count if member.count else nested))
            else:
                pointer = member.kind.endswith("*")
                members.append((member.name, ctypes.c_void_p if pointer else _C_TYPES[member.kind]))
        return type(self.name, (ctypes.Structure,), {"_fields_": members})


def _base(kind: str) -> str:
    """A type without const and pointers."""
    return kind.rstrip("*").removeprefix("const ")
