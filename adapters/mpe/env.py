"""One replica of a Multi Particle Environment with the arguments, infos and state of ``mpe2``."""

from collections.abc import Mapping
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from pettingzoo.utils.wrappers import BaseParallelWrapper

from gpu_envs.adapters.mpe.benchmark_data import BENCHMARKS
from gpu_envs.adapters.pettingzoo.agents import Infos
from gpu_envs.adapters.pettingzoo.one_replica import TeamEnv
from gpu_envs.backend.arrays import to_numpy
from gpu_envs.seeds import Seed

ByAgent = dict[str, Any]

NEIGHBOURS = ("num_agent_neighbors", "num_landmark_neighbors")


@final
class ParticleEnv(BaseParallelWrapper):
    """A PettingZoo ``ParallelEnv``; ``unwrapped`` is its ``TeamEnv``."""

    env: TeamEnv

    def __init__(
        self,
        env_id: str,
        *,
        benchmark_data: bool = False,
        curriculum: bool = False,
        precision: str = "float64",
        **kwargs: Any,
    ) -> None:
        """Create the replica; there is no curriculum, so it must be False.

        Args:
            env_id: The id of the environment, such as ``SimpleTag-v3``.
            benchmark_data: Whether infos of steps contain ``benchmark_data``, as in mpe2.
            curriculum: Pass parameters such as ``agent_max_speed`` instead.
            precision: Precision of state and reward; float64 in mpe2.
            **kwargs: Arguments of ``TeamEnv``. A number of neighbours of None means all of them.
        """
        if curriculum:
            raise ValueError(
                f"{env_id} has no curriculum: create an environment for each stage, with parameters such as "
                "agent_max_speed and agent_drive"
            )
        for name in NEIGHBOURS:
            if name in kwargs:
                kwargs[name] = _neighbours(name, kwargs[name])
        super().__init__(TeamEnv(env_id, precision=precision, **kwargs))
        self._benchmark = BENCHMARKS.get(env_id, _no_benchmark_data) if benchmark_data else None
        self._rows: ByAgent = {}
        size = sum(gymnasium.spaces.flatdim(self.env.observation_space(agent)) for agent in self.env.possible_agents)
        self.state_space = Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, seed: Seed | None = None, options: Mapping[str, Any] | None = None) -> tuple[ByAgent, Infos]:
        """Start a new episode; see ``TeamEnv.reset``."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._rows = dict(observations)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, Infos]:
        """Step all agents as ``TeamEnv.step`` does; infos contain ``benchmark_data`` if requested."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        if observations:
            self._rows = dict(observations)
        if self._benchmark is not None and rewards:
            state = {name: to_numpy(field)[0] for name, field in self.env.batch.state.items()}
            benchmark_data = self._benchmark(state, self.env.batch.params, rewards)
            for info, data in zip(infos.values(), benchmark_data, strict=True):
                info["benchmark_data"] = data
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Return the last observations of all agents, concatenated."""
        if not self._rows:
            return self.env.state()  # raises ResetNeeded
        return np.concatenate([*self._rows.values()])

    def check_action(self, agent: str, action: Any) -> None:
        """Raise an ActionError if an agent's action is invalid."""
        self.env.check_action(agent, action)


def _neighbours(name: str, count: Any) -> int:
    """Return a number of neighbours, with None (all) replaced by 0; raise a ValueError unless it is at least 1."""
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ValueError(f"{name} is {count!r}: give a number of neighbours of at least 1, or None for all")
    return int(count)


def _no_benchmark_data(state: Any, params: Any, rewards: Mapping[str, float]) -> list[Any]:
    """Return empty dicts, as mpe2 does for environments without benchmark data."""
    del state, params
    return [{} for _ in rewards]
