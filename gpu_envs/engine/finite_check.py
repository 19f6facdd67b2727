"""Checking mode: a check after every call that states, rewards, observations and metrics are finite."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from gpu_envs.backend.arrays import Array, to_numpy
from gpu_envs.codegen import TeamLayout
from gpu_envs.engine.results import Step, array_for_key, metrics_by_name
from gpu_envs.engine.simulation import Simulation
from gpu_envs.errors import NotFiniteError
from gpu_envs.specs.team import TeamSpec

_NO_AGENT = -1

_CAUSES = {
    "state": "the rules' {function} wrote it",
    "reward": "the rules' step returned it, although the state is finite",
    "observation": "the rules' observe wrote it, although the state is finite",
    "metric": "the rules' measure wrote it, although the states are finite",
}

_RESULTS = {
    "rewards": ("reward", "the reward"),
    "observations": ("observation", "the observation"),
    "final_obs": ("observation", "the final observation"),
    "shared_observations": ("observation", "the shared observation"),
    "final_shared": ("observation", "the final shared observation"),
    "episode_metrics": ("metric", "the metric"),
}
"""``NotFiniteError.source`` and the name in messages, for each result."""


class _CheckedArray(NamedTuple):
    """An array of floats to check."""

    source: str
    """``state``, ``reward``, ``observation`` or ``metric``."""
    what: str
    """The name in messages."""
    field: str
    """The field of the state, the key of a Dict observation, or the metric; otherwise empty."""
    array: Array
    """``[num_envs, ...]``, or ``[num_envs, agents, ...]``."""
    first_agent: int = _NO_AGENT
    """Index of the array's first agent; -1 for an array without a dimension of agents."""
    final: bool = False
    """Whether only rows of replicas whose episode has just ended are valid; they belong to the ended episode."""

    def __str__(self) -> str:
        """The array's name in a message."""
        if self.source == "state":
            return f"{self.field!r} of the state"
        return f"{self.what} {self.field!r}" if self.field else self.what


class _NotFinite(NamedTuple):
    """The position and value of a number that is not finite."""

    checked: _CheckedArray
    replica: int
    agent: int
    element: tuple[int, ...]
    value: float


@final
class FiniteCheck:
    """Checks the states, rewards, observations and metrics of a simulation; each check waits for the device."""

    def __init__(self, sim: Simulation) -> None:
        """Find the float fields of the state."""
        self._sim = sim
        self._fields = self._float_fields()

    def check(self, *, stepped: bool, out: Step | None = None) -> None:
        """Raise a NotFiniteError for the first number that is not finite: in state, rewards, observations or metrics.

        Args:
            stepped: Whether a step was taken; otherwise rewards and metrics are old and not checked.
            out: The user's arrays that the step wrote into.
        """
        finished = self._sim.arrays.read(self._sim.buffers["finished"]) if stepped else None
        rewards, metrics = (self._results("rewards", out), self._metrics(out)) if stepped else ((), ())
        for group in (self._fields, rewards, self._observations(out, finished), metrics):
            problems = [problem for checked in group if (problem := self._find_first(checked, finished)) is not None]
            if problems:
                self._raise_at_current_step(min(problems, key=lambda problem: problem.replica), finished)

    def elapsed(self) -> np.ndarray:
        """The step of each replica's episode, for ``check_rollout``; 0 where the next step starts a new episode."""
        steps = self._sim.arrays.read(self._sim.elapsed)
        ended = self._sim.arrays.read(self._sim.buffers["ended"])
        return np.where(ended, 0, steps)

    def check_rollout(self, results: Mapping[str, Array], elapsed_before: np.ndarray) -> None:
        """Raise a NotFiniteError for the first number of a rollout, or of the state, that is not finite.

        Args:
            results: Results of the rollout: per step if they contain ``rewards``, otherwise sums.
            elapsed_before: The result of ``elapsed`` before the rollout, to name the step in the message.
        """
        if "rewards" in results:
            ends = to_numpy(results["terminations"]) | to_numpy(results["truncations"])
            for name in ("rewards", "observations"):
                self._check_steps(name, results, ends, elapsed_before)
        last = [checked for checked in self._result_arrays("observations", results) if "rewards" not in results]
        sums = _CheckedArray("reward", "the sum of the rewards", "", results["reward_sum"])
        for checked in (*self._fields, sums, *last):
            if (problem := self._find_first(checked, None)) is not None:
                self._raise_at_current_step(problem, None)

    # --- arrays to check ---

    def _float_fields(self) -> list[_CheckedArray]:
        """The arrays of the state's float fields; in a team also with the number of each field's first agent."""
        spec, layout = self._sim.config.spec, self._sim.layout
        first: dict[str, int] = {}
        if isinstance(layout, TeamLayout) and isinstance(spec, TeamSpec):
            first = dict.fromkeys(spec.state, 0)
            for role, rows in zip(spec.roles, layout.roles, strict=True):
                first |= dict.fromkeys(role.state, rows.first)
        return [
            _CheckedArray("state", "the state", name, array, first.get(name, _NO_AGENT))
            for name, array in self._sim.state.items()
            if _is_float(array)
        ]

    def _results(self, result: str, out: Step | None) -> Iterator[_CheckedArray]:
        """The float arrays of one result of a step, by role or Dict key; the user's where ``out`` has them."""
        arrays = {}
        for name in self._sim.layout.results():
            kind, _, part = name.partition(".")
            user_array = array_for_key(getattr(out, kind, None), part)
            arrays[name] = self._sim.buffers[name] if user_array is None else user_array
        return self._result_arrays(result, arrays)

    def _result_arrays(self, result: str, arrays: Mapping[str, Array]) -> Iterator[_CheckedArray]:
        """The float arrays of one result among all results of a step or a rollout."""
        layout = self._sim.layout
        first = {role.name: role.first for role in layout.roles} if isinstance(layout, TeamLayout) else {}
        source, what = _RESULTS[result]
        for name, array in arrays.items():
            kind, _, part = name.partition(".")
            if kind == result and _is_float(array):
                field = "" if part in first else part
                agent = _NO_AGENT if "shared" in kind else first.get(part, _NO_AGENT)
                yield _CheckedArray(source, what, field, array, agent, kind.startswith("final"))

    def _metrics(self, out: Step | None) -> Iterator[_CheckedArray]:
        """Yield each metric of the episodes that have just ended."""
        for checked in self._results("episode_metrics", out):
            for name, values in metrics_by_name(self._sim.config.spec.metrics, checked.array).items():
                yield checked._replace(field=name, array=values, final=True)

    def _observations(self, out: Step | None, finished: np.ndarray | None) -> Iterator[_CheckedArray]:
        """Yield observations, local and shared; after a step (``finished`` is not None) first the final ones."""
        final = () if finished is None else ("final_obs", "final_shared")
        for result in (*final, "observations", "shared_observations"):
            yield from self._results(result, out)

    # --- numbers that are not finite ---

    def _find_first(self, checked: _CheckedArray, finished: np.ndarray | None) -> _NotFinite | None:
        """Return the first number that is not finite, or None; of ``final`` arrays only in ``finished`` replicas."""
        values = to_numpy(checked.array)
        not_finite = ~np.isfinite(values)
        if checked.final:
            not_finite &= np.asarray(finished).reshape(-1, *(1,) * (values.ndim - 1))
        if not not_finite.any():
            return None
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(not_finite)), not_finite.shape))
        replica, *rest = index
        agent = _NO_AGENT if checked.first_agent == _NO_AGENT else checked.first_agent + rest.pop(0)
        return _NotFinite(checked, replica, agent, tuple(rest), float(values[index]))

    def _raise_at_current_step(self, problem: _NotFinite, finished: np.ndarray | None) -> None:
        """Raise a NotFiniteError for a number of the latest results, with its step: current, or last of an episode."""
        sim, checked = self._sim, problem.checked
        step = int(sim.arrays.read(sim.elapsed)[problem.replica])
        ended = finished is not None and finished[problem.replica] and (checked.final or checked.source == "reward")
        if ended and sim.config.statistics:  # ``Options`` requires them if resets within a step zero ``elapsed``
            step = int(np.max(sim.arrays.read(sim.buffers["episode_length"])[problem.replica]))
        self._raise(problem, step)

    def _check_steps(self, result: str, results: Mapping[str, Array], ends: np.ndarray, elapsed: np.ndarray) -> None:
        """Raise a NotFiniteError if a result per step, ``[steps, ...]``, is not finite; ``elapsed``: before them."""
        for checked in self._result_arrays(result, results):
            if (problem := self._find_first(checked, None)) is None:
                continue
            t, (replica, *element) = problem.replica, problem.element
            earlier = np.flatnonzero(ends[:t, replica])
            step = t - int(earlier[-1]) if len(earlier) else int(elapsed[replica]) + t + 1
            if result == "observations" and ends[t, replica]:
                step = 0  # the first observation of the next episode
            self._raise(problem._replace(replica=replica, element=tuple(element)), step)

    def _raise(self, problem: _NotFinite, step: int) -> None:
        """Raise the NotFiniteError for a number, at ``step`` of its replica's episode."""
        checked = problem.checked
        who = self._sim.layout.agent_label(problem.agent) if problem.agent != _NO_AGENT else ""
        index = "".join(f"[{i}]" for i in problem.element)
        cause = _CAUSES[checked.source].format(function="step" if step else "reset")
        replica = self._sim.config.replica_name(problem.replica)
        raise NotFiniteError(
            f"{self._sim.config.spec.id}: {replica}, {who}step {step} of its episode: {checked}{index} is "
            f"{problem.value}; {cause}",
            replica=problem.replica,
            agent=who.removesuffix(", ") or None,
            step=step,
            source=checked.source,
            field=checked.field or None,
            element=problem.element,
            value=problem.value,
        )


def _is_float(array: Any) -> bool:
    return "float" in str(array.dtype)
