"""The program of a policy that acts in single-agent environments for a horizon, in one launch on a GPU."""

from collections.abc import Mapping

from gpu_envs.backend.program import Grid, KernelSettings, Program, headers, joined
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen import Layout, SingleLayout
from gpu_envs.codegen.single_source import before_drivers, structs
from gpu_envs.training.operations.fused_programs import ACT_CALL, Network
from gpu_envs.training.operations.sizes import sizes_of

_THREADS = 128
"""Of a block."""
_BLOCKS = 4
"""Blocks that a multiprocessor is to hold."""
_TILE = 16
"""Rows that a warp's products take."""


def steps_where_it_acts(layout: Layout, params: Mapping[str, object]) -> bool:
    """Whether environments like these are stepped in the launch in which a policy acts.

    Args:
        layout: Of the environment.
        params: What it was made with: some steps are looked at as they are taken.
    """
    watched = params.get("checking") or params.get("render_mode") == "human"
    short = isinstance(layout, SingleLayout) and layout.staged and not layout.choices
    return short and layout.config.precision == "float32" and not watched


def act_and_step_program(layout: SingleLayout, network: Network, processors: int) -> Program:
    """Acting and stepping of so many replicas, on a GPU of so many multiprocessors.

    A warp has 32 replicas, and half as many where there are too few of them for all warps of the device.
    """
    many = layout.config.num_envs >= _THREADS * _BLOCKS * processors // 2
    rows, blocks = (2 * _TILE, _BLOCKS) if many else (_TILE, 1)
    declared = structs(layout)
    members = (declared["StepCall"], "step"), (ACT_CALL, "act"), ("int", "horizon")
    call = Struct.of("ActAndStepCall", layout.real, *members)
    staged = f"constexpr int OBSERVATION_BYTES = padded(4 * THREADS * {layout.parts[0].size}, 128);"
    acting = network.acting_parts(_THREADS, f"{staged}\nconstexpr int ROWS = {rows}, BLOCKS = {blocks};")
    sizes = {"block": "acting::OBSERVATION_BYTES + sizeof(acting::ActMemory<acting::PARAMETERS>)"}
    parts = [
        *before_drivers(layout, declared, acting),
        *headers("drivers/one_step.cuh"),
        ("generated", call.cpp()),
        *headers("training/small/act_and_step.cuh"),
    ]
    return Program(
        name=f"{layout.spec.id}-act_and_step",
        source=joined(parts),
        calls={"act_and_step": call.ctype()},
        flush_denormals=True,
        grid=Grid(
            threads=_THREADS,
            replicas=rows * _THREADS // 32,
            shared_bytes=sizes_of(acting, KernelSettings(), sizes)["block"],
        ),
    )
