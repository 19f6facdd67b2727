"""Parameters computed from other parameters, on the host."""

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
    """A real parameter, or an array of real numbers, that is computed from other parameters.

    ``default`` is a function of one replica's parameters. It is called when an environment is made and whenever a
    parameter is set, also by the options of a reset, for that reset; once for each replica if it reads a parameter
    with one value for each replica.
    """

    def __post_init__(self) -> None:
        """Checks that the default is a function."""
        if not callable(self.default):
            raise TypeError(f"the default of a Derived is {self.default!r}; give a function of the parameters")
        if self.shape is not None:
            self._check_array()

    def check(
        self, name: str, value: Any, num_envs: int, precision: str = "float64", sizes: tuple[int, ...] = ()
    ) -> Never:
        """Raises a ValueError: a derived parameter cannot be set."""
        del value, num_envs, precision, sizes
        raise ValueError(f"parameter {name!r} is computed from other parameters; set those instead")

    def compute(
        self,
        name: str,
        values: Mapping[str, Any],
        settings: Mapping[str, Param],
        num_envs: int,
        precision: str,
        sizes: tuple[int, ...],
    ) -> tuple[ParamValue, Set[str]]:
        """Returns the value under these parameters, and the names of the parameters that the function read.

        ``settings`` are the declarations of the validated ``values``; ``sizes`` is the shape, ``()`` for a scalar.
        """
        per_replica = frozenset(n for n, value in values.items() if settings[n].is_per_replica(value))
        rounded = {n: _rounded(value, precision) for n, value in values.items()}
        first, what = _OneReplica(rounded, per_replica, settings, 0), f"the parameter {name!r}"
        with np.errstate(all="ignore"):  # check() refuses the results
            result = evaluate(self.default, first, what)
            if first.read & per_replica:
                replicas = (_OneReplica(rounded, per_replica, settings, i) for i in range(1, num_envs))
                result = np.stack([result, *(evaluate(self.default, replica, what) for replica in replicas)])
        try:
            return Param.check(self, name, result, num_envs, precision, sizes), first.read
        except ValueError as error:
            raise ValueError(f"{error} (computed from {', '.join(sorted(first.read)) or 'no parameter'})") from None


def _rounded(value: Any, precision: str) -> Any:
    """Returns a value as kernels read it, rounded to the precision; real arrays as float64."""
    if isinstance(value, float):
        return float(np.asarray(value, precision))
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


@final
class _OneReplica(Mapping[str, Any]):
    """The parameters of one replica; records which were read."""

    def __init__(
        self, values: Mapping[str, Any], per_replica: Set[str], settings: Mapping[str, Param], replica: int
    ) -> None:
        self._values, self._per_replica, self._settings, self._replica = values, per_replica, settings, replica
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        self.read.add(name)
        if name not in self._per_replica:
            return value
        choices = self._settings[name].choices
        return choices[value[self._replica]] if choices else value[self._replica]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
