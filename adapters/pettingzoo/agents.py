"""Names, spaces and arrays of agents in PettingZoo's format."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, library_of
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.engine.state import LiveState
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.team import TeamSpec

Space: TypeAlias = gymnasium.Space[Any]

ByAgent: TypeAlias = dict[str, Array]
"""Arrays ``[num_envs, ...]`` by agent."""

Infos: TypeAlias = dict[str, dict[str, Any]]


def short_name(id: str) -> str:
    """Return an id in PettingZoo's format, such as ``tag_continuous_v0``."""
    return re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", id)).lower()


def metadata(spec: TeamSpec) -> dict[str, Any]:
    """Return the ``metadata`` that PettingZoo requires."""
    drawing = spec.drawing
    rendering = {"render_modes": ["rgb_array", "human"], "render_fps": drawing.frames_a_second} if drawing else {}
    return {"name": short_name(spec.id), "render_modes": [], "is_parallelizable": True, **rendering}


def time_limit(max_cycles: int | None, max_episode_steps: int | None) -> int | None:
    """Return the argument that is not None, or None; raise a ValueError if both are numbers and differ."""
    if max_cycles is not None and max_episode_steps not in (None, max_cycles):
        raise ValueError(
            f"max_cycles is {max_cycles}, but max_episode_steps, its other name, is {max_episode_steps}: pass only one"
        )
    return max_episode_steps if max_cycles is None else max_cycles


def action_dtype(space: Space, precision: str) -> np.dtype[Any]:
    """Return the dtype of actions in the simulator."""
    return np.dtype(precision) if isinstance(space, gymnasium.spaces.Box) else np.dtype(np.int64)


@final
class Spaces:
    """Spaces by agent, created on first use; each agent has its own object, so that they are seeded separately."""

    def __init__(self, by_role: RoleInterface, which: str, make: Callable[[Space], Space]) -> None:
        """Store each role's ``observation`` or ``action`` space (``which``); ``make`` makes an agent's of it."""
        self._by_role = {name: getattr(role, which) for name, role in by_role.roles.items()}
        self._roles = {agent: name for name, role in by_role.roles.items() for agent in role.agents}
        self._make = make
        self._made: dict[str, Space] = {}

    def __getitem__(self, agent: str) -> Space:
        """Return the agent's space, the same object in every call."""
        if agent not in self._made:
            if agent not in self._roles:
                raise KeyError(f"no agent {agent!r} exists{did_you_mean(str(agent), self._roles)}")
            self._made[agent] = self._make(self._by_role[self._roles[agent]])
        return self._made[agent]


def state_space(state: LiveState) -> gymnasium.spaces.Box:
    """Return a float32 Box with the limits of each field's type, for the fields concatenated in order."""
    largest = np.finfo(np.float32).max
    limits = {"b": (0, 1), "u": (0, 255), "i": (-(2**31), 2**31), "f": (-largest, largest)}
    kinds = [np.dtype(str(field.dtype).rpartition(".")[2]).kind for field in state.values()]
    bounds = np.array([limits[kind] for kind in kinds], np.float32)
    low, high = np.repeat(bounds, [int(np.prod(field.shape)) for field in state.values()], axis=0).T
    return gymnasium.spaces.Box(low, high, dtype=np.float32)


def columns(array: Array) -> Sequence[Array]:
    """Return views of the array at each index of its second dimension."""
    return array.unbind(1) if library_of(array) == "torch" else list(array.swapaxes(0, 1))
