"""The source of the fused perceptrons' kernels: what is compiled in, the structs they take, the memory they need."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program, headers, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.operations.heads import Head, log_stds
from gpu_envs.training.operations.ops import LOSS_CALL, LOSS_MEMBERS, SAMPLE_CALL, SUMS, head_settings

ARITHMETIC = {"float32": "Split", "tf32": "Tf32", "bf16": "Bf16"}

_THREADS = 128
"""Of a block that updates, where warps work by themselves."""
_ACT_THREADS = 512
"""Of a block that acts: as many as a multiprocessor holds, so that each loads the weights once."""
ACT_ROWS = _ACT_THREADS // 2
"""Rows that it takes at a time."""
_TILE = 64
"""Rows that four warps take at a time, and the width of layers that a warpgroup multiplies."""
_SHARED_OF_PROCESSOR = 228 * 1024
_SHARED_OF_BLOCK = 1024
"""What a block costs beside what it asks for."""
_GROUP = 128
"""Threads of a warpgroup."""
_FEW_GROUPS = 2
"""Warpgroups of a block that there are in any case, where they fit."""
_MOST_SHARED = 227 * 1024
"""Of a block on Hopper."""

SCALE = (("const float*?", "mean", ("features",)), ("const float*?", "inverse", ("features",)), ("float", "limit"))

ACT_MEMBERS = (
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
    *SCALE,
)
"""What every network that acts is told."""

VALUES_MEMBERS = (
    ("Index", "rows"),
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("float*", "values", ("rows",)),
    ("const Index*?", "places", ("rows",)),
    ("float*?", "largest", (1,)),
    ("const u8*?", "alive", ("samples",)),
    *SCALE,
)
"""What every network that values is told."""

UPDATE_MEMBERS = (
    *LOSS_MEMBERS,
    ("const float*", "flat", ("parameters",)),
    ("const float*", "observations", ("samples", "features")),
    ("int", "actors"),
    *SCALE,
)
"""What every network that learns is told; so many blocks have the actor."""

ACT_CALL = Struct.of("ActCall", "float", *ACT_MEMBERS)
VALUES_CALL = Struct.of("ValuesCall", "float", *VALUES_MEMBERS)

UPDATE_CALL = Struct.of(
    "UpdateCall", "float", *UPDATE_MEMBERS, ("int", "parameters"), ("float*", "partials", ("workers", "columns"))
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
    hopper: bool = False
    """Whether the device has products of warpgroups."""
    groups: int = 0
    """Warpgroups of a block that updates; 0: as many as it has room for."""

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

    def _rows_bytes(self, threads: int) -> int:
        return 4 * threads * (self.head.parameters | 1)

    @property
    def act_bytes(self) -> int:
        """Shared memory of a block that goes forth."""
        return _padded(self._forward_bytes(self.head.parameters) + self._rows_bytes(_ACT_THREADS), 128)

    @property
    def _by_groups(self) -> bool:
        """Whether warpgroups work on updates."""
        return self.hopper and self.hidden == (_TILE, _TILE) and self.precision != "float32" and self._most_groups > 0

    def groups_for(self, rows: int) -> int:
        """The fewest warpgroups of a block with which so many rows take it no more turns: they wait for one another.

        One alone would take long to load the weights.
        """
        most = self._most_groups if self._by_groups else 0
        if most < _FEW_GROUPS:
            return most
        tiles = -(-rows // _TILE)
        turns = max(1, -(-tiles // most))
        return max(_FEW_GROUPS, -(-tiles // turns))

    @property
    def _groups(self) -> int:
        return self.groups or self._most_groups

    @property
    def _most_groups(self) -> int:
        """Warpgroups of a block: of three, each thread has 168 registers, which long heads and inputs exceed."""
        most = 3 if self.head.parameters <= 8 and self.features < 32 else 2
        return max((count for count in range(1, most + 1) if self._group_bytes(count) <= _MOST_SHARED), default=0)

    def _group_bytes(self, groups: int) -> int:
        """Shared memory of a block of so many warpgroups: as in ``small/by_groups.cuh``."""
        depth, size, inputs = self._arithmetic
        first, second = self.hidden
        outputs = self.head.parameters
        outs = _padded(outputs, 8)

        def tile(lines: int, depths: int) -> int:
            return lines * _padded(depths * size, 128)

        net = tile(first, inputs) + tile(second, first) + tile(outs, second) + tile(first, second)
        net += tile(second, _padded(outputs, depth)) + 4 * (first + second + outs + 2 * inputs)
        lines = _padded(self.features + 1, 8) + first + 8 + 2 * second + outs
        warps = groups * _GROUP // 32
        sums = 4 * (warps * (len(SUMS) + outputs) + groups + 1)
        tiles = groups * tile(lines, _TILE) + _padded(net, 1024)  # which begin where 1,024 divides an address
        return _padded(tiles + self._rows_bytes(groups * _GROUP) + sums, 1024) + 1024

    @property
    def update_threads(self) -> int:
        """Threads of a block that goes forth and back."""
        return self._groups * _GROUP if self._by_groups else _THREADS

    @property
    def actor_share(self) -> float:
        """Of the blocks of an update: its samples take the longer, for the loss."""
        return 0.53 if self._by_groups else 0.5

    @property
    def update_rows(self) -> int:
        """Rows that it takes at a time."""
        return self.update_threads // 2

    @property
    def update_bytes(self) -> int:
        """Its shared memory."""
        if self._by_groups:
            return self._group_bytes(self._groups)
        depth, size, _ = self._arithmetic
        first, second = self.hidden
        outputs = self.head.parameters
        back = size * second * (_padded(outputs, depth) + first)
        strides = _stride(self.features) + _stride(first) + _stride(second) + max(_stride(first), _stride(second))
        sums = 4 * len(SUMS) * _THREADS // 32
        return _padded(
            self._forward_bytes(outputs) + back + size * _TILE * strides + self._rows_bytes(_THREADS) + sums + 64, 128
        )

    @property
    def update_blocks(self) -> int:
        """How many of these a multiprocessor holds: more than two have no registers."""
        most = 1 if self._by_groups else 2
        return max(1, min(most, _SHARED_OF_PROCESSOR // (self.update_bytes + _SHARED_OF_BLOCK)))

    def ways(self, blocks: int) -> list[tuple[int, int]]:
        """Ways to part the blocks of an update among actor and critic: by what their samples take, and into halves."""
        return [(actors, blocks - actors) for actors in (round(blocks * self.actor_share), blocks // 2)]

    def workers(self, blocks: int, rows: int) -> tuple[int, int]:
        """How many of the blocks update the actor, and how many the critic: so that they end soonest."""
        at_a_time, share = self.update_rows, self.actor_share
        tiles = -(-rows // at_a_time)
        actors, critics = min(
            self.ways(blocks), key=lambda way: max(share * -(-tiles // way[0]), (1 - share) * -(-tiles // way[1]))
        )
        return blocks_for(rows, at_a_time, actors), blocks_for(rows, at_a_time, critics)

    def act_program(self) -> Program:
        """Acting and valuing."""
        calls = {"act": ACT_CALL, "values": VALUES_CALL}
        own = ["common/layers", "small/network", "small/forth", "small/act"]
        return self._program("common/sampler", SAMPLE_CALL, own, calls, self.act_bytes, _ACT_THREADS)

    def acting_parts(self, threads: int, more: str) -> tuple[list[tuple[str, str]], int]:
        """The source of acting, for others' kernels, in a namespace ``acting``; and the memory of a block of these.

        Args:
            threads: Of a block.
            more: C++ that stands in that namespace, too.
        """
        head = head_settings(self.head, quick=self.precision != "float32")
        shared = _padded(self._forward_bytes(self.head.parameters) + self._rows_bytes(threads), 128)
        aliases = (f"using {name} = {kind};" for name, kind in head.types.items())
        settings = "\n".join([head.prologue, *aliases, SAMPLE_CALL.cpp(), ACT_CALL.cpp()])
        names = ("common/distributions", "common/sampler", "common/tensor_core")
        own = ("common/layers", "small/network", "small/forth")
        parts = [
            ("acting", f"namespace acting {{\n{settings}"),
            *headers(*(f"training/{name}.cuh" for name in names)),
            ("shape", self._shape(shared, threads)),
            *headers(*(f"training/{name}.cuh" for name in own)),
            ("acting", f"{more}\n}}\nusing acting::ActCall;"),
        ]
        return parts, shared

    def update_program(self) -> Program:
        """The gradient, block by block."""
        own: list[str | tuple[str, str]] = ["common/layers", "small/network", "common/samples", "small/samples_of_rows"]
        if self._by_groups:
            lines = (_TILE, _TILE + 8, _padded(self.features + 1, 8), _padded(self.head.parameters, 8), 8)
            own += [("products", group_products(self.precision, lines)), "common/warpgroup", "small/by_groups"]
        else:
            own += ["small/by_warps"]
        calls, own = {"update": UPDATE_CALL}, [*own, "small/update"]
        return self._program("common/policy_loss", LOSS_CALL, own, calls, self.update_bytes, self.update_threads)

    def _shape(self, shared: int, threads: int) -> str:
        """What is compiled in, for blocks of so much shared memory and so many threads."""
        first, second = self.hidden
        low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
        lines = [
            f"constexpr int FEATURES = {self.features}, HIDDEN_1 = {first}, HIDDEN_2 = {second}, MEANS = {self.means};",
            f"constexpr int UPDATE_BLOCKS = {self.update_blocks}, WARPS = {threads // 32};",
            f"constexpr u64 SHARED_BYTES = {shared};",
            activation_text(self.activation),
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[self.precision]};",
            "struct Places { int weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, log_std; };",
            self.actor.cpp("ACTOR_PLACES"),
            self.critic.cpp("CRITIC_PLACES"),
        ]
        return "\n".join(lines)

    def _program(
        self,
        of_head: str,
        call: Struct,
        own: Sequence[str | tuple[str, str]],
        calls: Mapping[str, Struct],
        shared: int,
        threads: int,
    ) -> Program:
        head = head_settings(self.head, quick=self.precision != "float32")
        # Of two blocks of a multiprocessor one is to have the actor: as they lie when none came before the others.
        early = "update" not in calls or self.update_blocks == 1
        settings = KernelSettings(
            prologue=head.prologue,
            structs=[call],
            types=head.types,
            sizes={**head.sizes, "features": self.features, "parameters": self.parameters},
            grid=Grid(threads=threads, replicas=1, shared_bytes=shared, early=early),
        )
        parts: list[str | tuple[str, str]] = [
            "common/distributions",
            of_head,
            "common/tensor_core",
            ("shape", self._shape(shared, threads)),
            *own,
        ]
        return program_of([f"training/{p}.cuh" if isinstance(p, str) else p for p in parts], calls, settings)


def blocks_for(rows: int, at_a_time: int, most: int) -> int:
    """Blocks for so many rows, so that all have equally many tiles, or one less."""
    tiles = -(-rows // at_a_time)
    return -(-tiles // -(-tiles // most)) if tiles else 0


def activation_text(activation: str) -> str:
    """The activation as C++."""
    kinds = "enum Activation : int { TANH, RELU, ELU, SILU, GELU };"
    return f"{kinds}\nconstexpr Activation ACTIVATION = {activation.upper()};"


_LEFT_FACTORS = {
    4: ("const u32 (&left)[4]", ", ".join(f'"r"(left[{number}])' for number in range(4))),
    1: ("u64 left", '"l"(left)'),
}
"""Declarations and operands of a product's left factor, by its words: in registers, or told of in one."""


def group_products(precision: str, columns: Iterable[int]) -> str:
    """Products of a warpgroup for so many columns of the right factor: an instruction each.

    In bf16 the right factor's depth may also go across its lines.
    """
    depth, kind, more = {"tf32": (8, "tf32", ""), "bf16": (16, "bf16", ", 0")}[precision]
    text = ["template <int N> struct Product;"]
    for count in sorted(set(columns)):
        sums = count // 2
        outputs = ", ".join(f"%{number}" for number in range(sums))
        operands = ", ".join(f'"+f"(c[{number // 4}][{number % 4}])' for number in range(sums))
        name = f"wgmma.mma_async.sync.aligned.m64n{count}k{depth}.f32.{kind}.{kind}"
        text.append(f"template <> struct Product<{count}> {{")
        ways = [("add", 4, more), ("add", 1, 2 * more), *([("add_across", 4, ", 1")] if more else [])]
        for way, left, transposed in ways:
            declared, given = _LEFT_FACTORS[left]
            factor = ", ".join(f"%{sums + number}" for number in range(left))
            factor = f"{{{factor}}}" if left > 1 else factor
            text.append(
                f"    FN static void {way}(float (&c)[{count // 8}][4], {declared}, u64 right, bool keep) {{\n"
                f'        asm volatile("{{ .reg .pred keep; setp.ne.b32 keep, %{sums + left + 1}, 0; {name} '
                f'{{{outputs}}}, {factor}, %{sums + left}, keep, 1, 1{transposed}; }}"\n'
                f'                     : {operands} : {given}, "l"(right), "r"(int(keep)));\n    }}'
            )
        text.append("};")
    return "\n".join(text)


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _stride(columns: int) -> int:
    """As ``stride_of`` in ``small/network.cuh``."""
    return _padded(columns + 8, 16) - 8
