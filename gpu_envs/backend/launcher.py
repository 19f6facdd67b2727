"""Launches kernels that need no spec: numbers and arrays go into a struct, checked by what the struct says of them."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.program import Program
from gpu_envs.backend.structs import Member

MemberValue: TypeAlias = Array | int | float | None
"""What is given for a member of a kernel's struct, or for a dimension of its arrays."""

_Fit: TypeAlias = tuple[str, tuple[int, ...], tuple[Any, ...], bool]
"""An array's name, its shape, the types it may have, and whether it may be None."""

_MOST_PREPARED = 64
"""Sizes whose launches are kept; a training run has a handful."""


@final
class Kernel:
    """A compiled kernel and its struct.

    A launch needs a value for each member of the struct, and for each dimension of its arrays that is not a member.
    What stays the same is filled in once; the rest is given with each launch.
    """

    def __init__(self, kernels: Callable[[], Kernels], name: str, program: Program, arrays: Arrays) -> None:
        """Begins with nothing filled in. It is launched on the current stream of the arrays' library."""
        self._kernels, self._name, self._arrays = kernels, name, arrays
        self._members = program.structs[name].members
        self._call = program.calls[name]()
        self._filled: dict[str, MemberValue] = {}
        self._update()

    def fill(self, /, **values: MemberValue) -> "Kernel":
        """Fills in what stays the same: members, and dimensions of arrays (not after the arrays).

        A graph that was captured before keeps the old values.

        Returns:
            This kernel.
        """
        if not values.keys() <= self._needed | self._filled.keys():
            raise self._refusal(values)
        given = [member for member in self._members if member.name in values]
        self._write(values, self._fits(given, self._filled | values), [m.name for m in given if m.dimensions is None])
        self._filled |= values  # the arrays must not be freed
        self._update()
        return self

    def bind(self, count: int, /) -> Callable[..., None]:
        """Prepares launches over ``count`` elements that check nothing, so that they cost little.

        What is left of the struct is given by position, in the struct's order: of arrays the addresses.
        """
        call, left, launch = self._call, self._left, self._kernels().bind(self._name, self._call, count)

        def run(*values: int | float | None) -> None:
            for name, value in zip(left, values, strict=True):
                setattr(call, name, value)
            launch(self._arrays.stream())

        return run

    def launch(self, count: int, /, **values: MemberValue) -> None:
        """Checks the arrays, and launches over ``count`` elements on the current stream; not at all for 0.

        Args:
            count: How many.
            values: All that is not filled in. A pointer without dimensions takes an address; arrays do not have a
                dimension that is None.
        """
        if values.keys() != self._needed:
            raise self._refusal(values)
        key: tuple[MemberValue, ...] = (count, *map(values.__getitem__, self._sizes))
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) == _MOST_PREPARED:
                self._prepared.clear()
            launch = self._kernels().bind(self._name, self._call, count) if count else None
            prepared = self._prepared[key] = self._fits(self._checked, self._filled | values), launch
        fits, launch = prepared
        self._write(values, fits, self._unchecked)
        if launch is not None:
            launch(self._arrays.stream())

    def _update(self) -> None:
        """Works out what is left to be given."""
        sizes = {size for member in self._members for size in member.dimensions or () if isinstance(size, str)}
        left = [member for member in self._members if member.name not in self._filled]
        self._left = [member.name for member in left]
        self._sizes = sorted(sizes - self._filled.keys())
        self._needed = frozenset([*self._left, *self._sizes])
        self._checked = [member for member in left if member.dimensions is not None]
        self._unchecked = [member.name for member in left if member.dimensions is None]
        self._prepared: dict[tuple[MemberValue, ...], tuple[list[_Fit], Launch | None]] = {}

    def _fits(self, members: Sequence[Member], sizes: Mapping[str, Any]) -> list[_Fit]:
        """What the arrays among the members must be, for these sizes."""
        fits: list[_Fit] = []
        for member in members:
            if member.dimensions is not None:
                numbers = (sizes[size] if isinstance(size, str) else size for size in member.dimensions)
                shape = tuple(number for number in numbers if number is not None)
                fits.append((member.name, shape, tuple(map(self._arrays.dtype, member.dtypes)), member.nullable))
        return fits

    def _write(self, values: Mapping[str, MemberValue], fits: Sequence[_Fit], others: Sequence[str]) -> None:
        call, address = self._call, self._arrays.checked_address
        for name, shape, dtypes, nullable in fits:
            value = values[name]
            setattr(call, name, None if value is None and nullable else address(name, value, shape, dtypes))
        for name in others:
            setattr(call, name, values[name])

    def _refusal(self, given: Mapping[str, MemberValue]) -> ValueError:
        needed, found = (", ".join(sorted(names)) for names in (self._needed, given))
        return ValueError(f"kernel {self._name} takes {needed}; given {found}")


@final
class Repeated:
    """A kernel of which nearly all that it is given stays the same from launch to launch."""

    def __init__(self, kernel: Kernel) -> None:
        """Nothing has been given yet."""
        self._kernel = kernel
        self._given: tuple[object, ...] = ()
        self._launch: Callable[..., None] | None = None

    def bound(
        self, given: tuple[object, ...], count: int, values: Callable[[], Mapping[str, MemberValue]]
    ) -> Callable[..., None]:
        """Launches over ``count`` elements, as of ``Kernel.bind``: prepared anew where something else was given.

        Args:
            given: What count and values follow from; the same are the same objects.
            count: How many.
            values: Says what is filled in.
        """
        if self._launch is None or any(map(operator.is_not, given, self._given)):
            self._launch = None  # until all of it fits
            self._launch = self._kernel.fill(**values()).bind(count)
            self._given = given
        return self._launch


def load_kernels(backend: Backend, program: Program, library: str = "torch") -> list[Kernel]:
    """Begins to compile a program of ``program_of``, which the first launch, or ``bind``, waits for.

    Returns:
        Its kernels, in the order of ``program.calls``.
    """
    backend.begin(program)
    kernels = functools.cache(lambda: backend.load(program))
    return [Kernel(kernels, name, program, backend.arrays(library)) for name in program.calls]
