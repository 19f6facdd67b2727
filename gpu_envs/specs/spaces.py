"""Observation and action spaces of a spec: constant, or functions of the parameters."""

import copy
import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpu_envs.specs.evaluate import evaluate
from gpu_envs.specs.params import ParamValue

SpaceSource: TypeAlias = gymnasium.Space[Any] | Callable[[Mapping[str, Any]], gymnasium.Space[Any]]
"""A space, or a function of the parameters that returns one."""


def space_of(source: SpaceSource, params: Mapping[str, ParamValue], what: str = "a space") -> gymnasium.Space[Any]:
    """Returns a copy of a space or, from a function, of the space that it returns, with its own random generator.

    Without copies, environments of one spec would sample equal actions, and seed each other's spaces. Messages start
    with ``what``, spec and field.
    """
    space = source if isinstance(source, gymnasium.Space) else evaluate(source, params, what)
    if not isinstance(space, gymnasium.Space):
        raise TypeError(
            f"{what}: {getattr(source, '__name__', 'the function')} returned {space!r}; expected a space of Gymnasium"
        )
    own = copy.deepcopy(space)
    own.seed()
    return own


def check_space(what: str, space: object) -> None:
    """Raises a TypeError, starting with ``what``, unless ``space`` is a space or a function."""
    if isinstance(space, type) or not (isinstance(space, gymnasium.Space) or callable(space)):
        raise TypeError(
            f"{what} is {space!r}; give a space of Gymnasium, such as Discrete(2), or a function of the parameters "
            "that returns one"
        )


@final
class RoleObservation(NamedTuple):
    """Observation spaces of one agent of a role."""

    individual: Box
    """Elements that ``observe`` writes for each agent."""
    shared: Box | None = None
    """Elements that are equal for all agents of the role, written by ``observe_shared``."""
    shared_at: int = 0
    """Index in the agent's row at which the shared elements are inserted."""

    @property
    def shared_size(self) -> int:
        """Number of shared elements."""
        return 0 if self.shared is None else int(self.shared.shape[0])

    @property
    def full(self) -> Box:
        """Space of an agent's row: individual and shared elements."""
        if self.shared is None:
            return self.individual
        low = np.insert(self.individual.low, [self.shared_at] * self.shared_size, self.shared.low)
        high = np.insert(self.individual.high, [self.shared_at] * self.shared_size, self.shared.high)
        return Box(low, high, dtype=np.float32)


def row_space(source: SpaceSource, params: Mapping[str, ParamValue], what: str) -> Box:
    """Returns a team's observation space, if it is a one-dimensional float32 Box; messages start with ``what``."""
    space = space_of(source, params, what)
    if isinstance(space, Box) and len(space.shape) == 1 and space.dtype == np.float32:
        return space
    raise ValueError(
        f"{what} is {space}; a team needs one-dimensional float32 Boxes, such as Box(-1, 1, (8,), numpy.float32)"
    )


def append_to_box(space: gymnasium.Space[Any], limits: Sequence[tuple[float, float]], what: str) -> Box:
    """Returns a Box with further elements, whose (minimum, maximum) are ``limits``; messages start with ``what``."""
    if not (isinstance(space, Box) and len(space.shape) == 1 and space.dtype == np.float32):
        raise ValueError(f"{what} is {space}; observe_params needs a one-dimensional float32 Box: give one")
    minima, maxima = np.transpose(limits)
    low, high = np.append(space.low, minima), np.append(space.high, maxima)
    return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def space_layout(space: gymnasium.Space[Any]) -> object:
    """Properties of a space that its memory depends on: class, shape and dtype."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: space_layout(part) for key, part in space.spaces.items()}
    return type(space), space.shape, str(space.dtype)


def comparison_key(value: Any) -> Any:
    """Returns an object that is equal for two parts of specs only if they describe the same environment.

    Plain ``==`` does not suffice: 1, 1.0 and True are equal in Python, mappings are whatever their order, and Gymnasium
    ignores small differences between bounds of a Box.
    """
    if isinstance(value, gymnasium.Space):
        return type(value), comparison_key({name: part for name, part in vars(value).items() if name != "_np_random"})
    if dataclasses.is_dataclass(value):
        return type(value), *(comparison_key(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare)
    if isinstance(value, Mapping):
        return tuple((name, comparison_key(part)) for name, part in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(comparison_key, value))
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return (type(value), repr(value)) if isinstance(value, numbers.Number) else value


def mask_entries(space: gymnasium.Space[Any]) -> int:
    """Number of elements of an action mask: the sum over a MultiDiscrete; 0 if the space has no mask."""
    if isinstance(space, Discrete):
        return int(space.n)
    if isinstance(space, MultiDiscrete) and space.nvec.ndim == 1:
        return int(space.nvec.sum())
    return 0


def from_zero(space: gymnasium.Space[Any]) -> tuple[gymnasium.Space[Any], np.ndarray | None]:
    """Returns the space with a start of 0, and the start to add to actions (None: 0).

    Policies of other libraries count from 0, whatever the space.
    """
    if isinstance(space, Discrete) and space.start != 0:
        return Discrete(int(space.n)), np.asarray(space.start, np.int64)
    if isinstance(space, MultiDiscrete) and space.start.any():
        return MultiDiscrete(space.nvec), space.start.astype(np.int64)
    return space, None
