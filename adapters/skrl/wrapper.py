"""Replicas with one agent as an environment of skrl's."""

from typing import Any, final

import gymnasium
import torch
from skrl import config
from skrl.envs.wrappers.torch import Wrapper as StockWrapper

from gpu_envs.adapters.opening import open_env
from gpu_envs.engine.results import Step
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.seeds import Seed, check_seed, derived_seed, random_seed
from gpu_envs.specs import spaces
from gpu_envs.specs.base import Spec
from gpu_envs.vector_env import VectorEnv


class Underneath:
    """What both wrappers do with the environment underneath."""

    _env: Any

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """A picture, where the environment was made to give any: skrl's trainers ask every step if not told not to."""
        return None if self._env.render_mode is None else self._env.render(*args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes over all there is: skrl's look-up of attributes needs some of it to look up others."""
        self.__dict__.update(state)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


@final
class Wrapper(Underneath, StockWrapper):
    """Replicas with one agent as an environment of skrl's.

    A step writes straight into fresh tensors, so what an agent keeps stays as it is, and waits for nothing. Rewards,
    ``terminated`` and ``truncated`` are ``[num_envs, 1]``; where an episode is terminated at its time limit it is not
    truncated too, because skrl adds the value of what follows to whatever is truncated. Infos hold ``final_obs``,
    written where an episode ended, and their mask ``_final_obs``: the simulator's own memory, until the next step (of
    observations that are no Box of float32 a copy).

    Observations are rows of float32 numbers, whatever the space: those of a Dict lie side by side in the order of their
    names, as ``skrl.utils.spaces.torch.unflatten_tensorized_space`` takes them apart again. Which actions are possible
    skrl does not ask: where rules say so, what is forbidden is done nevertheless, as they have it.

    The first ``reset()`` seeds; later ones begin anew the replicas whose episodes have had steps. What else there is to
    an environment (``elapsed``, ``episode_return``, ``params``, ``check`` ...) can be had from this object too.
    """

    _env: VectorEnv

    def __init__(
        self,
        env: str | Spec | VectorEnv,
        num_envs: int | None = None,
        *,
        seed: Seed | None = None,
        stagger: bool = False,
        **options: Any,
    ) -> None:
        """Makes the environment, or takes one.

        Args:
            env: An id, such as ``CartPole-v1``; a place, ``my_env.py:MY_ENV``; or an environment with torch output in
                SameStep mode.
            num_envs: With an id: how many replicas; None: one.
            seed: Of the first reset; replica *i* gets ``seed + i``. None: one that
                follows from what ``skrl.utils.set_seed`` was told, or a random one.
            stagger: First episodes are cut short at random steps, so that not all replicas reach the limit at once.
                For training, not for evaluation.
            **options: With an id: what ``gpu_envs.make`` takes, such as ``device``, and the environment's parameters.
        """
        made = open_env(env, num_envs, "SameStep", options, output="torch")
        if not isinstance(made, VectorEnv):
            raise ValueError(f"{made!r} has a team of agents: use gpu_envs.adapters.skrl.MultiAgentWrapper")
        super().__init__(made)
        self._beginning = Beginning(made, seed, stagger=stagger)
        count, space = made.num_envs, made.single_action_space
        self._count = count
        self._seen = Seen(made.single_observation_space, count, self._device)
        self._action_shape = (count, *(space.shape or ()))
        self._actions, self._first_action = from_zero(space, self._device)
        self._real = getattr(torch, made.precision)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return self._env.single_observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """What a replica's agent may do: whole numbers from 0 up, as skrl's policies give them."""
        return self._actions

    @property
    def state_space(self) -> None:  # there is no state beside the observations
        return

    def state(self) -> None:
        return

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Begins new episodes.

        Returns:
            Observations ``[num_envs, features]``, and an empty dict.
        """
        return self._seen.rows(self._beginning.observations()).clone(), {}

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: ``[num_envs, size]``; of a discrete space numbers from 0 up, ``[num_envs, 1]``.

        Returns:
            Observations ``[num_envs, features]``; rewards, terminated and truncated ``[num_envs, 1]``; infos.
        """
        count, device = self._count, self._device
        observations = self._seen.fresh()
        rewards = torch.empty(count, dtype=self._real, device=device)
        terminated = torch.empty(count, dtype=torch.bool, device=device)
        actions = actions.reshape(self._action_shape)
        if self._first_action is not None:
            actions = actions + self._first_action
        out = Step(observations=observations, rewards=rewards, terminations=terminated)
        _, _, _, truncations, infos = self._env.step(actions, out=out)
        return (
            self._seen.rows(observations),
            rewards.unsqueeze(1).float(),
            terminated.unsqueeze(1),
            torch.gt(truncations, terminated).unsqueeze(1),  # truncated and not terminated, in one kernel
            {"final_obs": self._seen.rows(infos["final_obs"]), "_final_obs": infos["_final_obs"]},
        )


@final
class Seen:
    """Observations of any space as rows of numbers."""

    def __init__(self, space: gymnasium.Space[Any], count: int, device: torch.device) -> None:
        """Keeps the shapes.

        Args:
            space: Of one replica.
            count: How many replicas.
            device: Where they are.
        """
        self._by_key = isinstance(space, gymnasium.spaces.Dict)
        parts = dict(sorted(space.items())) if isinstance(space, gymnasium.spaces.Dict) else {"": space}
        self._shapes = {}
        for key, part in parts.items():
            assert part.dtype is not None
            self._shapes[key] = ((count, *(part.shape or ())), getattr(torch, part.dtype.name))
        self._device = device

    def fresh(self) -> Any:
        """Memory for a step's: a tensor, or tensors by key."""
        made = {key: torch.empty(s, dtype=dtype, device=self._device) for key, (s, dtype) in self._shapes.items()}
        return made if self._by_key else made[""]

    def rows(self, observations: Any) -> torch.Tensor:
        """Float32 ``[num_envs, features]``: a view where they are that already."""
        parts = [observations[key] for key in self._shapes] if self._by_key else [observations]
        rows = [part.reshape(part.shape[0], -1).float() for part in parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


@final
class Beginning:
    """Begins the episodes of an environment, as skrl's trainers ask for it."""

    def __init__(self, env: VectorEnv | MultiAgentEnv, seed: Seed | None, *, stagger: bool) -> None:
        """Keeps what the first reset is to be.

        Args:
            env: The environment.
            seed: Of its first reset; None: one that follows from skrl's, which is 0 where nobody chose one.
            stagger: First episodes are cut short.
        """
        number = check_seed(seed)
        if number is None:
            key = int(config.torch.key)
            number = derived_seed(key, "environments") if key else random_seed()
        self._env, self._seed, self._stagger = env, number, stagger
        self._first = True

    def observations(self) -> Any:
        """Begins all episodes, later on those that have had steps, and gives the observations of all replicas.

        skrl's trainers reset a single replica whenever its episode has ended, when it has begun anew by itself.
        """
        if not self._first:
            begun = self._env.elapsed > 0
            if begun.any():
                self._env.reset(options={"reset_mask": begun})
            return self._env.observe()
        self._first = False
        observations, _ = self._env.reset(seed=self._seed)
        return self._env.stagger(derived_seed(self._seed, "stagger")) if self._stagger else observations


def from_zero(space: gymnasium.Space[Any], device: torch.device) -> tuple[gymnasium.Space[Any], torch.Tensor | None]:
    """The space that whole numbers from 0 up make of it, and what to add to them; None: nothing."""
    counted, first = spaces.from_zero(space)
    return counted, None if first is None else torch.from_numpy(first).to(device)
