"""The vectorised environment of Stable-Baselines3."""

import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv as StableVecEnv

from gpu_envs import MultiAgentEnv, VectorEnv
from gpu_envs.adapters.opening import opened
from gpu_envs.adapters.sb3.others import Other, Others
from gpu_envs.adapters.sb3.slots import Agents, Replicas, SlotObservations, Slots, Stepped, rows
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seed, check_seed, derived_seed, random_seed
from gpu_envs.specs.base import Spec

MASKS = "action_masks"
"""The method that sb3-contrib looks for."""

_READING = frozenset({"check", "get_attr", "get_state", "observe", "render"})
"""Methods of the environment that change no replica."""


@final
class VecEnv(StableVecEnv):
    """Replicas, or one role's agents in each of them, as the environments that Stable-Baselines3 trains on.

    A step returns fresh arrays, and infos that are new where an episode ended: ``terminal_observation``,
    ``TimeLimit.truncated`` and ``episode`` (its return ``r``, its length ``l``, the seconds ``t`` since this object was
    made, and its metrics), as with a ``Monitor`` around each environment. All other infos are the same empty dicts
    every step: do not write into them.

    Observations of a Dict space are dicts of arrays, and so is ``terminal_observation``. Whole numbers of actions count
    from 0, as the policies give them, whatever the ``start`` of the environment's space. Where the rules say which
    actions are possible, sb3-contrib's ``MaskablePPO`` asks for that by itself, each step; infos do not hold it.

    Stable-Baselines3 gives an image (a uint8 Box ``[height, width, channels]`` from 0 to 255, of a Dict or under its
    ``CnnPolicy``) to its ``NatureCNN``, which fails with "Kernel size can't be greater than actual input size" where
    there are fewer than 36 pixels each way. Give ``policy_kwargs={"features_extractor_class": ...}`` an extractor for
    small ones, or the spec's Box another upper bound than 255 or one dimension: it is flattened then.

    With a team, ``role`` says whose agents are trained, and each agent of each replica is an environment. It is done
    when its agent goes out; then it waits, seeing zeros and getting no reward, until the replica's episode ends and it
    is done again. ``episode`` is given then, of the agent's own life.

    Attributes:
        env: The environment underneath.
    """

    def __init__(
        self,
        env: str | Spec | VectorEnv | MultiAgentEnv,
        num_envs: int | None = None,
        *,
        role: str | None = None,
        others: Other | Mapping[str, Other] = "random",
        stagger: bool = False,
        seed: Seed | None = None,
        **options: Any,
    ) -> None:
        """Makes the environment, or takes one.

        Args:
            env: An id, such as ``CartPole-v1``; a place, ``my_env.py:MY_ENV``; or an environment in SameStep mode.
            num_envs: With an id: how many replicas; None: one.
            role: Of a team: whose agents are trained.
            others: What the other roles do, all or by name: ``random``, ``still``, or a function from the role's
                observations ``[num_envs, agents, ...]`` (torch's, on the environment's device) to its actions.
            stagger: First episodes are cut short at random steps, so that not all replicas reach the limit at once.
                They are not reported. For training, not for evaluation.
            seed: Of the first reset; replica *i* gets ``seed + i``. None: a random one.
            **options: With an id: what ``gpu_envs.make`` takes, such as ``device``, and the environment's parameters.
        """
        if not isinstance(stagger, bool):
            raise TypeError(f"stagger is {stagger!r}; True or False (its random steps follow from seed)")
        self.env: Any = opened(env, num_envs, "SameStep", options, statistics=True)
        self._slots = _slots_of(self.env, role, others)
        self._stagger = stagger
        self._first_seed = check_seed(seed)
        self._actions: Any = None
        self._began = time.time()
        count = self.env.num_envs * self._slots.of_replica
        super().__init__(count, self._slots.observation_space, self._slots.action_space)
        shown = {name: self.env.metadata[name] for name in ("render_fps",) if name in self.env.metadata}
        self.metadata: dict[str, Any] = {**self.metadata, **shown}
        self._nothing: list[dict[str, Any]] = [{} for _ in range(count)]

    @property
    def alive(self) -> np.ndarray:
        """Whether each environment's agent is in the game, bool: of a team; otherwise all are."""
        return self._slots.alive if isinstance(self._slots, Agents) else np.ones(self.num_envs, bool)

    def action_masks(self) -> np.ndarray:
        """Which actions are possible now, bool ``[num_envs, choices]``; those of several numbers one after another."""
        if self.env.action_mask is None:
            raise ValueError(f"every action is possible in {self.env!r}: its spec has no action_mask")
        return self._slots.masks()

    # --- stepping ---

    def seed(self, seed: Seed | None = None) -> Sequence[int | None]:
        """Chooses the seed of the next reset; None: a random one."""
        seeds: Sequence[int | None] = super().seed(check_seed(seed))
        return seeds

    def reset(self) -> SlotObservations:
        """Begins new episodes everywhere, with the seeds and options that were set, which hold this once."""
        seed = self._seeds[0] if self._seeds[0] is not None else self._first_seed
        observations, infos = self._reset_env(seed)
        if self._stagger:
            observations = self.env.stagger(derived_seed(random_seed() if seed is None else seed, "stagger"))
        self._first_seed = None
        self._actions = None
        self._reset_seeds()
        self._reset_options()
        return self._slots.begin(observations, infos, seed, midway=self._stagger)

    def _reset_env(self, seed: int | None) -> Any:
        """Resets all replicas; those with equal options together."""
        if len(self._options) != self.num_envs:
            raise ValueError(f"set_options was given {len(self._options)} options; expected {self.num_envs}, or one")
        if not any(self._options):
            return self.env.reset(seed=seed)
        groups: dict[Any, list[int]] = {}
        for slot, options in enumerate(self._options):
            groups.setdefault(_key(options), []).append(slot)
        if len(groups) == 1:
            return self.env.reset(seed=seed, options=self._options[0])
        known = random_seed() if seed is None else seed
        result = self.env.reset(seed=known)
        seen = np.zeros(self.env.num_envs, bool)
        for slots in groups.values():
            mask = np.zeros(self.env.num_envs, bool)
            mask[np.array(slots) // self._slots.of_replica] = True
            if (seen & mask).any():
                replica = int(np.argmax(seen & mask))
                raise ValueError(f"the agents of replica {replica} have different options; give them the same")
            seen |= mask
            seeds = [known + i if mask[i] else None for i in range(self.env.num_envs)]
            result = self.env.reset(seed=seeds, options={**self._options[slots[0]], "reset_mask": mask})
        return result

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[SlotObservations, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Steps every environment once.

        Returns:
            Observations, float32 rewards, dones and infos.

        Raises:
            ActionError: An action is out of range or not a number. Nothing has changed.
        """
        if self._actions is None:
            raise RuntimeError("step_wait() was called without step_async(actions) before it")
        actions, self._actions = self._actions, None
        stepped = self._slots.step(actions)
        infos = self._nothing.copy()
        if stepped.ended.size:
            self._describe(infos, stepped)
        return stepped.observations, stepped.rewards, stepped.dones, infos

    def _describe(self, infos: list[dict[str, Any]], stepped: Stepped) -> None:
        """Puts a new info where an episode ended."""
        seconds = round(time.time() - self._began, 6)
        rows = zip(
            stepped.ended.tolist(),
            stepped.last,
            stepped.truncated.tolist(),
            stepped.returns.tolist(),
            stepped.lengths.tolist(),
            *(values.tolist() for values in stepped.metrics.values()),
            strict=True,
        )
        for slot, last, truncated, total, length, *measured in rows:
            metrics = dict(zip(stepped.metrics, measured, strict=True))
            infos[slot] = {
                "terminal_observation": last,
                "TimeLimit.truncated": truncated,
                "episode": {"r": total, "l": length, "t": seconds, **metrics},
            }
        for slot in stepped.ended[~stepped.reported].tolist():
            del infos[slot]["episode"]

    def close(self) -> None:
        self.env.close()

    # --- what the replicas have ---

    def _chosen(self, indices: Any) -> list[int]:
        """Numbers of environments, from 0 up."""
        every = range(self.num_envs)
        return [every[i] for i in self._get_indices(indices)]

    def _mask_of(self, slot: int) -> np.ndarray:
        return np.asarray(self.action_masks()[slot])

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """A parameter, a state field or an attribute of the environment, of each of those chosen."""
        if attr_name == MASKS and self.env.action_mask is not None:
            return [functools.partial(self._mask_of, i) for i in self._chosen(indices)]
        values = self.env.get_attr(attr_name)
        return [values[i // self._slots.of_replica] for i in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets a parameter or a state field to one value, in the replicas of those chosen."""
        replicas = {i // self._slots.of_replica for i in self._chosen(indices)}
        if len(replicas) == self.env.num_envs:
            self.env.set_attr(attr_name, value)
            return
        known = [*self.env.params, *self.env.state]
        if attr_name not in known:
            hint = did_you_mean(attr_name, known)
            raise ValueError(f"there is no parameter or state field {attr_name!r} to set{hint}")
        values = list(self.env.get_attr(attr_name))
        for replica in replicas:
            values[replica] = value
        self.env.set_attr(attr_name, values)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Calls a method of the environment, once for all replicas; the results of those chosen.

        ``reset`` begins new episodes in the replicas of those chosen alone, and gives each its observation and infos.
        Another method that changes something changes all replicas, and is refused where only some are chosen.
        """
        chosen = self._chosen(indices)
        if method_name == MASKS:
            return list(self.action_masks()[chosen])
        if method_name == "reset":
            return self._begin_anew(chosen, *method_args, **method_kwargs)
        some = len({i // self._slots.of_replica for i in chosen}) < self.env.num_envs
        if some and method_name not in _READING and callable(getattr(self.env, method_name, None)):
            raise ValueError(
                f"{method_name}() acts on all replicas at once, and indices names some: leave indices out (parameters "
                "and fields of the state are set by set_attr(name, value, indices))"
            )
        results = self.env.call(method_name, *method_args, **method_kwargs)
        return [results[i // self._slots.of_replica] for i in chosen]

    def _begin_anew(
        self, chosen: Sequence[int], *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Begins new episodes in some replicas: replica *i* with ``seed + i``; where others are it goes on."""
        agents = np.bincount(np.unique(chosen) // self._slots.of_replica, minlength=self.env.num_envs)
        mask, given = agents > 0, dict(options or {})
        if (agents[mask] < self._slots.of_replica).any():
            raise ValueError(
                f"indices names some agents of a replica, and its episode is of all {self._slots.of_replica}: name all"
            )
        if "reset_mask" in given:
            raise ValueError("indices says which replicas begin anew: leave 'reset_mask' out")
        if mask.all():
            observations, infos = self.env.reset(seed=seed, options=given)
        else:
            seeds = None if seed is None else [seed + i if mask[i] else None for i in range(len(mask))]
            observations, infos = self.env.reset(seed=seeds, options={**given, "reset_mask": mask})
        seen = self._slots.begin(observations, infos, seed if mask.all() else None, replicas=mask)
        return [(observation, {}) for observation in rows(seen, np.array(chosen, np.intp))]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """True of ``Monitor``, whose work is done here."""
        return [issubclass(Monitor, wrapper_class)] * len(self._chosen(indices))

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each environment, where it was made with ``render_mode='rgb_array'``."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"there are no pictures: render_mode is {self.render_mode!r}, not 'rgb_array'", stacklevel=2)
            return [None] * self.num_envs
        pictures: Any = self.env.render()
        return [pictures[i // self._slots.of_replica] for i in range(self.num_envs)]

    def __repr__(self) -> str:
        return f"VecEnv({self.env!r}, {self.num_envs} environments)"


def _key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for options that are, whatever objects hold them."""
    arrays = {name: np.asarray(to_numpy(value)) for name, value in options.items()}
    return tuple((n, a.dtype.str, a.shape, a.tobytes()) for n, a in sorted(arrays.items()))


def _slots_of(env: VectorEnv | MultiAgentEnv, role: str | None, others: Other | Mapping[str, Other]) -> Slots:
    """A slot for each replica, or for each agent of the role."""
    by_role = ByRole(env)
    if by_role.alone:
        if role is not None or others != "random":
            raise ValueError("this environment has one agent: leave out role and others")
        return Replicas(by_role)
    roles = ", ".join(by_role.roles)
    if role is None:
        raise ValueError(f"this environment has a team: say with role= whose agents to train: {roles}")
    if role not in by_role.roles:
        raise ValueError(f"there is no role {role!r}{did_you_mean(role, by_role.roles)} There are: {roles}")
    return Agents(by_role, role, Others(by_role, role, others))
