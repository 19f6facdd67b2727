"""Programs of small networks: acting and values, the gradient, the optimiser step, a horizon of acting and stepping."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

from gpu_envs.backend.program import Grid, KernelSettings, Program, headers, joined
from gpu_envs.backend.structs import Struct
from gpu_envs.codegen import Layout, SingleLayout
from gpu_envs.codegen.single_source import before_drivers, structs
from gpu_envs.training.engines.kernels import (
    ACT_MEMBERS,
    PRODUCTS,
    UPDATE_MEMBERS,
    VALUES_MEMBERS,
    Linear,
    Part,
    block_program,
    block_settings,
    network_text,
    sizes_of,
    warpgroup_products,
)
from gpu_envs.training.engines.ops import LOSS_CALL, SAMPLE_CALL, SUMS, float_struct
from gpu_envs.training.engines.optimiser import STEP_MEMBERS, SUM_NUMBERS
from gpu_envs.training.heads import Head
from gpu_envs.training.process.group import BLOCK, constants

_THREADS = 128
"""Threads of a block that updates by warps, or acts and steps."""
_ACT_THREADS = 512
"""Threads of a block that acts: the block fills a multiprocessor, so that the weights are loaded once."""
ACT_ROWS = _ACT_THREADS // 2
"""Rows that a block that acts processes at a time."""
_TILE = 64
"""Rows of four warps, and the width of layers for updates by warpgroups."""
_WARP_TILE = 16
"""Rows of a warp's products."""
_GROUP = 128
"""Threads of a warpgroup."""
_MIN_GROUPS = 2
"""Minimum warpgroups of a block, if they fit in shared memory."""
SLICES = 8
"""Number of sums of a gradient's rows, each of every eighth row, whose sum is the gradient."""
_STEPPING_BLOCKS = 4
"""Blocks per multiprocessor for acting and stepping."""
_REDUCE_THREADS = 512
"""Threads of a block that adds partial sums."""
REDUCE_BLOCKS = 2
"""Resident blocks per multiprocessor for adding partial sums; the launch has no more blocks."""

ACT_CALL = float_struct("ActCall", *ACT_MEMBERS)
VALUES_CALL = float_struct("ValuesCall", *VALUES_MEMBERS)
UPDATE_CALL = float_struct(
    "UpdateCall",
    *UPDATE_MEMBERS,
    *(("int", name) for name in ("critics", "parameters")),
    ("float*", "partials", ("workers", "columns")),
)

_PARTIALS: tuple[Any, ...] = (
    *(("int", name) for name in ("actors", "critics", "critic", "critic_end", "value_loss", "log_std", "log_stds")),
    *(("float", name) for name in ("low", "high")),
    ("int", "parameters"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "partials", ("workers", "columns")),
)
"""Arguments for the partial sums of an update's blocks, and for the meaning of their columns."""

REDUCE_CALL = float_struct(
    "ReduceCall", *_PARTIALS, ("float*", "gradient", ("parameters",)), ("float*", "totals", (len(SUMS),))
)

STRIPS_OF_BLOCK = BLOCK // 32
"""Strips of 32 columns in a block of ``optimise.cuh``."""

STEP_CALL = float_struct(
    "StepCall", *_PARTIALS, *STEP_MEMBERS, ("float*", "strip_squares", ("blocks", STRIPS_OF_BLOCK))
)

_ACT = "training/small/act.cuh"
_UNPLACED = ((Linear(0, 0, 0, 0),) * 3,) * 2


@final
@dataclasses.dataclass(frozen=True)
class SmallNetwork:
    """The compiled-in shape of an actor and a critic."""

    head: Head
    features: int
    hidden: tuple[int, ...]
    activation: str
    precision: str
    nets: tuple[tuple[Linear, ...], ...] = _UNPLACED
    """The layers of the actor and of the critic."""
    log_std: int = -1
    """Offset of a box's log standard deviations; -1: none."""
    hopper: bool = False
    """Whether the device supports warpgroup products."""
    groups: int = 0
    """Warpgroups of a block that updates; 0: as many as fit."""

    @property
    def parameters(self) -> int:
        """Number of parameters of actor and critic."""
        return self.head.log_stds + sum(layer.rows * (layer.columns + 1) for net in self.nets for layer in net)

    @functools.cached_property
    def _update_sizes(self) -> Mapping[str, int]:
        """Sizes from C++, such as ``of_N_groups``: bytes of a block that updates by N warpgroups (0: by warps)."""
        if self._by_groups:
            sizes = {f"of_{count}_groups": f"bytes_of_groups({count})" for count in (1, 2, 3)}
            sizes |= {"max_groups": "max_groups()", "inputs": "X_LINES", "outputs": "GroupNet<PARAMETERS>::OUTS"}
            sizes |= {"in_turn": "IN_TURN_GROUPS"}
        else:
            sizes = {"of_0_groups": "UPDATE_BYTES", "blocks": "UPDATE_BLOCKS", "max_groups": "0"}
        return self.sizes_of(sizes, _THREADS, *self._update_parts(PRODUCTS), learns=True)

    @property
    def _by_groups(self) -> bool:
        """Whether updates use warpgroups."""
        return self.hopper and self.hidden == (_TILE, _TILE) and self.precision != "float32"

    def groups_for(self, rows: int) -> int:
        """Returns the number of warpgroups of a block that updates ``rows`` rows; 0: the block works by warps.

        More than needed for the fewest iterations would synchronise for nothing; one would load the weights slowly.
        """
        maximum = self._update_sizes["max_groups"]
        if maximum < _MIN_GROUPS:
            return maximum
        tiles = -(-rows // _TILE)
        iterations = max(1, -(-tiles // maximum))
        return max(_MIN_GROUPS, -(-tiles // iterations))

    @property
    def update_grid(self) -> Grid:
        """Launch configuration of ``kernel_update``: threads and shared memory of a block."""
        groups = self.groups or self._update_sizes["max_groups"]
        # Of two blocks per multiprocessor one should run the actor; an early launch would place them differently.
        early = self.update_blocks == 1
        shared_bytes = self._update_sizes[f"of_{groups}_groups"]
        return Grid(threads=groups * _GROUP or _THREADS, replicas=1, shared_bytes=shared_bytes, early=early)

    @property
    def update_blocks(self) -> int:
        """Resident blocks per multiprocessor, limited to two by registers."""
        return self._update_sizes.get("blocks", 1)

    @property
    def in_turn(self) -> bool:
        """Whether a block can be several workers of a network in turn, if launches are for several runs."""
        return self.groups > 0 and self.groups == self._update_sizes.get("in_turn")

    @property
    def _actor_share(self) -> float:
        """The actor's share of an update's blocks: its loss takes longer than the critic's."""
        return 0.53 if self._by_groups else 0.5

    def block_splits(self, blocks: int) -> list[tuple[int, int]]:
        """Possible splits of an update's blocks between actor and critic: by the time per sample, and in halves."""
        return [(actors, blocks - actors) for actors in (round(blocks * self._actor_share), blocks // 2)]

    def workers(self, blocks: int, rows: int) -> tuple[int, int]:
        """Returns the blocks for actor and critic, together up to ``blocks``: the split that takes the least time."""
        at_a_time, share = self.update_grid.threads // 2, self._actor_share
        tiles = -(-rows // at_a_time)
        actors, critics = min(
            self.block_splits(blocks),
            key=lambda split: max(share * -(-tiles // split[0]), (1 - share) * -(-tiles // split[1])),
        )
        return blocks_for(rows, at_a_time, actors), blocks_for(rows, at_a_time, critics)

    def act_program(self) -> Program:
        """The program of the kernels ``act`` and ``values``."""
        calls = {"act": ACT_CALL, "values": VALUES_CALL}
        shared_bytes = self.sizes_of({"act": "sizeof(ActMemory<PARAMETERS>)"}, _ACT_THREADS, _ACT)["act"]
        grid = Grid(threads=_ACT_THREADS, replicas=1, shared_bytes=shared_bytes)
        return block_program(self._parts(_ACT_THREADS, _ACT), calls, self._settings(), grid, "THREADS, 1")

    def update_program(self) -> Program:
        """The program of the kernel ``update``, which writes each block's partial gradients."""
        sizes, products = self._update_sizes, PRODUCTS
        if self._by_groups:
            products = warpgroup_products(self.precision, {8, _TILE, _TILE + 8, sizes["inputs"], sizes["outputs"]})
        grid, calls, settings = self.update_grid, {"update": UPDATE_CALL}, self._settings(learns=True)
        parts = self._parts(grid.threads, *self._update_parts(products), learns=True)
        return block_program(parts, calls, settings, grid, "THREADS, UPDATE_BLOCKS", "<ONE_PROGRAM>")

    def _update_parts(self, products: Part) -> list[Part]:
        by_groups: list[Part] = [products, "training/common/warpgroup.cuh", "training/small/by_groups.cuh"]
        learner = by_groups if self._by_groups else ["training/small/by_warps.cuh"]
        return ["training/common/samples.cuh", "training/small/update.cuh", *learner]

    def act_and_step_program(self, layout: SingleLayout, processors: int) -> Program:
        """The program of the kernel ``act_and_step``, which runs a horizon of policy and environment in one launch.

        A warp has 32 replicas, or 16 if 32 would leave multiprocessors idle.
        """
        full = layout.config.num_envs >= _THREADS * _STEPPING_BLOCKS * processors // 2
        rows, blocks = (2 * _WARP_TILE, _STEPPING_BLOCKS) if full else (_WARP_TILE, 1)
        head, declared = self._settings(), structs(layout)
        members = (declared["StepCall"], "step"), (ACT_CALL, "act"), ("int", "horizon")
        call = Struct.of("ActAndStepCall", layout.real, *members)
        aliases = (f"using {name} = {kind};" for name, kind in head.types.items())
        settings = "\n".join([head.prologue, *aliases, SAMPLE_CALL.cpp(), ACT_CALL.cpp()])
        acting = [
            ("acting", f"namespace acting {{\n{settings}"),
            *(headers(p)[0] if isinstance(p, str) else p for p in self._parts(_THREADS, _ACT)),
            (
                "acting",
                f"constexpr int OBSERVATION_BYTES = padded(4 * THREADS * {layout.parts[0].size}, 128);\n"
                f"constexpr int ROWS = {rows}, BLOCKS = {blocks};\n}}\nusing acting::ActCall;",
            ),
        ]
        sizes = {"block": "acting::OBSERVATION_BYTES + sizeof(acting::ActMemory<acting::PARAMETERS>)"}
        parts = [
            *before_drivers(layout, declared, acting),
            *headers("drivers/one_step.cuh"),
            ("generated", call.cpp()),
            *headers("training/common/advance.cuh", "training/small/act_and_step.cuh"),
        ]
        shared_bytes = sizes_of(acting, KernelSettings(), sizes)["block"]
        return Program(
            name=f"{layout.spec.id}-act_and_step",
            source=joined(parts),
            calls={"act_and_step": call.ctype()},
            flush_denormals=True,
            grid=Grid(threads=_THREADS, replicas=rows * _THREADS // 32, shared_bytes=shared_bytes),
        )

    def sizes_of(self, sizes: Mapping[str, str], threads: int, *parts: Part, learns: bool = False) -> dict[str, int]:
        """Returns the values of C++ expressions by name, for this network without its parameters' offsets.

        So the choice of an engine compiles the same program, before offsets are known.
        """
        return sizes_of(self._parts(threads, *parts, learns=learns, placed=False), self._settings(learns=learns), sizes)

    def _parts(self, threads: int, *parts: Part, learns: bool = False, placed: bool = True) -> list[Part]:
        """Returns a program's parts before its kernels, ``parts`` last; ``placed``: with offsets, not zeros."""
        nets, log_std = (self.nets, self.log_std) if placed else (_UNPLACED, -1)
        actor, critic = ([offset for layer in net for offset in (layer.weight, layer.bias)] for net in nets)
        first, second = self.hidden
        means = self.head.parameters - self.head.log_stds
        lines = [
            f"constexpr int FEATURES = {self.features}, HIDDEN_1 = {first}, HIDDEN_2 = {second}, MEANS = {means};",
            network_text(threads // 32, self.activation, self.precision),
            f"constexpr int SLICES = {SLICES};",
            "struct Offsets { int weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, log_std; };",
            f"constexpr Offsets ACTOR_OFFSETS = {{{', '.join(map(str, [*actor, log_std]))}}};",
            f"constexpr Offsets CRITIC_OFFSETS = {{{', '.join(map(str, [*critic, -1]))}}};",
        ]
        return [
            "training/common/distributions.cuh",
            f"training/common/{'policy_loss' if learns else 'sampler'}.cuh",
            "training/common/tensor_core.cuh",
            ("shape", "\n".join(lines)),
            "training/common/layers.cuh",
            "training/small/network.cuh",
            *parts,
        ]

    def _settings(self, *, learns: bool = False) -> KernelSettings:
        sizes, quick = {"features": self.features, "parameters": self.parameters}, self.precision != "float32"
        return block_settings(self.head, [LOSS_CALL if learns else SAMPLE_CALL], quick=quick, **sizes)


def blocks_for(rows: int, at_a_time: int, max_blocks: int) -> int:
    """Returns the minimum of blocks for ``rows`` rows that gives no block more tiles than ``max_blocks`` would."""
    tiles = -(-rows // at_a_time)
    return -(-tiles // -(-tiles // max_blocks)) if tiles else 0


def supports_act_and_step(layout: Layout, params: Mapping[str, object]) -> bool:
    """Whether environments with these parameters can be stepped in the policy's launch, by ``act_and_step``."""
    watched = params.get("checking") or params.get("render_mode") == "human"
    staged = isinstance(layout, SingleLayout) and layout.staged and not layout.choices
    return staged and layout.config.precision == "float32" and not watched


_REDUCE_PARTS = [f"training/{part}.cuh" for part in ("common/peers", "common/adam", "small/step")]


def reduce_program(processes: int = 1) -> Program:
    """The program of ``reduce``, which adds blocks' partial gradients, and ``step``, which also takes Adam's step."""
    calls = {"reduce": REDUCE_CALL, "step": STEP_CALL}
    grid = Grid(threads=_REDUCE_THREADS, replicas=1, shared_bytes=reduce_sizes()["bytes"], cooperative=True)
    return block_program(_REDUCE_PARTS, calls, _reduce_settings(processes), grid, f"STEP_THREADS, {REDUCE_BLOCKS}")


def _reduce_settings(processes: int) -> KernelSettings:
    prologue = (
        f"{SUM_NUMBERS}\n{constants(processes)}\nconstexpr int STEP_THREADS = {_REDUCE_THREADS}, SLICES = {SLICES};"
    )
    return KernelSettings(prologue=prologue, sizes={"processes": processes})


@functools.cache
def reduce_sizes() -> Mapping[str, int]:
    """Sizes of blocks that add partial sums: ``bytes`` of shared memory, ``threads``, and ``columns`` per iteration.

    Of several runs a thread adds a column.
    """
    sizes = {"bytes": "sizeof(StepMemory)", "columns": "StepMemory::TEAMS * WARP", "threads": "STEP_THREADS"}
    return sizes_of(_REDUCE_PARTS, _reduce_settings(1), sizes)
