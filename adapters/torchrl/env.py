"""A TorchRL ``EnvBase`` for any environment of this package."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from gpu_envs.adapters.opening import open_env
from gpu_envs.adapters.torchrl.role_groups import RoleGroups
from gpu_envs.adapters.torchrl.specs import nonempty_mask
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seed, Seeds, check_seed
from gpu_envs.specs.base import Spec
from gpu_envs.vector_env import VectorEnv


@final
class Env(EnvBase):
    """A TorchRL environment of batch size ``[num_envs]`` on the device of its replicas.

    A step writes to new tensors, so collected data is never overwritten. ``step``, ``step_and_maybe_reset`` and a reset
    with a mask on the device do not synchronize with the device; a ``TransformedEnv`` does, to check for done replicas.

    A single-agent environment has the keys ``observation``, ``action``, ``reward``, ``done``, ``terminated`` and
    ``truncated``. A team has these keys in a group for each role, such as ``td["tagger", "observation"]`` of shape
    ``[num_envs, agents, ...]``, with a ``mask`` of active agents. An inactive agent stays done until its replica is
    reset. The root has ``done``, ``terminated`` and ``truncated`` of replicas: done if all agents are done, terminated
    if all are terminated, truncated if any agent was truncated.

    A Dict observation space has its own keys instead of ``observation``. If the environment has action masks, there is
    an ``action_mask``, bool ``[..., choices]`` (concatenated for MultiDiscrete actions), and ``rand_action`` samples
    valid actions. A ``TransformedEnv`` has its own action specs: add TorchRL's ``ActionMask`` transform.

    Any replicas can be reset with a mask. Replicas whose episode is over must be reset before the next step, as TorchRL
    does, or excluded with a ``_step`` mask. A seed, also from ``set_seed``, applies to the next full reset.

    Attributes:
        env: The ``VectorEnv`` or ``MultiAgentEnv``. Its ``check`` raises errors of invalid actions on the GPU.
        num_envs: Number of replicas.
        group_map: Agent names by role; empty for a single-agent environment.
    """

    def __init__(
        self,
        env: str | Spec | VectorEnv | MultiAgentEnv,
        num_envs: int | None = None,
        *,
        seed: Seed | None = None,
        categorical_actions: bool = True,
        **options: Any,
    ) -> None:
        """Create the environment, or wrap an existing one.

        Args:
            env: An id such as ``CartPole-v1``, a path such as ``my_env.py:MY_ENV``, a spec, or an environment made with
                ``output="torch"`` and ``autoreset_mode="Disabled"``.
            num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
            seed: Seed of the first reset.
            categorical_actions: Whether discrete actions are numbers from 0 (the default) or one-hot.
            **options: Arguments of ``gpu_envs.make``, such as ``device``, and parameters of the environment.
        """
        defaults = {"statistics": False} if isinstance(env, str) else {}  # TorchRL sums rewards itself
        wrapped = open_env(env, num_envs, "Disabled", {**defaults, **options}, output="torch")
        device = torch.device(wrapped.device)
        super().__init__(device=device, batch_size=(wrapped.num_envs,))
        self.env: Final = wrapped
        self.num_envs: Final = wrapped.num_envs
        by_role = RoleInterface(wrapped)
        groups = {} if by_role.single_agent else by_role.roles
        self.group_map: Final = {name: list(role.agents) for name, role in groups.items()}
        self._next_seed: Seeds = check_seed(seed)
        self._grouped: Final = RoleGroups(by_role, device, categorical=categorical_actions)
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = self._grouped.specs()
        specs = self.full_action_spec
        self._masks: Final = [(key, specs[action], choices) for key, action, choices in self._grouped.masks()]
        self.is_closed = False

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all replicas except done replicas that a ``_step`` mask excludes; return new tensors."""
        step_mask = tensordict.get("_step", None)
        if step_mask is None:
            return self._with_valid_actions(self._grouped.step(tensordict))
        _check_step_mask(step_mask, tensordict.get("done", None))
        self.env.allow_frozen_steps()
        try:
            return self._with_valid_actions(self._grouped.step(tensordict))
        finally:
            self.env.allow_frozen_steps(False)

    def _with_valid_actions(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restrict ``rand_action`` to the action masks of a TensorDict, and return the TensorDict."""
        for key, spec, choices in self._masks:
            mask = tensordict.get(key, None)
            if mask is not None:
                spec.update_mask(nonempty_mask(mask, choices))
        return tensordict

    def _reset(
        self,
        tensordict: "TensorDictBase | None" = None,  # a string: the documentation also builds without the library
        *,
        seed: Seeds = None,
        options: Mapping[str, Any] | None = None,
    ) -> TensorDictBase:
        """Start new episodes, and return the observations of all replicas, with nothing done.

        Args:
            tensordict: May contain ``_reset``, a bool mask ``[num_envs, 1]`` of replicas to reset; default: all.
            seed: Replica *i* uses ``seed + i``.
            options: Options of the environment's ``reset``.
        """
        reset_options = dict(options or {})
        mask = None if tensordict is None else self._reset_mask(tensordict)
        if mask is not None:
            if self.device.type == "cpu" and not bool(mask.any()):  # the environment refuses an empty mask
                return self._with_valid_actions(self._grouped.copied(self._grouped.observe()))
            reset_options["reset_mask"] = mask
        elif seed is None:
            seed, self._next_seed = self._next_seed, None
        return self._with_valid_actions(self._grouped.copied(self._grouped.reset(seed, reset_options)))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset replicas that are done; unlike TorchRL's method, without waiting for the device.

        Args:
            tensordict: The result of ``step_mdp``. It is returned; replicas that were done get their first
                observations, and zeros under other keys.
        """
        done = tensordict.get("done", None)
        if done is not None and (self.device.type != "cpu" or bool(done.any())):
            self._grouped.reset_done(tensordict, done)
            self._with_valid_actions(tensordict)
        return tensordict

    def _reset_mask(self, tensordict: TensorDictBase) -> torch.Tensor | None:
        """Return the ``_reset`` mask at the root, ``[num_envs]``, or None; raise a ValueError if a group has one."""
        mask: torch.Tensor | None = tensordict.get("_reset", None)
        if mask is not None:
            return mask.reshape(self.num_envs)
        for role in self.group_map:
            if tensordict.get((role, "_reset"), None) is not None:
                raise ValueError(
                    f"the group {role!r} has a '_reset', but the agents of a replica are reset together: "
                    f"set '_reset' at the root, of shape [{self.num_envs}, 1]"
                )
        return None

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def to(self, device: torch.device | str | int) -> "Env":
        """Return this environment if it is on the device, else raise a ValueError: replicas cannot be moved."""
        target = torch.device(device)
        if target.type == self.device.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if target != self.device:
            raise ValueError(
                f"replicas on {self.device} cannot be moved: create an environment with device={str(target)!r}"
            )
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close this environment and ``env``; a second call is an error unless ``raise_if_closed`` is False."""
        if self.is_closed and raise_if_closed:
            raise RuntimeError("this environment is already closed: use close(raise_if_closed=False) to ignore this")
        self.is_closed = True
        self.env.close()

    def __del__(self) -> None:
        """Leave ``env`` open, which may be in use elsewhere; its memory is garbage collected."""

    def __repr__(self) -> str:
        return f"torchrl.Env({self.env!r})"


def _check_step_mask(step_mask: torch.Tensor, done: torch.Tensor | None) -> None:
    """Raise a ValueError if a ``_step`` mask excludes a replica that is not done, or without ``done``."""
    if done is None:
        raise ValueError("'_step' needs 'done' in the same TensorDict")
    if not bool((step_mask.reshape(-1) | done.reshape(-1)).all()):
        raise ValueError(
            "'_step' is False for a replica that is not done, and running replicas are stepped together: "
            "set it to ~done, or leave it out"
        )
