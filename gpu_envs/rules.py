"""Names for rules written in Python: types for annotations, and functions that Python lacks.

    from gpu_envs.rules import Action, Observation, Params, Random, State

    def reset(s: State, p: Params, random: Random) -> None:
        s.x = random.uniform(p.low, p.high)

Rules are translated to C++ and never run by Python, so nothing here does anything. Constants that are known at
translation can be imported by name, in capitals: ``AGENTS``, the number of each role, and ``fixed`` parameters.
"""

from collections.abc import Iterable, Iterator, Sequence
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


def _raise_not_run() -> NoReturn:
    raise RuntimeError("rules are translated to C++ and never run by Python; give them to gpu_envs.Rules(...)")


@final
class Constant:
    """A number that is known when rules are translated: ``AGENTS``, the number of a role, or a fixed parameter."""

    def __init__(self, name: str) -> None:
        """Store the name, for messages."""
        self.name = name

    def _no_value(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self.name} has no value in the module: it is known when rules are translated. Use it only within a "
            "function of the rules"
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __neg__ = __abs__ = __round__ = _no_value
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_value
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = _no_value
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rand__ = __ror__ = _no_value
    __hash__ = object.__hash__


class _Fields:
    """An object whose attributes are the fields of the spec."""

    def __getattr__(self, name: str) -> Any:
        _raise_not_run()

    def __setattr__(self, name: str, value: Any) -> None:
        _raise_not_run()


@final
class State(_Fields):
    """The state of one replica of a single-agent environment: ``s.x``; an element of an array: ``s.cells[j]``."""


@final
class Params(_Fields):
    """Parameters, reset options and tables: ``p.gravity``, ``p.start == "fixed"``, ``p.map[row, column]``."""


@final
class World(_Fields):
    """The state of one replica with several agents: ``w.speed[i]`` for an agent, ``w.runners_left`` for the replica."""


@final
class Random:
    """A random number generator."""

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Draw a float uniformly from ``low`` to ``high``; give both or neither."""
        _raise_not_run()

    def integer(self, n: int) -> int:
        """Draw an integer uniformly from 0 to n-1."""
        _raise_not_run()

    def normal(self, mean: float, std: float) -> float:
        """Draw a float from the normal distribution."""
        _raise_not_run()

    def exponential(self, rate: float) -> float:
        """Draw a float from the exponential distribution, whose mean is ``1 / rate``."""
        _raise_not_run()

    def poisson(self, mean: float) -> int:
        """Draw a number of events from the Poisson distribution; ``mean`` up to 10,000."""
        _raise_not_run()

    def binomial(self, n: int, p: float) -> int:
        """Draw the number of successes in ``n`` trials, each with the probability ``p``."""
        _raise_not_run()

    def choice(self, weights: Sequence[float]) -> int:
        """Draw an index of ``weights``, with a probability proportional to its weight; at most 64 weights.

        Negative weights count as 0. If all are 0, the last index is returned.
        """
        _raise_not_run()

    def bits(self) -> int:
        """Draw 32 random bits, as an int that may be negative."""
        _raise_not_run()


@final
class Stream:
    """A random stream: ``RESET`` or ``STEP``."""


RESET = Stream()
"""The random numbers of a reset."""
STEP = Stream()
"""The random numbers of a step."""


@final
class Team:
    """The agents of a replica."""

    last_step: bool
    """Whether this step reaches the time limit."""

    def agents(self, n: int = 0) -> Iterator[int]:
        """A phase, ``for i in team.agents(n):``: one iteration for each of the first ``n`` agents, by default all."""
        _raise_not_run()

    def elements(self, rows: int, columns: int) -> Iterator[tuple[int, int]]:
        """A phase, ``for i, j in team.elements(rows, columns):``: one iteration for each element of a matrix."""
        _raise_not_run()

    def sum(self, values: Iterable[float], *, double: bool = False) -> float:
        """A phase, ``w.total = team.sum(w.x[i] for i in team.agents())``; every device returns the same bits.

        For one sum per agent write ``w.owed[i] = team.sum(w.debts[i, j] for j in team.agents())`` as the only statement
        of a phase ``for i in team.agents():``.

        Args:
            values: A generator over ``team.agents(n)`` or ``range(n)``.
            double: Whether to add up in float64.
        """
        _raise_not_run()

    def max(self, values: Iterable[float]) -> float:
        """A phase like ``sum``: the maximum of at least one number."""
        _raise_not_run()

    def min(self, values: Iterable[float]) -> float:
        """A phase like ``sum``: the minimum of at least one number."""
        _raise_not_run()

    def random(self, stream: Stream, agent: int, step: int = 0) -> Random:
        """The generator of an agent for a reset, or for step number ``step``, usually ``w.elapsed``."""
        _raise_not_run()

    def shared_random(self, stream: Stream, agent: int) -> Random:
        """A generator that draws the same numbers in all replicas and episodes."""
        _raise_not_run()


@final
class Row:
    """An agent's row of observations: ``row[j] = ...``."""

    def columns(self, n: int) -> Iterator[int]:
        """``for j in row.columns(n):``, one iteration per column; threads share the columns of a wide row."""
        _raise_not_run()

    def __setitem__(self, j: int, value: float) -> None:
        """Write a float."""
        _raise_not_run()


@final
class Mask:
    """The action mask: ``mask[a] = False`` forbids action ``a``."""

    def __setitem__(self, action: int, value: bool) -> None:
        """Allow or forbid an action."""
        _raise_not_run()


@final
class Metrics(_Fields):
    """The metrics of an episode, which ``measure`` writes: ``metrics.height = ...``."""


Action: TypeAlias = Any
"""The action of an agent: an int if the space is Discrete, otherwise ``action[j]``."""

TeamActions: TypeAlias = Any
"""The actions of several agents: ``actions[i]``."""

Observation: TypeAlias = Any
"""The observation: ``observation[j] = ...``; for a Dict space ``observation.image[j] = ...``."""


def add(field: int, value: int) -> None:
    """Add to an integer field of any agent, or of the replica, atomically: any iteration of a phase may."""
    _raise_not_run()


def lower(field: int, value: int) -> None:
    """Lower an integer field of any agent, or of the replica, to at most ``value``, atomically as ``add``."""
    _raise_not_run()


def minimum(a: float, b: float) -> float:
    """The smaller number, as ``min``."""
    _raise_not_run()


def maximum(a: float, b: float) -> float:
    """The larger number, as ``max``."""
    _raise_not_run()


def clip(x: float, low: float, high: float) -> float:
    """``x`` limited to the range from ``low`` to ``high``."""
    _raise_not_run()


def fma(a: float, b: float, c: float) -> float:
    """``a * b + c``, rounded once."""
    _raise_not_run()


def role_of(agent: int) -> int:
    """The number of an agent's role."""
    _raise_not_run()


def first_of(role: int) -> int:
    """The number of a role's first agent."""
    _raise_not_run()


def count_of(role: int) -> int:
    """The number of agents of a role."""
    _raise_not_run()


def features_of(role: int) -> int:
    """The number of floats in an observation of a role."""
    _raise_not_run()


def __getattr__(name: str) -> Any:
    """Return a constant by its name, in capitals."""
    if name.isupper() and not name.startswith("_"):
        return Constant(name)
    raise AttributeError(f"gpu_envs.rules has no {name!r}; the names of a spec's constants are in capitals")
