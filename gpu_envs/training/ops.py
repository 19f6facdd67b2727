"""Actions drawn from a policy's outputs, and the loss with its gradient: a kernel each, for each head."""

import dataclasses
import functools
from typing import Final, final

import torch

from gpu_envs.codegen.structs import Struct
from gpu_envs.torch_kernels import FLAGS, Compiler, Kernel, Shape, address, optional_address
from gpu_envs.training.heads import Head

MOST_STAGED = 88
"""Parameters a row for which a block of 128 threads has room in its shared memory."""

SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "alive")
"""What the loss writes for every sample, in the order of its rows."""


@final
@dataclasses.dataclass(frozen=True)
class Batch:
    """What is known of the samples of an iteration, flat."""

    actions: torch.Tensor
    """[M, W]."""
    log_probs: torch.Tensor
    """[M], under the policy that acted."""
    advantages: torch.Tensor
    """[M]."""
    returns: torch.Tensor
    """[M], what values should be."""
    values: torch.Tensor
    """[M], what they were when the policy acted."""
    alive: torch.Tensor | None = None
    """[M], whether the agent took part; None: all did."""
    action_mask: torch.Tensor | None = None
    """[M, P], int8, zero where a choice was forbidden; None: nothing was. Kernels are given masked parameters."""


@final
@dataclasses.dataclass(frozen=True)
class LossSettings:
    """What kind of loss it is."""

    clipped: bool = True
    """PPO's, by the ratio of probabilities; False: A2C's, by the log-probability."""
    value_clip: float | None = None
    """How far a value may move from its old one; None: as far as it will."""
    value_weight: float = 0.5
    """The weight of the value's loss."""


SAMPLE_CALL = Struct.of(
    "SampleCall",
    "float",
    ("Index", "rows"),
    ("Index", "first_row"),
    ("const u64*", "stream"),
    ("u64", "turn"),
    ("const float*", "parameters"),
    ("Element*", "actions"),
    ("float*", "acted"),
    ("float*", "log_probs"),
    ("float*", "entropies"),
    ("int", "greedy"),
)

LOSS_MEMBERS = (
    ("Index", "rows"),
    ("const int*", "indices"),
    ("const Element*", "actions"),
    ("const float*", "log_probs"),
    ("const float*", "advantages"),
    ("const float*", "returns"),
    ("const float*", "old_values"),
    ("const u8*", "alive"),
    ("const float*", "scalars"),
    ("int", "clipped"),
    ("int", "clips_values"),
    ("float", "value_clip"),
    ("float", "value_weight"),
)
"""What every kernel that works out a loss is told: ``loss_members`` fills it in."""

LOSS_CALL = Struct.of(
    "LossCall",
    "float",
    *LOSS_MEMBERS,
    ("const float*", "parameters"),
    ("const float*", "values"),
    ("float*", "d_parameters"),
    ("float*", "d_values"),
    ("float*", "sums"),
)


def loss_members(
    batch: Batch,
    indices: torch.Tensor | None,
    settings: LossSettings,
    scalars: torch.Tensor,
    head: Head,
    device: torch.device,
) -> dict[str, int | float | None]:
    """The ``LOSS_MEMBERS`` of a minibatch, once the tensors are what a kernel takes them for.

    Args:
        batch: The samples of the iteration.
        indices: int32 [B], which of them these are; None: all, in their order.
        settings: What kind of loss it is.
        scalars: float32 [4], as of ``Ops.loss``.
        head: What the policy's outputs mean.
        device: Where all of it must be.
    """
    samples = len(batch.log_probs)
    rows = samples if indices is None else len(indices)
    element = torch.int32 if head.kind == "discrete" else torch.float32

    def of_samples(name: str, tensor: torch.Tensor) -> int:
        return address(f"batch.{name}", tensor, (samples,), torch.float32, device)

    return {
        "rows": rows,
        "indices": optional_address("indices", indices, (rows,), torch.int32, device),
        "actions": address("batch.actions", batch.actions, (samples, head.width), element, device),
        "log_probs": of_samples("log_probs", batch.log_probs),
        "advantages": of_samples("advantages", batch.advantages),
        "returns": of_samples("returns", batch.returns),
        "old_values": of_samples("values", batch.values),
        "alive": optional_address("batch.alive", batch.alive, (samples,), FLAGS, device),
        "scalars": address("scalars", scalars, (4,), torch.float32, device),
        "clipped": int(settings.clipped),
        "clips_values": int(settings.value_clip is not None),
        "value_clip": settings.value_clip or 0.0,
        "value_weight": settings.value_weight,
    }


def head_shape(head: Head) -> Shape:
    """What the kernels of a head have compiled in."""
    staged = head.parameters if head.parameters <= MOST_STAGED else 0
    stride = staged | 1 if staged else 0
    discrete = head.kind == "discrete"
    sizes = head.sizes if discrete else (1,) * head.width
    offsets = [sum(sizes[:element]) for element in range(head.width)]
    zeros = (0,) * head.width
    lines = [
        f"constexpr int WIDTH = {head.width}, PARAMETERS = {head.parameters}, ROW_STRIDE = {stride};",
        f"constexpr bool DISCRETE = {str(discrete).lower()};",
        f"using Element = {'int' if discrete else 'float'};",
        _table("int", "size_of", [str(size) for size in sizes]),
        _table("int", "offset_of", [str(offset) for offset in offsets]),
        _table("int", "start_of", [str(start) for start in head.starts or zeros]),
        _table("float", "low_of", [f"float({bound!r})" for bound in head.low or zeros]),
        _table("float", "high_of", [f"float({bound!r})" for bound in head.high or zeros]),
    ]
    return Shape("\n".join(lines), staging_bytes=4 * stride, weight=1 + head.parameters)


def _table(kind: str, name: str, values: list[str]) -> str:
    if len(set(values)) == 1:
        return f"FN constexpr {kind} {name}(int) {{ return {values[0]}; }}"
    listed = ", ".join(values)
    return f"FN constexpr {kind} {name}(int d) {{ constexpr {kind} table[] = {{{listed}}}; return table[d]; }}"


@final
class Ops:
    """The kernels of one head on one device, compiled when first needed."""

    def __init__(self, head: Head, device: str, threads: int | None = None) -> None:
        """Opens the device.

        Args:
            head: What the policy's outputs mean.
            device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
            threads: For the CPU: the most threads to use; None: one for each core.
        """
        self.head: Final = head
        self._compiler: Final = Compiler(device, threads)
        self._element: Final = torch.int32 if head.kind == "discrete" else torch.float32

    @functools.cached_property
    def _sample(self) -> Kernel:
        headers = ("distributions.cuh", "sampler.cuh")
        return self._compiler.compile(headers, {"sample": SAMPLE_CALL}, head_shape(self.head))[0]

    @functools.cached_property
    def _loss(self) -> Kernel:
        headers = ("distributions.cuh", "policy_loss.cuh")
        return self._compiler.compile(headers, {"loss": LOSS_CALL}, head_shape(self.head))[0]

    def sample(
        self,
        parameters: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        *,
        stream: torch.Tensor,
        turn: int,
        acted: torch.Tensor | None = None,
        entropies: torch.Tensor | None = None,
        greedy: bool = False,
        first_row: int = 0,
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
        """
        rows, device = len(parameters), self._compiler.device
        if acted is not None and self.head.kind != "box":
            raise ValueError("acted is for boxes; discrete actions are what the environment takes: leave it out")
        if first_row < 0 or first_row + rows > 2**32:
            raise ValueError(f"rows {first_row} to {first_row + rows - 1} are not numbers of 32 bits; give fewer")
        if not 0 <= turn < 2**63:
            raise ValueError(f"turn is {turn}; give 0 or more")
        wide = (rows, self.head.width)
        self._sample(
            rows,
            {
                "rows": rows,
                "first_row": first_row,
                "stream": address("stream", stream, (2,), torch.int64, device),
                "turn": turn,
                "parameters": address("parameters", parameters, (rows, self.head.parameters), torch.float32, device),
                "actions": address("actions", actions, wide, self._element, device),
                "acted": optional_address("acted", acted, wide, torch.float32, device),
                "log_probs": address("log_probs", log_probs, (rows,), torch.float32, device),
                "entropies": optional_address("entropies", entropies, (rows,), torch.float32, device),
                "greedy": int(greedy),
            },
        )

    def loss(
        self,
        parameters: torch.Tensor,
        values: torch.Tensor,
        batch: Batch,
        indices: torch.Tensor | None,
        settings: LossSettings,
        scalars: torch.Tensor,
        d_parameters: torch.Tensor,
        d_values: torch.Tensor,
        sums: torch.Tensor,
    ) -> None:
        """Works out the loss of each sample, and the gradient of the sum over those that were alive.

        Args:
            parameters: [B, P], the policy's outputs now.
            values: [B], the values now.
            batch: The samples of the iteration.
            indices: int32 [B], which of them these are; None: all, in their order.
            settings: What kind of loss it is.
            scalars: float32 [4] on the device: the advantages' mean, one over their deviation, the entropy's weight,
                and how far the ratio may be from 1.
            d_parameters: [B, P], written: the gradient.
            d_values: [B], written: the gradient.
            sums: [6, B], written: for each sample ``SUMS``; zeros where the agent was not alive.
        """
        rows, samples, device, head = len(parameters), len(batch.log_probs), self._compiler.device, self.head
        if indices is None and rows != samples:
            raise ValueError(f"there are {rows} rows for {samples} samples; give indices, or as many rows as samples")

        def of_rows(name: str, tensor: torch.Tensor) -> int:
            return address(name, tensor, (rows,), torch.float32, device)

        if indices is not None and rows != len(indices):
            raise ValueError(f"there are {rows} rows for {len(indices)} indices; give as many")
        wide = (rows, head.parameters)
        self._loss(
            rows,
            {
                **loss_members(batch, indices, settings, scalars, head, device),
                "parameters": address("parameters", parameters, wide, torch.float32, device),
                "values": of_rows("values", values),
                "d_parameters": address("d_parameters", d_parameters, wide, torch.float32, device),
                "d_values": of_rows("d_values", d_values),
                "sums": address("sums", sums, (len(SUMS), rows), torch.float32, device),
            },
        )
