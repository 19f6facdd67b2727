"""``World``, a replica of a team: its fields in C++, wherever they lie, and how they get there and back."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpu_envs.backend.program import CPP_TYPES

FEW = 4
"""A replica's arrays of no more elements are fetched with its single numbers, so that all are waited for once."""


class WorldField(NamedTuple):
    """A field of ``World``."""

    name: str
    type: str
    dtype: str
    sizes: tuple[int, ...]
    """Its shape, for each agent or the replica; of a single number ``()``."""
    team: bool
    """It is there for each agent; otherwise once for the replica."""
    kept: bool
    """It lasts from step to step."""

    @property
    def is_array(self) -> bool:
        """Whether it is an array for each agent, or the replica."""
        return bool(self.sizes)

    @property
    def array(self) -> bool:
        """Whether it is an array in ``World``."""
        return self.team or self.is_array

    @property
    def length(self) -> int:
        """Its elements for each agent, or the replica."""
        return math.prod(self.sizes)

    def shape(self, agents: int) -> tuple[int, ...]:
        """That of the array in ``World``."""
        return (*((agents,) if self.team else ()), *self.sizes)

    def elements(self, agents: int) -> int:
        """How many elements it has in a replica."""
        return self.length * (agents if self.team else 1)


def world_struct(
    fields: Iterable[WorldField],
    agents: int,
    offsets: Mapping[str, int],
    *,
    copied: bool,
    alone: bool = True,
    checked: bool = False,
) -> str:
    """``World``, and ``Fetched``, what is read of an agent and its replica before it is worked on.

    Args:
        fields: Those of ``World``.
        agents: How many agents a replica has.
        offsets: Where in a block's (on a CPU: a thread's) memory a field lies; those without lie among the buffers.
        copied: Fields that last are copied from the buffers into that memory, and back.
        alone: A block has one replica; with several, whose arrays are short, loops that copy them are not unrolled.
        checked: Arrays know their lengths; on a CPU, scratch begins with the bytes ``SCRATCH_FILL``.
    """
    fields, members, places = list(fields), [], []
    copies = _Copies(agents, "" if alone else '_Pragma("unroll 1") ')
    for field in fields:
        kind, name, length = CPP_TYPES[field.type], field.name, field.elements(agents)
        pointer, sizes = f"CheckedPointer<{kind}>" if checked else f"{kind}*", field.shape(agents)
        if len(sizes) > 1:
            pointer = f"Table<{kind}, {', '.join(map(str, sizes))}>"
        members.append(f"    {pointer if field.array else kind + '&'} {name};")
        if name in offsets:
            base = f"reinterpret_cast<{kind}*>(local + {offsets[name]})"
            index = "team.slot" if length == 1 else f"team.slot * {length}"
        else:
            group = f"buffers.{'state' if field.kept else 'scratch'}.{name}"
            base, index = group, "team.replica" if length == 1 else f"team.replica * {length}"
        if checked and field.array:
            each = field.length if field.team and field.kept else 0
            many = "" if len(sizes) > 1 else f"{length}, "
            places.append(f'{name}{{{base} + {index}, {many}"{name}", {each}}}')
        else:
            places.append(f"{name}({base} + {index})" if field.array else f"{name}({base}[{index}])")
        if field.kept and copied and name in offsets:
            copies.add(field)
    unused = "[[maybe_unused]] const Buffers& buffers, [[maybe_unused]] Element replica"
    return "\n".join(
        [
            *copies.fetched(unused),
            "// One replica. Fields of agents are arrays of one element an agent, role after role.",
            "struct World {",
            *members,
            "    FN World(const Buffers& buffers, const Team& team, [[maybe_unused]] char* local)",
            "        : " + ",\n          ".join(places) + (f" {{\n{_body(fields)}\n    }}" if checked else " {}"),
            *copies.methods(unused),
            "};",
        ]
    )


_FILL = "if (!ON_GPU) for (int b = 0; b < LOCAL_BYTES; ++b) local[b] = char(SCRATCH_FILL);"
"""What scratch begins with in a checked build: to count on it is a mistake, which another byte brings to light."""


def _body(fields: Iterable[WorldField]) -> str:
    """What a checked build does where a World is made: fills scratch, and has fields followed."""
    watched = [f'        watch(&this->{field.name}, "{field.name}");' for field in fields if not field.array]
    return "\n".join([f"        {_FILL}", "#ifdef TURNS", "        turns.scalars = 0;", *watched, "#endif"])


class _Copies:
    """The lines that copy fields in and out, each agent's its own, and arrays all threads together."""

    def __init__(self, agents: int, loop: str) -> None:
        self._agents, self._loop = agents, loop
        self._held: list[str] = []
        self._fetch: list[str] = []
        self._put: list[str] = []
        self._put_shared: list[str] = []
        self._store: list[str] = []
        self._store_shared: list[str] = []
        self._put_arrays: list[str] = []
        self._store_arrays: list[str] = []

    def add(self, field: WorldField) -> None:
        """Has a field copied."""
        kind, name, length = CPP_TYPES[field.type], field.name, field.elements(self._agents)
        source = f"buffers.state.{name}"
        if field.is_array and not field.team and length <= FEW:
            places = range(length)
            self._held.append(f"    {kind} {name}[{length}];")
            self._fetch.append(f"{name}{{{', '.join(f'{source}[replica * {length} + {k}]' for k in places)}}}")
            self._put_shared += [f"        this->{name}[{k}] = fetched.{name}[{k}];" for k in places]
            self._store_shared += [f"        {source}[replica * {length} + {k}] = this->{name}[{k}];" for k in places]
            return
        if field.is_array:  # neighbouring threads copy neighbouring elements, of any agent
            turns = f"        {self._loop}for (int k = team.rank; k < {length}; k += team.size)"
            self._put_arrays.append(f"{turns} this->{name}[k] = {source}[team.replica * {length} + k];")
            self._store_arrays.append(f"{turns} {source}[team.replica * {length} + k] = this->{name}[k];")
            return
        self._held.append(f"    {kind} {name};")
        self._fetch.append(f"{name}({source}[{'at' if field.team else 'replica'}])")
        if field.team:
            self._put.append(f"        this->{name}[i] = fetched.{name};")
            self._store.append(f"        {source}[at] = this->{name}[i];")
        else:
            self._put_shared.append(f"        this->{name} = fetched.{name};")
            self._store_shared.append(f"        {source}[replica] = this->{name};")

    def fetched(self, unused: str) -> list[str]:
        """``Fetched``."""
        return [
            "// What a block reads of an agent and its replica before it works on them; in place, nothing",
            "struct Fetched {",
            *self._held,
            f"    FN Fetched([[maybe_unused]] int i, {unused}, [[maybe_unused]] Element at)",
            *(["        : " + ",\n          ".join(self._fetch)] if self._fetch else []),
            "    {}",
            "    FN Fetched(int i, const Buffers& buffers, Element replica)",
            f"        : Fetched(i, buffers, replica, replica * {self._agents} + i) {{}}",
            "};",
        ]

    def methods(self, unused: str) -> list[str]:
        """``World``'s functions that copy."""
        return [
            "    FN void put([[maybe_unused]] int i, [[maybe_unused]] const Fetched& fetched) {",
            *self._put,
            *(["        if (i != 0) return;"] if self._put_shared else []),
            *self._put_shared,
            "    }",
            f"    FN void store([[maybe_unused]] int i, {unused}) const {{",
            f"        [[maybe_unused]] const Element at = replica * {self._agents} + i;",
            *self._store,
            "    }",
            f"    FN void store_shared({unused}) const {{",
            *self._store_shared,
            "    }",
            *self._of_arrays("put", self._put_arrays),
            *self._of_arrays("store", self._store_arrays),
        ]

    def _of_arrays(self, name: str, lines: list[str]) -> list[str]:
        """A function that copies arrays, all threads of the team together."""
        return [
            f"    FN void {name}_arrays([[maybe_unused]] const Team& team, [[maybe_unused]] const Buffers& buffers) {{",
            *(["        if (!team.here) return;"] if lines else []),
            *lines,
            "    }",
        ]
