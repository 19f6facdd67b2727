"""A Stable-Baselines3 ``VecEnv`` for any environment of this package."""

import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv as StableVecEnv

from gpu_envs import MultiAgentEnv, VectorEnv
from gpu_envs.adapters.opening import open_env
from gpu_envs.adapters.sb3.other_roles import OtherPolicy, OtherRoles
from gpu_envs.adapters.sb3.slots import Replicas, RoleAgents, SlotObservations, Slots, StepResults, select_rows
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seed, check_seed, derived_seed, random_seed
from gpu_envs.specs.base import Spec

MASKS = "action_masks"
"""Name of the method that sb3-contrib calls for action masks."""

_READ_ONLY = frozenset({"check", "get_attr", "get_state", "observe", "render"})
"""Methods of the environment that do not change its state."""


@final
class VecEnv(StableVecEnv):
    """A Stable-Baselines3 ``VecEnv`` with one environment per replica or, for a team, per agent of the trained role.

    ``step`` returns new arrays. When an episode ends, its info contains ``terminal_observation``,
    ``TimeLimit.truncated`` and ``episode`` (return ``r``, length ``l``, seconds ``t`` since this object was created,
    and the environment's metrics), as with a ``Monitor`` around each environment. All other infos are shared empty
    dicts: do not modify them.

    For a Dict space, observations and ``terminal_observation`` are dicts of arrays. Discrete actions start at 0 even
    if the environment's space has another ``start``. If the environment has an action mask, sb3-contrib's
    ``MaskablePPO`` reads it with ``action_masks``; infos do not contain it.

    Stable-Baselines3 processes images (uint8 Boxes ``[height, width, channels]`` from 0 to 255, inside a Dict or with
    ``CnnPolicy``) with ``NatureCNN``, which fails with "Kernel size can't be greater than actual input size" below
    36 x 36 pixels. For smaller images pass ``policy_kwargs={"features_extractor_class": ...}``, or declare the spec's
    Box with an upper bound below 255 or with one dimension, so that Stable-Baselines3 flattens it.

    In a team, an agent's environment is done when the agent becomes inactive. It then observes zeros and receives no
    reward until the replica's episode ends, when it is done again with the agent's ``episode`` in its info.

    Attributes:
        env: The wrapped ``VectorEnv`` or ``MultiAgentEnv``.

    Example:
        >>> from gpu_envs.adapters.sb3 import VecEnv
        >>> from stable_baselines3 import PPO
        >>> model = PPO("MlpPolicy", VecEnv("CartPole-v1", 64), n_steps=32).learn(2048)
        >>> model.num_timesteps
        2048
    """

    def __init__(
        self,
        env: str | Spec | VectorEnv | MultiAgentEnv,
        num_envs: int | None = None,
        *,
        role: str | None = None,
        others: OtherPolicy | Mapping[str, OtherPolicy] = "random",
        stagger: bool = False,
        seed: Seed | None = None,
        **options: Any,
    ) -> None:
        """Create the environment, or wrap an existing one.

        Args:
            env: An id such as ``CartPole-v1``, a path such as ``my_env.py:MY_ENV``, a spec, or an environment in
                SameStep mode.
            num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
            role: The role to train, required for a team.
            others: Actions of the other roles, for all or as a dict by role: ``random``, ``still``, or a function from
                the role's observations (torch tensors ``[num_envs, agents, ...]``) to its actions.
            stagger: Truncate the first episodes at random steps, so that replicas do not all reach the time limit
                at once. These episodes are not reported. For training only.
            seed: Seed of the first reset; replica *i* uses ``seed + i``. None: a random seed.
            **options: Arguments of ``gpu_envs.make``, such as ``device``, and parameters of the environment.
        """
        if not isinstance(stagger, bool):
            raise TypeError(f"stagger is {stagger!r}: use True or False (seed determines the random steps)")
        self.env: Any = open_env(env, num_envs, "SameStep", options, statistics=True)
        self._slots = _make_slots(self.env, role, others)
        self._stagger = stagger
        self._first_seed = check_seed(seed)
        self._actions: Any = None
        self._start_time = time.time()
        count = self.env.num_envs * self._slots.of_replica
        super().__init__(count, self._slots.observation_space, self._slots.action_space)
        render_metadata = {name: self.env.metadata[name] for name in ("render_fps",) if name in self.env.metadata}
        self.metadata: dict[str, Any] = {**self.metadata, **render_metadata}
        self._empty_infos: list[dict[str, Any]] = [{} for _ in range(count)]

    @property
    def alive(self) -> np.ndarray:
        """Bool array ``[num_envs]``: which environments have an active agent; all of them without a team."""
        return self._slots.alive if isinstance(self._slots, RoleAgents) else np.ones(self.num_envs, bool)

    def action_masks(self) -> np.ndarray:
        """Return the mask of valid actions, bool ``[num_envs, choices]``; MultiDiscrete masks are concatenated."""
        if self.env.action_mask is None:
            raise ValueError(f"{self.env!r} has no action masks: its spec does not define action_mask")
        return self._slots.masks()

    # --- stepping ---

    def seed(self, seed: Seed | None = None) -> Sequence[int | None]:
        """Set the seed of the next reset; None: a random seed."""
        seeds: Sequence[int | None] = super().seed(check_seed(seed))
        return seeds

    def reset(self) -> SlotObservations:
        """Reset all environments with the seed and options set for this reset, and return their observations."""
        seed = self._seeds[0] if self._seeds[0] is not None else self._first_seed
        observations, infos = self._reset_env(seed)
        if self._stagger:
            observations = self.env.stagger(derived_seed(random_seed() if seed is None else seed, "stagger"))
        self._first_seed = None
        self._actions = None
        self._reset_seeds()
        self._reset_options()
        return self._slots.start_episodes(observations, infos, seed, staggered=self._stagger)

    def _reset_env(self, seed: int | None) -> Any:
        """Reset all replicas, with one call for each distinct set of options; return observations and infos."""
        if len(self._options) != self.num_envs:
            raise ValueError(
                f"set_options got a list of {len(self._options)}: pass one dict, or a list of {self.num_envs}"
            )
        if not any(self._options):
            return self.env.reset(seed=seed)
        groups: dict[Any, list[int]] = {}
        for slot, options in enumerate(self._options):
            groups.setdefault(_options_key(options), []).append(slot)
        if len(groups) == 1:
            return self.env.reset(seed=seed, options=self._options[0])
        first_seed = random_seed() if seed is None else seed
        result = self.env.reset(seed=first_seed)
        already_reset = np.zeros(self.env.num_envs, bool)
        for slots in groups.values():
            mask = np.zeros(self.env.num_envs, bool)
            mask[np.array(slots) // self._slots.of_replica] = True
            if (already_reset & mask).any():
                replica = int(np.argmax(already_reset & mask))
                raise ValueError(
                    f"the agents of replica {replica} have different options: pass the same options for all of them"
                )
            already_reset |= mask
            seeds = [first_seed + i if mask[i] else None for i in range(self.env.num_envs)]
            result = self.env.reset(seed=seeds, options={**self._options[slots[0]], "reset_mask": mask})
        return result

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions for ``step_wait``."""
        self._actions = actions

    def step_wait(self) -> tuple[SlotObservations, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step with the actions passed to ``step_async``; return observations, float32 rewards, dones and infos.

        Raises:
            ActionError: An action is out of range or NaN. The state is unchanged.
        """
        if self._actions is None:
            raise RuntimeError("step_wait() was called without actions: call step_async(actions) first")
        actions, self._actions = self._actions, None
        results = self._slots.step(actions)
        infos = self._empty_infos.copy()
        if results.ended.size:
            self._set_episode_infos(infos, results)
        return results.observations, results.rewards, results.dones, infos

    def _set_episode_infos(self, infos: list[dict[str, Any]], results: StepResults) -> None:
        """Replace the infos of slots that are done: final observation, truncation and, if reported, statistics."""
        seconds = round(time.time() - self._start_time, 6)
        rows = zip(
            results.ended.tolist(),
            results.final_obs,
            results.truncated.tolist(),
            results.returns.tolist(),
            results.lengths.tolist(),
            *(values.tolist() for values in results.metrics.values()),
            strict=True,
        )
        for slot, last, truncated, total, length, *metric_values in rows:
            metrics = dict(zip(results.metrics, metric_values, strict=True))
            infos[slot] = {
                "terminal_observation": last,
                "TimeLimit.truncated": truncated,
                "episode": {"r": total, "l": length, "t": seconds, **metrics},
            }
        for slot in results.ended[~results.reported].tolist():
            del infos[slot]["episode"]

    def close(self) -> None:
        """Close the replicas."""
        self.env.close()

    # --- attributes and methods of the replicas ---

    def _selected(self, indices: Any) -> list[int]:
        """Return the selected environments as a list of non-negative ints; None selects all."""
        all_indices = range(self.num_envs)
        return [all_indices[i] for i in self._get_indices(indices)]

    def _slot_mask(self, slot: int) -> np.ndarray:
        return np.asarray(self.action_masks()[slot])

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return a parameter, state field or attribute of the environment, for each selected environment."""
        if attr_name == MASKS and self.env.action_mask is not None:
            return [functools.partial(self._slot_mask, i) for i in self._selected(indices)]
        values = self.env.get_attr(attr_name)
        return [values[i // self._slots.of_replica] for i in self._selected(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set a parameter or state field to one value in the replicas of the selected environments."""
        replicas = {i // self._slots.of_replica for i in self._selected(indices)}
        if len(replicas) == self.env.num_envs:
            self.env.set_attr(attr_name, value)
            return
        names = [*self.env.params, *self.env.state]
        if attr_name not in names:
            hint = did_you_mean(attr_name, names)
            raise ValueError(f"cannot set {attr_name!r} with indices: it is no parameter or state field{hint}")
        values = list(self.env.get_attr(attr_name))
        for replica in replicas:
            values[replica] = value
        self.env.set_attr(attr_name, values)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Call a method of the environment once; return each selected environment's own entry of the results.

        ``reset`` resets only the replicas of the selected environments, and returns an observation and an info for
        each. Other methods that change the state apply to all replicas, so they cannot be called with some indices.
        """
        selected = self._selected(indices)
        if method_name == MASKS:
            return list(self.action_masks()[selected])
        if method_name == "reset":
            return self._reset_selected(selected, *method_args, **method_kwargs)
        partial = len({i // self._slots.of_replica for i in selected}) < self.env.num_envs
        if partial and method_name not in _READ_ONLY and callable(getattr(self.env, method_name, None)):
            raise ValueError(
                f"{method_name}() acts on all replicas, but indices selects some: leave indices out, or use "
                "set_attr(name, value, indices) for parameters and state fields"
            )
        results = self.env.call(method_name, *method_args, **method_kwargs)
        return [results[i // self._slots.of_replica] for i in selected]

    def _reset_selected(
        self, selected: Sequence[int], *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Reset the replicas of the selected environments, and return an observation and an empty info for each."""
        agents = np.bincount(np.unique(selected) // self._slots.of_replica, minlength=self.env.num_envs)
        mask, reset_options = agents > 0, dict(options or {})
        if (agents[mask] < self._slots.of_replica).any():
            raise ValueError(
                f"indices selects some agents of a replica, but its {self._slots.of_replica} agents reset together: "
                "select all of them"
            )
        if "reset_mask" in reset_options:
            raise ValueError("indices already selects the replicas to reset: leave 'reset_mask' out")
        if mask.all():
            observations, infos = self.env.reset(seed=seed, options=reset_options)
        else:
            seeds = None if seed is None else [seed + i if mask[i] else None for i in range(len(mask))]
            observations, infos = self.env.reset(seed=seeds, options={**reset_options, "reset_mask": mask})
        reset_observations = self._slots.start_episodes(
            observations, infos, seed if mask.all() else None, replicas=mask
        )
        return [(observation, {}) for observation in select_rows(reset_observations, np.array(selected, np.intp))]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Return True for ``Monitor``, whose infos this class provides, and False for other wrappers."""
        return [issubclass(Monitor, wrapper_class)] * len(self._selected(indices))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return a frame of each environment if ``render_mode`` is ``rgb_array``, otherwise None for each."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"render_mode is {self.render_mode!r}: make it with render_mode='rgb_array' to get images", stacklevel=2
            )
            return [None] * self.num_envs
        images: Any = self.env.render()
        return [images[i // self._slots.of_replica] for i in range(self.num_envs)]

    def __repr__(self) -> str:
        return f"VecEnv({self.env!r}, {self.num_envs} environments)"


def _options_key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a hashable key that is equal for options with equal values."""
    arrays = {name: np.asarray(to_numpy(value)) for name, value in options.items()}
    return tuple((n, a.dtype.str, a.shape, a.tobytes()) for n, a in sorted(arrays.items()))


def _make_slots(
    env: VectorEnv | MultiAgentEnv, role: str | None, others: OtherPolicy | Mapping[str, OtherPolicy]
) -> Slots:
    """Return ``RoleAgents`` of the role of a team, else ``Replicas``; raise a ValueError if ``role`` does not fit."""
    by_role = RoleInterface(env)
    if by_role.single_agent:
        if role is not None or others != "random":
            raise ValueError("this environment has a single agent: leave role and others out")
        return Replicas(by_role)
    roles = ", ".join(by_role.roles)
    if role is None:
        raise ValueError(f"this environment has a team: select the role to train with role=: {roles}")
    if role not in by_role.roles:
        raise ValueError(f"role is {role!r}, which does not exist{did_you_mean(role, by_role.roles)} Roles: {roles}")
    return RoleAgents(by_role, role, OtherRoles(by_role, role, others))
