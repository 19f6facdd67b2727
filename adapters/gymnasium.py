"""A single environment for ``gymnasium.make``: one replica, Python numbers, no limit and no restart of its own."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.arrays import to_numpy
from gpu_envs.backend import device_of_one_replica
from gpu_envs.errors import ActionError
from gpu_envs.registry import env_spec
from gpu_envs.vector_env import VectorEnv


@final
class SingleEnv(gymnasium.Env[Any, Any]):
    """One replica as a ``gymnasium.Env``."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012  # Gymnasium's

    def __init__(
        self,
        env_id: str,
        *,
        device: str | None = None,
        precision: str = "float32",
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Makes the replica.

        Args:
            env_id: The environment, such as ``CartPole-v1``.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU where it has a compiler.
            precision: Of state and reward.
            render_mode: ``rgb_array`` (``render`` gives a frame), ``human`` (a window shows each step), or None.
            **params: The environment's own parameters.
        """
        if render_mode == "tiled":
            raise ValueError(
                "render_mode is 'tiled', which shows many replicas; one is shown by 'rgb_array' or 'human'"
            )
        self._env = VectorEnv(
            env_spec(env_id),
            1,
            device=device or device_of_one_replica(),
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=-1,
            threads=1,
            render_mode=render_mode,
            **params,
        )
        self._env.allow_frozen_steps()
        self.metadata = {
            **self._env.metadata,
            "render_modes": [m for m in self._env.metadata["render_modes"] if m != "tiled"],
        }
        self.render_mode = render_mode
        self._shown = render_mode == "human"
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._warned = False
        self._terminated = False
        self._started = False
        self._discrete = isinstance(self.action_space, gymnasium.spaces.Discrete)
        self._least, self._most = 0, 0
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            self._least = int(self.action_space.start)
            self._most = self._least + int(self.action_space.n) - 1
        self._action = np.zeros((1, *(self.action_space.shape or ())), np.int64 if self._discrete else np.float32)
        self._direct: Callable[[int, int], None] | None = None
        self._mask = self._env.action_mask
        if self._env.device == "cpu":
            self._direct, results = self._env.direct_step()
            self._observations, self._rewards, self._terminations = results
            self._action_address, self._action_kind = self._env.locate_action(self._action)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins a new episode; see ``VectorEnv.reset`` for the options."""
        super().reset(seed=seed)
        observations, infos = self._env.reset(seed=seed, options=options)
        self._started, self._terminated = True, False
        return _first(observations), self._told(infos.get("action_mask"))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes one step; after the end of an episode the state stays, and the reward is 0, until a reset."""
        if not self._started or self._env.closed:
            self._env.step(self._action)  # says what is wrong
        if self._terminated and not self._warned:
            self._warned = True
            gymnasium.logger.warn("step() was called though the episode has terminated: call reset() first")
        self._write_action(action)
        if self._direct is None:
            observations, rewards, terminations, _, infos = self._env.step(self._action)
            observation, reward, mask = _first(observations), float(rewards[0]), infos.get("action_mask")
            self._terminated = bool(terminations[0])
        else:
            self._direct(self._action_address, self._action_kind)
            if self._shown:
                self._env.render()
            observation, reward, mask = _first(self._observations), self._rewards.item(), self._mask
            self._terminated = self._terminations.item()
        return observation, reward, self._terminated, False, self._told(mask)

    def _told(self, mask: np.ndarray | None) -> dict[str, Any]:
        """The infos: which actions are possible, where the rules say so."""
        return {} if mask is None else {"action_mask": mask[0].copy()}

    def _write_action(self, action: Any) -> None:
        """Puts the action where the kernel reads it, or raises an ActionError."""
        try:
            self._action[0] = operator.index(action) if self._discrete else action
        except (TypeError, ValueError, OverflowError):
            raise ActionError(f"the action {action!r} is not of the action space {self.action_space}") from None
        if self._discrete:
            fits = self._least <= self._action.item() <= self._most
        else:
            fits = (
                not np.isnan(self._action).any()
                if self._action.size > 1
                else self._action.item() == self._action.item()
            )
        if not fits:
            raise ActionError(f"the action {action!r} is out of range or not a number; allowed: {self.action_space}")

    @property
    def state(self) -> np.ndarray:
        """The state as a vector, field after field, in the order of the spec; assigning writes it."""
        return np.concatenate([np.asarray(field[:1], np.float64).ravel() for field in self._host_state().values()])

    @state.setter
    def state(self, values: Any) -> None:
        fields = self._host_state()
        given, sizes = np.ravel(values), [field[:1].size for field in fields.values()]
        if len(given) != sum(sizes):
            raise ValueError(f"the state got {len(given)} numbers; it has {sum(sizes)}")
        for (name, field), part in zip(fields.items(), np.split(given, np.cumsum(sizes)[:-1]), strict=True):
            self._env.state[name] = part.reshape(field.shape)

    def _host_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(field) for name, field in self._env.state.items()}

    def render(self) -> Any:
        """A frame, ``[height, width, 3]``; None where a window shows it."""
        rendered = self._env.render()
        return rendered[0] if self.render_mode == "rgb_array" else rendered

    def close(self) -> None:
        """Closes the replica."""
        self._env.close()


def _first(observations: Any) -> Any:
    """A copy of the only replica's; of a Dict, of each of its arrays."""
    if isinstance(observations, dict):
        return {key: rows[0, ...].copy() for key, rows in observations.items()}  # an array even of one number
    return observations[0, ...].copy()
