"""The source of the fused perceptrons' kernels: what is compiled in, and the structs they take."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import final

from gpu_envs.backend.program import Grid, KernelSettings, Program, headers, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import LOG_STD_RANGE
from gpu_envs.training.heads import Head
from gpu_envs.training.operations.ops import LOSS_CALL, LOSS_MEMBERS, SAMPLE_CALL, SUMS, head_settings
from gpu_envs.training.operations.sizes import sizes_of

ARITHMETIC = {"float32": "Split", "tf32": "Tf32", "bf16": "Bf16"}

_THREADS = 128
"""Of a block that updates, where warps work by themselves."""
_ACT_THREADS = 512
"""Of a block that acts: as many as a multiprocessor holds, so that each loads the weights once."""
ACT_ROWS = _ACT_THREADS // 2
"""Rows that it takes at a time."""
_TILE = 64
"""Rows that four warps take at a time, and the width of layers that a warpgroup multiplies."""
_GROUP = 128
"""Threads of a warpgroup."""
_FEW_GROUPS = 2
"""Warpgroups of a block that there are in any case, where they fit."""

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
        return shared + (second + 1) * (self.means + 1) + self.head.log_stds

    @property
    def means(self) -> int:
        """Outputs of the actor's last layer."""
        return self.head.parameters - self.head.log_stds

    @functools.cached_property
    def _act_bytes(self) -> int:
        """Shared memory of a block that goes forth."""
        parts = self._parts("sampler", _ACT_THREADS, "act", placed=False)
        return sizes_of(parts, self._settings(SAMPLE_CALL), {"act": "sizeof(ActMemory<PARAMETERS>)"})["act"]

    @functools.cached_property
    def _update_sizes(self) -> Mapping[str, int]:
        """Of blocks that go forth and back: warp by warp, or by so many warpgroups, and for these lines of products."""
        if self._by_groups:
            own: tuple[str | tuple[str, str], ...] = (PRODUCTS, "warpgroup", "by_groups")
            sizes = {f"of_{count}_groups": f"bytes_of_groups({count})" for count in (1, 2, 3)}
            sizes |= {"most_groups": "most_groups()", "inputs": "X_LINES", "outputs": "GroupNet<PARAMETERS>::OUTS"}
        else:
            own = ("by_warps",)
            sizes = {"bytes": "UPDATE_BYTES", "blocks": "UPDATE_BLOCKS", "most_groups": "0"}
        parts = self._parts("policy_loss", _THREADS, "samples", "update", *own, placed=False)
        return sizes_of(parts, self._settings(LOSS_CALL), sizes)

    @property
    def _by_groups(self) -> bool:
        """Whether warpgroups work on updates."""
        return self.hopper and self.hidden == (_TILE, _TILE) and self.precision != "float32"

    def groups_for(self, rows: int) -> int:
        """The fewest warpgroups of a block with which so many rows take it no more turns: they wait for one another.

        One alone would take long to load the weights.
        """
        most = self._update_sizes["most_groups"]
        if most < _FEW_GROUPS:
            return most
        tiles = -(-rows // _TILE)
        turns = max(1, -(-tiles // most))
        return max(_FEW_GROUPS, -(-tiles // turns))

    @property
    def _groups(self) -> int:
        return self.groups or self._update_sizes["most_groups"]

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
        return self._update_sizes[f"of_{self._groups}_groups" if self._by_groups else "bytes"]

    @property
    def update_blocks(self) -> int:
        """How many of these a multiprocessor holds: more than two have no registers."""
        return 1 if self._by_groups else self._update_sizes["blocks"]

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
        parts = self._parts("sampler", _ACT_THREADS, "act")
        grid = Grid(threads=_ACT_THREADS, replicas=1, shared_bytes=self._act_bytes)
        calls = {"act": ACT_CALL, "values": VALUES_CALL}
        settings = dataclasses.replace(self._settings(SAMPLE_CALL), grid=grid)
        return program_of([*parts, kernels_of_blocks(calls, "THREADS, 1")], calls, settings)

    def update_program(self) -> Program:
        """The gradient, block by block."""
        sizes, threads = self._update_sizes, self.update_threads
        if self._by_groups:
            lines = {8, _TILE, _TILE + 8, sizes["inputs"], sizes["outputs"]}
            products = group_products(self.precision, lines)
            parts = self._parts("policy_loss", threads, "samples", "update", products, "warpgroup", "by_groups")
        else:
            parts = self._parts("policy_loss", threads, "samples", "update", "by_warps")
        # Of two blocks of a multiprocessor one is to have the actor: as they lie when none came before the others.
        grid = Grid(threads=threads, replicas=1, shared_bytes=self.update_bytes, early=self.update_blocks == 1)
        calls = {"update": UPDATE_CALL}
        settings = dataclasses.replace(self._settings(LOSS_CALL), grid=grid)
        return program_of([*parts, kernels_of_blocks(calls, "THREADS, UPDATE_BLOCKS", "<ALIKE>")], calls, settings)

    def acting_parts(self, threads: int, more: str) -> list[tuple[str, str]]:
        """The source of acting, for others' kernels, in a namespace ``acting``.

        Args:
            threads: Of a block.
            more: C++ that stands in that namespace, too.
        """
        head = self._settings(SAMPLE_CALL)
        aliases = (f"using {name} = {kind};" for name, kind in head.types.items())
        settings = "\n".join([head.prologue, *aliases, SAMPLE_CALL.cpp(), ACT_CALL.cpp()])
        parts = [headers(part)[0] if isinstance(part, str) else part for part in self._parts("sampler", threads, "act")]
        begin, end = f"namespace acting {{\n{settings}", f"{more}\n}}\nusing acting::ActCall;"
        return [("acting", begin), *parts, ("acting", end)]

    def _parts(
        self, of_head: str, threads: int, *own: str | tuple[str, str], placed: bool = True
    ) -> list[str | tuple[str, str]]:
        """Everything but kernels, for blocks of so many threads; of headers, their names.

        Sizes do not depend on where parameters lie: without it, the program that has them is made before that is known.
        """
        first, second = self.hidden
        low, high = (f"float({bound!r})" for bound in LOG_STD_RANGE)
        lines = [
            f"constexpr int FEATURES = {self.features}, HIDDEN_1 = {first}, HIDDEN_2 = {second}, MEANS = {self.means};",
            f"constexpr int WARPS = {threads // 32}, SUMS = {len(SUMS)};",
            activation_text(self.activation),
            f"constexpr float LOG_STD_LOW = {low}, LOG_STD_HIGH = {high};",
            f"using Arithmetic = {ARITHMETIC[self.precision]};",
            "struct Places { int weight_1, bias_1, weight_2, bias_2, weight_3, bias_3, log_std; };",
            (self.actor if placed else _NOWHERE).cpp("ACTOR_PLACES"),
            (self.critic if placed else _NOWHERE).cpp("CRITIC_PLACES"),
        ]
        parts: list[str | tuple[str, str]] = [
            *("distributions", of_head, "tensor_core"),
            ("shape", "\n".join(lines)),
            "layers",
            "network",
            *own,
        ]
        small = {"network", "act", "update", "by_warps", "by_groups"}
        return [
            f"training/{'small' if part in small else 'common'}/{part}.cuh" if isinstance(part, str) else part
            for part in parts
        ]

    def _settings(self, call: Struct) -> KernelSettings:
        head = head_settings(self.head, quick=self.precision != "float32")
        return KernelSettings(
            prologue=head.prologue,
            structs=[call],
            types=head.types,
            sizes={**head.sizes, "features": self.features, "parameters": self.parameters},
        )


def kernels_of_blocks(calls: Mapping[str, Struct], bounds: str, arguments: str = "") -> tuple[str, str]:
    """Kernels that call functions of the same names, with such template arguments, as a part of a program.

    Args:
        calls: The struct of each.
        bounds: How many threads a block has, and how many blocks a multiprocessor.
        arguments: In angle brackets.
    """
    text = (
        f"KERNEL_OF_BLOCKS(kernel_{name}, {call.name}, {bounds}) {{ {name}{arguments}(call); }}"
        for name, call in calls.items()
    )
    return "-".join(calls), "\n".join(text)


def blocks_for(rows: int, at_a_time: int, most: int) -> int:
    """Blocks for so many rows, so that all have equally many tiles, or one less."""
    tiles = -(-rows // at_a_time)
    return -(-tiles // -(-tiles // most)) if tiles else 0


def activation_text(activation: str) -> str:
    """The activation as C++."""
    kinds = "enum Activation : int { TANH, RELU, ELU, SILU, GELU };"
    return f"{kinds}\nconstexpr Activation ACTIVATION = {activation.upper()};"


PRODUCTS = ("products", "template <int N> struct Product;")
"""What stands before them all, and is enough where nothing is computed."""

_LEFT_FACTORS = {
    4: ("const u32 (&left)[4]", ", ".join(f'"r"(left[{number}])' for number in range(4))),
    1: ("u64 left", '"l"(left)'),
}
"""Declarations and operands of a product's left factor, by its words: in registers, or told of in one."""


def group_products(precision: str, columns: Iterable[int]) -> tuple[str, str]:
    """Products of a warpgroup for so many columns of the right factor: an instruction each.

    In bf16 the right factor's depth may also go across its lines.
    """
    depth, kind, more = {"tf32": (8, "tf32", ""), "bf16": (16, "bf16", ", 0")}[precision]
    text = [PRODUCTS[1]]
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
    return "products", "\n".join(text)
