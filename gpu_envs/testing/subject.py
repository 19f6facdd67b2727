"""An environment under test: either kind, seen as arrays by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np

from gpu_envs.arrays import to_numpy
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.spaces import space_of
from gpu_envs.spec import EnvSpec, Spec, TeamSpec
from gpu_envs.testing.draws import Draw, chosen, draws
from gpu_envs.vector_env import VectorEnv

Moment: TypeAlias = dict[str, np.ndarray]
"""Arrays by name, ``[num_envs, ...]``: ``rewards``, of a role ``rewards.tagger``, of a key ``observations.image``."""

RESULTS = ("observations", "rewards", "terminations", "truncations")


@final
class Subject:
    """What is checked, and how much."""

    def __init__(self, spec: Spec, num_envs: int, steps: int, seed: int, params: Mapping[str, Any]) -> None:
        """Keeps what the checks need.

        Args:
            spec: The environment.
            num_envs: How many replicas.
            steps: How many steps.
            seed: Of environments and actions.
            params: The environment's own parameters.
        """
        self.spec, self.num_envs, self.steps, self.seed, self.params = spec, num_envs, steps, seed, dict(params)
        checked = spec.check_params(params, num_envs)
        self.spaces: dict[str, gymnasium.Space[Any]]
        self.observation_spaces: dict[str, gymnasium.Space[Any]]
        self.counts: dict[str, int]
        if isinstance(spec, TeamSpec):
            self.team, self.counts = True, spec.counts(checked)
            self.spaces = {role.name: space_of(role.action, checked) for role in spec.roles}
            self.observation_spaces = {role.name: space_of(role.observation, checked) for role in spec.roles}
        else:
            assert isinstance(spec, EnvSpec)
            self.team, self.counts = False, {"": 0}
            self.spaces, seen = {"": spec.action_space(checked)}, spec.observation_space(checked)
            own = isinstance(seen, gymnasium.spaces.Dict)
            self.observation_spaces = (
                dict(seen.spaces) if isinstance(seen, gymnasium.spaces.Dict) and own else {"": seen}
            )

    def run(self, num_envs: int | None = None, **options: Any) -> "Run":
        """Makes replicas of it; ``options`` are the constructor's."""
        return Run(self, self.num_envs if num_envs is None else num_envs, options)

    def draws(self, steps: int | None = None, num_envs: int | None = None) -> list[Draw]:
        """Numbers to draw actions with."""
        n = self.num_envs if num_envs is None else num_envs
        return draws(self.spaces, self.counts, self.steps if steps is None else steps, n, self.seed)

    @property
    def is_known(self) -> bool:
        """Whether its id leads to it."""
        from gpu_envs.registry import registered

        return any(known == self.spec for known in registered())


@final
class Run:
    """Replicas of the environment, whose results are moments."""

    def __init__(self, subject: Subject, num_envs: int, options: Mapping[str, Any]) -> None:
        """Makes the replicas."""
        self._subject, self.num_envs = subject, num_envs
        spec, given = subject.spec, {"output": "numpy", **options, **subject.params}
        self.env: Any
        if isinstance(spec, TeamSpec):
            self.env = MultiAgentEnv(spec, num_envs, **given)
        else:
            assert isinstance(spec, EnvSpec)
            self.env = VectorEnv(spec, num_envs, **given)
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
        *results, infos = self.env.step(dict(actions) if self._subject.team else actions[""])
        self.last = self._noted(infos)
        for name, result in zip(RESULTS, results, strict=True):
            self.last |= flat(name, result)
        if self.env.autoreset_mode.value == "SameStep":
            seen = {n: v for n, v in self.last.items() if n.startswith("observations")}
            blank = {n.replace("observations", "final_obs", 1): np.zeros_like(v) for n, v in seen.items()}
            self.last |= blank | (flat("final_obs", infos["final_obs"]) if "final_obs" in infos else {})
        return self.last

    def actions(self, draw: Draw) -> dict[str, np.ndarray]:
        """The actions that these numbers draw among those that are possible."""
        return {
            role: chosen(space, draw[role][: self.num_envs], self.last.get(_named("action_mask", role)))
            for role, space in self._subject.spaces.items()
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


def _named(name: str, part: str) -> str:
    return f"{name}.{part}" if part else name


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


def part(moment: Moment, replicas: Any, names: Sequence[str] = ()) -> Moment:
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
    from gpu_envs.backend.cuda import device_count
    from gpu_envs.backend.toolchain import find_compiler
    from gpu_envs.errors import NoCompilerError

    try:
        find_compiler()
    except NoCompilerError:
        pass
    else:
        yield "cpu"
    import importlib.util

    if device_count() > 0 and importlib.util.find_spec("cupy") is not None:
        yield "cuda"
