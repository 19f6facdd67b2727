"""What an environment of either kind is made with, besides its own parameters, and the rules between its choices."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from gymnasium.vector import AutoresetMode

from gpu_envs.backend.host import MAX_THREADS
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, SimulationConfig
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.simulation import NO_LIMIT
from gpu_envs.errors import did_you_mean
from gpu_envs.specs.base import Spec
from gpu_envs.specs.team import TeamSpec

MOST_REPLICAS = 2**64
"""Of a batch, all its parts together: as many as there are seeds, which wrap around."""

OUTPUTS = ("numpy", "torch", "cupy")


def check_num_envs(given: object, name: str = "num_envs") -> int:
    """Returns a number of replicas, or says what is wrong with it."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise ValueError(f"{name} is {given!r}; a whole number from 1 up")
    return int(given)


def _check_choice(what: str, given: object, allowed: Sequence[str]) -> None:
    if not isinstance(given, str) or given not in allowed:
        hint = did_you_mean(str(given), allowed)
        raise ValueError(f"{what} is {given!r}{hint} Allowed: {', '.join(repr(a) for a in allowed)}")


def _check_switch(what: str, given: object, *, default: bool) -> None:
    if not (isinstance(given, bool | np.bool_) or (default and given is None)):
        raise ValueError(f"{what} is {given!r}; True or False{', or None for the default' if default else ''}")


def _check_whole(what: str, given: object, known: range, allowed: str, otherwise: str = "") -> None:
    """Refuses all but whole numbers of a range, and None where it stands for something."""
    whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if not (whole and given in known) and (given is not None or not otherwise):
        default = f", or None for {otherwise}" if otherwise else ""
        raise ValueError(f"{what} is {given!r}; give a whole number {allowed}{default}")


@final
@dataclasses.dataclass(frozen=True)
class Options:
    """The constructor's arguments as they were given: a pickle makes them anew, perhaps on another machine.

    ``Batch.__init__`` says what each of them means.
    """

    device: str = "auto"
    output: str = "numpy"
    autoreset_mode: str | AutoresetMode = "NextStep"
    precision: str = "float32"
    max_episode_steps: int | None = None
    copy: bool | None = None
    statistics: bool | None = None
    threads: int | None = None
    block_size: int | None = None
    checking: bool = False
    first_replica: int = 0
    shared_observations: bool = False
    active_heads: bool = False
    observe_params: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        """Refuses an unknown mode at once; the rest waits for the device, in ``check``."""
        _check_choice("autoreset_mode", getattr(self.autoreset_mode, "value", self.autoreset_mode), AUTORESET_MODES)

    @property
    def mode(self) -> str:
        """The word for the autoreset mode."""
        return str(getattr(self.autoreset_mode, "value", self.autoreset_mode))

    @property
    def gives_copies(self) -> bool:
        """Whether fresh arrays are returned."""
        return self.output == "numpy" if self.copy is None else bool(self.copy)

    @property
    def gives_statistics(self) -> bool:
        """Whether ``infos["episode"]`` is given."""
        return self.output != "numpy" if self.statistics is None else bool(self.statistics)

    @property
    def keeps_statistics(self) -> bool:
        """Whether returns, lengths and metrics of episodes are kept at all."""
        return self.statistics is None or bool(self.statistics)

    def kept(self, name: str) -> str:
        """The name of one of them, or raises an AttributeError where they are not kept."""
        if not self.keeps_statistics:
            raise AttributeError(f"there is no {name}, as it was made with statistics=False; make it without that")
        return name

    def check(self, device: str) -> None:
        """Raises a ValueError for what cannot be, or cannot be on this device, ``cpu`` or ``cuda:N``."""
        _check_choice("output", self.output, OUTPUTS)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_switch("copy", self.copy, default=True)
        _check_switch("statistics", self.statistics, default=True)
        _check_switch("checking", self.checking, default=False)
        _check_switch("shared_observations", self.shared_observations, default=False)
        _check_switch("active_heads", self.active_heads, default=False)
        _check_whole("threads", self.threads, range(1, MAX_THREADS + 1), f"from 1 to {MAX_THREADS}", "all cores")
        _check_whole("block_size", self.block_size, range(32, 1025, 32), "divisible by 32, up to 1024", "the default")
        _check_whole("first_replica", self.first_replica, range(MOST_REPLICAS), "from 0 to below 2^64")
        if self.checking and self.mode == "SameStep" and not self.keeps_statistics:
            raise ValueError(
                "checking=True tells at which step of its episode a number went wrong, which in SameStep is known from "
                "the lengths of episodes; leave out statistics=False"
            )
        if device == "cpu" and self.output == "cupy":
            raise ValueError("output='cupy' needs device='cuda'; on the CPU use output='numpy' or 'torch'")
        if self.output == "numpy" and not self.gives_copies and device != "cpu":
            raise ValueError("copy=False with output='numpy' cannot be on CUDA: use output='torch' or 'cupy'")

    def limit(self, default: int | None) -> int:
        """The step at which an episode is truncated, or ``NO_LIMIT``; ``default`` is the environment's own limit."""
        given = self.max_episode_steps
        if given is None:
            return default or NO_LIMIT
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or (given < 1 and given != -1):
            raise ValueError(
                f"max_episode_steps is {given!r}; a whole number from 1 up, -1 for none, None for the default"
            )
        return NO_LIMIT if given == -1 else min(int(given), NO_LIMIT)


def config_of(spec: Spec, num_envs: int, options: Options, params: Mapping[str, Any]) -> SimulationConfig:
    """What is to be simulated, of what a user gave; its rules stay as they are now, even if their file is edited."""
    spec = spec.with_observed_params(options.observe_params)
    checked = spec.check_params(params, num_envs, options.precision)
    limit, longest = options.limit(spec.step_limit(checked)), spec.max_steps(checked)
    if longest is not None and limit > longest:
        if options.max_episode_steps is not None or callable(spec.max_episode_steps):
            asked = "max_episode_steps is -1, no limit" if limit == NO_LIMIT else f"max_episode_steps is {limit}"
            raise ValueError(
                f"{spec.id}: {asked}, and its rules are made for episodes of at most {longest} steps; give at most that"
            )
        limit = longest
    if options.shared_observations and not (isinstance(spec, TeamSpec) and spec.has_shared_observations):
        raise ValueError(f"{spec.id}: shared_observations=True, and no role has a shared_observation; leave it out")
    if options.active_heads and not (isinstance(spec, TeamSpec) and spec.active_heads):
        raise ValueError(f"{spec.id}: active_heads=True, and its rules do not say which are; leave it out")
    config = SimulationConfig(
        spec,
        num_envs,
        options.mode,
        options.precision,
        limit,
        checked,
        first_replica=int(options.first_replica),
        apart=bool(options.shared_observations),
        active_heads=bool(options.active_heads),
        statistics=options.keeps_statistics,
        drawn=spec.drawn({n: params.get(n, param.default) for n, param in spec.params.items()}, options.precision),
    )
    return dataclasses.replace(config, spec=spec.with_rules_text(rules_part(config)))
