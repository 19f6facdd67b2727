"""A common interface to all adapters: creation, reset and step, with results by role in NumPy."""

import abc
import copy
import dataclasses
import importlib.util
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

import numpy as np
import pytest
from harness import IDS, is_discrete, numpy_of, on_host
from registered import Actions, draw_actions

import gpu_envs
from gpu_envs.engine.roles import RoleInterface

LIMIT = 13
"""A time limit before which a few CartPoles fall and most do not."""

SINGLE_AGENT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    env_id: (env_id, {"max_episode_steps": LIMIT}) for env_id in IDS
}
CONTINUOUS_CASES = {env_id: case for env_id, case in SINGLE_AGENT_CASES.items() if not is_discrete(env_id)}
"""Cases of environments with continuous actions."""

SMALL_TAG_PARAMS: dict[str, Any] = {
    "num_taggers": 2,
    "num_runners": 3,
    "grid_length": 2.0,
    "tagging_distance": 0.3,
    "num_other_agents_observed": 2,
    "episode_length": 9,
}
TEAM_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "continuous": ("TagContinuous-v0", SMALL_TAG_PARAMS),
    "continuous-box": ("TagContinuous-v0", {**SMALL_TAG_PARAMS, "actions": "continuous"}),
    "grid": ("TagGridWorld-v0", {"num_taggers": 3, "grid_length": 4, "episode_length": 9}),
}
"""Small teams in which many agents become inactive, one after another."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Results of a step, by role ``[num_envs, ...]`` or ``[num_envs, agents, ...]``."""

    observations: Actions
    rewards: Actions
    terminated: Actions
    truncated: Actions
    ended: np.ndarray
    """Mask ``[num_envs]`` of ended episodes."""
    final: Actions | None
    """Final observations, zero where no episode ended; None: the adapter does not return them."""
    arrays: list[Any]
    """All arrays that the adapter returned."""


class Player(abc.ABC):
    """An adapter around a batch of replicas.

    Attributes:
        adapter: The adapter's environment object.
        raw: The gpu_envs environment that it wraps.
    """

    module: ClassVar[str]
    maker: ClassVar[str]
    extra: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]]
    """Required libraries, which may be missing."""
    cases: ClassVar[dict[str, tuple[str, dict[str, Any]]]]
    """Test cases by name: environment id and parameters."""
    mode: ClassVar[str] = "SameStep"
    output: ClassVar[str] = "torch"
    both_flags: ClassVar[bool] = False
    """Whether an agent may be both terminated and truncated in one step."""
    staggers: ClassVar[bool] = False
    options: ClassVar[dict[str, Any]] = {}
    """Default options of the adapter."""

    def __init__(self, env: Any, num_envs: int | None = None, **options: Any) -> None:
        self.adapter = self.make_adapter(env, num_envs, **options)

    @classmethod
    def make_adapter(cls, env: Any, num_envs: int | None = None, **options: Any) -> Any:
        """Makes the adapter of an id or an environment."""
        module = pytest.importorskip(f"gpu_envs.adapters.{cls.module}")
        return getattr(module, cls.maker)(env, num_envs, **{**cls.options, **options})

    @property
    def raw(self) -> Any:
        return self.adapter.env

    @abc.abstractmethod
    def begin(self) -> tuple[Actions, list[Any]]:
        """Resets; returns observations, and all arrays that the adapter returned."""

    @abc.abstractmethod
    def step(self, actions: Actions) -> Result:
        """Takes a step with actions by role."""

    def seed(self, seed: int) -> None:
        """Sets the seed of the next reset, if the adapter supports it."""
        self.adapter.seed(seed)

    def copies(self) -> Iterator["Player"]:
        """Yields a deep copy and a pickled copy."""
        for adapter in (copy.deepcopy(self.adapter), pickle.loads(pickle.dumps(self.adapter))):
            twin = copy.copy(self)
            twin.adapter = adapter
            yield twin

    def draw(self, steps: int, seed: int = 0) -> list[Actions]:
        """Returns random actions within their spaces, by role."""
        return draw_actions(self.raw, steps, seed, beyond=1.0)

    def tensors(self, actions: Actions) -> Any:
        """Converts actions to tensors on the device."""
        import torch

        return {role: torch.from_numpy(values).to(self.raw.device) for role, values in actions.items()}


def by_role(env: Any, by_agent: Mapping[str, Any]) -> Actions:
    """Stacks agents' arrays by role, in NumPy."""
    return {
        role: np.stack([numpy_of(part) for name, part in by_agent.items() if name.rpartition("_")[0] == role], 1)
        for role in env.roles
    }


class SingleAgentPlayer(Player):
    """An adapter of single-agent environments, whose results are arrays ``[num_envs, ...]``."""

    cases = SINGLE_AGENT_CASES

    @staticmethod
    def result(observations: Any, rewards: Any, terminated: Any, truncated: Any, final: Any, *given: Any) -> Result:
        """Converts arrays to a result by role."""
        flat = (numpy_of(part).reshape(len(observations), -1) for part in (rewards, terminated, truncated))
        paid, out, cut = (part[:, 0] for part in flat)
        last = None if final is None else {"agent": numpy_of(final)}
        if last is not None:
            last["agent"][~(out | cut)] = 0
        seen, paid_by, out_by, cut_by = ({"agent": part} for part in (numpy_of(observations), paid, out, cut))
        return Result(seen, paid_by, out_by, cut_by, out | cut, last, [observations, rewards, *given])


def read_infos(
    observations: np.ndarray, dones: np.ndarray, infos: list[Any]
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Returns truncation mask, final observations (zero in running episodes) and their arrays from SB3's infos."""
    final = np.zeros_like(observations)
    for i in np.flatnonzero(dones):
        final[i] = infos[i]["terminal_observation"]
    cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
    return cut, final, [info["terminal_observation"] for info in infos if info]


@final
class Sb3(SingleAgentPlayer):
    """Stable-Baselines3's vectorised environment."""

    module, maker, extra, libraries = "sb3", "VecEnv", "sb3", ("stable_baselines3", "torch")
    output = "any"
    staggers = True

    def begin(self) -> tuple[Actions, list[Any]]:
        observations = self.adapter.reset()
        return {"agent": observations.copy()}, [observations]

    def step(self, actions: Actions) -> Result:
        observations, rewards, dones, infos = self.adapter.step(actions["agent"])
        cut, final, last = read_infos(observations, dones, infos)
        return self.result(observations, rewards, dones & ~cut, cut, final, dones, *last)


class Sb3Role(Player):
    """The runners of a team as environments of Stable-Baselines3; the taggers act at random."""

    module, maker, extra, libraries = "sb3", "VecEnv", "sb3", ("stable_baselines3", "torch")
    output = "any"
    staggers = True
    cases = TEAM_CASES
    options: ClassVar[dict[str, Any]] = {"role": "runner", "others": "random"}

    def rows(self, values: np.ndarray) -> Actions:
        count = self.raw.counts["runner"]
        return {"runner": values.reshape(len(values) // count, count, *values.shape[1:]).copy()}

    def begin(self) -> tuple[Actions, list[Any]]:
        observations = self.adapter.reset()
        return self.rows(observations), [observations, self.adapter.alive]

    def step(self, actions: Actions) -> Result:
        role_actions = actions["runner"]
        observations, rewards, dones, infos = self.adapter.step(role_actions.reshape(-1, *role_actions.shape[2:]))
        cut, final, last = read_infos(observations, dones, infos)
        over = numpy_of(self.raw.elapsed) == 0
        seen, paid, out, cut_short = (self.rows(part) for part in (observations, rewards, dones & ~cut, cut))
        handed = [observations, rewards, dones, self.adapter.alive, *last]
        return Result(seen, paid, out, cut_short, over, self.rows(final), handed)


@final
class Skrl(SingleAgentPlayer):
    """skrl's wrapper."""

    module, maker, extra, libraries = "skrl", "Wrapper", "skrl", ("skrl", "torch")
    staggers = True

    @property
    def raw(self) -> Any:
        return self.adapter.unwrapped

    def begin(self) -> tuple[Actions, list[Any]]:
        observations, infos = self.adapter.reset()
        assert infos == {}
        return {"agent": numpy_of(observations)}, [observations]

    def step(self, actions: Actions) -> Result:
        role_actions = self.tensors(actions)["agent"]
        *step, infos = self.adapter.step(role_actions.reshape(len(role_actions), -1))
        result = self.result(*step, infos["final_obs"], *step[2:])
        assert (numpy_of(infos["_final_obs"]) == result.ended).all()
        return result


@final
class SkrlTeam(Player):
    """skrl's wrapper of teams."""

    module, maker, extra, libraries = "skrl", "MultiAgentWrapper", "skrl", ("skrl", "torch")
    cases = TEAM_CASES
    staggers = True
    options: ClassVar[dict[str, Any]] = {"shared_state": True}

    @property
    def raw(self) -> Any:
        return self.adapter._env  # noqa: SLF001 - skrl's name for what it wraps

    def begin(self) -> tuple[Actions, list[Any]]:
        observations, infos = self.adapter.reset()
        assert infos == {}
        assert list(observations) == self.adapter.possible_agents == list(self.raw.possible_agents)
        return by_role(self.raw, observations), [*observations.values(), *self.adapter.state().values()]

    def step(self, actions: Actions) -> Result:
        columns = [a[:, i] for a in self.tensors(actions).values() for i in range(a.shape[1])]
        role_actions = {n: a.reshape(len(a), -1) for n, a in zip(self.adapter.possible_agents, columns, strict=True)}
        *step, infos = self.adapter.step(role_actions)
        observations, *rest = (by_role(self.raw, part) for part in step)
        rewards, terminated, truncated = ({role: a[..., 0] for role, a in part.items()} for part in rest)
        ended, final = numpy_of(infos["_final_obs"]), by_role(self.raw, infos["final_obs"])
        for values in final.values():
            values[~ended] = 0
        handed = [array for part in (*step, self.adapter.state()) for array in part.values()]
        return Result(observations, rewards, terminated, truncated, ended, final, handed)


@final
class RslRl(SingleAgentPlayer):
    """rsl_rl's vectorised environment, which does not return final observations."""

    module, maker, extra, libraries = "rsl_rl", "VecEnv", "rsl-rl", ("rsl_rl", "tensordict", "torch")
    cases = CONTINUOUS_CASES
    options: ClassVar[dict[str, Any]] = {"rescale_actions": False}

    def begin(self) -> tuple[Actions, list[Any]]:
        observations = self.adapter.get_observations()["policy"]
        return {"agent": numpy_of(observations)}, [observations]

    def step(self, actions: Actions) -> Result:
        observations, rewards, dones, extras = self.adapter.step(self.tensors(actions)["agent"])
        again = self.adapter.get_observations()["policy"]
        assert (numpy_of(again) == numpy_of(observations["policy"])).all()
        cut = extras["time_outs"]
        return self.result(observations["policy"], rewards, dones & ~cut, cut, None, dones, cut, again)


class TorchRl(Player):
    """TorchRL's environment."""

    module, maker, extra, libraries = "torchrl", "Env", "torchrl", ("torchrl", "tensordict", "torch")
    cases = SINGLE_AGENT_CASES | TEAM_CASES
    mode = "Disabled"
    both_flags = True
    now: Any

    def copies(self) -> Iterator["Player"]:
        for twin in super().copies():
            assert isinstance(twin, TorchRl)
            twin.now = self.now.clone()
            yield twin

    def seed(self, seed: int) -> None:
        self.adapter.set_seed(seed)

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """TensorDict key prefixes by role."""
        return {role: () if role == "agent" else (role,) for role in RoleInterface(self.raw).roles}

    def read(self, tensordict: Any, name: str, *prefix: str) -> Any:
        return {role: tensordict[(*prefix, *key, name)] for role, key in self.keys.items()}

    def begin(self) -> tuple[Actions, list[Any]]:
        self.now = self.adapter.reset()
        return on_host(self.read(self.now, "observation")), list(self.now.values(True, True))

    def step(self, actions: Actions) -> Result:
        for role, values in self.tensors(actions).items():
            self.now[(*self.keys[role], "action")] = values
        before, self.now = self.adapter.step_and_maybe_reset(self.now)
        ended = numpy_of(before["next", "done"])[:, 0]
        final = on_host(self.read(before, "observation", "next"))
        observations = on_host(self.read(self.now, "observation"))
        for role, values in final.items():
            assert (values[~ended] == observations[role][~ended]).all()
            values[~ended] = 0
        rewards, terminated, truncated, done = (
            {role: a[..., 0] for role, a in on_host(self.read(before, name, "next")).items()}
            for name in ("reward", "terminated", "truncated", "done")
        )
        assert all((done[role] == terminated[role] | truncated[role]).all() for role in done)
        handed = [value for value in before.values(True, True) if value.dtype.is_floating_point]
        return Result(observations, rewards, terminated, truncated, ended, final, handed)


@final
class TorchRlTransformed(TorchRl):
    """A transformed TorchRL environment: TorchRL itself resets its finished replicas."""

    def __init__(self, env: Any, num_envs: int | None = None, **options: Any) -> None:
        super().__init__(env, num_envs, **options)
        from torchrl.envs import TransformedEnv

        self.adapter = TransformedEnv(self.adapter)

    @property
    def raw(self) -> Any:
        return self.adapter.base_env.env


@final
class PettingZooReplicas(Player):
    """Many replicas of a team as PettingZoo's dicts of agents."""

    module, maker, extra, libraries = "pettingzoo", "vector_env", "pettingzoo", ("pettingzoo",)
    cases = TEAM_CASES
    both_flags = True
    options: ClassVar[dict[str, Any]] = {"autoreset_mode": "SameStep", "copy": True}
    chosen: int | None = None

    def __init__(self, env: Any, num_envs: int | None = None, *, seed: int | None = None, **options: Any) -> None:
        super().__init__(env, num_envs, **options)
        self.chosen = seed

    def seed(self, seed: int) -> None:
        self.chosen = seed

    @property
    def raw(self) -> Any:
        return self.adapter.unwrapped

    def begin(self) -> tuple[Actions, list[Any]]:
        observations, _ = self.adapter.reset(seed=self.chosen)
        self.chosen = None
        return by_role(self.raw, observations), list(observations.values())

    def step(self, actions: Actions) -> Result:
        columns = [array[:, i] for array in actions.values() for i in range(array.shape[1])]
        *step, infos = self.adapter.step(dict(zip(self.adapter.possible_agents, columns, strict=True)))
        observations, rewards, terminated, truncated = (by_role(self.raw, part) for part in step)
        ended = np.zeros(self.raw.num_envs, bool)
        final = {role: np.zeros_like(values) for role, values in observations.items()}
        if "final_obs" in infos[self.adapter.possible_agents[0]]:
            ended = numpy_of(infos[self.adapter.possible_agents[0]]["_final_obs"])
            final = by_role(self.raw, {name: info["final_obs"] for name, info in infos.items()})
        handed = [array for part in step for array in part.values()]
        return Result(observations, rewards, terminated, truncated, ended, final, handed)


PLAYERS: tuple[type[Player], ...] = (Sb3, Sb3Role, Skrl, SkrlTeam, RslRl, TorchRl, PettingZooReplicas)


def is_installed(player: type[Player]) -> bool:
    """Whether a player's libraries are installed."""
    return all(importlib.util.find_spec(name) for name in player.libraries)


def make_player(player: type[Player], name: str, count: int, device: str, **options: Any) -> Player:
    """Makes a player of a case."""
    env_id, params = player.cases[name]
    return player(env_id, count, device=device, **params, **options)


def make_plain_env(player: type[Player], name: str, count: int, device: str, **options: Any) -> Any:
    """Makes the gpu_envs environment of a case, with NumPy results."""
    env_id, params = player.cases[name]
    return gpu_envs.make(env_id, count, device=device, autoreset_mode="SameStep", **params, **options)
