"""Runs builds that find mistakes, in a separate process, because a mistake may end it.

``gpu_envs.testing.builds`` starts it with the name of a file that holds the ``Plan``, and reads its output.
"""

import dataclasses
import itertools
import json
import os
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from gpu_envs.backend import open_backend
from gpu_envs.backend.base import Backend
from gpu_envs.backend.host import HostBackend
from gpu_envs.codegen import SimulationConfig, TeamLayout
from gpu_envs.engine.actions import ActionReader
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import sample_actions
from gpu_envs.engine.results import metrics_by_name
from gpu_envs.engine.simulation import Simulation
from gpu_envs.specs.team import TeamSpec
from gpu_envs.testing.draws import NUM_PATTERNS, Draw, long_draws
from gpu_envs.testing.portable import from_bytes
from gpu_envs.testing.subject import Moment, Subject, difference, ended

VERDICT = "gpu_envs verdict: "
"""Prefix of the line with the result."""

PROGRESS = "gpu_envs progress: "
"""Prefix of a line that announces the next step."""

MODES = ("SameStep", "NextStep", "Disabled")
"""Autoreset modes to run."""

SEPARATE_MODE = "NextStep"
"""Mode with separate shared observations of a team, and masks for inactive elements of actions."""

_RESET_INTERVAL = 3
"""Steps between resets in Disabled mode, so that some replicas stay inactive for a while."""

_FILL_BYTES = (0xFE, 0x01)
"""Bytes that fill memory which reset or observe must overwrite."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Instructions for a process."""

    spec: bytes
    """Result of ``portable.to_bytes``."""
    params: Mapping[str, Any]
    num_envs: int
    steps: int
    longest: int
    """Steps of a long run of the first two builds; 0: no long run."""
    seed: int
    device: str
    builds: tuple[tuple[str, ...], ...]
    """Compiler flags of each build for the CPU; results must be equal. Without flags it is the users' build, the others
    have bounds checks."""
    compare: bool = True
    """Whether to compare results; otherwise only crashes count."""
    limit: int | None = None
    """Step at which episodes are truncated. None: the environment's limit."""


@dataclasses.dataclass(frozen=True)
class Build:
    """A program and its compiler flags."""

    config: SimulationConfig
    flags: tuple[str, ...]


def builds_of(plan: Plan, mode: str) -> list[Build]:
    """Returns the builds to run in an autoreset mode: all in the first mode, the last two in the others.

    Modes differ in the handling of ended replicas, not in the code that compilers generate for rules.
    """
    options = Options(device=plan.device, autoreset_mode=mode, max_episode_steps=plan.limit)
    config = config_of(from_bytes(plan.spec), plan.num_envs, options, plan.params)
    spec = config.spec
    if mode == SEPARATE_MODE and isinstance(spec, TeamSpec):
        config = dataclasses.replace(
            config, separate_shared=spec.has_shared_observations, active_heads=spec.active_heads
        )
    return [
        Build(dataclasses.replace(config, checked=bool(flags) or plan.device != "cpu"), flags)
        for flags in (plan.builds if mode == MODES[0] else plan.builds[-2:])
    ]


@final
class BareSimulation:
    """A simulation without an environment class around it."""

    def __init__(self, config: SimulationConfig, backend: Backend, subject: Subject) -> None:
        self.fill_byte: int | None = None
        self.sim = Simulation(config, backend, "numpy")
        self._subject = subject
        arrays, n = self.sim.arrays, config.num_envs
        self._readers = {
            role.name: ActionReader(role.action, role.batch_shape(n), backend.device, arrays, config.precision)
            for role in subject.roles.values()
        }

    def fill(self, byte: int) -> None:
        """Fills a team's state now, and observations before each later call, with a byte that must be overwritten."""
        self.fill_byte = byte
        for name, array in self.sim.state.items() if isinstance(self.sim.layout, TeamLayout) else ():
            if str(array.dtype) != "bool":
                self.sim.state[name] = _filled(array, byte)

    def reset(self, seed: int | None, which: np.ndarray | None = None) -> Moment:
        """Starts new episodes in all replicas, or where ``which`` is set; returns the results and the state."""
        self._fill_observations()
        self.sim.reset(seed, None if which is None else self.sim.arrays.from_numpy(which), {})
        return self._results()

    def step(self, draw: Draw) -> Moment:
        """Takes a step with actions chosen by these numbers; returns the results and the state."""
        readings = []
        for name, role in self._subject.roles.items():
            mask = self.sim.buffers.get(role.array_name("action_mask"))
            possible = None if mask is None else self.sim.arrays.read(mask)
            readings.append(self._readers[name].read(sample_actions(role.action, draw[name], possible)))
        self._fill_observations()
        self.sim.step([part[:2] for part in readings])
        return self._results()

    def _fill_observations(self) -> None:
        """Fills the observations with ``fill_byte``, which observe must overwrite; without one, does nothing."""
        for name, array in self.sim.buffers.items():
            if self.fill_byte is not None and name.partition(".")[0] == "observations":
                self.sim.arrays.write(array, _filled(array, self.fill_byte))

    def _results(self) -> Moment:
        """Returns copies of the last call's results, the state and the metrics, by name."""
        names = ("observations", "rewards", "terminations", "truncations", "action_mask", "elapsed")
        arrays = {name: array for name, array in self.sim.buffers.items() if name.partition(".")[0] in names}
        arrays |= {f"state.{name}": array for name, array in self.sim.state.items()}
        if metrics := self.sim.config.spec.metrics:
            measured = metrics_by_name(metrics, self.sim.buffers["episode_metrics"])
            arrays |= {f"episode_metrics.{name}": values for name, values in measured.items()}
        return {name: self.sim.arrays.read(array) for name, array in arrays.items()}


def _filled(array: Any, byte: int) -> np.ndarray:
    """An array of this shape and dtype whose bytes are all equal."""
    return np.full(array.nbytes, byte, np.uint8).view(str(array.dtype)).reshape(array.shape)


def run_builds(plan: Plan) -> str:
    """Runs builds of different compiler flags step by step; returns the first difference, or an empty string.

    All builds run in the first autoreset mode, the last two in the others. Without ``plan.compare`` only crashes count.
    """
    subject = Subject(from_bytes(plan.spec), plan.num_envs, plan.steps, plan.seed, plan.params)
    short = (_play(plan, subject, mode, subject.draws()) for mode in MODES)
    verdict = next(filter(None, short), "")
    if verdict or not plan.longest:
        return verdict
    plan = dataclasses.replace(plan, num_envs=NUM_PATTERNS, limit=subject.longest[1], builds=plan.builds[:2])
    return _play(
        plan, subject, MODES[0], long_draws(subject.roles, plan.longest, NUM_PATTERNS, plan.seed), " of a long run"
    )


def _play(plan: Plan, subject: Subject, mode: str, draws: Iterable[Draw], what: str = "") -> str:
    """Runs the builds in one autoreset mode; returns the first difference between their results, or ""."""
    runs = []
    for build in builds_of(plan, mode):
        backend = HostBackend(1, build.flags) if plan.device == "cpu" else open_backend(plan.device)
        runs.append(BareSimulation(build.config, backend, subject))
    moments = []
    for run, byte in zip(runs, itertools.cycle(_FILL_BYTES), strict=False):
        if plan.compare:
            run.fill(byte)
        _announce(f"the first reset ({mode})")
        moments.append(run.reset(plan.seed))
    verdict = _first_difference(moments, plan, "after reset", "reset must set every field of the state")
    advice = "the rules read an uninitialised value (a local variable, scratch), or have undefined behaviour"
    over = np.zeros(plan.num_envs, bool)
    for t, draw in enumerate(draws, start=1):
        _announce(f"step {t}{what} ({mode})")
        moments = [run.step(draw) for run in runs]
        verdict = verdict or _first_difference(moments, plan, f"after step {t}{what} ({mode})", advice)
        over |= ended(moments[0])
        if mode == "Disabled" and t % _RESET_INTERVAL == 0 and over.any():
            moments = [run.reset(None, over) for run in runs]
            verdict = verdict or _first_difference(moments, plan, f"after step {t} and a reset ({mode})", advice)
            over[:] = False
    return verdict


def _announce(what: str) -> None:
    print(f"{PROGRESS}{what}", flush=True)


def _first_difference(moments: Sequence[Moment], plan: Plan, when: str, advice: str) -> str:
    """Describes how builds' results differ, or an element that observe did not write; empty: equal, or not compared."""
    for moment in moments[1:] if plan.compare else ():
        message = difference(moments[0], moment)
        if message.startswith("observations"):
            unset = _first_unwritten(moments)
            if unset:
                return f"{when}, {unset}"
            advice = f"observe skips an element, or {advice}"
        if message:
            return f"{when}, {message} in builds of different flags: {advice}"
    return ""


def _first_unwritten(moments: Sequence[Moment]) -> str:
    """Describes the first element of an observation that still has the fill bytes of all builds; empty: none."""
    for name in moments[0]:
        if name.partition(".")[0] != "observations":
            continue
        unwritten = np.ones(moments[0][name].shape, bool)
        for moment, byte in zip(moments, itertools.cycle(_FILL_BYTES), strict=False):
            values = np.ascontiguousarray(moment[name])
            unwritten &= (values.view(np.uint8).reshape(*values.shape, values.itemsize) == byte).all(-1)
        if unwritten.any():
            replica, *index = (int(i) for i in np.argwhere(unwritten)[0])
            part = name.partition(".")[2]
            agent = f", {part}_{index[0]}" if len(index) > 1 and moments[0].get(f"rewards.{part}") is not None else ""
            element = "".join(f"[{i}]" for i in (index[1:] if agent else index))
            what = f"element {element} of the observation{f' {part!r}' if part else ''}"
            return f"{what} of replica {replica}{agent} was not written: observe must write every element, always"
    return ""


def main() -> None:
    """Runs the plan in the file that the command line names."""
    os.environ.pop("LD_PRELOAD", None)  # for this process only, not for a compiler that it starts
    plan = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(f"{VERDICT}{json.dumps(run_builds(Plan(**plan)))}", flush=True)
    os._exit(0)  # skips reports of sanitizers about the interpreter's exit
