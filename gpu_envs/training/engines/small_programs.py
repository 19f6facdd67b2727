"""The programs of small networks: acting and values, the gradient, a step along it, a horizon with its environment."""

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
    group_products,
    network_text,
    sizes_of,
)
from gpu_envs.training.engines.ops import LOSS_CALL, SAMPLE_CALL, SUMS
from gpu_envs.training.engines.optimiser import STEP_MEMBERS, SUM_NUMBERS
from gpu_envs.training.heads import Head
from gpu_envs.training.process.group import BLOCK, constants

_THREADS = 128
"""Of a block that updates, where warps work by themselves, and of one that acts and steps."""
_ACT_THREADS = 512
"""Of a block that acts: as many as a multiprocessor holds, so that each loads the weights once."""
ACT_ROWS = _ACT_THREADS // 2
"""Rows that it takes at a time."""
_TILE = 64
"""Rows that four warps take at a time, and the width of layers that a warpgroup multiplies."""
_WARP_TILE = 16
"""Rows that a warp's products take."""
_GROUP = 128
"""Threads of a warpgroup."""
_FEW_GROUPS = 2
"""Warpgroups of a block that there are in any case, where they fit."""
_STEPPING_BLOCKS = 4
"""Blocks that act and step which a multiprocessor is to hold."""
_REDUCE_THREADS = 512
"""Of a block that adds up partial sums."""
REDUCE_BLOCKS = 2
"""How many of these a multiprocessor has room for: no more are launched."""

ACT_CALL = Struct.of("ActCall", "float", *ACT_MEMBERS)
VALUES_CALL = Struct.of("ValuesCall", "float", *VALUES_MEMBERS)
UPDATE_CALL = Struct.of(
    "UpdateCall", "float", *UPDATE_MEMBERS, ("int", "parameters"), ("float*", "partials", ("workers", "columns"))
)

_PARTIALS: tuple[Any, ...] = (
    *(("int", name) for name in ("actors", "critics", "critic", "critic_end", "value_loss", "log_std", "log_stds")),
    *(("float", name) for name in ("low", "high")),
    ("int", "parameters"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "partials", ("workers", "columns")),
)
"""What the blocks of an update leave, and what is in its columns."""

REDUCE_CALL = Struct.of(
    "ReduceCall", "float", *_PARTIALS, ("float*", "gradient", ("parameters",)), ("float*", "totals", (len(SUMS),))
)

STRIPS_OF_BLOCK = BLOCK // 32
"""Columns go by 32 where a step is taken along their sums."""

STEP_CALL = Struct.of(
    "StepCall", "float", *_PARTIALS, *STEP_MEMBERS, ("float*", "strip_squares", ("blocks", STRIPS_OF_BLOCK))
)

_ACT = "training/small/act.cuh"
_UNPLACED = ((Linear(0, 0, 0, 0),) * 3,) * 2


@final
@dataclasses.dataclass(frozen=True)
class SmallNetwork:
    """What the kernels have compiled in."""

    head: Head
    features: int
    hidden: tuple[int, ...]
    activation: str
    precision: str
    nets: tuple[tuple[Linear, ...], ...] = _UNPLACED
    """The layers of the actor and of the critic."""
    log_std: int = -1
    """Where the log-deviations of a box begin."""
    hopper: bool = False
    """Whether the device has products of warpgroups."""
    groups: int = 0
    """Warpgroups of a block that updates; 0: as many as it has room for."""

    @property
    def parameters(self) -> int:
        """How many floats actor and critic are."""
        return self.head.log_stds + sum(layer.rows * (layer.columns + 1) for net in self.nets for layer in net)

    @functools.cached_property
    def _update_sizes(self) -> Mapping[str, int]:
        """Of blocks that go forward and backward: warp by warp, or by so many warpgroups."""
        if self._by_groups:
            sizes = {f"of_{count}_groups": f"bytes_of_groups({count})" for count in (1, 2, 3)}
            sizes |= {"max_groups": "max_groups()", "inputs": "X_LINES", "outputs": "GroupNet<PARAMETERS>::OUTS"}
        else:
            sizes = {"of_0_groups": "UPDATE_BYTES", "blocks": "UPDATE_BLOCKS", "max_groups": "0"}
        return self.sizes_of(sizes, _THREADS, *self._update_parts(PRODUCTS), learns=True)

    @property
    def _by_groups(self) -> bool:
        """Whether warpgroups work on updates."""
        return self.hopper and self.hidden == (_TILE, _TILE) and self.precision != "float32"

    def groups_for(self, rows: int) -> int:
        """The fewest warpgroups of a block with which so many rows take it no more turns: they wait for one another.

        One alone would take long to load the weights.
        """
        most = self._update_sizes["max_groups"]
        if most < _FEW_GROUPS:
            return most
        tiles = -(-rows // _TILE)
        turns = max(1, -(-tiles // most))
        return max(_FEW_GROUPS, -(-tiles // turns))

    @property
    def update_grid(self) -> Grid:
        """Threads and shared memory of a block that goes forward and backward."""
        groups = self.groups or self._update_sizes["max_groups"]
        # Of two blocks of a multiprocessor one is to have the actor: as they lie when none came before the others.
        early = self.update_blocks == 1
        shared_bytes = self._update_sizes[f"of_{groups}_groups"]
        return Grid(threads=groups * _GROUP or _THREADS, replicas=1, shared_bytes=shared_bytes, early=early)

    @property
    def update_blocks(self) -> int:
        """How many of these a multiprocessor holds: more than two have no registers."""
        return self._update_sizes.get("blocks", 1)

    @property
    def _actor_share(self) -> float:
        """Of the blocks of an update: its samples take the longer, for the loss."""
        return 0.53 if self._by_groups else 0.5

    def ways(self, blocks: int) -> list[tuple[int, int]]:
        """Ways to divide the blocks of an update among actor and critic: by what their samples take, and in halves."""
        return [(actors, blocks - actors) for actors in (round(blocks * self._actor_share), blocks // 2)]

    def workers(self, blocks: int, rows: int) -> tuple[int, int]:
        """How many of the blocks update the actor, and how many the critic: so that they end soonest."""
        at_a_time, share = self.update_grid.threads // 2, self._actor_share
        tiles = -(-rows // at_a_time)
        actors, critics = min(
            self.ways(blocks), key=lambda way: max(share * -(-tiles // way[0]), (1 - share) * -(-tiles // way[1]))
        )
        return blocks_for(rows, at_a_time, actors), blocks_for(rows, at_a_time, critics)

    def act_program(self) -> Program:
        """Acting and values."""
        calls = {"act": ACT_CALL, "values": VALUES_CALL}
        shared_bytes = self.sizes_of({"act": "sizeof(ActMemory<PARAMETERS>)"}, _ACT_THREADS, _ACT)["act"]
        grid = Grid(threads=_ACT_THREADS, replicas=1, shared_bytes=shared_bytes)
        return block_program(self._parts(_ACT_THREADS, _ACT), calls, self._settings(), grid, "THREADS, 1")

    def update_program(self) -> Program:
        """The gradient, block by block."""
        sizes, products = self._update_sizes, PRODUCTS
        if self._by_groups:
            products = group_products(self.precision, {8, _TILE, _TILE + 8, sizes["inputs"], sizes["outputs"]})
        grid, calls, settings = self.update_grid, {"update": UPDATE_CALL}, self._settings(learns=True)
        parts = self._parts(grid.threads, *self._update_parts(products), learns=True)
        return block_program(parts, calls, settings, grid, "THREADS, UPDATE_BLOCKS", "<ONE_PROGRAM>")

    def _update_parts(self, products: Part) -> list[Part]:
        by_groups: list[Part] = [products, "training/common/warpgroup.cuh", "training/small/by_groups.cuh"]
        own = by_groups if self._by_groups else ["training/small/by_warps.cuh"]
        return ["training/common/samples.cuh", "training/small/update.cuh", *own]

    def act_and_step_program(self, layout: SingleLayout, processors: int) -> Program:
        """Acting and stepping of so many replicas, on a GPU of so many multiprocessors, for a horizon.

        A warp has 32 replicas, and half as many where there are too few of them for all warps of the device.
        """
        many = layout.config.num_envs >= _THREADS * _STEPPING_BLOCKS * processors // 2
        rows, blocks = (2 * _WARP_TILE, _STEPPING_BLOCKS) if many else (_WARP_TILE, 1)
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
            *headers("training/small/act_and_step.cuh"),
        ]
        shared_bytes = sizes_of(acting, KernelSettings(), sizes)["block"]
        return Program(
            name=f"{layout.spec.id}-act_and_step",
            source=joined(parts),
            calls={"act_and_step": call.ctype()},
            flush_denormals=True,
            grid=Grid(threads=_THREADS, replicas=rows * _THREADS // 32, shared_bytes=shared_bytes),
        )

    def sizes_of(self, sizes: Mapping[str, str], threads: int, *own: Part, learns: bool = False) -> dict[str, int]:
        """What C++ says of this network: the values of constant expressions, by names.

        They do not depend on where parameters lie: without that, the program is the one that chose the engine.
        """
        return sizes_of(self._parts(threads, *own, learns=learns, placed=False), self._settings(learns=learns), sizes)

    def _parts(self, threads: int, *own: Part, learns: bool = False, placed: bool = True) -> list[Part]:
        """Everything but kernels, for blocks of so many threads."""
        nets, log_std = (self.nets, self.log_std) if placed else (_UNPLACED, -1)
        actor, critic = ([place for layer in net for place in (layer.weight, layer.bias)] for net in nets)
        first, second = self.hidden
        means = self.head.parameters - self.head.log_stds
        lines = [
            f"constexpr int FEATURES = {self.features}, HIDDEN_1 = {first}, HIDDEN_2 = {second}, MEANS = {means};",
            network_text(threads // 32, self.activation, self.precision),
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
            *own,
        ]

    def _settings(self, *, learns: bool = False) -> KernelSettings:
        sizes, quick = {"features": self.features, "parameters": self.parameters}, self.precision != "float32"
        return block_settings(self.head, [LOSS_CALL if learns else SAMPLE_CALL], quick=quick, **sizes)


def blocks_for(rows: int, at_a_time: int, most: int) -> int:
    """Blocks for so many rows, so that all have equally many tiles, or one less."""
    tiles = -(-rows // at_a_time)
    return -(-tiles // -(-tiles // most)) if tiles else 0


def steps_where_it_acts(layout: Layout, params: Mapping[str, object]) -> bool:
    """Whether environments made with these parameters are stepped in the launch in which a policy acts."""
    watched = params.get("checking") or params.get("render_mode") == "human"
    short = isinstance(layout, SingleLayout) and layout.staged and not layout.choices
    return short and layout.config.precision == "float32" and not watched


_REDUCE_PARTS = [f"training/{part}.cuh" for part in ("common/peers", "common/adam", "small/step")]


def reduce_program(processes: int = 1) -> Program:
    """The sum over an update's blocks: alone, or with a step along it that so many processes take together."""
    calls = {"reduce": REDUCE_CALL, "step": STEP_CALL}
    grid = Grid(threads=_REDUCE_THREADS, replicas=1, shared_bytes=reduce_sizes()["bytes"], cooperative=True)
    return block_program(_REDUCE_PARTS, calls, _reduce_settings(processes), grid, f"STEP_THREADS, {REDUCE_BLOCKS}")


def _reduce_settings(processes: int) -> KernelSettings:
    prologue = f"{SUM_NUMBERS}\n{constants(processes)}\nconstexpr int STEP_THREADS = {_REDUCE_THREADS};"
    return KernelSettings(prologue=prologue, sizes={"processes": processes})


@functools.cache
def reduce_sizes() -> Mapping[str, int]:
    """Shared memory of a block that adds up, and the columns that it takes at a time."""
    sizes = {"bytes": "sizeof(StepMemory)", "columns": "StepMemory::TEAMS * WARP"}
    return sizes_of(_REDUCE_PARTS, _reduce_settings(1), sizes)
