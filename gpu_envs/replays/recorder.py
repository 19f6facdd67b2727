"""Records what some replicas do, on their device; the host gets many steps at a time."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, library_of, to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.replays.recorded import GOES_ON, TERMINATED, TRUNCATED

StepArrays: TypeAlias = dict[str, Array]


@final
class Recorder:
    """States, rewards, metrics and ends of episodes of some replicas, step by step.

    Attributes:
        ends: ``[frames, replicas]``: ``GOES_ON``, ``TERMINATED`` or ``TRUNCATED``, of the frames on the host.
    """

    def __init__(self, env: Any, numbers: np.ndarray, so_far: Array | None = None) -> None:
        """Records the first frame.

        Args:
            env: The environment.
            numbers: Of the replicas.
            so_far: What the metrics come to after each step, ``[num_envs, metrics]``, live; None: there are none.
        """
        self._env, self._by_role, self._numbers = env, ByRole(env), numbers
        self._measured: StepArrays = {} if so_far is None else {"metrics": so_far}
        self._stays_over = env.autoreset_mode.value == "Disabled"
        self._was_over = np.zeros(len(numbers), bool)
        self._indices: dict[str, Array] = {}
        self._drawn = tuple(env.distributions)
        self._states: list[StepArrays] = [self._moment()]
        self._results: list[StepArrays] = []
        self._frames: list[dict[str, np.ndarray]] = []
        self._rewards: list[dict[str, np.ndarray]] = []
        self._metrics: list[np.ndarray] = []
        self.ends = np.full((1, len(numbers)), GOES_ON, np.uint8)

    def add(self, rewards: Any, terminations: Any, truncations: Any) -> None:
        """Records a step, as the environment gave it, and the state after it."""
        row = self._taken(self._measured)
        for kind, given in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
            row |= self._taken({f"{kind}.{role}": values for role, values in self._by_role.split(given).items()})
        self._results.append(row)
        self._states.append(self._moment())

    def read(self) -> None:
        """Brings to the host what is not there yet."""
        if self._states:
            self._frames.append(_stacked(self._states))
            self._states = []
        if self._results:
            results = _stacked(self._results)
            self._results = []
            self.ends = np.concatenate([self.ends, self._ends(results)])
            self._metrics += [results["metrics"]] if self._measured else []
            paid = _of_agents(results, "rewards")
            self._rewards.append({role: values.astype(np.float64).mean(-1) for role, values in paid.items()})

    def state(self, frames: int) -> dict[str, np.ndarray]:
        """By field, the first so many frames of what is on the host."""
        return {name: self._all(name, frames) for name in self._env.state}

    def drawn(self, frames: int) -> dict[str, np.ndarray]:
        """By name, the parameters that are drawn, in the first so many frames of what is on the host."""
        return {name: self._all(name, frames) for name in self._drawn}

    def _all(self, name: str, frames: int) -> np.ndarray:
        return np.concatenate([part[name] for part in self._frames])[:frames]

    def rewards(self, frames: int) -> dict[str, np.ndarray]:
        """By role, the mean over its agents of the step before each of the first so many frames."""
        nothing = np.zeros((1, len(self._numbers)))
        return {
            role: np.concatenate([nothing, *(part[role] for part in self._rewards)])[:frames]
            for role in self._rewards[0]
        }

    def metrics(self, frames: int) -> dict[str, np.ndarray]:
        """By name, what each comes to by each of the first so many frames."""
        if not self._metrics:
            return {}
        values = np.concatenate([np.full_like(self._metrics[0][:1], np.nan), *self._metrics])[:frames]
        if self._env.autoreset_mode.value == "NextStep":  # the step after an episode's last one is no step of the next
            values[1:][self.ends[: frames - 1] != GOES_ON] = np.nan
        return {name: values[..., m] for m, name in enumerate(self._env.env_spec.metrics)}

    def _moment(self) -> StepArrays:
        """Copies of the replicas' state, and of their parameters that are drawn; no two have a name in common."""
        return self._taken({**self._env.state, **{name: self._env.params[name] for name in self._drawn}})

    def _taken(self, arrays: Mapping[str, Array]) -> StepArrays:
        """Copies of the replicas' part."""
        return {name: values[self._index(values)] for name, values in arrays.items()}

    def _index(self, array: Array) -> Array:
        """The replicas' numbers in the library and on the device of an array; with such an index it is copied."""
        library = library_of(array)
        if library not in self._indices:
            place = {"device": array.device} if library == "torch" else {}
            self._indices[library] = importlib.import_module(library).asarray(self._numbers, **place)
        return self._indices[library]

    def _ends(self, results: Mapping[str, np.ndarray]) -> np.ndarray:
        """What became of episodes: over when all agents are, and cut short when one is who had not gone out."""
        terminated, truncated = (
            np.concatenate(list(_of_agents(results, kind).values()), -1) for kind in ("terminations", "truncations")
        )
        over = (terminated | truncated).all(-1)
        ended = over
        if self._stays_over:  # until it is reset, but it came to its end once
            ended = over & ~np.concatenate([self._was_over[None], over[:-1]])
            self._was_over = over[-1]
        cut = (truncated & ~terminated).any(-1)
        return np.where(ended, np.where(cut, TRUNCATED, TERMINATED), GOES_ON).astype(np.uint8)


def _of_agents(results: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """By role, ``[steps, replicas, agents]``."""
    found = {name.partition(".")[2]: values for name, values in results.items() if name.startswith(f"{kind}.")}
    return {role: values.reshape(*values.shape[:2], -1) for role, values in found.items()}


def _stacked(rows: Sequence[StepArrays]) -> dict[str, np.ndarray]:
    """Many steps' arrays on the host, ``[steps, ...]``: stacked where they are, so that they come in one piece."""
    found = {}
    for name, first in rows[0].items():
        library: Any = np if isinstance(first, np.ndarray) else importlib.import_module(library_of(first))
        found[name] = to_numpy(library.stack([row[name] for row in rows]))
    return found
