"""A skrl ``Wrapper`` for environments with a single agent, and the base of both wrappers."""

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


class BaseWrapper:
    """Base class of ``Wrapper`` and ``MultiAgentWrapper``."""

    _env: Any

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Return a frame, or None without a render mode: skrl's trainers call this every step by default."""
        return None if self._env.render_mode is None else self._env.render(*args, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore all attributes directly: skrl's ``__getattr__`` needs some of them."""
        self.__dict__.update(state)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


@final
class Wrapper(BaseWrapper, StockWrapper):
    """A skrl environment for replicas with a single agent.

    A step writes to new tensors, so stored data is never overwritten, and does not wait for the device. Rewards,
    ``terminated`` and ``truncated`` have the shape ``[num_envs, 1]``. An episode that terminates at its time limit is
    not marked as truncated, because skrl bootstraps from the next value whenever ``truncated`` is set. Infos contain
    ``final_obs``, valid in replicas whose episode ended, and their mask ``_final_obs``. Both are in the simulator's
    memory, valid until the next step, except that observations other than float32 Boxes are copied.

    Observations are flattened to float32 rows. A Dict space is concatenated in the order of its keys, as
    ``skrl.utils.spaces.torch.unflatten_tensorized_space`` expects. skrl does not use action masks: invalid
    actions are passed to the environment, and its rules decide what they do.

    The first ``reset()`` uses the seed; later calls reset replicas whose episode has steps. Other attributes of the
    environment, such as ``elapsed``, ``episode_return``, ``params`` and ``check``, are available on this object.
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
        """Create the environment, or wrap an existing one.

        Args:
            env: An id such as ``CartPole-v1``, a path such as ``my_env.py:MY_ENV``, a spec, or an environment with
                torch output in SameStep mode.
            num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
            seed: Seed of the first reset; replica *i* uses ``seed + i``. None: derived from the seed of
                ``skrl.utils.set_seed``, or random without one.
            stagger: Truncate the first episodes at random steps, so that replicas do not all reach the time limit
                at once. For training only.
            **options: Arguments of ``gpu_envs.make``, such as ``device``, and parameters of the environment.
        """
        wrapped = open_env(env, num_envs, "SameStep", options, output="torch")
        if not isinstance(wrapped, VectorEnv):
            raise ValueError(f"{wrapped!r} has a team of agents: use gpu_envs.adapters.skrl.MultiAgentWrapper")
        super().__init__(wrapped)
        self._initial_state = InitialState(wrapped, seed, stagger=stagger)
        count, space = wrapped.num_envs, wrapped.single_action_space
        self._count = count
        self._rows = ObservationRows(wrapped.single_observation_space, count, self._device)
        self._action_shape = (count, *(space.shape or ()))
        self._actions, self._first_action = from_zero(space, self._device)
        self._reward_dtype = getattr(torch, wrapped.precision)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observation space."""
        return self._env.single_observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space; discrete actions start at 0, as skrl's policies require."""
        return self._actions

    @property
    def state_space(self) -> None:
        """None: there is no state other than the observations."""
        return

    def state(self) -> None:
        """Return None: there is no state other than the observations."""
        return

    def reset(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Start new episodes, in later calls only where steps were taken; return observations and {}."""
        return self._rows.rows(self._initial_state.reset()).clone(), {}

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all replicas.

        Args:
            actions: ``[num_envs, size]``; for a discrete space numbers from 0, ``[num_envs, 1]``.

        Returns:
            Observations ``[num_envs, features]``; rewards, terminated and truncated ``[num_envs, 1]``; infos.
        """
        count, device = self._count, self._device
        observations = self._rows.allocate()
        rewards = torch.empty(count, dtype=self._reward_dtype, device=device)
        terminated = torch.empty(count, dtype=torch.bool, device=device)
        actions = actions.reshape(self._action_shape)
        if self._first_action is not None:
            actions = actions + self._first_action
        out = Step(observations=observations, rewards=rewards, terminations=terminated)
        _, _, _, truncations, infos = self._env.step(actions, out=out)
        return (
            self._rows.rows(observations),
            rewards.unsqueeze(1).float(),
            terminated.unsqueeze(1),
            torch.gt(truncations, terminated).unsqueeze(1),  # truncated and not terminated, in one kernel
            {"final_obs": self._rows.rows(infos["final_obs"]), "_final_obs": infos["_final_obs"]},
        )


@final
class ObservationRows:
    """Conversion of observations of any space to float32 rows."""

    def __init__(self, space: gymnasium.Space[Any], count: int, device: torch.device) -> None:
        """Collect shapes and dtypes of ``count`` replicas."""
        self._by_key = isinstance(space, gymnasium.spaces.Dict)
        parts = dict(sorted(space.items())) if isinstance(space, gymnasium.spaces.Dict) else {"": space}
        self._shapes = {}
        for key, part in parts.items():
            assert part.dtype is not None
            self._shapes[key] = ((count, *(part.shape or ())), getattr(torch, part.dtype.name))
        self._device = device

    def allocate(self) -> Any:
        """Allocate memory for the observations of a step in the space's shape: a tensor, or tensors by key."""
        tensors = {key: torch.empty(s, dtype=dtype, device=self._device) for key, (s, dtype) in self._shapes.items()}
        return tensors if self._by_key else tensors[""]

    def rows(self, observations: Any) -> torch.Tensor:
        """Return float32 rows ``[num_envs, features]``, a view if possible."""
        parts = [observations[key] for key in self._shapes] if self._by_key else [observations]
        rows = [part.reshape(part.shape[0], -1).float() for part in parts]
        return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


@final
class InitialState:
    """The seed of the first reset, and the resets that skrl's trainers request."""

    def __init__(self, env: VectorEnv | MultiAgentEnv, seed: Seed | None, *, stagger: bool) -> None:
        """Choose the seed of the first reset; None: derived from skrl's seed, or random if that is 0 (not set)."""
        first_seed = check_seed(seed)
        if first_seed is None:
            key = int(config.torch.key)
            first_seed = derived_seed(key, "environments") if key else random_seed()
        self._env, self._seed, self._stagger = env, first_seed, stagger
        self._first = True

    def reset(self) -> Any:
        """Reset all replicas, in later calls only those whose episode has steps, and return all observations.

        skrl's trainers call ``reset`` when the episode of a single replica has ended, after its automatic reset.
        """
        if not self._first:
            running = self._env.elapsed > 0
            if running.any():
                self._env.reset(options={"reset_mask": running})
            return self._env.observe()
        self._first = False
        observations, _ = self._env.reset(seed=self._seed)
        return self._env.stagger(derived_seed(self._seed, "stagger")) if self._stagger else observations


def from_zero(space: gymnasium.Space[Any], device: torch.device) -> tuple[gymnasium.Space[Any], torch.Tensor | None]:
    """Return the space with actions that start at 0, and the offset to add to them or None."""
    zero_space, first = spaces.from_zero(space)
    return zero_space, None if first is None else torch.from_numpy(first).to(device)
