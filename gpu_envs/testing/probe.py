"""Plays builds of an environment that find mistakes: in a process of its own, which such a mistake ends.

It is started by ``gpu_envs.testing.builds`` and told in a file what to play; what it found, it writes to its output.
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
from gpu_envs.testing.draws import KINDS, Draw, long_draws
from gpu_envs.testing.portable import from_bytes
from gpu_envs.testing.subject import Moment, Subject, difference, ended

VERDICT = "gpu_envs verdict: "
"""Begins the line with what was found."""

PLACE = "gpu_envs place: "
"""Begins a line with what is played next."""

MODES = ("SameStep", "NextStep", "Disabled")
"""The autoreset modes that are played."""

PARTED = "NextStep"
"""The mode in which a team's shared observations are written once a replica, and masks tell of idle elements."""

_WAIT = 3
"""In Disabled, replicas that ended are begun anew after every so many steps, until when some of them wait."""

_GARBAGE = (0xFE, 0x01)
"""Bytes that fill what reset has to set, and observe."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to play."""

    spec: bytes
    """Out of ``portable.to_bytes``."""
    params: Mapping[str, Any]
    num_envs: int
    steps: int
    longest: int
    """Steps of a long run by the first two builds; 0: there is none."""
    seed: int
    device: str
    builds: tuple[tuple[str, ...], ...]
    """On the CPU, the compiler's flags of each build; all must give the same as the first. No flags: the users' own
    build; the others look at every index."""
    compare: bool = True
    """Look for differences; otherwise only crashes count."""
    limit: int | None = None
    """The step at which episodes are truncated; None: the environment's own."""


@dataclasses.dataclass(frozen=True)
class Build:
    """A program, and how it is compiled."""

    config: SimulationConfig
    flags: tuple[str, ...]


def builds_of(plan: Plan, mode: str) -> list[Build]:
    """What plays an autoreset mode: all builds the first; the others the last two, the users' and a quick one.

    Modes differ in what becomes of replicas that ended, and not in what compilers make of rules.
    """
    options = Options(device=plan.device, autoreset_mode=mode, max_episode_steps=plan.limit)
    config = config_of(from_bytes(plan.spec), plan.num_envs, options, plan.params)
    spec = config.spec
    if mode == PARTED and isinstance(spec, TeamSpec):
        config = dataclasses.replace(config, separate_shared=spec.has_shared_observations, active_heads=spec.active_heads)
    return [
        Build(dataclasses.replace(config, checked=bool(flags) or plan.device != "cpu"), flags)
        for flags in (plan.builds if mode == MODES[0] else plan.builds[-2:])
    ]


@final
class Bare:
    """A simulation without an environment around it."""

    def __init__(self, config: SimulationConfig, backend: Backend, subject: Subject) -> None:
        self.garbage: int | None = None
        self.sim = Simulation(config, backend, "numpy")
        self._subject = subject
        arrays, n = self.sim.arrays, config.num_envs
        self._readers = {
            role.name: ActionReader(role.action, role.batch_shape(n), backend.device, arrays, config.precision)
            for role in subject.roles.values()
        }

    def spoil(self, byte: int) -> None:
        """Fills a team's state, and before each call from here on the observations, with bytes to overwrite."""
        self.garbage = byte
        for name, array in self.sim.state.items() if isinstance(self.sim.layout, TeamLayout) else ():
            if str(array.dtype) != "bool":
                self.sim.state[name] = _filled(array, byte)

    def reset(self, seed: int | None, which: np.ndarray | None = None) -> Moment:
        """Begins new episodes, in some replicas or in all, and returns everything."""
        self._blot()
        self.sim.reset(seed, None if which is None else self.sim.arrays.from_numpy(which), {})
        return self._everything()

    def step(self, draw: Draw) -> Moment:
        """Steps with the actions that these numbers draw, and returns everything."""
        read = []
        for name, role in self._subject.roles.items():
            mask = self.sim.buffers.get(role.array_name("action_mask"))
            possible = None if mask is None else self.sim.arrays.read(mask)
            read.append(self._readers[name].read(sample_actions(role.action, draw[name], possible)))
        self._blot()
        self.sim.step([part[:2] for part in read])
        return self._everything()

    def _blot(self) -> None:
        """Fills the observations with bytes that observe must overwrite."""
        for name, array in self.sim.buffers.items():
            if self.garbage is not None and name.partition(".")[0] == "observations":
                self.sim.arrays.write(array, _filled(array, self.garbage))

    def _everything(self) -> Moment:
        names = ("observations", "rewards", "terminations", "truncations", "action_mask", "elapsed")
        seen = {name: array for name, array in self.sim.buffers.items() if name.partition(".")[0] in names}
        seen |= {f"state.{name}": array for name, array in self.sim.state.items()}
        if metrics := self.sim.config.spec.metrics:
            measured = metrics_by_name(metrics, self.sim.buffers["episode_metrics"])
            seen |= {f"episode_metrics.{name}": values for name, values in measured.items()}
        return {name: self.sim.arrays.read(array) for name, array in seen.items()}


def _filled(array: Any, byte: int) -> np.ndarray:
    """An array like this one, of equal bytes."""
    return np.full(array.nbytes, byte, np.uint8).view(str(array.dtype)).reshape(array.shape)


def play(plan: Plan) -> str:
    """Plays all builds side by side, in each autoreset mode; returns the first difference in words, or nothing."""
    subject = Subject(from_bytes(plan.spec), plan.num_envs, plan.steps, plan.seed, plan.params)
    short = (_play(plan, subject, mode, subject.draws()) for mode in MODES)
    told = next(filter(None, short), "")
    if told or not plan.longest:
        return told
    plan = dataclasses.replace(plan, num_envs=KINDS, limit=subject.longest[1], builds=plan.builds[:2])
    return _play(plan, subject, MODES[0], long_draws(subject.roles, plan.longest, KINDS, plan.seed), " of a long run")


def _play(plan: Plan, subject: Subject, mode: str, draws: Iterable[Draw], what: str = "") -> str:
    """Plays an autoreset mode; returns the first difference in words, or nothing."""
    runs = []
    for build in builds_of(plan, mode):
        backend = HostBackend(1, build.flags) if plan.device == "cpu" else open_backend(plan.device)
        runs.append(Bare(build.config, backend, subject))
    found = []
    for run, byte in zip(runs, itertools.cycle(_GARBAGE), strict=False):
        if plan.compare:
            run.spoil(byte)
        _tell(f"the first reset ({mode})")
        found.append(run.reset(plan.seed))
    told = _different(found, plan, "after reset", "reset must set every field of the state")
    advice = "the rules read what is not set (a local variable, scratch), or do what C++ leaves undefined"
    over = np.zeros(plan.num_envs, bool)
    for t, draw in enumerate(draws, start=1):
        _tell(f"step {t}{what} ({mode})")
        found = [run.step(draw) for run in runs]
        told = told or _different(found, plan, f"after step {t}{what} ({mode})", advice)
        over |= ended(found[0])
        if mode == "Disabled" and t % _WAIT == 0 and over.any():
            found = [run.reset(None, over) for run in runs]
            told = told or _different(found, plan, f"after step {t} and a reset ({mode})", advice)
            over[:] = False
    return told


def _tell(what: str) -> None:
    print(f"{PLACE}{what}", flush=True)


def _different(moments: Sequence[Moment], plan: Plan, when: str, advice: str) -> str:
    for moment in moments[1:] if plan.compare else ():
        found = difference(moments[0], moment)
        if found.startswith("observations"):
            unset = _unwritten(moments)
            if unset:
                return f"{when}, {unset}"
            advice = f"observe leaves an element out, or {advice}"
        if found:
            return f"{when}, {found} in builds of different flags: {advice}"
    return ""


def _unwritten(moments: Sequence[Moment]) -> str:
    """The first element of an observation that is what it was before observe was called; empty where none is."""
    for name in moments[0]:
        if name.partition(".")[0] != "observations":
            continue
        left = np.ones(moments[0][name].shape, bool)
        for moment, byte in zip(moments, itertools.cycle(_GARBAGE), strict=False):
            values = np.ascontiguousarray(moment[name])
            left &= (values.view(np.uint8).reshape(*values.shape, values.itemsize) == byte).all(-1)
        if left.any():
            replica, *place = (int(i) for i in np.argwhere(left)[0])
            part = name.partition(".")[2]
            agent = f", {part}_{place[0]}" if len(place) > 1 and moments[0].get(f"rewards.{part}") is not None else ""
            element = "".join(f"[{i}]" for i in (place[1:] if agent else place))
            what = f"element {element} of the observation{f' {part!r}' if part else ''}"
            return f"{what} of replica {replica}{agent} was not written: observe must write every element, always"
    return ""


def main() -> None:
    """Reads the plan from the file that is named, and plays it."""
    os.environ.pop("LD_PRELOAD", None)  # it is for this process, and not for a compiler that it may start
    plan = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(f"{VERDICT}{json.dumps(play(Plan(**plan)))}", flush=True)
    os._exit(0)  # sanitizers would speak of the interpreter's own exit
