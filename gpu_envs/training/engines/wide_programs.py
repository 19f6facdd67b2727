"""Programs of wide perceptrons on Hopper: Python generates their shape, C++ computes all sizes."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program
from gpu_envs.backend.structs import Struct
from gpu_envs.training.engines.kernels import (
    ACT_MEMBERS,
    PRODUCTS,
    SCALE,
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
from gpu_envs.training.heads import Head

UNIT = 64
"""Rows of a warpgroup."""
WARPS = 8
"""Warps of a block: two warpgroups."""
ROWS = WARPS // 4 * UNIT
"""Rows that a block processes at a time."""
THREADS = WARPS * 32
"""Threads of a block, in all kernels."""

_PACKED = ("const u8*", "packed", ("packed_bytes",))
_MASK = ("const u8*?", "action_mask", ("samples", "outputs"))

_SAVED_MEMBERS = (
    ("Index", "units"),
    ("u8*", "saved", ("saved_bytes",)),
    ("float*", "sums", ("blocks", "block_sums")),
    ("float*?", "norm_sums", ("blocks", "warps", "warp_norm_sums")),
)
_FUNCTION_MEMBERS = (
    ("Index", "rows"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("rows", "features")),
    *SCALE,
    _PACKED,
)

PACK_CALL = float_struct("PackCall", ("const float*", "flat", ("parameters",)), ("u8*", "packed", ("packed_bytes",)))
ACT_CALL = float_struct(
    "WideActCall",
    *ACT_MEMBERS,
    _PACKED,
    ("float*?", "values", ("rows",)),
    ("const u8*?", "action_mask", ("rows", "outputs")),
    ("float*?", "largest", (1,)),
    ("const u8*?", "alive", ("rows",)),
)
VALUES_CALL = float_struct("WideValuesCall", *VALUES_MEMBERS, _PACKED)
UPDATE_CALL = float_struct("UpdateCall", *UPDATE_MEMBERS, _PACKED, _MASK, *_SAVED_MEMBERS)
OUTPUTS_CALL = float_struct("OutputsCall", *_FUNCTION_MEMBERS, ("float*", "outputs", ("rows", "nets", "outputs")))
FUNCTIONS_UPDATE_CALL = float_struct(
    "UpdateCall",
    *_FUNCTION_MEMBERS,
    ("int", "actors"),
    *_SAVED_MEMBERS,
    ("int", "weights"),
    ("float*?", "outputs", ("rows", "nets", "outputs")),
    ("const float*", "grad_outputs", ("rows", "nets", "outputs")),
    ("const float*?", "curvatures", ("rows", "nets", "outputs")),
    ("float*?", "grad_inputs", ("rows", "nets", "grad_inputs")),
)
"""Arguments for functions: gradients of the outputs are ``grad_outputs + curvatures * outputs``."""
GRADIENT_CALL = float_struct(
    "GradientCall",
    ("Index", "units"),
    ("const u8*", "saved", ("saved_bytes",)),
    ("float*", "partials", ("partials_size",)),
)
REDUCE_CALL = float_struct(
    "WideReduceCall",
    *(("int", name) for name in ("parameters", "actors", "blocks", "accumulate", "last")),
    ("const float*", "partials", ("partials_size",)),
    ("const float*", "sums", ("blocks", "block_sums")),
    ("const float*", "flat", ("parameters",)),
    ("float*", "gradient", ("parameters",)),
    ("float*?", "totals", (len(SUMS),)),
)

_SIZES = {
    "losses": "Shape::LOSSES",
    # shared memory of a block
    "block_bytes": "BLOCK_BYTES<Shape>",
    "gradient_bytes": "sizeof(GradientMemory) + 1024",
    # bytes of the packed weights of both passes
    "packed_bytes": "LastNet::packed_offset(LastNet::STEPS)",
    # bytes that an update saves for UNIT rows
    "saved_unit_bytes": "LastNet::saved_offset(2 * Shape::LAYERS)",
    # sums of a block of an update, except for the gradients; at least 1, to allocate memory
    "block_sums": "Layout<Shape>::BLOCK_SUMS",
    # a warp's gradients of gains and shifts
    "warp_norm_sums": "2 * LastNet::NORM_COLUMNS",
    # blocks of the gradient's launch
    "gradient_blocks": "gradient_start<LastNet>(Shape::LAYERS).first_block",
    # floats of the partial sums that they write, biases included
    "partials_size": "gradient_start<LastNet>(Shape::LAYERS).first_partial",
}
_COLUMNS = {
    "inputs": "LastNet::INPUT_PART",
    "first_outputs": "NetOf<Shape, 0>::padded_outs(LastNet::LAST)",
    "last_outputs": "LastNet::padded_outs(LastNet::LAST)",
    "grad_inputs": "padded(Shape::GRAD_INPUTS, 16)",
}
"""Numbers of columns of products, by use."""


@final
@dataclasses.dataclass(frozen=True)
class WideNetwork:
    """The compiled-in shape: one net with a shared trunk, an actor and a critic, or one or two functions.

    Functions have the same inputs, and as many outputs as the head has parameters.
    """

    head: Head
    features: int
    nets: tuple[tuple[Linear, ...], ...]
    activation: str
    precision: str
    parameters: int
    log_std: int = -1
    """Offset of a box's log standard deviations; -1: none."""
    processors: int = 132
    functions: bool = False
    grad_inputs: range = range(0)
    """Inputs of functions with gradients."""

    @property
    def shared(self) -> bool:
        """Whether actor and critic share their hidden layers."""
        return len(self.nets) == 1 and not self.functions

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Sizes that C++ computes, by the names in ``_SIZES`` and ``_COLUMNS``."""
        return self.sizes_of(_SIZES | _COLUMNS)

    def sizes_of(self, expressions: Mapping[str, str]) -> dict[str, int]:
        """Returns the values of constant C++ expressions by name, for this network."""
        return sizes_of(self._parts(PRODUCTS), self._settings(), expressions)

    def programs(self) -> dict[str, Program]:
        """Returns all programs of the network by name, in descending order of compile time."""
        act = {"outputs": OUTPUTS_CALL} if self.functions else {"act": ACT_CALL, "values": VALUES_CALL}
        update = FUNCTIONS_UPDATE_CALL if self.functions else UPDATE_CALL
        block_bytes = self.sizes["block_bytes"]
        return {
            "update": self._program({"update": update}, block_bytes),
            "act": self._program(act, block_bytes),
            "gradient": self._program({"gradient": GRADIENT_CALL}, self.sizes["gradient_bytes"]),
            "reduce": self._program({"reduce": REDUCE_CALL}, 16),
            "pack": self._program({"pack": PACK_CALL}, 16),
        }

    def _program(self, calls: Mapping[str, Struct], shared_bytes: int) -> Program:
        """Makes a program with a kernel for each of ``calls``, whose blocks have this much shared memory."""
        columns = {8, *(layer.rows for layer in self.nets[0][:-1]), *(self.sizes[name] for name in _COLUMNS)}
        parts = self._parts(warpgroup_products(self.precision, columns - {0}))
        names = ("packed_bytes", "partials_size", "block_sums", "warp_norm_sums")
        settings = self._settings(**{name: self.sizes[name] for name in names})
        grid = Grid(threads=THREADS, replicas=1, shared_bytes=shared_bytes)
        return block_program(parts, calls, settings, grid, "THREADS, 1", "<Shape>")

    def _settings(self, **sizes: int) -> KernelSettings:
        sizes |= {"features": self.features, "parameters": self.parameters, "warps": WARPS, "nets": len(self.nets)}
        sizes["grad_inputs"] = len(self.grad_inputs)
        return block_settings(self.head, [SAMPLE_CALL, LOSS_CALL], quick=True, **sizes)

    def _parts(self, products: Part) -> list[Part]:
        """Returns the parts before the kernels, the same for all programs, with the part ``products``."""
        return [
            *(f"training/common/{part}.cuh" for part in ("distributions", "sampler", "policy_loss", "tensor_core")),
            ("arithmetic", network_text(WARPS, self.activation, self.precision)),
            *(f"training/common/{part}.cuh" for part in ("layers", "samples")),
            products,
            "training/common/warpgroup.cuh",
            *(f"training/wide/{part}.cuh" for part in ("shape", "rows", "act", "backward", "update", "gradient")),
            ("shape", self._shape),
        ]

    @property
    def _shape(self) -> str:
        """C++ text of the struct ``Shape``: sizes, flags and offsets of the layers' parameters."""
        nets, layers, losses = len(self.nets), len(self.nets[0]), 0 if self.functions else len(SUMS)
        layer_rows = [[", ".join(map(str, dataclasses.astuple(layer))) for layer in net] for net in self.nets]
        table = ", ".join(f"{{{', '.join(f'{{{row}}}' for row in rows)}}}" for rows in layer_rows)
        return f"""struct Shape {{
    static constexpr int  FEATURES = {self.features}, LAYERS = {layers}, NETS = {nets}, PROCESSORS = {self.processors};
    static constexpr int  LOSSES = {losses}, LOG_STDS = {0 if self.functions else self.head.log_stds};
    static constexpr int  LOG_STD_AT = {self.log_std};
    static constexpr int  GRAD_INPUTS = {len(self.grad_inputs)}, FIRST_GRAD_INPUT = {self.grad_inputs.start};
    static constexpr bool NORM = {_cpp(self.nets[0][0].gain >= 0)}, SHARED_TRUNK = {_cpp(self.shared)};
    static constexpr bool FUNCTIONS = {_cpp(self.functions)};
    FN static constexpr Linear layer(int net, int l) {{
        constexpr Linear table[NETS][LAYERS] = {{{table}}};
        return table[net][l];
    }}
}};
using LastNet = NetOf<Shape, Shape::NETS - 1>;"""


def _cpp(value: bool) -> str:
    return str(value).lower()
