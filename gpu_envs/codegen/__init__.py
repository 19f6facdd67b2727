"""Turns a spec into the one C++ source that both compilers read, and into the ctypes structs that its kernels take."""

from collections.abc import Mapping

from gpu_envs.codegen.layout import (
    AUTORESET_MODES,
    PRECISIONS,
    RESULTS,
    Config,
    Device,
    Grid,
    Layout,
    Program,
    baked_values,
    header_text,
    param_values,
    rules_part,
    tables,
)
from gpu_envs.codegen.single import SingleLayout
from gpu_envs.codegen.team import TeamLayout
from gpu_envs.spec import TeamSpec


def layout_of(
    config: Config,
    device: Device,
    per_replica: frozenset[str] = frozenset(),
    baked: Mapping[str, float | int] | None = None,
) -> Layout:
    """What the generated code of a configuration depends on.

    Args:
        config: What to simulate.
        device: Where.
        per_replica: Parameters that have one value a replica.
        baked: Parameters whose value is compiled in; None: those of ``config`` that can be.
    """
    if baked is None:
        values = param_values(config.spec, config.params)
        baked = {n: v for n, v in baked_values(config.spec, values).items() if n not in per_replica}
    if isinstance(config.spec, TeamSpec):
        return TeamLayout(config, per_replica, baked, device)
    return SingleLayout(config, per_replica, baked)


__all__ = [
    "AUTORESET_MODES",
    "PRECISIONS",
    "RESULTS",
    "Config",
    "Device",
    "Grid",
    "Layout",
    "Program",
    "SingleLayout",
    "TeamLayout",
    "baked_values",
    "header_text",
    "layout_of",
    "param_values",
    "rules_part",
    "tables",
]
