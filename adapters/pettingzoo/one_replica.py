"""One replica, as a ParallelEnv."""

import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from gpu_envs.adapters.opening import check_full_rows, check_render_mode
from gpu_envs.adapters.pettingzoo.agents import (
    Infos,
    Space,
    Spaces,
    element_type,
    given_limit,
    metadata,
    state_space,
)
from gpu_envs.backend import device_of_one_replica
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.errors import ActionError
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.known import team_spec
from gpu_envs.seeds import Seed


@final
class RoleActions:
    """Gathers what the agents of a role do into the array that the step reads."""

    def __init__(self, space: Space, agents: Sequence[str], dtype: np.dtype[Any]) -> None:
        """Allocates the array.

        Args:
            space: The action space of one agent.
            agents: The role's agents.
            dtype: The element type of the array.
        """
        shape = space.shape or ()
        self.array = np.zeros((1, len(agents), *shape), dtype)
        self._space = space
        self._agents = agents
        self._scalar = shape == ()
        self._width = int(np.prod(shape))
        self._least, self._most = _bounds(space)
        self._flat = self.array.reshape(-1)
        self._packed = np.zeros_like(self._flat)
        self._runs = _runs(space.nvec.tolist()) if isinstance(space, gymnasium.spaces.MultiDiscrete) else []
        self.keep(range(len(agents)))

    def keep(self, live: Sequence[int]) -> None:
        """Asks for the actions of these agents only, from now on."""
        self.live = list(live)
        self.names = [self._agents[i] for i in live]
        self.all = len(live) == len(self._agents)
        self.at: Any = slice(None) if self.all else np.array(live, np.intp)

    def mask(self, row: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        """An agent's action mask as its space takes it."""
        if not self._runs:
            return row
        return tuple(part for begin, end, size in self._runs for part in row[begin:end].reshape(-1, size))

    def write(self, actions: Mapping[str, Any]) -> None:
        """Copies the actions of those in the game, or raises an ActionError that names the agent."""
        try:
            given = [actions[name] for name in self.names]
            if self._scalar:
                self.array[0, self.at] = [operator.index(action) for action in given]
            elif given:
                self._write_rows(given)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._explain(actions) from None

    def _write_rows(self, given: Sequence[Any]) -> None:
        if {len(action) for action in given} != {self._width}:
            raise ValueError
        packed = self._flat if self.all else self._packed[: len(given) * self._width]
        np.concatenate(given, out=packed, casting="same_kind")
        if not self.all:
            self.array[0, self.at] = packed.reshape(len(given), self._width)

    def _explain(self, actions: Mapping[str, Any]) -> ActionError:
        """Finds the first action that is missing or unfit."""
        for name in self.names:
            if name not in actions:
                return ActionError(f"there is no action for {name!r}, which is in the game")
            if not self.fits(actions[name]):
                return self.refusal(name, actions[name])
        return ActionError(f"the actions of {', '.join(self.names)} are not of the space {self._space}")

    def refusal(self, name: str, action: Any) -> ActionError:
        """The error for an agent's action that does not fit."""
        return ActionError(f"the action {action!r} of {name!r} is not of its space {self._space}")

    def fits(self, action: Any) -> bool:
        """Whether a step takes it: of the space's shape, in range and a number."""
        try:
            array = np.asarray(operator.index(action) if self._scalar else action)
        except (TypeError, ValueError, OverflowError):
            return False
        if array.shape != self._space.shape or not np.can_cast(array.dtype, self.array.dtype, "same_kind"):
            return False
        return bool(((self._least <= array) & (array <= self._most)).all())


def _runs(sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where elements of so many choices stand one after another in a mask: begin, end, and the choices of each."""
    runs, begin = [], 0
    for size, same in itertools.groupby(sizes):
        end = begin + sum(same)
        runs.append((begin, end, size))
        begin = end
    return runs


def _bounds(space: Space) -> tuple[Any, Any]:
    """The least and the greatest action that a step takes: of a Box it clips what is beyond."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return -np.inf, np.inf


@final
class TeamEnv(ParallelEnv):
    """One replica of a team as a PettingZoo ``ParallelEnv``.

    Attributes:
        possible_agents: All agents, role after role.
        agents: Those in the game; one leaves in the step that reports its end.
        state_space: What ``state`` returns.
        max_cycles: The step that truncates an episode; None: none does. PettingZoo's tests assign it, to no effect.
        batch: The ``MultiAgentEnv`` of this one replica: its live state, its parameters.
        metadata: PettingZoo's: the name among others.
        np_random: A generator for wrappers, which the seed of a reset begins anew; the replica draws nothing from it.
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
        """Makes the replica.

        Args:
            env_id: The environment, such as ``TagContinuous-v0``.
            max_cycles: Truncates at this step; -1: never; None: the environment's default.
            max_episode_steps: The same.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU where it has a compiler.
            precision: Of state and reward.
            render_mode: ``rgb_array`` (``render`` gives a frame), ``human`` (a window shows each step), or None.
            **params: The environment's own parameters.
        """
        spec = team_spec(env_id)
        check_render_mode(spec, render_mode)
        device = device or device_of_one_replica()
        self.metadata = metadata(spec)
        self.render_mode = render_mode
        self.batch = MultiAgentEnv(
            spec,
            1,
            device=device,
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=given_limit(max_cycles, max_episode_steps),
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
        by_role = ByRole(self.batch)
        self._observation_spaces = Spaces(by_role, "observation", copy.deepcopy)
        self._action_spaces = Spaces(by_role, "action", copy.deepcopy)
        self._gather()

    def _gather(self) -> None:
        """Allocates the arrays of actions."""
        self._roles = {
            name: RoleActions(role.action, role.agents, element_type(role.action, self.batch.precision))
            for name, role in ByRole(self.batch).roles.items()
        }
        self._actions = {role: actions.array for role, actions in self._roles.items()}

    def observation_space(self, agent: str) -> Space:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Space:
        return self._action_spaces[agent]

    def reset(
        self, seed: Seed | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], Infos]:
        """Begins a new episode.

        Args:
            seed: Begins the episodes anew; without one the next follows.
            options: As ``MultiAgentEnv.reset`` takes them, such as a layout ``x``, ``[num_agents]``.

        Returns:
            Observations, and infos: where the rules say what is possible, ``action_mask`` as the agent's action space
            takes it to sample: int8 ``[choices]``, of MultiDiscrete actions a tuple of such, one for each element.
        """
        # PettingZoo's tests give {"options": 1}. Any other option that there is not is somebody's mistake.
        given = {name: value for name, value in (options or {}).items() if name != "options"}
        observations, infos = self.batch.reset(seed=seed, options=given)
        self._started = True
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        rows: list[np.ndarray] = []
        for name, role in self._roles.items():
            role.keep(range(len(observations[name][0])))
            rows.extend(observations[name][0].copy())
        told = self._told(infos)
        return dict(zip(self.agents, rows, strict=True)), dict(zip(self.agents, told, strict=True))

    def _told(self, infos: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The infos of everybody in the game."""
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
        """Takes a step with everybody in the game. When nobody is left, it gives empty dicts.

        Args:
            actions: One for each agent in the game; those of others are ignored.

        Returns:
            Observations, rewards, terminations, truncations and infos, as of ``reset``, of those who were in the game.

        Raises:
            ActionError: One is missing, out of range or not a number; nothing has changed.
        """
        self._check_ready()
        names = [name for role in self._roles.values() for name in role.names]
        if not names:
            return {}, {}, {}, {}, {}
        for role in self._roles.values():
            role.write(actions)
        results = self.batch.step(self._actions)
        told = self._told(results[4])
        rows: list[np.ndarray] = []
        rewards: list[float] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        over = False
        for name, role in self._roles.items():
            observed, rewarded, terminated, truncated = (result[name][0][role.at] for result in results[:4])
            rows.extend(observed.copy())  # of the simulator's own memory
            rewards.extend(rewarded.tolist())
            terminations.extend(terminated.tolist())
            truncations.extend(truncated.tolist())
            ended = terminated | truncated
            if ended.any():
                over = True
                role.keep([i for i, end in zip(role.live, ended.tolist(), strict=True) if not end])
        if over:
            self.agents = [name for role in self._roles.values() for name in role.names]
        return (
            dict(zip(names, rows, strict=True)),
            dict(zip(names, rewards, strict=True)),
            dict(zip(names, terminations, strict=True)),
            dict(zip(names, truncations, strict=True)),
            dict(zip(names, told, strict=True)),
        )

    def check_action(self, agent: str, action: Any) -> None:
        """Raises an ActionError where a step would not take an agent's action."""
        for role in self._roles.values():
            if agent in role.names and not role.fits(action):
                raise role.refusal(agent, action)

    def state(self) -> np.ndarray:
        """The whole state as float32, field after field in the order of ``batch.state``."""
        self._check_ready()
        return np.concatenate([to_numpy(field).ravel() for field in self.batch.state.values()], dtype=np.float32)

    def render(self) -> Any:
        """A frame, ``[height, width, 3]``; None where a window shows it."""
        rendered = self.batch.render()
        return rendered[0] if self.render_mode == "rgb_array" else rendered

    def close(self) -> None:
        self.batch.close()

    def _check_ready(self) -> None:
        if self.batch.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self.batch.spec.id} is closed; make another")
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() first")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the arrays of actions, of which some are views of others."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_roles", "_actions")}
        return kept | {"live": {name: role.live for name, role in self._roles.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        live = state.pop("live")
        self.__dict__.update(state)
        self._gather()
        for name, role in self._roles.items():
            role.keep(live[name])
