"""Record replicas on their device, and copy the data to the host many steps at a time."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from gpu_envs.backend.arrays import Array, library_of, to_numpy
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.replays.recorded import RUNNING, TERMINATED, TRUNCATED

StepArrays: TypeAlias = dict[str, Array]


@final
class Recorder:
    """Records states, rewards, metrics and ends of episodes of some replicas.

    Attributes:
        ends: ``RUNNING``, ``TERMINATED`` or ``TRUNCATED``, ``[frames, replicas]``, for the frames read so far.
    """

    def __init__(self, env: Any, replica_numbers: np.ndarray, live_metrics: Array | None = None) -> None:
        """Record the first frame of these replicas of the environment.

        ``live_metrics`` are the metrics of the running episodes, ``[num_envs, metrics]``, updated by each step.
        """
        self._env, self._by_role, self._numbers = env, RoleInterface(env), replica_numbers
        self._live_metrics: StepArrays = {} if live_metrics is None else {"metrics": live_metrics}
        self._manual_reset = env.autoreset_mode.value == "Disabled"
        self._was_done = np.zeros(len(replica_numbers), bool)
        self._indices: dict[str, Array] = {}
        self._drawn = tuple(env.distributions)
        self._states: list[StepArrays] = [self._copy_state()]
        self._results: list[StepArrays] = []
        self._frames: list[dict[str, np.ndarray]] = []
        self._rewards: list[dict[str, np.ndarray]] = []
        self._metrics: list[np.ndarray] = []
        self.ends = np.full((1, len(replica_numbers)), RUNNING, np.uint8)

    def add(self, rewards: Any, terminations: Any, truncations: Any) -> None:
        """Record the results of a step and the state after it."""
        row = self._copy_rows(self._live_metrics)
        for kind, result in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
            row |= self._copy_rows({f"{kind}.{role}": values for role, values in self._by_role.split(result).items()})
        self._results.append(row)
        self._states.append(self._copy_state())

    def read(self) -> None:
        """Copy what ``add`` recorded since the last call to the host, and each frame's status to ``ends``."""
        if self._states:
            self._frames.append(_stack_on_host(self._states))
            self._states = []
        if self._results:
            results = _stack_on_host(self._results)
            self._results = []
            self.ends = np.concatenate([self.ends, self._episode_ends(results)])
            self._metrics += [results["metrics"]] if self._live_metrics else []
            rewards = _by_role(results, "rewards")
            self._rewards.append({role: values.astype(np.float64).mean(-1) for role, values in rewards.items()})

    def state(self, frames: int) -> dict[str, np.ndarray]:
        """Return the state fields by name in the first frames."""
        return {name: self._concatenate(name, frames) for name in self._env.state}

    def drawn(self, frames: int) -> dict[str, np.ndarray]:
        """Return the randomized parameters by name in the first frames."""
        return {name: self._concatenate(name, frames) for name in self._drawn}

    def _concatenate(self, name: str, frames: int) -> np.ndarray:
        return np.concatenate([part[name] for part in self._frames])[:frames]

    def rewards(self, frames: int) -> dict[str, np.ndarray]:
        """Return the rewards by role in the first frames, averaged over agents; frame 0 has zeros."""
        zeros = np.zeros((1, len(self._numbers)))
        return {
            role: np.concatenate([zeros, *(part[role] for part in self._rewards)])[:frames] for role in self._rewards[0]
        }

    def metrics(self, frames: int) -> dict[str, np.ndarray]:
        """Return the metrics by name in the first frames."""
        if not self._metrics:
            return {}
        values = np.concatenate([np.full_like(self._metrics[0][:1], np.nan), *self._metrics])[:frames]
        if self._env.autoreset_mode.value == "NextStep":  # the step after an end only resets
            values[1:][self.ends[: frames - 1] != RUNNING] = np.nan
        return {name: values[..., m] for m, name in enumerate(self._env.env_spec.metrics)}

    def _copy_state(self) -> StepArrays:
        """Copy the replicas' state fields and randomized parameters, whose names are distinct."""
        return self._copy_rows({**self._env.state, **{name: self._env.params[name] for name in self._drawn}})

    def _copy_rows(self, arrays: Mapping[str, Array]) -> StepArrays:
        return {name: values[self._index(values)] for name, values in arrays.items()}

    def _index(self, array: Array) -> Array:
        """Return the replicas' numbers as an array of the same library on the same device: indexing with it copies."""
        library = library_of(array)
        if library not in self._indices:
            device = {"device": array.device} if library == "torch" else {}
            self._indices[library] = importlib.import_module(library).asarray(self._numbers, **device)
        return self._indices[library]

    def _episode_ends(self, results: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the statuses ``[steps, replicas]``: ended if all agents are, truncated if any is not terminated."""
        terminated, truncated = (
            np.concatenate(list(_by_role(results, kind).values()), -1) for kind in ("terminations", "truncations")
        )
        done = (terminated | truncated).all(-1)
        ended = done
        if self._manual_reset:  # flags stay set until the reset: only the first step ends the episode
            ended = done & ~np.concatenate([self._was_done[None], done[:-1]])
            self._was_done = done[-1]
        any_truncated = (truncated & ~terminated).any(-1)
        return np.where(ended, np.where(any_truncated, TRUNCATED, TERMINATED), RUNNING).astype(np.uint8)


def _by_role(results: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """Return the results of a kind by role, ``[steps, replicas, agents]``."""
    arrays = {name.partition(".")[2]: values for name, values in results.items() if name.startswith(f"{kind}.")}
    return {role: values.reshape(*values.shape[:2], -1) for role, values in arrays.items()}


def _stack_on_host(rows: Sequence[StepArrays]) -> dict[str, np.ndarray]:
    """Return arrays of many steps on the host, ``[steps, ...]``, stacked on the device to need one copy each."""
    arrays = {}
    for name, first in rows[0].items():
        library: Any = np if isinstance(first, np.ndarray) else importlib.import_module(library_of(first))
        arrays[name] = to_numpy(library.stack([row[name] for row in rows]))
    return arrays
