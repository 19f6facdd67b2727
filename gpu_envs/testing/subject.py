"""The environment under test, single-agent or team, with results as arrays by name."""

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.backend.driver import device_count
from gpu_envs.backend.toolchain import find_compiler
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import sample_actions
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface, roles_of
from gpu_envs.engine.simulation import NO_LIMIT
from gpu_envs.errors import NoCompilerError
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.catalog import registered
from gpu_envs.specs.base import Spec
from gpu_envs.testing.draws import NUM_PATTERNS, Draw, draws, long_draws
from gpu_envs.vector_env import VectorEnv

Moment: TypeAlias = dict[str, np.ndarray]
"""Arrays by name, ``[num_envs, ...]``: ``rewards``, of a role ``rewards.tagger``, of a key ``observations.image``."""

_WITHOUT_LIMIT, _LONGEST = 1_000, 10_000
"""Length of a long run without a time limit, and maximum length, in steps."""

_LONG_NUMBERS = 10**8
"""Maximum count of observed numbers in a long run: with large observations it has fewer replicas."""

RESULTS = ("observations", "rewards", "terminations", "truncations")


@final
class Subject:
    """The environment under test, and the extent of the checks."""

    def __init__(self, spec: Spec, num_envs: int, steps: int, seed: int, params: Mapping[str, Any]) -> None:
        self.spec, self.num_envs, self.steps, self.seed, self.params = spec, num_envs, steps, seed, dict(params)
        values = spec.check_params(params, num_envs)
        self.team = spec.has_team
        self.roles = {role.name: role for role in roles_of(spec, values)}
        self.observation_spaces = {name: role.observation for name, role in self.roles.items()}
        if not self.team:
            space = self.observation_spaces[SINGLE_ROLE]
            self.observation_spaces = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {"": space}

    def run(self, num_envs: int | None = None, **options: Any) -> "Run":
        """Makes an environment; ``options`` are arguments of its constructor."""
        return Run(self, self.num_envs if num_envs is None else num_envs, options)

    def draws(self, steps: int | None = None, num_envs: int | None = None) -> list[Draw]:
        """Random numbers to choose actions with, for each step."""
        n = self.num_envs if num_envs is None else num_envs
        return draws(self.roles, self.steps if steps is None else steps, n, self.seed)

    @functools.cached_property
    def longest(self) -> tuple[int, int | None]:
        """Length of a long run in steps: the maximum episode length, if any; and its time limit, None: the spec's."""
        config = config_of(self.spec, 1, Options(), self.params)
        maximum = self.spec.max_steps(config.params)
        limit = config.limit if maximum is None or callable(self.spec.max_episode_steps) else maximum
        if limit == NO_LIMIT:
            return _WITHOUT_LIMIT, None
        return min(limit, _LONGEST), None if limit == config.limit else limit

    @property
    def long_run_text(self) -> str:
        """Description of a long run."""
        return f"and {self.longest[0]} in a long run with repeated actions"

    def long_run(self, device: str, **options: Any) -> "Iterator[tuple[Run, Moment]]":
        """Runs replicas for ``longest`` steps; yields the run, each time with the results of reset or of a step."""
        steps, limit = self.longest
        sizes = sum(
            int(np.prod(space.shape or ())) * (len(self.roles[part].agents) if self.team else 1)
            for part, space in self.observation_spaces.items()
        )
        count = int(np.clip(_LONG_NUMBERS // (sizes * steps), NUM_PATTERNS, 12 * NUM_PATTERNS))
        run = self.run(count, device=device, autoreset_mode="SameStep", max_episode_steps=limit, **options)
        yield run, run.reset(self.seed)
        for draw in long_draws(self.roles, steps, count, self.seed):
            yield run, run.step(draw)

    @property
    def is_registered(self) -> bool:
        """Whether the spec is registered, so that its environments can be pickled."""
        return any(spec == self.spec for spec in registered())


@final
class Run:
    """An environment under test, whose results are ``Moment``."""

    def __init__(self, subject: Subject, num_envs: int, options: Mapping[str, Any]) -> None:
        self.num_envs = num_envs
        kind: Any = MultiAgentEnv if subject.team else VectorEnv
        self.env: Any = kind(subject.spec, num_envs, **{"output": "numpy", **options, **subject.params})
        self._by_role = RoleInterface(self.env)
        self.last: Moment = {}

    def reset(self, seed: int | Sequence[int] | None = None, **options: Any) -> Moment:
        """Resets; returns observations, and masks of active agents and of actions."""
        observations, infos = self.env.reset(seed=seed, options=options or None)
        self.last = {**flatten("observations", observations), **self._masks_of(infos)}
        return self.last

    def step(self, draw: Draw) -> Moment:
        """Takes a step with actions chosen by these numbers; returns all results."""
        return self.act(self.actions(draw))

    def act(self, actions: Mapping[str, np.ndarray]) -> Moment:
        """Takes a step with these actions by role; returns all results."""
        *results, infos = self.env.step(self._by_role.join(actions))
        self.last = self._masks_of(infos)
        for name, result in zip(RESULTS, results, strict=True):
            self.last |= flatten(name, result)
        if self.env.autoreset_mode.value == "SameStep":
            observations = {n: v for n, v in self.last.items() if n.startswith("observations")}
            zeros = {n.replace("observations", "final_obs", 1): np.zeros_like(v) for n, v in observations.items()}
            self.last |= zeros | (flatten("final_obs", infos["final_obs"]) if "final_obs" in infos else {})
        over = ended(self.last)
        for name, values in flatten("episode_metrics", self.env.episode_metrics).items():
            self.last[name] = np.where(over, values, values.dtype.type(0))
        return self.last

    def actions(self, draw: Draw) -> dict[str, np.ndarray]:
        """Actions by role, chosen by the numbers ``draw`` among the actions that the last masks allow."""
        return {
            name: sample_actions(
                role.action, draw[name][: self.num_envs], self.last.get(role.array_name("action_mask"))
            )
            for name, role in self._by_role.roles.items()
        }

    def run_steps(self, numbers: Sequence[Draw]) -> list[Moment]:
        """Takes a step for each draw; returns the results of each."""
        return [self.step(draw) for draw in numbers]

    def observe(self) -> Moment:
        """Observations of the current state."""
        return flatten("observations", self.env.observe())

    def state(self) -> Moment:
        """Copies of the state's fields, and of the step counters."""
        fields = {f"state.{name}": np.array(to_numpy(values)) for name, values in self.env.state.items()}
        return fields | {"elapsed": np.array(to_numpy(self.env.elapsed))}

    def _masks_of(self, infos: Mapping[str, Any]) -> Moment:
        present = [flatten(name, infos[name]) for name in ("alive", "action_mask") if name in infos]
        return {name: array for arrays in present for name, array in arrays.items()}


def flatten(name: str, value: Any) -> Moment:
    """Copies of an array or a mapping of arrays, by name."""
    if isinstance(value, Mapping):
        return {f"{name}.{part}": np.array(to_numpy(array)) for part, array in value.items()}
    return {name: np.array(to_numpy(value))}


def ended(moment: Moment) -> np.ndarray:
    """Whether each replica's episode is over: all agents are terminated or truncated."""
    over = [
        (values | moment[name.replace("terminations", "truncations")]).reshape(len(values), -1).all(1)
        for name, values in moment.items()
        if name.startswith("terminations")
    ]
    return np.asarray(np.all(over, axis=0))


def select(moment: Moment, replicas: Any, names: Sequence[str] = ()) -> Moment:
    """Returns the arrays whose names start with an element of ``names`` (default: all), for some replicas."""
    return {name: values[replicas] for name, values in moment.items() if not names or name.partition(".")[0] in names}


def difference(one: Moment, other: Moment) -> str:
    """Describes the first bitwise difference between the results of two calls, the state first; empty: none."""
    for name in sorted(one, key=lambda name: not name.startswith("state")):  # the cause before its effects
        left, right = np.ascontiguousarray(one[name]), np.ascontiguousarray(other[name])
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{name} is {left.dtype} {left.shape} and {right.dtype} {right.shape}"
        if left.tobytes() != right.tobytes():
            unequal = _bits(left) != _bits(right)
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), unequal.shape))
            element = "".join(f"[{i}]" for i in index[1:])
            return f"{name}{element} of replica {index[0]} is {left[index]} and {right[index]}"
    return ""


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


def first_difference(one: Sequence[Moment], other: Sequence[Moment]) -> str:
    """Describes the first bitwise difference between the steps of two trajectories; empty if they are equal."""
    for step, (left, right) in enumerate(zip(one, other, strict=True), start=1):
        message = difference(left, right)
        if message:
            return f"in step {step}, {message}"
    return ""


def available_devices() -> Iterator[str]:
    """Yields the devices available on this machine."""
    try:
        find_compiler()
    except NoCompilerError:
        pass
    else:
        yield "cpu"
    if device_count() > 0 and importlib.util.find_spec("cupy") is not None:
        yield "cuda"
