"""Kernels of a head: sampling of actions, losses and their gradients, epsilon-greedy policies of Q values."""

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

MAX_STAGED = 88
"""Maximum parameters per row if each thread of a block of 128 has a row in shared memory."""

MAX_STAGED_PER_WARP = 11_776
"""Maximum parameters per row if each warp has a row in shared memory."""

LANES = 32
"""Threads of a warp."""

MIN_SHARED_ELEMENTS = 16
"""Minimum elements of an action for which a warp's threads share a row."""

MAX_UNROLLED = 8
"""Maximum elements of an action for which kernels unroll the loop over elements, as in ``distributions.cuh``."""

SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "alive")
"""Names of the numbers that a loss kernel writes for each sample, by row."""


@final
@dataclasses.dataclass(frozen=True)
class Samples:
    """The samples of an iteration, as flat arrays."""

    actions: Tensor
    """[M, W], the actions."""
    log_probs: Tensor
    """[M], under the policy that acted."""
    advantages: Tensor
    """[M], the advantages."""
    returns: Tensor
    """[M], targets of the critic."""
    values: Tensor
    """[M], the critic's outputs when the policy acted."""
    alive: Tensor | None = None
    """[M], whether the agent was active; None: all were."""
    action_mask: Tensor | None = None
    """[M, P], int8, zero where a choice was forbidden; None: all were allowed."""


def float_struct(name: str, *members: Any) -> Struct:
    """Makes the argument struct of a kernel that computes in float32, from (type, name) or (type, name, shape)."""
    return Struct.of(name, "float", *members)


SAMPLE_CALL = float_struct(
    "SampleCall",
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
"""Arguments of kernels that compute a loss; ``loss_members`` returns their values."""

LOSS_CALL = float_struct(
    "LossCall",
    *LOSS_MEMBERS,
    ("const float*", "parameters", ("rows", "outputs")),
    ("const float*", "values", ("rows",)),
    ("float*", "grad_parameters", ("rows", "outputs")),
    ("float*", "grad_values", ("rows",)),
    ("float*", "sums", (len(SUMS), "rows")),
    ("const u8*?", "action_mask", ("samples", "outputs")),
)

_Q_VALUES = (("Index", "rows"), ("const float*", "q_values", ("rows", "outputs")))
_MASK = ("const u8*?", "action_mask", ("rows", "outputs"))

_PQN_CALLS = {
    "greedy_values": float_struct("GreedyValuesCall", *_Q_VALUES, _MASK, ("float*", "values", ("rows",))),
    "epsilon_greedy": float_struct(
        "EpsilonGreedyCall",
        *_Q_VALUES,
        _MASK,
        ("const float*", "epsilon", (1,)),
        ("float*", "logits", ("rows", "outputs")),
    ),
    "q_loss": float_struct(
        "QLossCall",
        *_Q_VALUES,
        ("const int*?", "indices", ("rows",)),
        ("const Element*", "actions", ("samples", "width")),
        ("const float*", "returns", ("samples",)),
        ("const u8*?", "alive", ("samples",)),
        ("float*", "grad_q", ("rows", "outputs")),
        ("float*", "sums", (len(SUMS), "rows")),
    ),
}


def loss_members(batch: Samples, indices: Tensor | None, algorithm: Algorithm) -> dict[str, MemberValue]:
    """Launch arguments by name, for rows ``indices`` of a batch: ``LOSS_MEMBERS`` but ``scalars``, and ``samples``."""
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
    """Threads of a GPU that share a row."""
    long = MAX_STAGED < head.parameters <= MAX_STAGED_PER_WARP
    return LANES if head.kind == "discrete" and long and head.width >= MIN_SHARED_ELEMENTS else 1


def head_settings(head: Head, *, quick: bool = False) -> KernelSettings:
    """Compiled-in settings of kernels for a head; ``quick``: use the GPU's approximate exp and log."""
    discrete, shares = head.kind == "discrete", shares_of(head)
    stride = head.parameters | 1 if head.parameters <= MAX_STAGED else 0
    sizes = head.sizes if discrete else (1,) * head.width
    offsets = [sum(sizes[:element]) for element in range(head.width)]
    zeros = (0,) * head.width
    lines = [
        f"constexpr int WIDTH = {head.width}, PARAMETERS = {head.parameters}, ROW_STRIDE = {stride};",
        f"constexpr int SHARES = {shares};",
        f"constexpr bool DISCRETE = {str(discrete).lower()}, QUICK = {str(quick).lower()};",
        _table("int", "size_of", [*map(str, sizes)]),
        _table("int", "offset_of", [*map(str, offsets)]),
        _table("int", "start_of", [*map(str, head.starts or zeros)]),
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
    """C++ text of a function ``name(int d)`` that returns ``values[d]``."""
    if len(set(values)) == 1:
        return f"FN constexpr {kind} {name}(int) {{ return {values[0]}; }}"
    # long tables are indexed at run time
    function, storage = ("FN", "static constexpr") if len(values) > MAX_UNROLLED else ("FN constexpr", "constexpr")
    return f"{function} {kind} {name}(int d) {{ {storage} {kind} table[] = {{{', '.join(values)}}}; return table[d]; }}"


def program(head: Head, kernel: str) -> Program:
    """The program that has a kernel of ``Ops``: ``sample``, ``loss``, or a kernel of PQN, which share one program."""
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


def mask_bytes(action_mask: Tensor | None) -> Tensor | None:
    """An action mask as uint8, which kernels read."""
    return None if action_mask is None else action_mask.view(torch.uint8)


@final
class Ops:
    """The kernels of one head on one device, compiled at first use, or by ``begin``.

    The Q value of an action is the mean over its elements.
    """

    def __init__(self, head: Head, device: str, threads: int | None = None) -> None:
        self.head: Final = head
        self.backend: Final = open_backend(resolve_device(device), threads)
        self._shares: Final = shares_of(head) if self.backend.device != "cpu" else 1
        self._kernels: dict[str, Kernel] = {}

    def begin(self, *kernels: str) -> None:
        """Starts to compile kernels."""
        for kernel in kernels:
            self._kernel(kernel)

    def _kernel(self, name: str) -> Kernel:
        """Returns a kernel; at its first use, starts to compile its program."""
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
        """Draws an action for each row; random numbers depend on key, counter and row number, not on the split of rows.

        Args:
            parameters: [R, P], the policy's outputs.
            actions: [R, W], written; of a box, in units where its bounds are -1 and 1.
            log_probs: [R], written.
            stream: int64 [2] on the device: a key and a counter.
            turn: Added to the counter; different for each draw.
            acted: [R, W], written: a box's actions in the environment's units.
            entropies: [R], written: entropies of the distributions.
            greedy: Take the most likely action (the first of equals), or a box's mean.
            first_row: Number of the first row.
            action_mask: int8 [R, P], zero where a choice is forbidden; None: all are allowed.
        """
        rows = len(parameters)
        if acted is not None and self.head.kind != "box":
            raise ValueError("acted is for boxes, but the actions are discrete; leave it out")
        if first_row < 0 or first_row + rows > 2**32:
            raise ValueError(f"rows {first_row} to {first_row + rows - 1} are given; give numbers from 0 to below 2^32")
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn, the offset of the random counter, is {turn}; give 0 to below 2^63")
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
            action_mask=mask_bytes(action_mask),
        )

    def normal(
        self,
        numbers: Tensor,
        *,
        stream: Tensor,
        turn: int,
        first_row: int = 0,
        buffers: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Draws standard normal numbers into ``numbers``, [R, W], for a head that is a box; arguments as in ``sample``.

        ``buffers``, from ``normal_buffers``, save an allocation per call.
        """
        parameters, log_probs = self.normal_buffers(len(numbers)) if buffers is None else buffers
        self.sample(parameters, numbers, log_probs, stream=stream, turn=turn, first_row=first_row)

    def normal_buffers(self, rows: int) -> tuple[Tensor, Tensor]:
        """Buffers for ``normal``: the distribution's parameters, which are zero, and memory for log-probabilities."""
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
        """Writes the terms of each sample's loss, and the gradients of the loss summed over active agents.

        Args:
            parameters: [B, P], the policy's outputs now.
            values: [B], the values now.
            batch: The samples of the iteration.
            indices: int32 [B], indices of the rows' samples; None: all, in order.
            algorithm: PPO (clipped ratio) or A2C (log-probability).
            scalars: As in ``Minibatch``.
            grad_parameters: [B, P], written.
            grad_values: [B], written.
            sums: [6, B], written: ``SUMS`` of each sample; zeros for inactive agents.
        """
        rows, members = len(parameters), loss_members(batch, indices, algorithm)
        if rows != members["rows"]:
            expected = f"{members['samples']} samples" if indices is None else f"{len(indices)} indices"
            raise ValueError(f"parameters, the policy's outputs, have {rows} rows for {expected}; give a row for each")
        self._kernel("loss").launch(
            rows * self._shares,
            **members,
            scalars=scalars,
            parameters=parameters,
            values=values,
            grad_parameters=grad_parameters,
            grad_values=grad_values,
            sums=sums,
            action_mask=mask_bytes(batch.action_mask),
        )

    def greedy_values(self, q_values: Tensor, action_mask: Tensor | None) -> Tensor:
        """The Q value of each row's greedy action, [R], from the Q values of the choices, [R, P].

        The mask, int8 [R, P], is ignored for an element without any allowed choice.
        """
        rows, values, mask = len(q_values), q_values.new_empty(len(q_values)), mask_bytes(action_mask)
        self._kernel("greedy_values").launch(rows, rows=rows, q_values=q_values, action_mask=mask, values=values)
        return values

    def epsilon_greedy_logits(self, q_values: Tensor, action_mask: Tensor | None, epsilon: Tensor) -> Tensor:
        """Log-probabilities, [R, P], of an epsilon-greedy policy; each element explores by itself."""
        rows, logits, mask = len(q_values), torch.empty_like(q_values), mask_bytes(action_mask)
        kernel = self._kernel("epsilon_greedy")
        kernel.launch(rows, rows=rows, q_values=q_values, action_mask=mask, epsilon=epsilon, logits=logits)
        return logits

    def q_loss(self, q_values: Tensor, batch: Samples, indices: Tensor | None, grad_q: Tensor, sums: Tensor) -> None:
        """Writes the gradient of PQN's summed loss to ``grad_q``, [B, P], and each sample's ``SUMS`` to ``sums``."""
        rows, samples = len(q_values), len(batch.returns)
        arrays = {"actions": batch.actions, "returns": batch.returns, "alive": batch.alive, "indices": indices}
        results = {"grad_q": grad_q, "sums": sums}
        self._kernel("q_loss").launch(rows, rows=rows, samples=samples, q_values=q_values, **arrays, **results)
