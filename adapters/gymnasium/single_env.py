"""A single environment for ``gymnasium.make``, without time limit and autoreset."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.adapters.opening import check_render_mode
from gpu_envs.backend import device_for_one_replica
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.errors import ActionError, did_you_mean
from gpu_envs.registry.catalog import env_spec
from gpu_envs.seeds import Seed, check_seed
from gpu_envs.vector_env import VectorEnv

_NOT_PICKLED = ("_actions", "_advance")
"""Attributes that are not pickled, because they reference the replica's memory and kernels."""

_StepResult: TypeAlias = tuple[Any, float, bool, bool, np.ndarray | None]
"""Observation, reward, terminated, truncated and action mask."""

OPTIONS = ("device", "precision", "checking", "observe_params", "max_episode_steps", "render_mode")
"""Arguments of ``SingleEnv`` other than parameters."""

_SPACES = ("action_space", "observation_space")
"""Attributes that ``gymnasium.Env`` declares without a value."""


@final
class SingleEnv(gymnasium.Env[Any, Any]):
    """One replica as a ``gymnasium.Env``.

    Parameters and state fields are attributes that can be read and set, such as ``env.unwrapped.gravity = 3.7``.
    Setting an unknown public attribute raises an AttributeError, so that misspelt names are noticed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012  # Gymnasium's

    def __init__(
        self,
        env_id: str,
        *,
        device: str | None = None,
        precision: str = "float32",
        checking: bool = False,
        observe_params: Sequence[str] | str | None = None,
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        """Create the replica.

        Args:
            env_id: The id of the environment, such as ``CartPole-v1``.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU if it has a compiler.
            precision: Precision of state and reward.
            checking: Whether to raise a NotFiniteError for NaN and infinite numbers.
            observe_params: Names of parameters to append to observations. None: the environment's default.
            render_mode: ``rgb_array`` (``render`` returns a frame), ``human`` (a window shows each step), or None.
            **params: Parameters of the environment.
        """
        spec = env_spec(env_id)
        check_render_mode(spec, render_mode)
        for name in params:
            if name not in spec.settings:  # Python's message: other libraries use it to detect unsupported arguments
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}: "
                    f"{spec.id} has no {spec.unknown(name, OPTIONS)}"
                )
        self._env = VectorEnv(
            spec,
            1,
            device=device or device_for_one_replica(),
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=spec.max_steps(spec.check_params(params, 1)) or -1,
            threads=1,
            checking=checking,
            observe_params=observe_params,
            render_mode=render_mode,
            **params,
        )
        metadata = {name: value for name, value in self._env.metadata.items() if name != "autoreset_mode"}
        self.metadata = {**metadata, "render_modes": [m for m in metadata["render_modes"] if m != "tiled"]}
        self.render_mode = render_mode
        self._shown = render_mode == "human"
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._warned = False
        self._terminated = False
        self._started = False
        self._prepare()

    def _prepare(self) -> None:
        """Create the step function, again after unpickling and after setting a parameter or state field.

        It uses local variables instead of attributes, which are slow to read in a class with ``__getattr__``.
        """
        env, shown = self._env, self._shown
        env.allow_frozen_steps()
        self._actions, write = _action_writer(self.action_space)
        actions = self._actions
        self._advance: Callable[[Any], _StepResult]
        if env.device == "cpu":
            direct, (observations, rewards, terminations, truncations) = env.direct_step()
            address, kind = env.locate_action(actions)
            mask = env.action_mask
            limited = env.max_episode_steps is not None  # the rules limit the length of episodes

            def advance_on_cpu(action: Any) -> _StepResult:
                """Check an action and step; return observation, reward, terminated, truncated and action mask."""
                write(action)
                direct(address, kind)
                if shown:
                    env.render()
                truncated = limited and truncations.item()
                return _copy_first(observations), rewards.item(), terminations.item(), truncated, mask

            self._advance = advance_on_cpu
            return

        def advance_on_gpu(action: Any) -> _StepResult:
            """Check an action and step; return observation, reward, terminated, truncated and action mask."""
            write(action)
            observations, rewards, terminations, truncations, infos = env.step(actions)
            flags = bool(terminations[0]), bool(truncations[0])
            return _copy_first(observations), float(rewards[0]), *flags, infos.get("action_mask")

        self._advance = advance_on_gpu

    # --- parameters and state fields as attributes ---

    def __getattr__(self, name: str) -> Any:
        """Return a parameter or a state field."""
        self._check_name(name, "")
        return self._env.get_attr(name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of this class, a parameter or a state field."""
        if name.startswith("_") or name in _SPACES or hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        self._check_name(name, " to set")
        self._env.set_attr(name, value)
        self._prepare()

    def _check_name(self, name: str, message_end: str) -> None:
        """Raise an AttributeError if no parameter or state field has this name; ``message_end``: such as " to set"."""
        env = vars(self).get("_env")  # None during construction and unpickling
        names = [] if env is None else [*env.params, *env.state]
        if name not in names:
            owner = type(self).__name__ if env is None else env.env_spec.id
            raise AttributeError(f"{owner} has no attribute {name!r}{message_end}{did_you_mean(name, names)}")

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes except references to memory and kernels."""
        return {name: value for name, value in vars(self).items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    # --- Gymnasium's interface ---

    def reset(
        self, *, seed: Seed | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode; see ``VectorEnv.reset`` for the options."""
        checked_seed = check_seed(seed)
        super().reset(seed=checked_seed)
        observations, infos = self._env.reset(seed=checked_seed, options=options)
        self._started, self._terminated = True, False
        return _copy_first(observations), _make_infos(infos.get("action_mask"))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step the environment; after termination the state is unchanged and the reward is 0 until a reset."""
        if not self._started or self._env.closed:
            self._env.step(self._actions)  # raises the error
        if self._terminated and not self._warned:
            self._warned = True
            gymnasium.logger.warn("step() was called after the episode terminated: call reset() first")
        observation, reward, terminated, truncated, mask = self._advance(action)
        if terminated:
            self._terminated = True
        return observation, reward, terminated, truncated, _make_infos(mask)

    @property
    def state(self) -> np.ndarray:
        """The state as a vector, in the order of the spec's fields; it can be assigned."""
        return np.concatenate([np.asarray(field[:1], np.float64).ravel() for field in self._host_state().values()])

    @state.setter
    def state(self, values: Any) -> None:
        """Write the numbers of a vector to the state fields in order; raise a ValueError for a wrong length."""
        fields = self._host_state()
        numbers, sizes = np.ravel(values), [field[:1].size for field in fields.values()]
        if len(numbers) != sum(sizes):
            raise ValueError(f"the state got {len(numbers)} numbers: give {sum(sizes)}")
        for (name, field), part in zip(fields.items(), np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
            self._env.state[name] = part.reshape(field.shape)

    def _host_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(field) for name, field in self._env.state.items()}

    def render(self) -> Any:
        """Return a frame ``[height, width, 3]``, or None if a window shows it."""
        rendered = self._env.render()
        return rendered[0] if self.render_mode == "rgb_array" else rendered

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _copy_first(observations: Any) -> Any:
    """Return a copy of the observation of the only replica."""
    if isinstance(observations, dict):
        return {key: rows[0, ...].copy() for key, rows in observations.items()}  # [0] of a 1-d array is no array
    return observations[0, ...].copy()


def _make_infos(mask: np.ndarray | None) -> dict[str, Any]:
    """Return infos, with the action mask if there is one."""
    return {} if mask is None else {"action_mask": mask[0].copy()}


def _action_writer(space: gymnasium.Space[Any]) -> tuple[np.ndarray, Callable[[Any], None]]:
    """Return the array that the kernel reads, and a function that writes an action to it or raises an ActionError."""
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _multi_discrete_writer(space)
    low, high = 0, 0
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    if isinstance(space, gymnasium.spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    actions = np.zeros((1, *(space.shape or ())), np.int64 if discrete else np.float32)
    scalar = actions.size == 1

    def write_action(action: Any) -> None:
        """Write an action to the array, or raise an ActionError if it is invalid."""
        try:
            actions[0] = operator.index(action) if discrete else action
        except (TypeError, ValueError, OverflowError):
            raise ActionError(f"the action {action!r} is not in the action space {space}") from None
        if discrete:
            valid = low <= actions.item() <= high
        else:
            valid = actions.item() == actions.item() if scalar else not np.isnan(actions).any()
        if not valid:
            raise ActionError(f"the action {action!r} is out of range or NaN; allowed: {space}")

    return actions, write_action


def _multi_discrete_writer(space: gymnasium.spaces.MultiDiscrete) -> tuple[np.ndarray, Callable[[Any], None]]:
    """Return the array that the kernel reads, and a function that writes a MultiDiscrete action or raises an error."""
    actions = np.zeros((1, *space.shape), np.int64)
    low, high = space.start, space.start + space.nvec - 1

    def write_choices(action: Any) -> None:
        """Write a MultiDiscrete action to ``actions``, which the kernel reads, or raise an ActionError."""
        try:
            array = np.asarray(action)
        except (TypeError, ValueError):  # on another device, or rows of unequal lengths
            array = np.empty(0)
        if array.shape != space.shape or array.dtype.kind not in "biu":
            raise ActionError(f"the action {action!r} is not in the action space {space}")
        if (array < low).any() or (array > high).any():
            raise ActionError(f"the action {action!r} is out of range; allowed: {space}")
        actions[0] = array

    return actions, write_choices
