"""Parameters that follow from others: computed on the host, and never given."""

import dataclasses
from collections.abc import Iterator, Mapping, Set
from typing import Any, Never, final

import numpy as np

from gpu_envs.documented import documented
from gpu_envs.specs.evaluate import evaluate
from gpu_envs.specs.params import Param, ParamValue


@final
@documented
@dataclasses.dataclass(frozen=True, slots=True)
class Derived(Param):
    """A real parameter, or an array of them, that follows from others.

    ``default`` is the function that computes it, of one replica's parameters. It is called when an environment is made
    and whenever a parameter is set, also by the options of a reset, for that reset; where replicas have their own of
    what it asks for, once for each replica.
    """

    def __post_init__(self) -> None:
        """Refuses what is no function."""
        if not callable(self.default):
            raise TypeError(f"a derived parameter is {self.default!r}; give a function of the parameters")
        if self.shape is not None:
            self._check_array()

    def check(
        self, name: str, value: Any, num_envs: int, precision: str = "float64", sizes: tuple[int, ...] = ()
    ) -> Never:
        """Raises a ValueError: nobody gives it."""
        del value, num_envs, precision, sizes
        raise ValueError(f"parameter {name!r} follows from other parameters; give those")

    def compute(
        self,
        name: str,
        values: Mapping[str, Any],
        settings: Mapping[str, Param],
        num_envs: int,
        precision: str,
        sizes: tuple[int, ...],
    ) -> tuple[ParamValue, Set[str]]:
        """Its value under these parameters, and the names of those that it was computed from.

        Args:
            name: Its name, for a message.
            values: The parameters, checked.
            settings: What they are.
            num_envs: The number of replicas.
            precision: Of real numbers in the simulation.
            sizes: Of an array.
        """
        own = frozenset(n for n, value in values.items() if settings[n].is_per_replica(value))
        seen = {n: _seen(value, precision) for n, value in values.items()}
        one, what = _OneReplica(seen, own, settings, 0), f"the parameter {name!r}"
        with np.errstate(all="ignore"):  # what comes of it is looked at
            made = evaluate(self.default, one, what)
            if one.asked & own:
                others = (_OneReplica(seen, own, settings, i) for i in range(1, num_envs))
                made = np.stack([made, *(evaluate(self.default, other, what) for other in others)])
        try:
            return Param.check(self, name, made, num_envs, precision, sizes), one.asked
        except ValueError as error:
            raise ValueError(f"{error} (it follows from {', '.join(sorted(one.asked)) or 'none'})") from None


def _seen(value: Any, precision: str) -> Any:
    """A value as kernels have it, in float64 where it is real."""
    if isinstance(value, float):
        return float(np.asarray(value, precision))
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


@final
class _OneReplica(Mapping[str, Any]):
    """The parameters of one replica, and which of them were asked for."""

    def __init__(self, values: Mapping[str, Any], own: Set[str], settings: Mapping[str, Param], replica: int) -> None:
        self._values, self._own, self._settings, self._replica = values, own, settings, replica
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        self.asked.add(name)
        if name not in self._own:
            return value
        choices = self._settings[name].choices
        return choices[value[self._replica]] if choices else value[self._replica]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
