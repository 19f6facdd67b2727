"""The source of the fused perceptrons' kernels: what is compiled in, the structs they take, the memory they need."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.operations.heads import LOG_STD_RANGE, Head, log_stds
from gpu_envs.training.operations.ops import LOSS_CALL, LOSS_MEMBERS, SAMPLE_CALL, SUMS, head_settings

ARITHMETIC = {"float32": "Split", "tf32": "Tf32", "bf16": "Bf16"}

TILE = 64
"""Rows that a block takes at a time: ``TILE`` in ``network.cuh``."""
_THREADS = 128
_REDUCE_THREADS = 256
REDUCED_COLUMNS = 32
_SHARED_OF_PROCESSOR = 228 * 1024
_SHARED_OF_BLOCK = 1024
"""What a block costs beside what it asks for."""
ACT_BLOCKS = 4

_SCALE = (("const float*?", "mean", ("features",)), ("const float*?", "inverse", ("features",)), ("float", "limit"))

ACT_CALL = Struct.of(
    "ActCall",
    "float",
    ("Index", "rows"),
    ("Index", "first_row"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("rows", "features")),
    ("const u64*", "stream", (2,)),
    ("u64", "turn"),
    ("Element*", "actions", ("rows", "width")),
    ("float*?", "acted", ("rows", "width")),
    ("float*", "log_probs", ("rows",)),
    ("int", "greedy"),
    *_SCALE,
)

VALUES_CALL = Struct.of(
    "ValuesCall",
    "float",
    ("Index", "rows"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("float*", "values", ("rows",)),
    ("const Index*?", "places", ("rows",)),
    ("float*?", "largest", (1,)),
    ("const u8*?", "alive", ("samples",)),
    *_SCALE,
)

UPDATE_CALL = Struct.of(
    "UpdateCall",
    "float",
    *LOSS_MEMBERS,
    ("int", "parameters"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("float*", "partials", ("workers", "columns")),
    *_SCALE,
)

REDUCE_CALL = Struct.of(
    "ReduceCall",
    "float",
    ("int", "parameters"),
    ("int", "sums"),
    ("int", "rows"),
    ("const float*", "partials", ("workers", "columns")),
    ("const float*", "flat", ("parameters",)),
    ("int", "log_std"),
    ("int", "log_stds"),
    ("float", "low"),
    ("float", "high"),
    ("float*", "gradient", ("parameters",)),
    ("float*", "totals", ("sums",)),
)


@final
@dataclasses.dataclass(frozen=True)
class Places:
    """Where the parameters of one perceptron begin in the flat buffer; rows of a weight are its outputs."""

    weight_1: int
    bias_1: int
    weight_2: int
    bias_2: int
    weight_3: int
    bias_3: int
    log_std: int = -1
    """Of an actor's box."""

    def cpp(self, name: str) -> str:
        """The same as a constant in C++."""
        values = ", ".join(str(value) for value in dataclasses.astuple(self))
        return f"constexpr Places {name} = {{{values}}};"


_NOWHERE = Places(0, 0, 0, 0, 0, 0)


@final
@dataclasses.dataclass(frozen=True)
class Network:
    """What the kernels have compiled in."""

    head: Head
    features: int
    hidden: tuple[int, ...]
    activation: str
    precision: str
    actor: Places = _NOWHERE
    critic: Places = _NOWHERE

    @property
    def parameters(self) -> int:
        """How many floats actor and critic are."""
        first, second = self.hidden
        shared = 2 * (first * (self.features + 1) + second * (first + 1))
        return shared + (second + 1) * (self.means + 1) + log_stds(self.head)

    @property
    def means(self) -> int:
        """Outputs of the actor's last layer."""
        return self.head.parameters - log_stds(self.head)

    def _forward_bytes(self, outputs: int) -> int:
        _, size, inputs = self._arithmetic
        first, second = self.hidden
        outs = _padded(outputs, 8)
        return size * (inputs * first + first * second + second * outs) + 4 * (first + second + outs + 2 * inputs)

    @property
    def _arithmetic(self) -> tuple[int, int, int]:
        depth, size = (16, 2) if self.precision == "bf16" else (8, 4)
        return depth, size, _padded(self.features, depth)

    @property
    def _rows_bytes(self) -> int:
        return 4 * _THREADS * (self.head.parameters | 1)

    @property
    def act_bytes(self) -> int:
        """Shared memory of a block that goes forth."""
        return _padded(self._forward_bytes(self.head.parameters) + self._rows_bytes, 128)

    @property
    def update_bytes(self) -> int:
        """Shared memory of a block that goes forth and back."""
        depth, size, _ = self._arithmetic
        first, second = self.hidden
        outputs = self.head.parameters
        back = size * second * (_padded(outputs, depth) + first)
        strides = _stride(self.features) + _stride(first) + _stride(second) + max(_stride(first), _stride(second))
        sums = 4 * len(SUMS) * _THREADS // 32
        return _padded(self._forward_bytes(outputs) + back + size * TILE * strides + self._rows_bytes + sums + 64, 128)

    @property
    def update_blocks(self) -> int:
        """How many of these a multiprocessor holds: more than two have no registers."""
        return max(1, min(2, _SHARED_OF_PROCESSOR // (self.update_bytes + _SHARED_OF_BLOCK)))

    def act_program(self) -> Program:
        """Acting and valuing."""
        calls, own = {"act": ACT_CALL, "values": VALUES_CALL}, ["network", "network_act"]
        return self._program("sampler", SAMPLE_CALL, own, calls, self.act_bytes)

    def update_program(self) -> Program:
        """The gradient, block by block."""
        own = ["network", "network_samples", "network_update"]
        return self._program("policy_loss", LOSS_CALL, own, {"update": UPDATE_CALL}, self.update_bytes)

    def _program(
        self, of_head: str, call: Struct, own: Sequence[str], calls: Mapping[str, Struct], shared: int
    ) -> Program:
        first, second = self.hidden
        low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
        shape = [
            f"constexpr int FEATURES = {self.features}, HIDDEN_1 = {first}, HIDDEN_2 = {second}, MEANS = {self.means};",
            f"constexpr int ACT_BLOCKS = {ACT_BLOCKS}, UPDATE_BLOCKS = {self.update_blocks};",
            f"constexpr u64 SHARED_BYTES = {shared};",
            f"constexpr bool TANH = {str(self.activation == 'tanh').lower()};",
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[self.precision]};",
            "struct Places { int weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, log_std; };",
            self.actor.cpp("ACTOR_PLACES"),
            self.critic.cpp("CRITIC_PLACES"),
        ]
        head = head_settings(self.head)
        settings = KernelSettings(
            prologue=head.prologue,
            structs=[call],
            types=head.types,
            sizes={**head.sizes, "features": self.features, "parameters": self.parameters},
            grid=Grid(threads=_THREADS, replicas=1, shared_bytes=shared),
        )
        parts: list[str | tuple[str, str]] = [
            "distributions",
            of_head,
            "tensor_core",
            ("shape", "\n".join(shape)),
            *own,
        ]
        return program_of([f"training/{p}.cuh" if isinstance(p, str) else p for p in parts], calls, settings)


def reduce_program() -> Program:
    """The sum over blocks."""
    grid = Grid(threads=_REDUCE_THREADS, replicas=1, shared_bytes=4 * _REDUCE_THREADS)
    return program_of(["training/network_reduce.cuh"], {"reduce": REDUCE_CALL}, KernelSettings(grid=grid))


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _stride(columns: int) -> int:
    """As ``stride_of`` in ``network.cuh``."""
    return _padded(columns + 8, 16) - 8
