"""What rules that are written in Python import: names for annotations, and functions that Python does not have.

    from gpu_envs.rules import Action, Observation, Params, Random, State

    def reset(s: State, p: Params, random: Random) -> None:
        s.x = random.uniform(p.low, p.high)

Rules are translated and never run, so none of this does anything in Python. Constants that the translation knows can be
imported by their names: ``AGENTS``, the roles' numbers and the parameters marked ``fixed``, in capitals.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, TypeAlias, final

__all__ = [
    "RESET",
    "STEP",
    "Action",
    "Constant",
    "Mask",
    "Metrics",
    "Observation",
    "Params",
    "Random",
    "Row",
    "State",
    "Stream",
    "Team",
    "TeamActions",
    "World",
    "add",
    "clip",
    "count_of",
    "features_of",
    "first_of",
    "fma",
    "lower",
    "maximum",
    "minimum",
    "role_of",
]


def _never() -> NoReturn:
    raise RuntimeError("rules are translated to C++ and never run by Python; give them to gpu_envs.Rules(...)")


@final
class Constant:
    """A number that is known where rules are translated: ``AGENTS``, a role's, a fixed parameter."""

    def __init__(self, name: str) -> None:
        """Names it."""
        self.name = name

    def _not_yet(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self.name} has no value in the module: it is known where rules are translated. Use it within a function "
            "of the rules"
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __neg__ = __abs__ = __round__ = _not_yet
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _not_yet
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = _not_yet
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rand__ = __ror__ = _not_yet
    __hash__ = object.__hash__


class _Fields:
    """Something with the fields of the spec."""

    def __getattr__(self, name: str) -> Any:
        _never()

    def __setattr__(self, name: str, value: Any) -> None:
        _never()


@final
class State(_Fields):
    """The state of one replica of a single-agent environment: ``s.x``, or ``s.cells[j]`` of an array."""


@final
class Params(_Fields):
    """Parameters, reset options and tables: ``p.gravity``, ``p.start == "fixed"``, ``p.map[row, column]``."""


@final
class World(_Fields):
    """One replica of a team: ``w.speed[i]`` of an agent, ``w.runners_left`` of the replica."""


@final
class Random:
    """Random numbers."""

    def uniform(self, low: float, high: float) -> float:
        """A number from ``low`` up to ``high``."""
        _never()

    def integer(self, n: int) -> int:
        """A whole number from 0 to n-1."""
        _never()

    def normal(self, mean: float, deviation: float) -> float:
        """A number of the normal distribution."""
        _never()

    def bits(self) -> int:
        """32 random bits, as an int that may be negative."""
        _never()


@final
class Stream:
    """What random numbers are for: ``RESET`` or ``STEP``."""


RESET = Stream()
"""Of a beginning."""
STEP = Stream()
"""Of a step."""


@final
class Team:
    """The agents of a replica."""

    last_step: bool
    """Whether the time limit is reached with this step."""

    def agents(self, n: int = 0) -> Iterator[int]:
        """A phase, ``for i in team.agents(n):``: a turn for each of the first ``n`` agents, or for all of them."""
        _never()

    def elements(self, rows: int, columns: int) -> Iterator[tuple[int, int]]:
        """A phase, ``for i, j in team.elements(rows, columns):``: a turn for each element of a matrix."""
        _never()

    def sum(self, values: Iterable[float], *, double: bool = False) -> float:
        """A phase, ``w.total = team.sum(w.x[i] for i in team.agents())``, whose bits are the same on every device.

        One for each agent is ``w.owed[i] = team.sum(w.debts[i, j] for j in team.agents())``, alone in a phase
        ``for i in team.agents():``.

        Args:
            values: A generator over ``team.agents(n)`` or ``range(n)``.
            double: Whether to add up in float64.
        """
        _never()

    def max(self, values: Iterable[float]) -> float:
        """A phase like ``sum``: the greatest of one number or more."""
        _never()

    def min(self, values: Iterable[float]) -> float:
        """A phase like ``sum``: the least of one number or more."""
        _never()

    def random(self, stream: Stream, agent: int, step: int = 0) -> Random:
        """The random numbers of an agent in a reset, or in the step ``w.elapsed``."""
        _never()

    def shared_random(self, stream: Stream, agent: int) -> Random:
        """The same numbers in all replicas and episodes."""
        _never()


@final
class Row:
    """An agent's row of observations: ``row[j] = ...``."""

    def columns(self, n: int) -> Iterator[int]:
        """``for j in row.columns(n):``, for what there is a column of; threads share the columns of a wide row."""
        _never()

    def __setitem__(self, j: int, value: float) -> None:
        """Writes a float."""
        _never()


@final
class Mask:
    """Which actions are possible: ``mask[a] = False`` forbids one."""

    def __setitem__(self, action: int, value: bool) -> None:
        """Says so of one."""
        _never()


@final
class Metrics(_Fields):
    """What ``measure`` says of an episode: ``metrics.height = ...``."""


Action: TypeAlias = Any
"""What an agent does: an int where the space is Discrete, otherwise ``action[j]``."""

TeamActions: TypeAlias = Any
"""What the agents of a team do: ``actions[i]``."""

Observation: TypeAlias = Any
"""What is seen: ``observation[j] = ...``, or ``observation.image[j] = ...`` of a Dict."""


def add(field: int, value: int) -> None:
    """Adds to an integer of any agent, or of the replica, from any turn of a phase."""
    _never()


def lower(field: int, value: int) -> None:
    """Sets an integer of any agent, or of the replica, to ``value`` where that is less, from any turn of a phase."""
    _never()


def minimum(a: float, b: float) -> float:
    """The lesser: as ``min``."""
    _never()


def maximum(a: float, b: float) -> float:
    """The greater: as ``max``."""
    _never()


def clip(x: float, low: float, high: float) -> float:
    """``x``, or the limit that it lies beyond."""
    _never()


def fma(a: float, b: float, c: float) -> float:
    """``a * b + c``, rounded once."""
    _never()


def role_of(agent: int) -> int:
    """The number of an agent's role."""
    _never()


def first_of(role: int) -> int:
    """The number of a role's first agent."""
    _never()


def count_of(role: int) -> int:
    """How many agents a role has."""
    _never()


def features_of(role: int) -> int:
    """How many floats a role's row of observations has."""
    _never()


def __getattr__(name: str) -> Any:
    """A constant by its name, in capitals."""
    if name.isupper() and not name.startswith("_"):
        return Constant(name)
    raise AttributeError(f"gpu_envs.rules has no {name!r}; constants of a spec are named in capitals")
