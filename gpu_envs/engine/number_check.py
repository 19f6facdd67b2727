"""Checking mode: looks at an environment's numbers after every call, and names the first that is not finite."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import numpy as np

from gpu_envs.backend.arrays import Array, to_numpy
from gpu_envs.codegen import TeamLayout
from gpu_envs.engine.results import Step, by_metric, given_for
from gpu_envs.engine.simulation import Simulation
from gpu_envs.errors import NotFiniteError
from gpu_envs.specs.team import TeamSpec

_NO_AGENT = -1

_BLAME = {
    "state": "the rules' {function} wrote it",
    "reward": "the rules' step gave it, with a state that is finite",
    "observation": "the rules' observe wrote it, of a state that is finite",
    "metric": "the rules' measure wrote it, of states that are finite",
}

_RESULTS = {
    "rewards": ("reward", "the reward"),
    "observations": ("observation", "the observation"),
    "final_obs": ("observation", "the final observation"),
    "shared_observations": ("observation", "the shared observation"),
    "final_shared": ("observation", "the final shared observation"),
    "episode_metrics": ("metric", "the metric"),
}
"""The source of a result's numbers, and what a message calls them."""


class _Numbers(NamedTuple):
    """One array of real numbers."""

    source: str
    """``state``, ``reward``, ``observation`` or ``metric``."""
    what: str
    """The same in a message."""
    field: str
    """The field of the state, the key of observations that are a Dict, or the metric; otherwise empty."""
    array: Array
    """``[num_envs, ...]``; of agents ``[num_envs, agents, ...]``."""
    first_agent: int = _NO_AGENT
    """The number of the first agent in the array; -1: its rows are replicas'."""
    final: bool = False
    """It counts in replicas whose episode has just ended, and belongs to that episode."""

    def __str__(self) -> str:
        """The array's name in a message."""
        if self.source == "state":
            return f"{self.field!r} of the state"
        return f"{self.what} {self.field!r}" if self.field else self.what


class _Found(NamedTuple):
    """A number that is not finite."""

    numbers: _Numbers
    replica: int
    agent: int
    element: tuple[int, ...]
    value: float


@final
class NumberCheck:
    """Looks at states, rewards and observations of one simulation. It waits for the device."""

    def __init__(self, sim: Simulation) -> None:
        """Keeps the simulation."""
        self._sim = sim
        self._fields = self._real_fields()

    def look(self, *, stepped: bool, out: Step | None = None) -> None:
        """Raises a NotFiniteError for the first number that is not finite.

        In the state, else a reward, else observed, else a metric.

        Args:
            stepped: After a step; otherwise rewards are those of an earlier one.
            out: Arrays of the user's that the step wrote into.
        """
        finished = self._sim.arrays.read(self._sim.buffers["finished"]) if stepped else None
        rewards, metrics = (self._results("rewards", out), self._metrics(out)) if stepped else ((), ())
        for group in (self._fields, rewards, self._observed(out, finished), metrics):
            found = [hit for numbers in group if (hit := self._first(numbers, finished)) is not None]
            if found:
                self._refuse(min(found, key=lambda hit: hit.replica), finished)

    def elapsed(self) -> np.ndarray:
        """The steps that each replica's episode has had, as ``look_at_rollout`` wants them from before."""
        steps = self._sim.arrays.read(self._sim.elapsed)
        ended = self._sim.arrays.read(self._sim.buffers["ended"])
        return np.where(ended, 0, steps)

    def look_at_rollout(self, results: Mapping[str, Array], before: np.ndarray) -> None:
        """Raises a NotFiniteError for the first number of a rollout that is not finite.

        Args:
            results: What it wrote: per step where ``rewards`` are among them, otherwise sums.
            before: What ``elapsed`` gave before.
        """
        if "rewards" in results:
            ends = to_numpy(results["terminations"]) | to_numpy(results["truncations"])
            for name in ("rewards", "observations"):
                self._look_at_steps(name, results, ends, before)
        last = [numbers for numbers in self._named("observations", results) if "rewards" not in results]
        sums = _Numbers("reward", "the sum of the rewards", "", results["reward_sum"])
        for numbers in (*self._fields, sums, *last):
            found = self._first(numbers, None)
            if found is not None:
                self._refuse(found, None)

    # --- where numbers are ---

    def _real_fields(self) -> list[_Numbers]:
        spec, layout = self._sim.config.spec, self._sim.layout
        first: dict[str, int] = {}
        if isinstance(layout, TeamLayout) and isinstance(spec, TeamSpec):
            first = dict.fromkeys(spec.state, 0)
            for role, rows in zip(spec.roles, layout.roles, strict=True):
                first |= dict.fromkeys(role.state, rows.first)
        return [
            _Numbers("state", "the state", name, array, first.get(name, _NO_AGENT))
            for name, array in self._sim.state.items()
            if _is_real(array)
        ]

    def _results(self, result: str, out: Step | None) -> Iterator[_Numbers]:
        """The arrays of one result of a step: one, or one for each role or key."""
        arrays = {}
        for name in self._sim.layout.results():
            kind, _, part = name.partition(".")
            given = given_for(getattr(out, kind, None), part)
            arrays[name] = self._sim.buffers[name] if given is None else given
        return self._named(result, arrays)

    def _named(self, result: str, arrays: Mapping[str, Array]) -> Iterator[_Numbers]:
        """The arrays of one result among those of a step or of a rollout."""
        layout = self._sim.layout
        first = {role.name: role.first for role in layout.roles} if isinstance(layout, TeamLayout) else {}
        source, what = _RESULTS[result]
        for name, array in arrays.items():
            kind, _, part = name.partition(".")
            if kind == result and _is_real(array):
                field = "" if part in first else part
                agent = _NO_AGENT if "shared" in kind else first.get(part, _NO_AGENT)
                yield _Numbers(source, what, field, array, agent, kind.startswith("final"))

    def _metrics(self, out: Step | None) -> Iterator[_Numbers]:
        """The metrics of the episodes that have just ended."""
        for arrays in self._results("episode_metrics", out):
            for name, values in by_metric(self._sim.config.spec.metrics, arrays.array).items():
                yield arrays._replace(field=name, array=values, final=True)

    def _observed(self, out: Step | None, finished: np.ndarray | None) -> Iterator[_Numbers]:
        if finished is not None:
            yield from self._results("final_obs", out)
            yield from self._results("final_shared", out)
        yield from self._results("observations", out)
        yield from self._results("shared_observations", out)

    # --- what is wrong ---

    def _first(self, numbers: _Numbers, finished: np.ndarray | None) -> _Found | None:
        values = to_numpy(numbers.array)
        wrong = ~np.isfinite(values)
        if numbers.final:
            wrong &= np.asarray(finished).reshape(-1, *(1,) * (values.ndim - 1))
        if not wrong.any():
            return None
        place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        replica, *rest = place
        agent = _NO_AGENT if numbers.first_agent == _NO_AGENT else numbers.first_agent + rest.pop(0)
        return _Found(numbers, replica, agent, tuple(rest), float(values[place]))

    def _refuse(self, found: _Found, finished: np.ndarray | None) -> None:
        sim, numbers = self._sim, found.numbers
        step = int(sim.arrays.read(sim.elapsed)[found.replica])
        ended = finished is not None and finished[found.replica] and (numbers.final or numbers.source == "reward")
        if ended and sim.config.statistics:  # without them only where no restart has set it to zero: see ``Options``
            step = int(np.max(sim.arrays.read(sim.buffers["episode_length"])[found.replica]))
        self._raise(found, step)

    def _look_at_steps(self, result: str, results: Mapping[str, Array], ends: np.ndarray, before: np.ndarray) -> None:
        for numbers in self._named(result, results):
            found = self._first(numbers, None)
            if found is None:
                continue
            t, (replica, *element) = found.replica, found.element
            earlier = np.flatnonzero(ends[:t, replica])
            step = t - int(earlier[-1]) if len(earlier) else int(before[replica]) + t + 1
            if result == "observations" and ends[t, replica]:
                step = 0  # that of the next episode's beginning
            self._raise(found._replace(replica=replica, element=tuple(element)), step)

    def _raise(self, found: _Found, step: int) -> None:
        numbers, layout = found.numbers, self._sim.layout
        who = layout.who(found.agent) if found.agent != _NO_AGENT else ""
        place = "".join(f"[{i}]" for i in found.element)
        blame = _BLAME[numbers.source].format(function="step" if step else "reset")
        raise NotFiniteError(
            f"{self._sim.config.spec.id}: {self._sim.config.name_of(found.replica)}, {who}step {step} of its episode: "
            f"{numbers}{place} is {found.value}; {blame}",
            replica=found.replica,
            agent=who.removesuffix(", ") or None,
            step=step,
            source=numbers.source,
            field=numbers.field or None,
            element=found.element,
            value=found.value,
        )


def _is_real(array: Any) -> bool:
    return "float" in str(array.dtype)
