"""The options that every environment has, and their checks."""

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

MAX_REPLICAS = 2**64
"""Limit of replicas, also if a batch is split into parts: one for each seed of 64 bits."""

OUTPUTS = ("numpy", "torch", "cupy")


def check_num_envs(value: object, name: str = "num_envs") -> int:
    """Return a number of replicas as an int, or raise an error if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} is {value!r}; give an integer of 1 or more")
    return int(value)


def _check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        hint = did_you_mean(str(value), allowed)
        raise ValueError(f"{name} is {value!r}{hint} Allowed: {', '.join(repr(a) for a in allowed)}")


def _check_bool(name: str, value: object, *, optional: bool) -> None:
    if not (isinstance(value, bool | np.bool_) or (optional and value is None)):
        raise ValueError(f"{name} is {value!r}; give True or False{', or None for the default' if optional else ''}")


def _check_int(name: str, value: object, allowed: range, allowed_text: str, default: str = "") -> None:
    """Raise an error unless a value is an integer of a range, or None if the option has a default."""
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (is_int and value in allowed) and (value is not None or not default):
        or_none = f", or None for {default}" if default else ""
        raise ValueError(f"{name} is {value!r}; give an integer {allowed_text}{or_none}")


@final
@dataclasses.dataclass(frozen=True)
class Options:
    """The constructor's arguments as the user passed them, which a pickle passes again, perhaps on another machine.

    ``gpu_envs.make`` describes them.
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
        """Check the autoreset mode; ``check`` checks the other options once the device is known."""
        _check_choice("autoreset_mode", getattr(self.autoreset_mode, "value", self.autoreset_mode), AUTORESET_MODES)

    @property
    def mode(self) -> str:
        """The autoreset mode as a string."""
        return str(getattr(self.autoreset_mode, "value", self.autoreset_mode))

    @property
    def returns_copies(self) -> bool:
        """Whether results are fresh arrays instead of views of the simulation's memory."""
        return self.output == "numpy" if self.copy is None else bool(self.copy)

    @property
    def returns_statistics(self) -> bool:
        """Whether steps return ``infos["episode"]``."""
        return self.output != "numpy" if self.statistics is None else bool(self.statistics)

    @property
    def keeps_statistics(self) -> bool:
        """Whether returns, lengths and metrics of episodes are recorded."""
        return self.statistics is None or bool(self.statistics)

    def require_statistics(self, name: str) -> str:
        """Return the name of a statistic, or raise an AttributeError if statistics are not recorded."""
        if not self.keeps_statistics:
            raise AttributeError(f"the environment has no {name}, because it was made with statistics=False")
        return name

    def check(self, device: str) -> None:
        """Raise a ValueError for options that are invalid, in general or on this device, ``cpu`` or ``cuda:N``."""
        _check_choice("output", self.output, OUTPUTS)
        _check_choice("precision", self.precision, PRECISIONS)
        for name in ("copy", "statistics", "checking", "shared_observations", "active_heads"):
            _check_bool(name, getattr(self, name), optional=name in ("copy", "statistics"))
        _check_int("threads", self.threads, range(1, MAX_THREADS + 1), f"from 1 to {MAX_THREADS}", "all cores")
        _check_int("block_size", self.block_size, range(32, 1025, 32), "divisible by 32, up to 1024", "the default")
        _check_int("first_replica", self.first_replica, range(MAX_REPLICAS), "from 0 to below 2^64")
        if self.checking and self.mode == "SameStep" and not self.keeps_statistics:
            raise ValueError(
                "checking=True in SameStep mode needs the lengths of episodes, which statistics=False does not record: "
                "leave out one of them"
            )
        if device == "cpu" and self.output == "cupy":
            raise ValueError("output='cupy' needs device='cuda'; on the CPU use output='numpy' or 'torch'")
        if self.output == "numpy" and not self.returns_copies and device != "cpu":
            raise ValueError(
                "copy=False with output='numpy' is impossible on CUDA: leave it out, or use output='torch' or 'cupy'"
            )

    def limit(self, default: int | None) -> int:
        """The step at which episodes are truncated, or ``NO_LIMIT``, after a check; ``default``: the spec's limit."""
        steps = self.max_episode_steps
        if steps is None:
            return default or NO_LIMIT
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or (steps < 1 and steps != -1):
            raise ValueError(
                f"max_episode_steps is {steps!r}; give an integer of 1 or more, -1 for no limit, None for the default"
            )
        return NO_LIMIT if steps == -1 else min(int(steps), NO_LIMIT)


def config_of(spec: Spec, num_envs: int, options: Options, params: Mapping[str, Any]) -> SimulationConfig:
    """Check all constructor arguments; return the configuration, with the rules' text: later edits have no effect."""
    spec = spec.with_observed_params(options.observe_params)
    checked = spec.check_params(params, num_envs, options.precision)
    limit, longest = options.limit(spec.step_limit(checked)), spec.max_steps(checked)
    if longest is not None and limit > longest:
        if options.max_episode_steps is not None or callable(spec.max_episode_steps):
            requested = "max_episode_steps is -1, no limit" if limit == NO_LIMIT else f"max_episode_steps is {limit}"
            raise ValueError(
                f"{spec.id}: {requested}, but its rules support episodes of at most {longest} steps: give at most "
                f"{longest}"
            )
        limit = longest
    if options.shared_observations and not (isinstance(spec, TeamSpec) and spec.has_shared_observations):
        raise ValueError(f"{spec.id}: shared_observations=True, but no role has a shared_observation: leave it out")
    if options.active_heads and not (isinstance(spec, TeamSpec) and spec.active_heads):
        raise ValueError(f"{spec.id}: active_heads=True, but its rules do not define active heads: leave it out")
    config = SimulationConfig(
        spec,
        num_envs,
        options.mode,
        options.precision,
        limit,
        checked,
        first_replica=int(options.first_replica),
        separate_shared=bool(options.shared_observations),
        active_heads=bool(options.active_heads),
        statistics=options.keeps_statistics,
        drawn=spec.drawn({n: params.get(n, param.default) for n, param in spec.params.items()}, options.precision),
    )
    return dataclasses.replace(config, spec=spec.with_rules_text(rules_part(config)))
