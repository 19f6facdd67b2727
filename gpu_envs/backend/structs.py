"""The argument structs of kernels: one list of members makes the C++ declaration and the ctypes class."""

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Dimensions: TypeAlias = tuple[int | str, ...]
"""The shape of an array: integers, and names of sizes that are set when the kernel is compiled or launched."""

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
"""The dtypes in Python of an array's elements. torch has hardly any operations on uint64; a u8 is a flag."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a struct."""

    declared: str
    """The type in the C++ declaration; may be an alias."""
    kind: "str | Struct"
    """The type without aliases."""
    name: str
    count: int = 0
    """The length of an array of structs (0: a single struct)."""
    dimensions: Dimensions | None = None
    """The shape of the array that it points to; None: no pointer, or an unchecked address."""
    nullable: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that the array may have."""
        assert isinstance(self.kind, str)
        return _DTYPES[_base(self.kind)]


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct in C++ and in ctypes."""

    name: str
    members: tuple[Member, ...]

    @classmethod
    def of(
        cls,
        name: str,
        real: str,
        *fields: "tuple[str | Struct, str] | tuple[Struct, str, int] | tuple[str, str, Dimensions]",
    ) -> "Struct":
        """Makes a struct of (type, name) tuples; names of members of the same type may be separated by commas.

        A struct member may have its count as a third element, a pointer the dimensions of its array; a pointer whose
        type ends in ``?`` may be null. ``real`` is the C++ type that replaces the type ``real``.
        """
        members: list[Member] = []
        for kind, names, *rest in fields:
            count_or_dimensions: Any = rest[0] if rest else None
            for field in names.split(", "):
                if isinstance(kind, Struct):
                    members.append(Member(kind.name, kind, field, count=count_or_dimensions or 0))
                else:
                    declared, dimensions = kind.removesuffix("?"), count_or_dimensions
                    members.append(Member(declared, declared, field, dimensions=dimensions, nullable=kind != declared))
        if not members:  # an empty struct has size 1 in C++ and 0 in ctypes
            members.append(Member("int", "int", "nothing"))
        return cls(name, tuple(members)).resolve({"real": real}, {})

    def resolve(self, types: Mapping[str, str], sizes: Mapping[str, int]) -> "Struct":
        """The same struct with aliases of types replaced by ``types``, and names of dimensions by ``sizes``."""

        def resolve_member(member: Member) -> Member:
            if isinstance(member.kind, Struct):
                return member
            base = _base(member.kind)
            dimensions = member.dimensions
            if dimensions is not None:
                dimensions = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in dimensions)
            kind = member.kind.replace(base, types[base]) if base in types else member.kind
            return dataclasses.replace(member, kind=kind, dimensions=dimensions)

        return Struct(self.name, tuple(map(resolve_member, self.members)))

    def cpp(self, body: Sequence[str] = ()) -> str:
        """The declaration in C++, with the lines ``body`` after the members."""
        lines = [f"    {m.declared} {m.name}{f'[{m.count}]' if m.count else ''};" for m in self.members]
        return "\n".join([f"struct {self.name} {{", *lines, *(f"    {line}" for line in body), "};"])

    def ctype(self) -> type[ctypes.Structure]:
        """The ctypes class; pointers are addresses."""
        members: list[tuple[str, Any]] = []
        for member in self.members:
            if isinstance(member.kind, Struct):
                nested: Any = member.kind.ctype()
                members.append((member.name, nested * member.count if member.count else nested))
            else:
                members.append((member.name, ctypes.c_void_p if member.kind[-1] == "*" else _C_TYPES[member.kind]))
        return type(self.name, (ctypes.Structure,), {"_fields_": members})


def _base(kind: str) -> str:
    """A type without ``const`` and ``*``."""
    return kind.rstrip("*").removeprefix("const ")
