"""The source of wide perceptrons' kernels on Hopper: what is compiled in. What follows from it is worked out in C++."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.heads import Head
from gpu_envs.training.operations.fused_programs import (
    ARITHMETIC,
    PRODUCTS,
    activation_text,
    group_products,
    kernels_of_blocks,
)
from gpu_envs.training.operations.ops import LOSS_CALL, SAMPLE_CALL, SUMS, head_settings
from gpu_envs.training.operations.sizes import sizes_of
from gpu_envs.training.operations.wide_calls import (
    ACT_CALL,
    BACK_CALL,
    GRADIENT_CALL,
    OUTPUTS_CALL,
    PACK_CALL,
    REDUCE_CALL,
    UPDATE_CALL,
    VALUES_CALL,
)

UNIT = 64
"""Rows of a warpgroup."""
WARPS = 8
"""Of a block: two warpgroups."""
ROWS = WARPS // 4 * UNIT
"""Rows that a block takes at a time."""
THREADS = WARPS * 32
"""Of a block of every kernel."""
REDUCE_THREADS = THREADS

_SIZES = {
    "block_bytes": "BLOCK_BYTES<Shape>",
    "gradient_bytes": "sizeof(GradientMemory) + 1024",
    "packed_bytes": "LastNet::packed_place(LastNet::STEPS)",
    "kept_of_unit": "LastNet::kept_place(2 * Shape::LAYERS)",
    "sums_of_block": "Layout<Shape>::SUMS_OF_BLOCK",
    "norm_sums_of_warp": "2 * LastNet::NORMED",
    "gradient_blocks": "found_at<LastNet>(Shape::LAYERS).first_block",
    "partials_size": "found_at<LastNet>(Shape::LAYERS).first",
    "inputs": "LastNet::INPUT_PART",
    "first_outputs": "NetOf<Shape, 0>::outs_of(LastNet::LAST)",
    "last_outputs": "LastNet::outs_of(LastNet::LAST)",
    "by_inputs": "padded(Shape::BY_INPUTS, 16)",
}
"""What C++ says of a shape; the first two are shared memory of a block, the last four columns of products."""


@final
@dataclasses.dataclass(frozen=True)
class Linear:
    """Where a layer's parameters lie in the flat buffer, and their shape; rows of the weight are outputs."""

    weight: int
    bias: int
    rows: int
    columns: int
    gain: int = -1
    """Of the normalisation behind it, if it has one."""
    shift: int = -1


@final
@dataclasses.dataclass(frozen=True)
class WideNetwork:
    """What the kernels have compiled in: one net, with the value beside the means, or an actor and a critic.

    Or one or two functions of the same inputs, whose outputs, the head's parameters, mean nothing to the kernels.
    """

    head: Head
    features: int
    nets: tuple[tuple[Linear, ...], ...]
    activation: str
    precision: str
    parameters: int
    log_std: int = -1
    """Where the log-deviations of a box begin."""
    processors: int = 132
    functions: bool = False
    first_input: int = 0
    """The gradient by ``by_inputs`` of the features from this one on can be had, of functions."""
    by_inputs: int = 0

    @property
    def shared(self) -> bool:
        """Whether actor and critic have their hidden layers in common."""
        return len(self.nets) == 1 and not self.functions

    @property
    def normalises(self) -> bool:
        """Whether the sums of hidden layers are normalised, row by row."""
        return self.nets[0][0].gain >= 0

    @property
    def losses(self) -> int:
        """How many sums of the loss there are."""
        return 0 if self.functions else len(SUMS)

    @property
    def packed_bytes(self) -> int:
        """Of the weights as they are streamed, forth and back."""
        return self._sizes["packed_bytes"]

    @property
    def kept_of_unit(self) -> int:
        """Bytes that an update keeps of so many rows for the gradient."""
        return self._sizes["kept_of_unit"]

    @property
    def sums_of_block(self) -> int:
        """Numbers that each block of an update adds up beside the gradient; one at least, that there be memory."""
        return self._sizes["sums_of_block"]

    @property
    def norm_sums_of_warp(self) -> int:
        """The gradient by gains and shifts of normalised columns."""
        return self._sizes["norm_sums_of_warp"]

    @property
    def gradient_blocks(self) -> int:
        """Blocks of the gradient's launch."""
        return self._sizes["gradient_blocks"]

    @property
    def partials_size(self) -> int:
        """Floats that they write: each a slice's, and as many as it has of biases."""
        return self._sizes["partials_size"]

    def act_program(self) -> Program:
        """Acting and valuing, or the outputs of functions."""
        calls = {"outputs": OUTPUTS_CALL} if self.functions else {"act": ACT_CALL, "values": VALUES_CALL}
        return self._program(calls, self._sizes["block_bytes"])

    def update_program(self) -> Program:
        """The derivatives by the sums of all layers."""
        return self._program({"update": BACK_CALL if self.functions else UPDATE_CALL}, self._sizes["block_bytes"])

    def gradient_program(self) -> Program:
        """The gradient, part by part."""
        return self._program({"gradient": GRADIENT_CALL}, self._sizes["gradient_bytes"])

    def reduce_program(self) -> Program:
        """The sums of those parts."""
        return self._program({"reduce": REDUCE_CALL}, 16)

    def pack_program(self) -> Program:
        """The weights as they are streamed."""
        return self._program({"pack": PACK_CALL}, 16)

    @functools.cached_property
    def _sizes(self) -> Mapping[str, int]:
        return self.sizes_of(_SIZES)

    def sizes_of(self, expressions: Mapping[str, str]) -> dict[str, int]:
        """What C++ says of this network: the values of constant expressions, by names."""
        return sizes_of(self._parts(PRODUCTS), self._settings, expressions)

    def _program(self, calls: Mapping[str, Struct], shared_bytes: int) -> Program:
        hidden = {layer.rows for layer in self.nets[0][:-1]}
        ends = {self._sizes[name] for name in ("inputs", "first_outputs", "last_outputs", "by_inputs")}
        products = group_products(self.precision, {8, *hidden, *ends} - {0})
        settings = dataclasses.replace(
            self._settings,
            sizes={
                **self._settings.sizes,
                **{name: self._sizes[name] for name in ("packed_bytes", "partials_size", "sums_of_block")},
                "norm_sums_of_warp": self.norm_sums_of_warp,
            },
            grid=Grid(threads=THREADS, replicas=1, shared_bytes=shared_bytes),
        )
        kernels = kernels_of_blocks(calls, "THREADS, 1", "<Shape>")
        return program_of([*self._parts(products), kernels], calls, settings)

    @property
    def _settings(self) -> KernelSettings:
        head = head_settings(self.head, quick=True)
        sizes = {"features": self.features, "parameters": self.parameters, "warps": WARPS, "nets": len(self.nets)}
        return KernelSettings(
            prologue=head.prologue,
            structs=[SAMPLE_CALL, LOSS_CALL],
            types=head.types,
            sizes={**head.sizes, **sizes, "by_inputs": self.by_inputs},
        )

    def _parts(self, products: tuple[str, str]) -> list[str | tuple[str, str]]:
        """Everything but the kernels: all programs have the same functions."""
        low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
        lines = [
            f"constexpr int WARPS = {WARPS}, SUMS = {len(SUMS)};",
            activation_text(self.activation),
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[self.precision]};",
        ]
        wide = ("shape", "rows", "act", "back", "update", "gradient")
        return [
            *(f"training/common/{part}.cuh" for part in ("distributions", "sampler", "policy_loss", "tensor_core")),
            ("arithmetic", "\n".join(lines)),
            *(f"training/common/{part}.cuh" for part in ("layers", "samples")),
            products,
            "training/common/warpgroup.cuh",
            *(f"training/wide/{part}.cuh" for part in wide),
            ("shape", self._shape),
        ]

    @property
    def _shape(self) -> str:
        nets, layers = len(self.nets), len(self.nets[0])
        layer_rows = [[", ".join(map(str, dataclasses.astuple(layer))) for layer in net] for net in self.nets]
        table = ", ".join(f"{{{', '.join(f'{{{row}}}' for row in rows)}}}" for rows in layer_rows)
        return f"""struct Shape {{
    static constexpr int  FEATURES = {self.features}, LAYERS = {layers}, NETS = {nets}, PROCESSORS = {self.processors};
    static constexpr int  LOSSES = {self.losses}, LOG_STDS = {0 if self.functions else self.head.log_stds};
    static constexpr int  LOG_STD_AT = {self.log_std}, BY_INPUTS = {self.by_inputs}, INPUTS_FROM = {self.first_input};
    static constexpr bool NORM = {_cpp(self.normalises)}, SHARED_TRUNK = {_cpp(self.shared)};
    static constexpr bool FUNCTIONS = {_cpp(self.functions)};
    FN static constexpr Linear layer(int net, int l) {{
        constexpr Linear table[NETS][LAYERS] = {{{table}}};
        return table[net][l];
    }}
}};
using LastNet = NetOf<Shape, Shape::NETS - 1>;"""


def _cpp(value: bool) -> str:
    return str(value).lower()
