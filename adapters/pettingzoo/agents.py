"""The agents of a team as PettingZoo names them: spaces, arrays, what each agent gets."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, library_of
from gpu_envs.engine.by_role import ByRole
from gpu_envs.engine.state import LiveState
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.team import TeamSpec

Space: TypeAlias = gymnasium.Space[Any]

ByAgent: TypeAlias = dict[str, Array]
"""An array for each agent, ``[num_envs, ...]``."""

Infos: TypeAlias = dict[str, dict[str, Any]]


def short_name(id: str) -> str:
    """An id as PettingZoo writes them: ``tag_continuous_v0``."""
    return re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", id)).lower()


def metadata(spec: TeamSpec) -> dict[str, Any]:
    """What PettingZoo asks of an environment's ``metadata``."""
    drawing = spec.drawing
    shown = {"render_modes": ["rgb_array", "human"], "render_fps": drawing.frames_a_second} if drawing else {}
    return {"name": short_name(spec.id), "render_modes": [], "is_parallelizable": True, **shown}


def given_limit(max_cycles: int | None, max_episode_steps: int | None) -> int | None:
    """The one of the two that is given."""
    if max_cycles is not None and max_episode_steps not in (None, max_cycles):
        raise ValueError(
            f"max_cycles is {max_cycles}, and max_episode_steps, which means the same, {max_episode_steps}"
        )
    return max_episode_steps if max_cycles is None else max_cycles


def element_type(space: Space, precision: str) -> np.dtype[Any]:
    """The type in which actions lose nothing that the environment would keep."""
    return np.dtype(precision) if isinstance(space, gymnasium.spaces.Box) else np.dtype(np.int64)


@final
class Spaces:
    """A space of each agent's own, made when asked for, so that each is seeded apart from the others."""

    def __init__(self, by_role: ByRole, which: str, make: Callable[[Space], Space]) -> None:
        """Keeps what the spaces are made of.

        Args:
            by_role: The environment.
            which: ``observation`` or ``action``.
            make: Makes an agent's space from that of one of its role's agents.
        """
        self._by_role = {name: getattr(role, which) for name, role in by_role.roles.items()}
        self._roles = {agent: name for name, role in by_role.roles.items() for agent in role.agents}
        self._make = make
        self._made: dict[str, Space] = {}

    def __getitem__(self, agent: str) -> Space:
        """The same object each time."""
        if agent not in self._made:
            if agent not in self._roles:
                raise KeyError(f"there is no agent {agent!r}{did_you_mean(str(agent), self._roles)}")
            self._made[agent] = self._make(self._by_role[self._roles[agent]])
        return self._made[agent]


def state_space(state: LiveState) -> gymnasium.spaces.Box:
    """All finite numbers that a state of these fields may hold."""
    highs = {"b": 1.0, "u": 255.0, "i": 2.0**31, "f": float(np.finfo(np.float32).max)}
    lows: list[float] = []
    tops: list[float] = []
    for field in state.values():
        kind = np.dtype(str(field.dtype).rpartition(".")[2]).kind
        count = int(np.prod(field.shape))
        tops += [highs[kind]] * count
        lows += [0.0 if kind in "bu" else -highs[kind]] * count
    return gymnasium.spaces.Box(np.array(lows, np.float32), np.array(tops, np.float32), dtype=np.float32)


def columns(array: Array) -> Sequence[Array]:
    """Views of the array at each index of its second dimension."""
    return array.unbind(1) if library_of(array) == "torch" else list(array.swapaxes(0, 1))
