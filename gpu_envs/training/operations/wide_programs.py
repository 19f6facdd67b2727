"""The source of wide perceptrons' kernels on Hopper: what is compiled in, and the memory they need."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.operations.fused_programs import ARITHMETIC, activation_text, group_products
from gpu_envs.training.operations.heads import Head, log_stds
from gpu_envs.training.operations.ops import LOSS_CALL, SAMPLE_CALL, SUMS, head_settings
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

ROWS = 128
"""Rows that a block takes at a time."""
UNIT = 64
"""Rows of a warpgroup."""
REDUCE_THREADS = 256
WARPS = 8
"""Of a block: two warpgroups."""
_PIECE = 128
"""Bytes of a line of activations."""
_LINE = {"tf32": 64, "bf16": 128}
"""Bytes of a line of weights: where rows take much of shared memory, more and smaller stages find room beside them."""
_CHUNK = 256
"""Features that are multiplied at a time."""
NORM_EPSILON = 1e-5
"""Added to a row's variance, as torch does."""
_MOST_IN_REGISTERS = 128
"""Features that a warpgroup has in registers beside the sums of 256 outputs."""
_MOST_RING = 128 * 1024
"""Bytes: as many as a layer of 256 x 256 in bf16 has."""
MOST_SHARED = 227 * 1024
_GRADIENT_STAGES = 4
_PACK_THREADS = 256


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
    def means(self) -> int:
        """Outputs of the actor's last layer."""
        return self.head.parameters - self._log_stds

    @property
    def _log_stds(self) -> int:
        return 0 if self.functions else log_stds(self.head)

    @property
    def normalises(self) -> bool:
        """Whether the sums of hidden layers are normalised, row by row."""
        return self.nets[0][0].gain >= 0

    @property
    def _normed(self) -> int:
        """Columns of all hidden layers of a net that are."""
        return sum(layer.rows for layer in self.nets[0][:-1]) if self.normalises else 0

    @property
    def norm_sums_of_warp(self) -> int:
        """The gradient by their gains and shifts."""
        return 2 * self._normed

    @property
    def losses(self) -> int:
        """How many sums of the loss there are."""
        return 0 if self.functions else len(SUMS)

    @property
    def sums_of_block(self) -> int:
        """Numbers that each block of an update adds up beside the gradient; one at least, that there be memory."""
        return max(1, self.losses + self._log_stds + self.norm_sums_of_warp)

    @property
    def _size(self) -> int:
        return 2 if self.precision == "bf16" else 4

    def _shapes(self, net: int) -> list[tuple[int, int]]:
        """Inputs and outputs of the layers, without what pads their weights."""
        layers = self.nets[net]
        outputs = self.means + 1 if self.shared else self.means if net == 0 or self.functions else 1
        outs = [*(layer.rows for layer in layers[:-1]), outputs]
        return list(zip([self.features, *outs[:-1]], outs, strict=True))

    @property
    def packed_bytes(self) -> int:
        """Of the weights as they are streamed: forth and back, of the first layer back what ``by_inputs`` takes."""
        total = 0
        for net in range(len(self.nets)):
            for number, (ins, outs) in enumerate(self._shapes(net)):
                lines = _padded(outs, 16)
                back = ins if number else _padded(self.by_inputs, 16)
                total += self._tile(lines, ins, self._line) + self._tile(back, lines, self._line)
        return total

    @property
    def _line(self) -> int:
        return _LINE[self.precision]

    @property
    def _stage(self) -> int:
        return 256 * self._line

    @property
    def _stages_of_tile(self) -> int:
        """In which the weights of a tile come, forth and back, if none has those of several pieces."""
        most = 0
        for net in range(len(self.nets)):
            shapes = self._shapes(net)
            back = shapes if self.by_inputs else shapes[1:]
            depths = [ins for ins, _ in shapes] + [_padded(outs, 16) for _, outs in back]
            most = max(most, sum(-(-depth * self._size // self._line) for depth in depths))
        return most

    def _tile(self, lines: int, depth: int, of_line: int = _PIECE) -> int:
        return lines * _padded(depth * self._size, of_line)

    @property
    def kept_of_unit(self) -> int:
        """Bytes that an update keeps of so many rows for the gradient."""
        lines = 0
        for net in range(len(self.nets)):
            shapes = self._shapes(net)
            lines += sum(self._input_parts) + 2 * sum(outs for _, outs in shapes[:-1])
            lines += _padded(shapes[-1][1], 16)
        return lines * UNIT * self._size

    @property
    def _input_parts(self) -> list[int]:
        """Columns of the parts that the inputs, and ones beside them, are cut into for products."""
        count = -(-_padded(self.features + 1, 16) // 256)
        return [_padded(-(-(self.features + 1) // count), 16)] * count

    @property
    def _outputs_bytes(self) -> int:
        return _padded(4 * 2 * UNIT * (self.head.parameters | 1), 1024)

    @property
    def _row_bytes(self) -> int:
        """Shared memory of a warpgroup's rows."""
        widest = max(min(ins, _CHUNK) for net in range(len(self.nets)) for ins, _ in self._shapes(net))
        last = max(_padded(self._shapes(net)[-1][1], 16) for net in range(len(self.nets)))
        return max(self._tile(UNIT, widest), self._outputs_bytes + self._tile(UNIT, last))

    @property
    def _fixed_bytes(self) -> int:
        return 2 * self._row_bytes + self._numbers_bytes + 3 * 1024

    @property
    def _numbers_bytes(self) -> int:
        biases = max(sum(_padded(outs, 16) for _, outs in self._shapes(net)) for net in range(len(self.nets)))
        normed = 2 * _padded(self._normed + 1, 4)  # gains and shifts
        numbers = biases + normed + 1 + 2 * _padded(self.features, 16) + 2 * 128 + WARPS * self._sums_and_more
        return _padded(4 * numbers + 8 * self._stages_of_tile, 16)

    @property
    def _sums_and_more(self) -> int:
        return max(len(SUMS), self._log_stds)

    @property
    def stages(self) -> int:
        """Of the ring; fewer than two do not work."""
        return min(_MOST_RING, MOST_SHARED - self._fixed_bytes) // self._stage

    @functools.cached_property
    def _workers(self) -> dict[tuple[int, int], int]:
        """Blocks that share the samples of a slice of a layer's gradient, by net and layer: by the lines they read."""
        slices = {layer: count for layer, count, _ in self._slices()}
        lines = {layer: rows + columns for layer, _, (rows, columns) in self._slices()}
        whole = sum(slices[layer] * lines[layer] for layer in slices)
        found = {layer: max(1, self.processors * lines[layer] // whole) for layer in slices}
        while True:  # those left go where most is to be read
            left = self.processors - sum(slices[layer] * count for layer, count in found.items())
            fitting = [layer for layer in found if slices[layer] <= left]
            if not fitting:
                return found
            found[max(fitting, key=lambda layer: lines[layer] / found[layer])] += 1

    @functools.cached_property
    def gradient_blocks(self) -> int:
        """Blocks of the gradient's launch."""
        return sum(self._workers[layer] * slices for layer, slices, _ in self._slices())

    @property
    def partials_size(self) -> int:
        """Floats that they write: each a slice's, and as many as it has of biases."""
        return sum(
            self._workers[net, number] * slices * (ROWS * columns + (columns if self._is_last(net, number) else ROWS))
            for (net, number), slices, (_, columns) in self._slices()
        )

    def _slices(self) -> list[tuple[tuple[int, int], int, tuple[int, int]]]:
        """Of each layer of each net: into how many slices its gradient is cut, and a slice's rows and columns."""
        found = []
        for net in range(len(self.nets)):
            for number, (ins, outs) in enumerate(self._shapes(net)):
                parts = self._input_parts if number == 0 else [ins]
                rows, columns = (ins, _padded(outs, 16)) if self._is_last(net, number) else (outs, parts[0])
                found.append(((net, number), -(-rows // ROWS) * len(parts), (min(rows, ROWS), columns)))
        return found

    def _is_last(self, net: int, number: int) -> bool:
        return number == len(self.nets[net]) - 1

    def act_program(self) -> Program:
        """Acting and valuing, or the outputs of functions."""
        if self.functions:
            return self._program("", None, ["wide/rows", "wide/outputs"], {"outputs": OUTPUTS_CALL})
        calls = {"act": ACT_CALL, "values": VALUES_CALL}
        rows = "wide/resident" if self._resident_bytes else "wide/rows"
        own = ["wide/means", "wide/choices", "wide/draw", rows, "wide/act"]
        return self._program("common/sampler", SAMPLE_CALL, own, calls, shared=self._resident_bytes)

    @functools.cached_property
    def _resident_bytes(self) -> int | None:
        """Shared memory of a block with all weights of a net, where rows go through it in registers; None elsewhere."""
        if self.precision != "bf16" or self.features > _MOST_IN_REGISTERS or self.head.kind != "discrete":
            return None  # a box's outputs go to the rows' memory
        weights = max(
            sum(self._tile(_padded(outs, 16), ins, self._line) for ins, outs in self._shapes(net))
            for net in range(len(self.nets))
        )
        bytes_ = weights + self._numbers_bytes + 2 * 1024
        return bytes_ if bytes_ <= MOST_SHARED else None

    def update_program(self) -> Program:
        """The derivatives by the sums of all layers."""
        if self.functions:
            own = ["wide/given", "wide/keeping", "wide/rows_update", "wide/update"]
            return self._program("", None, own, {"update": BACK_CALL})
        rows = ["wide/resident", "wide/keeping", "wide/resident_update"]
        rows = rows if self._resident_bytes else ["wide/keeping", "wide/rows_update"]
        own = ["common/samples", "wide/means", "wide/choices", "wide/judge", "wide/policy", *rows, "wide/update"]
        return self._program("common/policy_loss", LOSS_CALL, own, {"update": UPDATE_CALL}, shared=self._resident_bytes)

    def gradient_program(self) -> Program:
        """The gradient, part by part."""
        shared = _GRADIENT_STAGES * (256 + ROWS) * _PIECE + UNIT * _PIECE + 2 * 1024
        return self._program("", None, ["wide/slices", "wide/gradient"], {"gradient": GRADIENT_CALL}, shared=shared)

    def reduce_program(self) -> Program:
        """The sums of those parts."""
        return self._program(
            "", None, ["wide/slices", "wide/reduce"], {"reduce": REDUCE_CALL}, threads=REDUCE_THREADS, shared=16
        )

    def pack_program(self) -> Program:
        """The weights as they are streamed."""
        return self._program("", None, ["wide/pack"], {"pack": PACK_CALL}, threads=_PACK_THREADS, shared=16)

    def _program(
        self, of_head: str, call: Struct | None, own: Sequence[str], calls: Mapping[str, Struct], *,
        threads: int = WARPS * 32, shared: int | None = None,
    ) -> Program:  # fmt: skip
        head = head_settings(self.head, quick=True)
        bytes_ = self._fixed_bytes + self.stages * self._stage if shared is None else shared
        settings = KernelSettings(
            prologue=head.prologue,
            structs=[call] if call is not None else [],
            types=head.types,
            sizes={
                **head.sizes, "features": self.features, "parameters": self.parameters,
                "packed_bytes": self.packed_bytes, "partials_size": self.partials_size,
                "sums_of_block": self.sums_of_block, "norm_sums_of_warp": self.norm_sums_of_warp, "warps": WARPS,
                "nets": len(self.nets), "by_inputs": self.by_inputs,
            },
            grid=Grid(threads=threads, replicas=1, shared_bytes=bytes_),
        )  # fmt: skip
        lines = {self._input_parts[0], 8, *([_padded(self.by_inputs, 16)] if self.by_inputs else [])}
        for net in range(len(self.nets)):
            lines |= {size for shape in self._shapes(net)[1:] for size in shape[:1]}
            lines |= {_padded(outs, 16) for _, outs in self._shapes(net)}
        heads = ["common/distributions", of_head] if of_head else ["common/distributions"]
        parts: list[str | tuple[str, str]] = [
            *heads, "common/tensor_core", ("shape", self._shape(threads, bytes_)), "common/layers",
            ("products", group_products(self.precision, lines)), "common/warpgroup", "wide/ring", "wide/rowwise", *own,
        ]  # fmt: skip
        return program_of([f"training/{p}.cuh" if isinstance(p, str) else p for p in parts], calls, settings)

    def _shape(self, threads: int, shared: int) -> str:
        low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
        layers, nets = len(self.nets[0]), range(len(self.nets))
        deviations = self._log_stds
        tables = {
            "in_of": [[ins for ins, _ in self._shapes(net)] for net in nets],
            "out_of": [[outs for _, outs in self._shapes(net)] for net in nets],
            "rows_of": [[layer.rows for layer in self.nets[net]] for net in nets],
            "weight_at": [[layer.weight for layer in self.nets[net]] for net in nets],
            "bias_at": [[layer.bias for layer in self.nets[net]] for net in nets],
            "gain_at": [[layer.gain for layer in self.nets[net]] for net in nets],
            "shift_at": [[layer.shift for layer in self.nets[net]] for net in nets],
            "workers_of": [[self._workers[net, number] for number in range(layers)] for net in nets],
        }
        lines = [
            f"constexpr int WARPS = {threads // 32}, FEATURES = {self.features};",
            f"constexpr int LAYERS = {layers}, NETS = {len(nets)};",
            f"constexpr int COLUMNS_1 = {self.nets[0][0].columns}, MEANS = {self.means};",
            f"constexpr int LINE = {self._line}, STAGES = {self.stages}, STAGES_OF_TILE = {self._stages_of_tile};",
            f"constexpr int LOG_STDS = {deviations}, LOG_STD_AT = {self.log_std};",
            f"constexpr int SUMS_OF_LOSS = {self.losses}, VALUE_LOSS_SUM = {SUMS.index('value_loss')};",
            f"constexpr int SUMS_OF_BLOCK = {self.sums_of_block}, SUMS_AND_MORE = {self._sums_and_more};",
            f"constexpr int BY_INPUTS = {self.by_inputs}, INPUTS_FROM = {self.first_input};",
            f"constexpr bool NORM = {str(self.normalises).lower()};",
            f"constexpr float NORM_EPSILON = float({NORM_EPSILON!r});",
            f"constexpr unsigned int OUTPUTS_BYTES = {self._outputs_bytes}, ROW_BYTES = {self._row_bytes};",
            f"constexpr u64 SHARED_BYTES = {shared};",
            f"constexpr bool SHARED_TRUNK = {str(self.shared).lower()};",
            activation_text(self.activation),
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[self.precision]};",
        ]
        for name, table in tables.items():
            rows = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in table)
            lines.append(
                f"FN constexpr int {name}(int net, int l) {{ constexpr int table[NETS][LAYERS] = {{{rows}}}; "
                "return table[net][l]; }"
            )
        return "\n".join(lines)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
