"""Kernels of a head: actions drawn from a policy's outputs, losses with gradients, and what choices are worth."""

import dataclasses
from typing import Any, Final, final

import torch
from torch import Tensor

from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.backend.launcher import Kernel, MemberValue, load_kernels
from gpu_envs.backend.program import ELEMENTARY_HEADER, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.training.algorithms.base import Algorithm, PolicyGradient
from gpu_envs.training.heads import Head

MOST_STAGED = 88
"""Parameters a row for which a block of 128 threads has room in its shared memory."""

MOST_SHARED = 11_776
"""And for which a warp has."""

LANES = 32
"""Threads of a warp."""

MANY = 16
"""Elements of an action from which a warp's threads share a longer row."""

MOST_WRITTEN_OUT = 8
"""Elements of an action up to which kernels have each of them written out; as in ``distributions.cuh``."""

SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "alive")
"""What the loss writes for every sample, in the order of its rows."""


@final
@dataclasses.dataclass(frozen=True)
class Samples:
    """What is known of the samples of an iteration, flat."""

    actions: Tensor
    """[M, W]."""
    log_probs: Tensor
    """[M], under the policy that acted."""
    advantages: Tensor
    """[M]."""
    returns: Tensor
    """[M], what values should be."""
    values: Tensor
    """[M], what they were when the policy acted."""
    alive: Tensor | None = None
    """[M], whether the agent took part; None: all did."""
    action_mask: Tensor | None = None
    """[M, P], int8, zero where a choice was forbidden; None: nothing was."""


SAMPLE_CALL = Struct.of(
    "SampleCall",
    "float",
    ("Index", "rows"),
    ("Index", "first_row"),
    ("const u64*", "stream", (2,)),
    ("u64", "turn"),
    ("const float*", "parameters", ("rows", "outputs")),
    ("Element*", "actions", ("rows", "width")),
    ("float*?", "acted", ("rows", "width")),
    ("float*", "log_probs", ("rows",)),
    ("float*?", "entropies", ("rows",)),
    ("int", "greedy"),
    ("const u8*?", "action_mask", ("rows", "outputs")),
)

LOSS_MEMBERS: tuple[Any, ...] = (
    ("Index", "rows"),
    ("const int*?", "indices", ("rows",)),
    ("const Element*", "actions", ("samples", "width")),
    *(("const float*", name, ("samples",)) for name in ("log_probs", "advantages", "returns", "old_values")),
    ("const u8*?", "alive", ("samples",)),
    ("const float*", "scalars", (4,)),
    ("int", "clipped"),
    ("int", "clips_values"),
    ("float", "value_clip"),
    ("float", "value_weight"),
)
"""What every kernel that works out a loss is told: ``loss_members`` has it."""

LOSS_CALL = Struct.of(
    "LossCall",
    "float",
    *LOSS_MEMBERS,
    ("const float*", "parameters", ("rows", "outputs")),
    ("const float*", "values", ("rows",)),
    ("float*", "grad_parameters", ("rows", "outputs")),
    ("float*", "grad_values", ("rows",)),
    ("float*", "sums", (len(SUMS), "rows")),
    ("const u8*?", "action_mask", ("samples", "outputs")),
)


_Q_VALUES = ("const float*", "q_values", ("rows", "outputs"))
_MASK = ("const u8*?", "action_mask", ("rows", "outputs"))

_PQN_CALLS = {
    "greedy_values": Struct.of(
        "GreedyValuesCall", "float", ("Index", "rows"), _Q_VALUES, _MASK, ("float*", "values", ("rows",))
    ),
    "epsilon_greedy": Struct.of(
        "EpsilonGreedyCall",
        "float",
        ("Index", "rows"),
        _Q_VALUES,
        _MASK,
        ("const float*", "epsilon", (1,)),
        ("float*", "logits", ("rows", "outputs")),
    ),
    "q_loss": Struct.of(
        "QLossCall",
        "float",
        ("Index", "rows"),
        _Q_VALUES,
        ("const int*?", "indices", ("rows",)),
        ("const Element*", "actions", ("samples", "width")),
        ("const float*", "returns", ("samples",)),
        ("const u8*?", "alive", ("samples",)),
        ("float*", "grad_q", ("rows", "outputs")),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
}


def loss_members(batch: Samples, indices: Tensor | None, algorithm: Algorithm) -> dict[str, MemberValue]:
    """The ``LOSS_MEMBERS`` of a minibatch, and the number of samples; arguments as of ``Ops.loss``."""
    assert isinstance(algorithm, PolicyGradient)
    samples, arrays = len(batch.log_probs), dict(vars(batch))
    del arrays["action_mask"]
    return {
        "rows": samples if indices is None else len(indices),
        "samples": samples,
        "indices": indices,
        "old_values": arrays.pop("values"),
        **arrays,
        "clipped": int(algorithm.clip_range is not None),
        "clips_values": int(algorithm.value_clip is not None),
        "value_clip": algorithm.value_clip or 0.0,
        "value_weight": algorithm.value_weight,
    }


def shares_of(head: Head) -> int:
    """How many threads of a GPU share a row."""
    long = MOST_STAGED < head.parameters <= MOST_SHARED
    return LANES if head.kind == "discrete" and long and head.width >= MANY else 1


def head_settings(head: Head, *, quick: bool = False) -> KernelSettings:
    """What the kernels of a head have compiled in; ``quick``: where a GPU's own approximations are precise enough."""
    discrete, shares = head.kind == "discrete", shares_of(head)
    stride = head.parameters | 1 if head.parameters <= MOST_STAGED else 0
    sizes = head.sizes if discrete else (1,) * head.width
    offsets = [sum(sizes[:element]) for element in range(head.width)]
    zeros = (0,) * head.width
    lines = [
        f"constexpr int WIDTH = {head.width}, PARAMETERS = {head.parameters}, ROW_STRIDE = {stride};",
        f"constexpr int SHARES = {shares};",
        f"constexpr bool DISCRETE = {str(discrete).lower()}, QUICK = {str(quick).lower()};",
        _table("int", "size_of", [str(size) for size in sizes]),
        _table("int", "offset_of", [str(offset) for offset in offsets]),
        _table("int", "start_of", [str(start) for start in head.starts or zeros]),
        _table("float", "low_of", [f"float({bound!r})" for bound in head.low or zeros]),
        _table("float", "high_of", [f"float({bound!r})" for bound in head.high or zeros]),
    ]
    return KernelSettings(
        prologue="\n".join(lines),
        types={"Element": "int" if discrete else "float"},
        sizes={"width": head.width, "outputs": head.parameters},
        staging_bytes=4 * (stride if shares == 1 else -(-head.parameters // LANES)),
        weight=1 + head.parameters,
    )


def _table(kind: str, name: str, values: list[str]) -> str:
    if len(set(values)) == 1:
        return f"FN constexpr {kind} {name}(int) {{ return {values[0]}; }}"
    listed = ", ".join(values)
    if len(values) > MOST_WRITTEN_OUT:  # indexed by a number that is not known when it is compiled
        return f"FN {kind} {name}(int d) {{ static constexpr {kind} table[] = {{{listed}}}; return table[d]; }}"
    return f"FN constexpr {kind} {name}(int d) {{ constexpr {kind} table[] = {{{listed}}}; return table[d]; }}"


def program(head: Head, kernel: str) -> Program:
    """The source of a kernel of ``Ops``; PQN's are one program."""
    settings = head_settings(head)
    if kernel in _PQN_CALLS:
        sums = f"VALUE_LOSS = {SUMS.index('value_loss')}, ALIVE = {SUMS.index('alive')}, SUM_COUNT = {len(SUMS)}"
        prologue = f"{settings.prologue}\nconstexpr int {sums};"
        settings = dataclasses.replace(settings, prologue=prologue, staging_bytes=0)
        return program_of((ELEMENTARY_HEADER, "training/off_policy/pqn.cuh"), _PQN_CALLS, settings)
    functions, call = {"sample": ("sampler", SAMPLE_CALL), "loss": ("policy_loss", LOSS_CALL)}[kernel]
    headers = [f"training/common/{part}.cuh" for part in ("distributions", functions)]
    text = f"KERNEL_OF_ROWS(kernel_{kernel}, {call.name}, {kernel})"
    return program_of([*headers, (kernel, text)], {kernel: call}, settings)


def flags(action_mask: Tensor | None) -> Tensor | None:
    """A mask as kernels read it."""
    return None if action_mask is None else action_mask.view(torch.uint8)


@final
class Ops:
    """The kernels of one head on one device, compiled when first needed, or from ``begin`` on.

    Where every choice is valued, an action is worth the mean over its elements.
    """

    def __init__(self, head: Head, device: str, threads: int | None = None) -> None:
        self.head: Final = head
        self.backend: Final = open_backend(resolve_device(device), threads)
        self._shares: Final = shares_of(head) if self.backend.device != "cpu" else 1
        self._kernels: dict[str, Kernel] = {}

    def begin(self, *kernels: str) -> None:
        """Begins to compile some of them."""
        for kernel in kernels:
            self._kernel(kernel)

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            source = program(self.head, name)
            self._kernels |= zip(source.calls, load_kernels(self.backend, source), strict=True)
        return self._kernels[name]

    def sample(
        self,
        parameters: Tensor,
        actions: Tensor,
        log_probs: Tensor,
        *,
        stream: Tensor,
        turn: int,
        acted: Tensor | None = None,
        entropies: Tensor | None = None,
        greedy: bool = False,
        first_row: int = 0,
        action_mask: Tensor | None = None,
    ) -> None:
        """Draws an action for each row; equal numbers for equal key, turn and row, however the rows are cut.

        Args:
            parameters: [R, P], the policy's outputs.
            actions: [R, W], written: what the environment takes, or for a box the sample where its bounds are -1 and 1.
            log_probs: [R], written: of the actions.
            stream: int64 [2] on the device: the key, and a counter that ``turn`` is added to.
            turn: Which of the draws since the counter changed.
            acted: [R, W], written: for a box, what the environment takes.
            entropies: [R], written: of the distributions.
            greedy: Take the likeliest action: of equals the first, of a box the mean.
            first_row: The number of the first row.
            action_mask: int8 [R, P], zero where a choice is forbidden; None: everything is possible.
        """
        rows = len(parameters)
        if acted is not None and self.head.kind != "box":
            raise ValueError("acted is for boxes; discrete actions are what the environment takes: leave it out")
        if first_row < 0 or first_row + rows > 2**32:
            raise ValueError(f"rows {first_row} to {first_row + rows - 1} are not numbers of 32 bits; give fewer")
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        self._kernel("sample").launch(
            rows * self._shares,
            rows=rows,
            first_row=first_row,
            stream=stream,
            turn=turn,
            parameters=parameters,
            actions=actions,
            acted=acted,
            log_probs=log_probs,
            entropies=entropies,
            greedy=int(greedy),
            action_mask=flags(action_mask),
        )

    def normal(
        self,
        numbers: Tensor,
        *,
        stream: Tensor,
        turn: int,
        first_row: int = 0,
        beside: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Draws standard normal numbers, for a box: [R, W], as ``sample`` draws actions.

        What ``beside_normal`` makes may be given, where as many are drawn again and again.
        """
        parameters, log_probs = self.beside_normal(len(numbers)) if beside is None else beside
        self.sample(parameters, numbers, log_probs, stream=stream, turn=turn, first_row=first_row)

    def beside_normal(self, rows: int) -> tuple[Tensor, Tensor]:
        """What drawing normal numbers needs beside them: zeros, which are their parameters, and room."""
        parameters = torch.zeros((rows, self.head.parameters), device=self.backend.device)
        return parameters, parameters.new_empty(rows)

    def loss(
        self,
        parameters: Tensor,
        values: Tensor,
        batch: Samples,
        indices: Tensor | None,
        algorithm: Algorithm,
        scalars: Tensor,
        grad_parameters: Tensor,
        grad_values: Tensor,
        sums: Tensor,
    ) -> None:
        """Works out the loss of each sample, and the gradient of the sum over those that were alive.

        Args:
            parameters: [B, P], the policy's outputs now.
            values: [B], the values now.
            batch: The samples of the iteration.
            indices: int32 [B], which of them these are; None: all, in their order.
            algorithm: Whose loss it is: PPO's by the ratio of probabilities, or A2C's by the log-probability.
            scalars: float32 [4] on the device: the advantages' mean, one over their deviation, the entropy's weight,
                and how far the ratio may be from 1.
            grad_parameters: [B, P], written: the gradient.
            grad_values: [B], written: the gradient.
            sums: [6, B], written: for each sample ``SUMS``; zeros where the agent was not alive.
        """
        rows, given = len(parameters), loss_members(batch, indices, algorithm)
        if rows != given["rows"]:
            wrong = f"{given['samples']} samples" if indices is None else f"{len(indices)} indices"
            raise ValueError(f"there are {rows} rows for {wrong}; give indices for as many of the samples as rows")
        self._kernel("loss").launch(
            rows * self._shares,
            **given,
            scalars=scalars,
            parameters=parameters,
            values=values,
            grad_parameters=grad_parameters,
            grad_values=grad_values,
            sums=sums,
            action_mask=flags(batch.action_mask),
        )

    def greedy_values(self, q_values: Tensor, action_mask: Tensor | None) -> Tensor:
        """The Q-value of each row's greedy action, [R].

        Args:
            q_values: [R, P], of each choice; an action's Q-value is the mean over its elements.
            action_mask: int8 [R, P], zero where a choice is forbidden; None: everything is allowed. Ignored for an
                element without any allowed choice.
        """
        rows, values = len(q_values), q_values.new_empty(len(q_values))
        mask = flags(action_mask)
        self._kernel("greedy_values").launch(rows, rows=rows, q_values=q_values, action_mask=mask, values=values)
        return values

    def epsilon_greedy_logits(self, q_values: Tensor, action_mask: Tensor | None, epsilon: Tensor) -> Tensor:
        """Log-probabilities, [R, P], of an epsilon-greedy policy; each element explores by itself."""
        rows, logits, mask = len(q_values), torch.empty_like(q_values), flags(action_mask)
        kernel = self._kernel("epsilon_greedy")
        kernel.launch(rows, rows=rows, q_values=q_values, action_mask=mask, epsilon=epsilon, logits=logits)
        return logits

    def q_loss(self, q_values: Tensor, batch: Samples, indices: Tensor | None, grad_q: Tensor, sums: Tensor) -> None:
        """Writes the gradient of ``q_values``, [B, P], and each sample's ``SUMS``, [6, B], as ``loss`` does."""
        self._kernel("q_loss").launch(
            len(q_values),
            rows=len(q_values),
            samples=len(batch.returns),
            q_values=q_values,
            indices=indices,
            actions=batch.actions,
            returns=batch.returns,
            alive=batch.alive,
            grad_q=grad_q,
            sums=sums,
        )
