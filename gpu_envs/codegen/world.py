"""``World`` in C++, a replica of a team: its fields, their memory, and the code that copies them."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpu_envs.backend.program import CPP_TYPES

MAX_FETCHED = 4
"""Maximum elements of a replica's array that is fetched together with scalars, so that a thread waits only once."""


class WorldField(NamedTuple):
    """A field of ``World``."""

    name: str
    type: str
    dtype: str
    sizes: tuple[int, ...]
    """Shape per agent or replica; ``()`` for a scalar."""
    per_agent: bool
    """Whether each agent has one; otherwise the replica."""
    persistent: bool
    """Whether the field keeps its value between steps."""

    @property
    def is_array(self) -> bool:
        """Whether each agent, or the replica, has an array."""
        return bool(self.sizes)

    @property
    def is_world_array(self) -> bool:
        """Whether the field is an array in ``World``, with one element per agent or more."""
        return self.per_agent or self.is_array

    @property
    def length(self) -> int:
        """Elements per agent or replica."""
        return math.prod(self.sizes)

    def shape(self, agents: int) -> tuple[int, ...]:
        """Return the shape of the field in ``World``, with a first axis for agents if each agent has one."""
        return (*((agents,) if self.per_agent else ()), *self.sizes)

    def elements(self, agents: int) -> int:
        """Return the number of elements in a replica."""
        return self.length * (agents if self.per_agent else 1)


def world_struct(
    fields: Iterable[WorldField],
    agents: int,
    offsets: Mapping[str, int],
    *,
    copied: bool,
    single_replica: bool = True,
    checked: bool = False,
) -> str:
    """Generate the C++ structs ``World``, a replica, and ``Fetched``, what a thread reads before its block starts.

    Args:
        fields: The fields of ``World``.
        agents: Agents per replica.
        offsets: Offsets of fields in the memory of a block (CPU: thread); other fields stay in the buffers.
        copied: Whether persistent fields are copied from the buffers to that memory and back.
        single_replica: Whether a block has one replica; with several, arrays are short and copies are not unrolled.
        checked: Whether arrays know their lengths; on a CPU, scratch is filled with the bytes ``SCRATCH_FILL``.
    """
    fields, members, initializers = list(fields), [], []
    copies = _CopyCode(agents, "" if single_replica else '_Pragma("unroll 1") ')
    for field in fields:
        kind, name, length = CPP_TYPES[field.type], field.name, field.elements(agents)
        member_type, sizes = f"CheckedPointer<{kind}>" if checked else f"{kind}*", field.shape(agents)
        if len(sizes) > 1:
            member_type = f"Table<{kind}, {', '.join(map(str, sizes))}>"
        members.append(f"    {member_type if field.is_world_array else kind + '&'} {name};")
        if name in offsets:
            base = f"reinterpret_cast<{kind}*>(local + {offsets[name]})"
            index = "team.slot" if length == 1 else f"team.slot * {length}"
        else:
            buffer = f"buffers.{'state' if field.persistent else 'scratch'}.{name}"
            base, index = buffer, "team.replica" if length == 1 else f"team.replica * {length}"
        if checked and field.is_world_array:
            agent_length = field.length if field.per_agent and field.persistent else 0
            length_argument = "" if len(sizes) > 1 else f"{length}, "
            initializers.append(f'{name}{{{base} + {index}, {length_argument}"{name}", {agent_length}}}')
        else:
            initializers.append(f"{name}({base} + {index})" if field.is_world_array else f"{name}({base}[{index}])")
        if field.persistent and copied and name in offsets:
            copies.add(field)
    unused = "[[maybe_unused]] const Buffers& buffers, [[maybe_unused]] Element replica"
    return "\n".join(
        [
            *copies.fetched(unused),
            "// One replica. Fields of agents are arrays with one element per agent, ordered by role.",
            "struct World {",
            *members,
            "    FN World(const Buffers& buffers, const Team& team, [[maybe_unused]] char* local)",
            "        : "
            + ",\n          ".join(initializers)
            + (f" {{\n{_checked_constructor(fields)}\n    }}" if checked else " {}"),
            *copies.methods(unused),
            "};",
        ]
    )


_FILL_SCRATCH = "if (!ON_GPU) for (int b = 0; b < LOCAL_BYTES; ++b) local[b] = char(SCRATCH_FILL);"
"""Fills scratch in a checked build: results that change with the fill byte show reads of unset scratch."""


def _checked_constructor(fields: Iterable[WorldField]) -> str:
    """Generate the body of ``World``'s constructor in a checked build: it fills scratch and watches scalar fields."""
    lines = [f'        watch(&this->{field.name}, "{field.name}");' for field in fields if not field.is_world_array]
    return "\n".join([f"        {_FILL_SCRATCH}", "#ifdef TURNS", "        turns.scalars = 0;", *lines, "#endif"])


class _CopyCode:
    """Generates the code that copies fields; a thread copies its agent's scalars, and all threads copy arrays."""

    def __init__(self, agents: int, loop: str) -> None:
        self._agents, self._loop = agents, loop
        self._fetched_members: list[str] = []
        self._fetch_initializers: list[str] = []
        self._load: list[str] = []
        self._load_shared: list[str] = []
        self._store: list[str] = []
        self._store_shared: list[str] = []
        self._load_arrays: list[str] = []
        self._store_arrays: list[str] = []

    def add(self, field: WorldField) -> None:
        """Add the code that copies a persistent field from the buffers to ``World`` and back."""
        kind, name, length = CPP_TYPES[field.type], field.name, field.elements(self._agents)
        source = f"buffers.state.{name}"
        if field.is_array and not field.per_agent and length <= MAX_FETCHED:
            indices = range(length)
            self._fetched_members.append(f"    {kind} {name}[{length}];")
            self._fetch_initializers.append(
                f"{name}{{{', '.join(f'{source}[replica * {length} + {k}]' for k in indices)}}}"
            )
            self._load_shared += [f"        this->{name}[{k}] = fetched.{name}[{k}];" for k in indices]
            self._store_shared += [f"        {source}[replica * {length} + {k}] = this->{name}[{k}];" for k in indices]
            return
        if field.is_array:  # consecutive threads copy consecutive elements, for coalesced access
            loop = f"        {self._loop}for (int k = team.rank; k < {length}; k += team.size)"
            self._load_arrays.append(f"{loop} this->{name}[k] = {source}[team.replica * {length} + k];")
            self._store_arrays.append(f"{loop} {source}[team.replica * {length} + k] = this->{name}[k];")
            return
        self._fetched_members.append(f"    {kind} {name};")
        self._fetch_initializers.append(f"{name}({source}[{'at' if field.per_agent else 'replica'}])")
        if field.per_agent:
            self._load.append(f"        this->{name}[i] = fetched.{name};")
            self._store.append(f"        {source}[at] = this->{name}[i];")
        else:
            self._load_shared.append(f"        this->{name} = fetched.{name};")
            self._store_shared.append(f"        {source}[replica] = this->{name};")

    def fetched(self, unused: str) -> list[str]:
        """Return the C++ lines of ``Fetched``, whose constructor declares the parameters ``unused``."""
        return [
            "// Data of an agent and its replica that a thread reads before its block starts",
            "struct Fetched {",
            *self._fetched_members,
            f"    FN Fetched([[maybe_unused]] int i, {unused}, [[maybe_unused]] Element at)",
            *(["        : " + ",\n          ".join(self._fetch_initializers)] if self._fetch_initializers else []),
            "    {}",
            "    FN Fetched(int i, const Buffers& buffers, Element replica)",
            f"        : Fetched(i, buffers, replica, replica * {self._agents} + i) {{}}",
            "};",
        ]

    def methods(self, unused: str) -> list[str]:
        """Return the C++ lines of ``World``'s methods that copy fields; they declare the parameters ``unused``."""
        return [
            "    FN void put([[maybe_unused]] int i, [[maybe_unused]] const Fetched& fetched) {",
            *self._load,
            *(["        if (i != 0) return;"] if self._load_shared else []),
            *self._load_shared,
            "    }",
            f"    FN void store([[maybe_unused]] int i, {unused}) const {{",
            f"        [[maybe_unused]] const Element at = replica * {self._agents} + i;",
            *self._store,
            "    }",
            f"    FN void store_shared({unused}) const {{",
            *self._store_shared,
            "    }",
            *self._array_copy_function("put", self._load_arrays),
            *self._array_copy_function("store", self._store_arrays),
        ]

    def _array_copy_function(self, name: str, lines: list[str]) -> list[str]:
        """Return the C++ lines of the method ``name_arrays``, which copies arrays with all threads of the team."""
        return [
            f"    FN void {name}_arrays([[maybe_unused]] const Team& team, [[maybe_unused]] const Buffers& buffers) {{",
            *(["        if (!team.here) return;"] if lines else []),
            *lines,
            "    }",
        ]
