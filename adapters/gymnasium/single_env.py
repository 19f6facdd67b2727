"""A single environment for ``gymnasium.make``: one replica, Python numbers, no limit and no restart of its own."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.adapters.opening import check_render_mode
from gpu_envs.backend import device_of_one_replica
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.errors import ActionError, did_you_mean
from gpu_envs.registry.known import env_spec
from gpu_envs.seeds import Seed, check_seed
from gpu_envs.vector_env import VectorEnv

_MADE_ANEW = ("_actions", "_advance")
"""Attributes that pickles leave out: they are bound to the replica's memory and kernels."""

_Moved: TypeAlias = tuple[Any, float, bool, bool, np.ndarray | None]
"""What a step gives: observation, reward, two flags, and which actions are possible."""

OPTIONS = ("device", "precision", "checking", "observe_params", "max_episode_steps", "render_mode")
"""Options of ``gymnasium.make`` for one replica."""

_SPACES = ("action_space", "observation_space")
"""Attributes of every environment that Gymnasium's class declares without a value."""


@final
class SingleEnv(gymnasium.Env[Any, Any]):
    """One replica as a ``gymnasium.Env``.

    Parameters and fields of the state are attributes, to be read and set: ``env.unwrapped.gravity = 3.7``. Any other
    public attribute that an environment has not is refused, so that no misspelt one is set in vain.
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
        """Makes the replica.

        Args:
            env_id: The environment, such as ``CartPole-v1``.
            device: ``cpu``, ``cuda`` or ``cuda:N``; None: the CPU where it has a compiler.
            precision: Of state and reward.
            checking: Raise a NotFiniteError for a number that is NaN or infinite.
            observe_params: Names of parameters whose values observations end with. None: the environment's default.
            render_mode: ``rgb_array`` (``render`` gives a frame), ``human`` (a window shows each step), or None.
            **params: The environment's own parameters.
        """
        spec = env_spec(env_id)
        check_render_mode(spec, render_mode)
        for name in params:
            if name not in spec.settings:  # in Python's words, by which other libraries know an argument to leave out
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}: "
                    f"{spec.id} has no {spec.unknown(name, OPTIONS)}"
                )
        self._env = VectorEnv(
            spec,
            1,
            device=device or device_of_one_replica(),
            output="numpy",
            autoreset_mode="Disabled",
            precision=precision,
            max_episode_steps=spec.most_steps(spec.check_params(params, 1)) or -1,
            threads=1,
            checking=checking,
            observe_params=observe_params,
            render_mode=render_mode,
            **params,
        )
        shown = {name: value for name, value in self._env.metadata.items() if name != "autoreset_mode"}
        self.metadata = {**shown, "render_modes": [m for m in shown["render_modes"] if m != "tiled"]}
        self.render_mode = render_mode
        self._shown = render_mode == "human"
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._warned = False
        self._terminated = False
        self._started = False
        self._prepare()

    def _prepare(self) -> None:
        """Binds what a step does to the replica's memory and kernels: anew after unpickling or another parameter.

        Within a step attributes are few: with ``__getattr__`` each of them costs time.
        """
        env, shown = self._env, self._shown
        env.allow_frozen_steps()
        self._actions, write = _written_by(self.action_space)
        actions = self._actions
        self._advance: Callable[[Any], _Moved]
        if env.device == "cpu":
            direct, (observations, rewards, terminations, truncations) = env.direct_step()
            address, kind = env.locate_action(actions)
            mask = env.action_mask
            limited = env.max_episode_steps is not None  # by the longest episode of its rules

            def advance_here(action: Any) -> _Moved:
                write(action)
                direct(address, kind)
                if shown:
                    env.render()
                truncated = limited and truncations.item()
                return _first(observations), rewards.item(), terminations.item(), truncated, mask

            self._advance = advance_here
            return

        def advance_there(action: Any) -> _Moved:
            write(action)
            observations, rewards, terminations, truncations, infos = env.step(actions)
            flags = bool(terminations[0]), bool(truncations[0])
            return _first(observations), float(rewards[0]), *flags, infos.get("action_mask")

        self._advance = advance_there

    # --- parameters and fields of the state, by name ---

    def __getattr__(self, name: str) -> Any:
        """A parameter, or a field of the state."""
        self._check_name(name, "")
        return self._env.get_attr(name)[0]

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute of Gymnasium's, a parameter, or a field of the state."""
        if name.startswith("_") or name in _SPACES or hasattr(type(self), name):
            object.__setattr__(self, name, value)
            return
        self._check_name(name, " to set")
        self._env.set_attr(name, value)
        self._prepare()

    def _check_name(self, name: str, purpose: str) -> None:
        """Raises an AttributeError where there is neither a parameter nor a field of that name."""
        env = vars(self).get("_env")  # none while it is made or unpickled
        known = [] if env is None else [*env.params, *env.state]
        if name not in known:
            what = type(self).__name__ if env is None else env.env_spec.id
            raise AttributeError(f"{what} has no attribute {name!r}{purpose}{did_you_mean(name, known)}")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but memory and kernels, of which the replica's pickle makes others."""
        return {name: value for name, value in vars(self).items() if name not in _MADE_ANEW}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    # --- Gymnasium's interface ---

    def reset(
        self, *, seed: Seed | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins a new episode; see ``VectorEnv.reset`` for the options."""
        number = check_seed(seed)
        super().reset(seed=number)
        observations, infos = self._env.reset(seed=number, options=options)
        self._started, self._terminated = True, False
        return _first(observations), _told(infos.get("action_mask"))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Takes one step; after the end of an episode the state stays, and the reward is 0, until a reset."""
        if not self._started or self._env.closed:
            self._env.step(self._actions)  # says what is wrong
        if self._terminated and not self._warned:
            self._warned = True
            gymnasium.logger.warn("step() was called though the episode has terminated: call reset() first")
        observation, reward, terminated, truncated, mask = self._advance(action)
        if terminated:
            self._terminated = True
        return observation, reward, terminated, truncated, _told(mask)

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
        self._env.close()


def _first(observations: Any) -> Any:
    """A copy of the only replica's; of a Dict, of each of its arrays."""
    if isinstance(observations, dict):
        return {key: rows[0, ...].copy() for key, rows in observations.items()}  # an array even of one number
    return observations[0, ...].copy()


def _told(mask: np.ndarray | None) -> dict[str, Any]:
    """The infos: which actions are possible, where the rules say so."""
    return {} if mask is None else {"action_mask": mask[0].copy()}


def _written_by(space: gymnasium.Space[Any]) -> tuple[np.ndarray, Callable[[Any], None]]:
    """Where the kernel reads actions, and what puts one there or raises an ActionError."""
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return _several_written_by(space)
    least, most = 0, 0
    discrete = isinstance(space, gymnasium.spaces.Discrete)
    if isinstance(space, gymnasium.spaces.Discrete):
        least, most = int(space.start), int(space.start + space.n - 1)
    actions = np.zeros((1, *(space.shape or ())), np.int64 if discrete else np.float32)
    few = actions.size == 1

    def write(action: Any) -> None:
        try:
            actions[0] = operator.index(action) if discrete else action
        except (TypeError, ValueError, OverflowError):
            raise ActionError(f"the action {action!r} is not of the action space {space}") from None
        if discrete:
            fits = least <= actions.item() <= most
        else:
            fits = actions.item() == actions.item() if few else not np.isnan(actions).any()
        if not fits:
            raise ActionError(f"the action {action!r} is out of range or not a number; allowed: {space}")

    return actions, write


def _several_written_by(space: gymnasium.spaces.MultiDiscrete) -> tuple[np.ndarray, Callable[[Any], None]]:
    """The same for several whole numbers."""
    actions = np.zeros((1, *space.shape), np.int64)
    least, most = space.start, space.start + space.nvec - 1

    def write(action: Any) -> None:
        try:
            given = np.asarray(action)
        except (TypeError, ValueError):  # on another device, or rows of unequal lengths
            given = np.empty(0)
        if given.shape != space.shape or given.dtype.kind not in "biu":
            raise ActionError(f"the action {action!r} is not of the action space {space}")
        if (given < least).any() or (given > most).any():
            raise ActionError(f"the action {action!r} is out of range; allowed: {space}")
        actions[0] = given

    return actions, write
