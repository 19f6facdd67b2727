"""An environment under test: either kind, seen as arrays by name."""

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.driver import device_count
from gpu_envs.backend.toolchain import find_compiler
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface, roles_of
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import sample_actions
from gpu_envs.engine.simulation import NO_LIMIT
from gpu_envs.errors import NoCompilerError
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.catalog import registered
from gpu_envs.specs.base import Spec
from gpu_envs.testing.draws import KINDS, Draw, draws, long_draws
from gpu_envs.vector_env import VectorEnv

Moment: TypeAlias = dict[str, np.ndarray]
"""Arrays by name, ``[num_envs, ...]``: ``rewards``, of a role ``rewards.tagger``, of a key ``observations.image``."""

_WITHOUT_LIMIT, _LONGEST = 1_000, 10_000
"""Steps of a long run where there is no limit, and the most."""

_LONG_NUMBERS = 10**8
"""How many numbers a long run is to observe: of large observations, fewer replicas."""

RESULTS = ("observations", "rewards", "terminations", "truncations")


@final
class Subject:
    """The environment under test, and how much of it is played."""

    def __init__(self, spec: Spec, num_envs: int, steps: int, seed: int, params: Mapping[str, Any]) -> None:
        self.spec, self.num_envs, self.steps, self.seed, self.params = spec, num_envs, steps, seed, dict(params)
        checked = spec.check_params(params, num_envs)
        self.team = spec.has_team
        self.roles = {role.name: role for role in roles_of(spec, checked)}
        self.observation_spaces = {name: role.observation for name, role in self.roles.items()}
        if not self.team:
            seen = self.observation_spaces[SINGLE_ROLE]
            self.observation_spaces = dict(seen.spaces) if isinstance(seen, gymnasium.spaces.Dict) else {"": seen}

    def run(self, num_envs: int | None = None, **options: Any) -> "Run":
        """Makes replicas of it; ``options`` are the constructor's."""
        return Run(self, self.num_envs if num_envs is None else num_envs, options)

    def draws(self, steps: int | None = None, num_envs: int | None = None) -> list[Draw]:
        """Numbers to draw actions with."""
        n = self.num_envs if num_envs is None else num_envs
        return draws(self.roles, self.steps if steps is None else steps, n, self.seed)

    @functools.cached_property
    def longest(self) -> tuple[int, int | None]:
        """How many steps a long run has, one over the longest episode that there can be; and its time limit."""
        config = config_of(self.spec, 1, Options(), self.params)
        most = self.spec.max_steps(config.params)
        limit = config.limit if most is None or callable(self.spec.max_episode_steps) else most
        if limit == NO_LIMIT:
            return _WITHOUT_LIMIT, None
        return min(limit, _LONGEST), None if limit == config.limit else limit

    @property
    def long_told(self) -> str:
        """Of a long run, in words."""
        return f"and {self.longest[0]} with one action and others for long"

    def long_run(self, device: str, **options: Any) -> "Iterator[tuple[Run, Moment]]":
        """Plays many replicas over the longest episode: what they are, and what the reset and each step give."""
        steps, limit = self.longest
        sizes = sum(
            int(np.prod(space.shape or ())) * (len(self.roles[part].agents) if self.team else 1)
            for part, space in self.observation_spaces.items()
        )
        count = int(np.clip(_LONG_NUMBERS // (sizes * steps), KINDS, 12 * KINDS))
        run = self.run(count, device=device, autoreset_mode="SameStep", max_episode_steps=limit, **options)
        yield run, run.reset(self.seed)
        for draw in long_draws(self.roles, steps, count, self.seed):
            yield run, run.step(draw)

    @property
    def is_known(self) -> bool:
        """Whether its id leads to it."""
        return any(known == self.spec for known in registered())


@final
class Run:
    """Replicas of the environment, whose results are moments."""

    def __init__(self, subject: Subject, num_envs: int, options: Mapping[str, Any]) -> None:
        self.num_envs = num_envs
        kind: Any = MultiAgentEnv if subject.team else VectorEnv
        self.env: Any = kind(subject.spec, num_envs, **{"output": "numpy", **options, **subject.params})
        self._by_role = RoleInterface(self.env)
        self.last: Moment = {}

    def reset(self, seed: int | Sequence[int] | None = None, **options: Any) -> Moment:
        """Resets; returns observations, and masks."""
        observations, infos = self.env.reset(seed=seed, options=options or None)
        self.last = {**flat("observations", observations), **self._noted(infos)}
        return self.last

    def step(self, draw: Draw) -> Moment:
        """Steps with the actions that these numbers draw; returns all results."""
        return self.act(self.actions(draw))

    def act(self, actions: Mapping[str, np.ndarray]) -> Moment:
        """Steps with these actions by role; returns all results."""
        *results, infos = self.env.step(self._by_role.join(actions))
        self.last = self._noted(infos)
        for name, result in zip(RESULTS, results, strict=True):
            self.last |= flat(name, result)
        if self.env.autoreset_mode.value == "SameStep":
            seen = {n: v for n, v in self.last.items() if n.startswith("observations")}
            blank = {n.replace("observations", "final_obs", 1): np.zeros_like(v) for n, v in seen.items()}
            self.last |= blank | (flat("final_obs", infos["final_obs"]) if "final_obs" in infos else {})
        over = ended(self.last)
        for name, values in flat("episode_metrics", self.env.episode_metrics).items():
            self.last[name] = np.where(over, values, values.dtype.type(0))
        return self.last

    def actions(self, draw: Draw) -> dict[str, np.ndarray]:
        """The actions that these numbers draw among those that are possible."""
        return {
            name: sample_actions(role.action, draw[name][: self.num_envs], self.last.get(role.array_name("action_mask")))
            for name, role in self._by_role.roles.items()
        }

    def follow(self, numbers: Sequence[Draw]) -> list[Moment]:
        """Takes a step for each draw."""
        return [self.step(draw) for draw in numbers]

    def observe(self) -> Moment:
        """The observations of the state as it stands."""
        return flat("observations", self.env.observe())

    def state(self) -> Moment:
        """A copy of the state's fields, and of the steps of episodes."""
        fields = {f"state.{name}": np.array(to_numpy(values)) for name, values in self.env.state.items()}
        return fields | {"elapsed": np.array(to_numpy(self.env.elapsed))}

    def _noted(self, infos: Mapping[str, Any]) -> Moment:
        found: Moment = {}
        for name in ("alive", "action_mask"):
            if name in infos:
                found |= flat(name, infos[name])
        return found


def flat(name: str, value: Any) -> Moment:
    """Copies of an array, or of those of a mapping, by name."""
    if isinstance(value, Mapping):
        return {f"{name}.{part}": np.array(to_numpy(array)) for part, array in value.items()}
    return {name: np.array(to_numpy(value))}


def ended(moment: Moment) -> np.ndarray:
    """Which replicas' episodes are over: all agents are terminated or truncated."""
    over = [
        (values | moment[name.replace("terminations", "truncations")]).reshape(len(values), -1).all(1)
        for name, values in moment.items()
        if name.startswith("terminations")
    ]
    return np.asarray(np.all(over, axis=0))


def picked(moment: Moment, replicas: Any, names: Sequence[str] = ()) -> Moment:
    """Some of the replicas; of the arrays whose names begin with one of ``names``, where there are any."""
    return {name: values[replicas] for name, values in moment.items() if not names or name.partition(".")[0] in names}


def difference(one: Moment, other: Moment) -> str:
    """Where two moments differ in a bit, and how; empty where they do not."""
    for name in sorted(one, key=lambda name: not name.startswith("state")):  # what follows from it comes after it
        left, right = np.ascontiguousarray(one[name]), np.ascontiguousarray(other[name])
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{name} is {left.dtype} {left.shape} and {right.dtype} {right.shape}"
        if left.tobytes() != right.tobytes():
            unequal = _bits(left) != _bits(right)
            place = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), unequal.shape))
            within = "".join(f"[{i}]" for i in place[1:])
            return f"{name}{within} of replica {place[0]} is {left[place]} and {right[place]}"
    return ""


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


def first_difference(one: Sequence[Moment], other: Sequence[Moment]) -> str:
    """The first step in which two trajectories differ, and how; empty where they do not."""
    for step, (left, right) in enumerate(zip(one, other, strict=True), start=1):
        found = difference(left, right)
        if found:
            return f"in step {step}, {found}"
    return ""


def devices_here() -> Iterator[str]:
    """The devices that this machine could use."""
    try:
        find_compiler()
    except NoCompilerError:
        pass
    else:
        yield "cpu"
    if device_count() > 0 and importlib.util.find_spec("cupy") is not None:
        yield "cuda"
