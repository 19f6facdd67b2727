"""The environment as TorchRL sees it."""

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from gpu_envs.adapters.opening import open_env
from gpu_envs.adapters.torchrl.grouped import Grouped
from gpu_envs.adapters.torchrl.specs import allowed
from gpu_envs.engine.by_role import ByRole
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seed, Seeds, check_seed
from gpu_envs.specs.base import Spec
from gpu_envs.vector_env import VectorEnv


@final
class Env(EnvBase):
    """Many replicas of an environment as a TorchRL environment of batch size ``[num_envs]``, on their own device.

    A step writes straight into fresh tensors, so what was collected stays as it is. Neither a step nor a reset by a
    mask on the device waits for the device, nor does ``step_and_maybe_reset``; a ``TransformedEnv`` waits to see
    whether anything is done, which is TorchRL's way.

    Of a single-agent environment there are ``observation``, ``action``, ``reward`` and the ends: ``done``,
    ``terminated``, ``truncated``. Of a team each role has a group: ``td["tagger", "observation"]`` is
    ``[num_envs, agents, ...]``, and beside it are ``action``, ``reward``, the three ends, and ``mask``: who is in the
    game. An agent that is out stays done until its replica begins anew. The ends at the root are those of replicas:
    done where all agents are, terminated where all are, truncated where the time limit cut an agent short.

    Observations of a Dict space have its own keys in place of ``observation``. Where the rules say which actions are
    possible there is ``action_mask`` too, bool ``[..., choices]``, the choices of several numbers one after another,
    and ``rand_action`` draws among these. A ``TransformedEnv`` has action specs of its own: give it TorchRL's
    ``ActionMask``.

    A reset by a mask may choose any replicas. One whose episode is over is reset before it is stepped again, as TorchRL
    does by itself, or left out by a ``_step`` mask. A seed, of ``set_seed`` too, holds from the next reset of all on.

    Attributes:
        env: The ``VectorEnv`` or ``MultiAgentEnv``, with its live state, its parameters and its ``check``, which raises
            what actions that came from a GPU did wrong.
        num_envs: The number of replicas.
        group_map: By role the names of its agents; of a single-agent environment empty.
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
        """Makes the replicas, or takes those that there are.

        Args:
            env: An id, such as ``CartPole-v1``; a place, ``my_env.py:MY_ENV``; or an environment that was made with
                ``output="torch"`` and ``autoreset_mode="Disabled"``.
            num_envs: How many replicas; None: one.
            seed: Of the first reset.
            categorical_actions: Discrete actions are numbers, from 0 up; False: they are one-hot.
            **options: What ``gpu_envs.make`` takes, such as ``device``, ``max_episode_steps`` and the environment's own
                parameters.
        """
        unread = {"statistics": False} if isinstance(env, str) else {}  # nobody asks: torchrl sums up rewards itself
        made = open_env(env, num_envs, "Disabled", {**unread, **options}, output="torch")
        device = torch.device(made.device)
        super().__init__(device=device, batch_size=(made.num_envs,))
        self.env: Final = made
        self.num_envs: Final = made.num_envs
        by_role = ByRole(made)
        groups = {} if by_role.alone else by_role.roles
        self.group_map: Final = {name: list(role.agents) for name, role in groups.items()}
        self._next_seed: Seeds = check_seed(seed)
        self._grouped: Final = Grouped(by_role, device, categorical=categorical_actions)
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = self._grouped.specs()
        specs = self.full_action_spec
        self._masks: Final = [(key, specs[action], choices) for key, action, choices in self._grouped.masks()]
        self.is_closed = False

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chosen = tensordict.get("_step", None)
        if chosen is None:
            return self._narrowed(self._grouped.step(tensordict))
        _check_left_out(chosen, tensordict.get("done", None))
        self.env.allow_frozen_steps()
        try:
            return self._narrowed(self._grouped.step(tensordict))
        finally:
            self.env.allow_frozen_steps(False)

    def _narrowed(self, present: TensorDictBase) -> TensorDictBase:
        """The same; from here on random actions are drawn among those that it says are possible."""
        for key, spec, choices in self._masks:
            mask = present.get(key, None)
            if mask is not None:
                spec.update_mask(allowed(mask, choices))
        return present

    def _reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        seed: Seeds = None,
        options: Mapping[str, Any] | None = None,
    ) -> TensorDictBase:
        """Begins new episodes; ``reset`` hands on arguments.

        Args:
            tensordict: Its ``_reset``, bools of ``[num_envs, 1]``, says in which replicas; without it in all.
            seed: Replica *i* gets ``seed + i``.
            options: The environment's own, for this reset alone.
        """
        given = dict(options or {})
        mask = None if tensordict is None else self._mask(tensordict)
        if mask is not None:
            if self.device.type == "cpu" and not bool(mask.any()):  # which the environment takes for a mistake there
                return self._narrowed(self._grouped.copied(self._grouped.present()))
            given["reset_mask"] = mask
        elif seed is None:
            seed, self._next_seed = self._next_seed, None
        return self._narrowed(self._grouped.copied(self._grouped.begin(seed, given)))

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Resets what is done, as TorchRL's own does, but without asking the device whether anything is.

        Args:
            tensordict: What ``step_mdp`` returned.

        Returns:
            The same. Where it was done: with what is there now, and zeros for what the environment has no part in.
        """
        done = tensordict.get("done", None)
        if done is not None and (self.device.type != "cpu" or bool(done.any())):
            self._grouped.restart(tensordict, done)
            self._narrowed(tensordict)
        return tensordict

    def _mask(self, tensordict: TensorDictBase) -> torch.Tensor | None:
        """The replicas to reset, ``[num_envs]``; None: all of them."""
        mask: torch.Tensor | None = tensordict.get("_reset", None)
        if mask is not None:
            return mask.reshape(self.num_envs)
        for role in self.group_map:
            if tensordict.get((role, "_reset"), None) is not None:
                raise ValueError(
                    f"the group {role!r} has a '_reset' of its own; the agents of a replica begin anew together: "
                    f"give '_reset' at the root, of shape [{self.num_envs}, 1]"
                )
        return None

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def to(self, device: torch.device | str | int) -> "Env":
        """Returns this environment, if it is there already: replicas stay where they were made."""
        wanted = torch.device(device)
        if wanted.type == self.device.type == "cuda" and wanted.index is None:
            wanted = torch.device("cuda", torch.cuda.current_device())
        if wanted != self.device:
            raise ValueError(f"these replicas live on {self.device}; make others there: device={str(wanted)!r}")
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends the use of this and of ``env``; a second time is an error, unless ``raise_if_closed`` is False."""
        if self.is_closed and raise_if_closed:
            raise RuntimeError("this environment is closed already; close(raise_if_closed=False) lets that pass")
        self.is_closed = True
        self.env.close()

    def __del__(self) -> None:
        """Leaves ``env`` open, which others may hold; it has nothing that the garbage collector does not free."""

    def __repr__(self) -> str:
        return f"torchrl.Env({self.env!r})"


def _check_left_out(chosen: torch.Tensor, done: torch.Tensor | None) -> None:
    """Raises an error where a ``_step`` mask leaves out a replica that is not done."""
    if done is None or not bool((chosen.reshape(-1) | done.reshape(-1)).all()):
        raise ValueError(
            "'_step' leaves out replicas that are not 'done' in the same TensorDict; those whose episode goes on are "
            "stepped together, so leave out none of them"
        )
