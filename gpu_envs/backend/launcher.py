"""Launches kernels that need no spec: checks numbers and arrays against the kernel's struct, and stores them there."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.base import Backend, Kernels, Launch
from gpu_envs.backend.program import Program
from gpu_envs.backend.several import PerRun
from gpu_envs.backend.structs import Member

MemberValue: TypeAlias = Array | int | float | None
"""The value of a member of a kernel's struct, or of a dimension of its arrays."""

_ArrayRule: TypeAlias = tuple[str, tuple[int, ...], tuple[Any, ...], bool]
"""An array's name, its shape, the dtypes it may have, and whether it may be None."""

_MAX_PREPARED = 64
"""Maximum number of sizes with cached launches; a training run has a handful."""


@final
class Kernel:
    """A compiled kernel and its argument struct.

    A launch needs a value for each member of the struct, and for each dimension of its arrays that is not a member.
    ``fill`` sets the values that stay the same; each launch takes the others.
    """

    def __init__(self, kernels: Callable[[], Kernels], name: str, program: Program, arrays: Arrays) -> None:
        """Starts with no values; launches run on the current stream of the arrays' library."""
        self._kernels, self._name, self._arrays = kernels, name, arrays
        self._members = program.structs[name].members
        self._call: Any = program.calls[name]()
        self._call.per_run = {}
        self._filled: dict[str, MemberValue] = {}
        self._update()

    def fill(self, /, **values: MemberValue) -> "Kernel":
        """Checks and sets members, and dimensions of arrays, for all later launches; returns this kernel.

        Dimensions not later than their arrays. A CUDA graph that was captured before keeps the old values.
        """
        if not values.keys() <= self._required | self._filled.keys():
            raise self._argument_error(values)
        new = [member for member in self._members if member.name in values]
        self._write(values, self._rules(new, self._filled | values), [m.name for m in new if m.dimensions is None])
        self._filled |= values  # keeps the arrays alive
        self._update()
        return self

    def bind(self, count: int, /) -> Callable[..., None]:
        """Returns a function that launches over ``count`` elements and checks nothing, which costs little.

        It takes the values of the members that are not filled in, in the struct's order; arrays as their addresses.
        """
        call, open_members, launch = self._call, self._open, self._kernels().bind(self._name, self._call, count)

        def launch_unchecked(*values: int | float | None) -> None:
            for name, value in zip(open_members, values, strict=True):
                setattr(call, name, value)
            launch(self._arrays.stream())

        return launch_unchecked

    def launch(self, count: int, /, **values: MemberValue) -> None:
        """Checks the arrays, and launches over ``count`` elements on the current stream.

        Args:
            count: The number of elements; 0 launches nothing.
            values: All values that are not filled in. A pointer without dimensions takes an address; a dimension that
                is None is dropped from the arrays' shapes.
        """
        if values.keys() != self._required:
            raise self._argument_error(values)
        key: tuple[MemberValue, ...] = (count, *map(values.__getitem__, self._sizes))
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) == _MAX_PREPARED:
                self._prepared.clear()
            launch = self._kernels().bind(self._name, self._call, count) if count else None
            prepared = self._prepared[key] = self._rules(self._checked, self._filled | values), launch
        rules, launch = prepared
        self._write(values, rules, self._unchecked)
        if launch is not None:
            launch(self._arrays.stream())

    def _update(self) -> None:
        """Lists the members and sizes that are not filled in, which launches take; drops cached launches."""
        sizes = {size for member in self._members for size in member.dimensions or () if isinstance(size, str)}
        members = [member for member in self._members if member.name not in self._filled]
        self._open = [member.name for member in members]
        self._sizes = sorted(sizes - self._filled.keys())
        self._required = frozenset([*self._open, *self._sizes])
        self._checked = [member for member in members if member.dimensions is not None]
        self._unchecked = [member.name for member in members if member.dimensions is None]
        self._prepared: dict[tuple[MemberValue, ...], tuple[list[_ArrayRule], Launch | None]] = {}

    def _rules(self, members: Sequence[Member], sizes: Mapping[str, Any]) -> list[_ArrayRule]:
        """The checks of each array among the members: its name, shape, dtypes, and whether it may be None."""
        rules: list[_ArrayRule] = []
        for member in members:
            if member.dimensions is not None:
                dimensions = (sizes[size] if isinstance(size, str) else size for size in member.dimensions)
                shape = tuple(dimension for dimension in dimensions if dimension is not None)
                rules.append((member.name, shape, tuple(map(self._arrays.dtype, member.dtypes)), member.nullable))
        return rules

    def _write(self, values: Mapping[str, MemberValue], rules: Sequence[_ArrayRule], unchecked: Sequence[str]) -> None:
        """Writes into the struct: the addresses of arrays, after a check of their rules, and ``unchecked`` members."""
        call, address = self._call, self._arrays.checked_address
        for name, shape, dtypes, nullable in rules:
            value = values[name]
            setattr(call, name, None if value is None and nullable else address(name, value, shape, dtypes))
        for name in unchecked:
            setattr(call, name, values[name])
            if isinstance(values[name], PerRun):
                call.per_run[name] = values[name]

    def _argument_error(self, values: Mapping[str, MemberValue]) -> ValueError:
        required, given = (", ".join(sorted(names)) or "nothing" for names in (self._required, values))
        return ValueError(f"kernel {self._name} takes {required}; given {given}")


@final
class CachedLaunch:
    """A kernel whose filled-in values rarely change from launch to launch."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._key: tuple[object, ...] = ()
        self._launch: Callable[..., None] | None = None

    def bound(
        self, key: tuple[object, ...], count: int, values: Callable[[], Mapping[str, MemberValue]]
    ) -> Callable[..., None]:
        """Returns the function of ``Kernel.bind``, without calling it; fills in and binds again only for a new ``key``.

        Args:
            key: The objects that count and values depend on, compared by identity.
            count: The number of elements.
            values: Returns the values for ``Kernel.fill``.
        """
        if self._launch is None or any(map(operator.is_not, key, self._key)):
            self._launch = None  # stays None if fill() raises
            self._launch = self._kernel.fill(**values()).bind(count)
            self._key = key
        return self._launch


def load_kernels(backend: Backend, program: Program, library: str = "torch") -> list[Kernel]:
    """Starts to compile a program; returns its kernels, in the order of ``calls``, whose first launch waits for it."""
    backend.start_compiling(program)
    kernels = functools.cache(lambda: backend.load(program))
    return [Kernel(kernels, name, program, backend.arrays(library)) for name in program.calls]
