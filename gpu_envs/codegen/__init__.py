"""Generates the C++ source of a spec, the same for CPU and GPU, and the ctypes structs of its kernels' arguments."""

from collections.abc import Mapping

from gpu_envs.backend.program import Device, Program
from gpu_envs.codegen import single_source, team_source
from gpu_envs.codegen.layout import AUTORESET_MODES, PRECISIONS, RESULTS, Layout, SimulationConfig
from gpu_envs.codegen.params import NUMBERS, baked_values, distribution_numbers, kinds_of, param_values, tables
from gpu_envs.codegen.single_layout import SingleLayout
from gpu_envs.codegen.team_layout import TeamLayout
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.team import TeamSpec


def layout_of(
    config: SimulationConfig,
    device: Device,
    per_replica: frozenset[str] = frozenset(),
    baked: Mapping[str, float | int] | None = None,
    drawn: Mapping[str, Distribution] | None = None,
) -> Layout:
    """Return the TeamLayout or SingleLayout of a configuration: its memory and kernels.

    Args:
        config: The simulation.
        device: The device that runs it.
        per_replica: Parameters with one value per replica.
        baked: Parameters whose value is compiled in; None: all of ``config`` that can be.
        drawn: Parameters that each replica draws at the start of an episode; None: those of ``config``.
    """
    compiled = kinds_of(config.spec, config.drawn if drawn is None else drawn)
    per_replica = per_replica | compiled.keys()
    if baked is None:
        values = param_values(config.spec, config.params)
        baked = {n: v for n, v in baked_values(config.spec, values).items() if n not in per_replica}
    if isinstance(config.spec, TeamSpec):
        return TeamLayout(config, per_replica, baked, compiled, device)
    return SingleLayout(config, per_replica, baked, compiled)


def generate(layout: Layout, module: str) -> Program:
    """Return the program of ``module``, from ``layout.modules``: C++ source, argument structs and launch grid."""
    if isinstance(layout, TeamLayout):
        return team_source.generate(layout, module)
    assert isinstance(layout, SingleLayout)
    return single_source.generate(layout, module)


__all__ = [
    "AUTORESET_MODES",
    "NUMBERS",
    "PRECISIONS",
    "RESULTS",
    "Layout",
    "SimulationConfig",
    "SingleLayout",
    "TeamLayout",
    "baked_values",
    "distribution_numbers",
    "generate",
    "kinds_of",
    "layout_of",
    "param_values",
    "tables",
]
