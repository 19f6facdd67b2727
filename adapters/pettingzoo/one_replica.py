"""One replica of a team as a PettingZoo ``ParallelEnv``."""

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from gpu_envs.adapters.opening import check_full_rows, check_render_mode
from gpu_envs.adapters.pettingzoo.agents import Infos, Space, Spaces, action_dtype, metadata, state_space, time_limit
from gpu_envs.backend import device_for_one_replica
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.errors import ActionError
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.catalog import team_spec
from gpu_envs.seeds import Seed


@final
class RoleActions:
    """Copies the actions of a role's agents to the array that the simulator reads."""

    def __init__(self, space: Space, agents: Sequence[str], dtype: np.dtype[Any]) -> None:
        """Allocate the array for agents with the same action space."""
        shape = space.shape or ()
        self.array = np.zeros((1, len(agents), *shape), dtype)
        self._space = space
        self._agents = agents
        self._scalar = shape == ()
        self._width = int(np.prod(shape))
        self._low, self._high = _bounds(space)
        self._flat = self.array.reshape(-1)
        self._packed = np.zeros_like(self._flat)
        self._runs = _runs(space.nvec.tolist()) if isinstance(space, gymnasium.spaces.MultiDiscrete) else []
        self.set_active(range(len(agents)))

    def set_active(self, live: Sequence[int]) -> None:
        """Set the indices of active agents; later actions are read from these only."""
        self.live = list(live)
        self.names = [self._agents[i] for i in live]
        self.all = len(live) == len(self._agents)
        self.at: Any = slice(None) if self.all else np.array(live, np.intp)

    def mask(self, row: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return an agent's action mask in the format of its space's ``sample``."""
        if not self._runs:
            return row
        return tuple(part for start, end, size in self._runs for part in row[start:end].reshape(-1, size))

    def write(self, actions: Mapping[str, Any]) -> None:
        """Copy the actions of active agents, or raise an ActionError that names the agent."""
        try:
            values = [actions[name] for name in self.names]
            if self._scalar:
                self.array[0, self.at] = [operator.index(action) for action in values]
            elif values:
                self._write_rows(values)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._find_error(actions) from None

    def _write_rows(self, values: Sequence[Any]) -> None:
        """Copy the active agents' actions, one array each, to their rows; a ValueError if one has a wrong length."""
        if {len(action) for action in values} != {self._width}:
            raise ValueError
        packed = self._flat if self.all else self._packed[: len(values) * self._width]
        np.concatenate(values, out=packed, casting="same_kind")
        if not self.all:
            self.array[0, self.at] = packed.reshape(len(values), self._width)

    def _find_error(self, actions: Mapping[str, Any]) -> ActionError:
        """Return the ActionError of the first missing or invalid action of active agents; if none is, one for all."""
        for name in self.names:
            if name not in actions:
                return ActionError(f"the action of {name!r} is missing: give one for each agent in env.agents")
            if not self.is_valid(actions[name]):
                return self.invalid_action_error(name, actions[name])
        return ActionError(f"the actions of {', '.join(self.names)} are not in their space {self._space}")

    def invalid_action_error(self, name: str, action: Any) -> ActionError:
        """Return the error for an invalid action."""
        return ActionError(f"the action {action!r} of {name!r} is not in its space: give one in {self._space}")

    def is_valid(self, action: Any) -> bool:
        """Return whether the action has the space's shape, is in range and is not NaN."""
        try:
            array = np.asarray(operator.index(action) if self._scalar else action)
        except (TypeError, ValueError, OverflowError):
            return False
        if array.shape != self._space.shape or not np.can_cast(array.dtype, self.array.dtype, "same_kind"):
            return False
        return bool(((self._low <= array) & (array <= self._high)).all())


def _runs(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (start, end, size) of each run of parts with equal size in a concatenated mask."""
    runs, start = [], 0
    for size, same in itertools.groupby(sizes):
        end = start + sum(same)
        runs.append((start, end, size))
        start = end
    return runs


def _bounds(space: Space) -> tuple[Any, Any]:
    """Return the smallest and largest valid action; Box actions out of bounds are valid, and clipped by the step."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return -np.inf, np.inf


@final
class TeamEnv(ParallelEnv):
    """One replica of a team as a PettingZoo ``ParallelEnv``.

    Attributes:
        possible_agents: All agents, ordered by role.
        agents: Active agents; an agent is removed in the step that reports its end.
        state_space: Space of ``state()``.
        max_cycles: Time limit in steps, or None. PettingZoo's tests assign it, without effect.
        batch: The ``MultiAgentEnv`` of this replica, with its state and parameters.
        metadata: PettingZoo's metadata, such as the name.
        np_random: A generator for wrappers, seeded by ``reset``; the replica does not use it.
        render_mode: ``rgb_array``, ``human`` or None.
    """

    def __init__(
        self,
        env_id: str,
        *,
        max_cycles: int | None = None,
        max_episode_steps: int | None = None,
        device: str | None = None,
        precision: str = "float32",
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Create the replica.

        Args:
            env_id: The id of the environment, such as ``TagContinuous-v0``.
            max_cycles: Time limit in steps; -1: no limit; None: the environment's default.
            max_episode_steps: Another name of ``max_cycles``.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU if it has a compiler.
            precision: Precision of state and reward.
            render_mode: ``rgb_array`` (``render`` returns a frame), ``human`` (a window shows each step), or None.
            **params: Parameters of the environment.
        """
        spec = team_spec(env_id)
        check_render_mode(spec, render_mode)
        device = device or device_for_one_replica()
        self.metadata = metadata(spec)
        self.render_mode = render_mode
        self.batch = MultiAgentEnv(
            spec,
            1,
            device=device,
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=time_limit(max_cycles, max_episode_steps),
            copy=False if device == "cpu" else None,
            threads=1,
            render_mode=render_mode,
            **params,
        )
        check_full_rows(self.batch)
        self.possible_agents = list(self.batch.possible_agents)
        self.agents: list[str] = []
        self.max_cycles = self.batch.max_episode_steps
        self.state_space = state_space(self.batch.state)
        self._started = False
        self.np_random = np.random.default_rng()
        by_role = RoleInterface(self.batch)
        self._observation_spaces = Spaces(by_role, "observation", copy.deepcopy)
        self._action_spaces = Spaces(by_role, "action", copy.deepcopy)
        self._allocate_actions()

    def _allocate_actions(self) -> None:
        """Create ``_roles``, with all agents active, and ``_actions``, the arrays that the simulator reads."""
        self._roles = {
            name: RoleActions(role.action, role.agents, action_dtype(role.action, self.batch.precision))
            for name, role in RoleInterface(self.batch).roles.items()
        }
        self._actions = {role: actions.array for role, actions in self._roles.items()}

    def observation_space(self, agent: str) -> Space:
        """Return the observation space of an agent."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """Return the action space of an agent."""
        return self._action_spaces[agent]

    def reset(
        self, seed: Seed | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], Infos]:
        """Start a new episode.

        Args:
            seed: Seed of the sequence of episodes; None: continue the sequence.
            options: Options of ``MultiAgentEnv.reset``, such as initial positions ``x``, ``[num_agents]``.

        Returns:
            Observations and infos by agent. If the environment has action masks, infos contain ``action_mask`` in the
            format of the action space's ``sample``: int8 ``[choices]``, or a tuple of these for MultiDiscrete actions.
        """
        # PettingZoo's tests pass {"options": 1}; other unknown options are refused
        reset_options = {name: value for name, value in (options or {}).items() if name != "options"}
        observations, infos = self.batch.reset(seed=seed, options=reset_options)
        self._started = True
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        rows: list[np.ndarray] = []
        for name, role in self._roles.items():
            role.set_active(range(len(observations[name][0])))
            rows.extend(observations[name][0].copy())
        agent_infos = self._agent_infos(infos)
        return dict(zip(self.agents, rows, strict=True)), dict(zip(self.agents, agent_infos, strict=True))

    def _agent_infos(self, infos: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return an info for each active agent: a dict with its action mask, or an empty dict."""
        masks = infos.get("action_mask")
        if masks is None:
            return [{} for role in self._roles.values() for _ in role.names]
        return [
            {"action_mask": role.mask(row)}
            for name, role in self._roles.items()
            for row in masks[name][0][role.at].copy()
        ]

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Step the active agents. Without active agents, all results are empty dicts.

        Args:
            actions: An action for each active agent; other actions are ignored.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that were active.

        Raises:
            ActionError: An action is missing, out of range or NaN. The state is unchanged.
        """
        self._check_ready()
        names = [name for role in self._roles.values() for name in role.names]
        if not names:
            return {}, {}, {}, {}, {}
        for role in self._roles.values():
            role.write(actions)
        results = self.batch.step(self._actions)
        agent_infos = self._agent_infos(results[4])
        rows: list[np.ndarray] = []
        rewards: list[float] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        any_ended = False
        for name, role in self._roles.items():
            observations, role_rewards, terminated, truncated = (result[name][0][role.at] for result in results[:4])
            rows.extend(observations.copy())  # which are in the simulator's memory
            rewards.extend(role_rewards.tolist())
            terminations.extend(terminated.tolist())
            truncations.extend(truncated.tolist())
            ended = terminated | truncated
            if ended.any():
                any_ended = True
                role.set_active([i for i, end in zip(role.live, ended.tolist(), strict=True) if not end])
        if any_ended:
            self.agents = [name for role in self._roles.values() for name in role.names]
        return (
            dict(zip(names, rows, strict=True)),
            dict(zip(names, rewards, strict=True)),
            dict(zip(names, terminations, strict=True)),
            dict(zip(names, truncations, strict=True)),
            dict(zip(names, agent_infos, strict=True)),
        )

    def check_action(self, agent: str, action: Any) -> None:
        """Raise an ActionError if the action of an active agent is invalid."""
        for role in self._roles.values():
            if agent in role.names and not role.is_valid(action):
                raise role.invalid_action_error(agent, action)

    def state(self) -> np.ndarray:
        """Return the state as a float32 vector, in the order of ``batch.state``."""
        self._check_ready()
        return np.concatenate([to_numpy(field).ravel() for field in self.batch.state.values()], dtype=np.float32)

    def render(self) -> Any:
        """Return a frame ``[height, width, 3]``, or None if a window shows it."""
        rendered = self.batch.render()
        return rendered[0] if self.render_mode == "rgb_array" else rendered

    def close(self) -> None:
        """Close the replica."""
        self.batch.close()

    def _check_ready(self) -> None:
        """Raise Gymnasium's error if the replica is closed or was never reset."""
        if self.batch.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self.batch.spec.id} is closed: create a new one")
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() first")

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes except the action arrays, which contain views of each other."""
        attributes = {name: value for name, value in vars(self).items() if name not in ("_roles", "_actions")}
        return attributes | {"live": {name: role.live for name, role in self._roles.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        live = state.pop("live")
        self.__dict__.update(state)
        self._allocate_actions()
        for name, role in self._roles.items():
            role.set_active(live[name])
