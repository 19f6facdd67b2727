"""Small multilayer perceptrons run by kernels of our own: acting, valuing and the gradient in a launch or two each."""

import functools
from collections.abc import Sequence
from typing import Final, final

import torch

from gpu_envs.arrays import TorchArrays
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.torch_kernels import Kernel, address, optional_address
from gpu_envs.training.fused_programs import (
    ACT_BLOCKS,
    ARITHMETIC,
    REDUCED_COLUMNS,
    TILE,
    Network,
    Places,
    reduce_program,
)
from gpu_envs.training.heads import Head
from gpu_envs.training.normalise import OBSERVATION_LIMIT
from gpu_envs.training.ops import SUMS, Batch, LossSettings, loss_members

__all__ = ["FusedNetworks", "Places"]

ACTIVATIONS = ("tanh", "relu")
WIDTHS = (32, 64)
"""Of a hidden layer."""
MOST_FEATURES = 64
MOST_PARAMETERS = 32


@final
class FusedNetworks:
    """Actor and critic, perceptrons of two hidden layers each, on a CUDA device."""

    def __init__(
        self,
        head: Head,
        features: int,
        hidden: Sequence[int],
        activation: str,
        device: str,
        precision: str,
        actor: Places,
        critic: Places,
    ) -> None:
        """Checks that they fit; the kernels are compiled when first needed.

        Args:
            head: What the actor's outputs mean.
            features: Of an observation.
            hidden: Widths of the two hidden layers.
            activation: ``tanh`` or ``relu``.
            device: ``cuda`` or ``cuda:N``.
            precision: Of products: ``float32``, ``tf32`` or ``bf16``.
            actor: Where its parameters lie in the flat buffer.
            critic: The same.
        """
        reason = self.fits(head, features, hidden, activation, device, precision)
        if reason:
            raise ValueError(f"these networks cannot be fused: {reason}; run them with torch")
        first, second = hidden
        self.network: Final = Network(head, features, (first, second), activation, precision, actor, critic)
        self._device: Final = torch.device(resolve_device(device))
        self._backend: Final = open_backend(str(self._device))
        self._stream: Final = TorchArrays(str(self._device))
        self._element: Final = torch.int32 if head.kind == "discrete" else torch.float32
        self._processors: Final = self._backend.traits.processors
        workers = max(1, self._processors * self.network.update_blocks // 2)
        self._partials: Final = torch.empty(workers, self.network.parameters + len(SUMS), device=self._device)

    @staticmethod
    def fits(head: Head, features: int, hidden: Sequence[int], activation: str, device: str, precision: str) -> str:
        """Why such networks cannot be fused; empty where they can. Arguments as of the class."""
        if not device.startswith("cuda"):
            return f"the device is {device}, and only CUDA has these kernels"
        if len(hidden) != 2 or any(width not in WIDTHS for width in hidden):
            return f"hidden layers are {tuple(hidden)}, not two of {' or '.join(map(str, WIDTHS))}"
        if activation not in ACTIVATIONS:
            return f"the activation is {activation}, not {' or '.join(ACTIVATIONS)}"
        if precision not in ARITHMETIC:
            return f"the precision is {precision}, not {', '.join(ARITHMETIC)}"
        if features > MOST_FEATURES:
            return f"observations have {features} features, more than {MOST_FEATURES}"
        if head.parameters > MOST_PARAMETERS:
            return f"the distribution has {head.parameters} parameters, more than {MOST_PARAMETERS}"
        if not torch.cuda.is_available():
            return ""
        if torch.cuda.get_device_capability(torch.device(device).index) < (8, 0):
            return "the device's compute capability is below 8.0"
        anywhere = Places(0, 0, 0, 0, 0, 0)
        network = Network(head, features, (hidden[0], hidden[1]), activation, precision, anywhere, anywhere)
        room = open_backend(resolve_device(device)).traits.shared_bytes
        if network.update_bytes > room:
            return f"they take {network.update_bytes} bytes of shared memory, and the device's blocks have {room}"
        return ""

    @functools.cached_property
    def _forward(self) -> tuple[Kernel, Kernel]:
        program = self.network.act_program()
        kernels = self._backend.load(program)
        act, values = (Kernel(kernels, name, program.calls[name](), self._stream) for name in ("act", "values"))
        return act, values

    @functools.cached_property
    def _backward(self) -> tuple[Kernel, Kernel]:
        programs = {"update": self.network.update_program(), "reduce": reduce_program()}
        update, reduce = (
            Kernel(self._backend.load(program), name, program.calls[name](), self._stream)
            for name, program in programs.items()
        )
        return update, reduce

    def act(
        self,
        flat: torch.Tensor,
        observations: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        *,
        stream: torch.Tensor,
        turn: int,
        acted: torch.Tensor | None = None,
        greedy: bool = False,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Runs the actor and draws actions, with the random numbers of ``Ops.sample``.

        Args:
            flat: All parameters.
            observations: ``[R, F]``.
            actions: ``[R, W]``, written.
            log_probs: ``[R]``, written.
            stream: int64 [2] on the device: key and counter.
            turn: Which of the draws since the counter changed.
            acted: ``[R, W]``, written: for a box, what the environment takes.
            greedy: Take the likeliest action.
            scale: Mean and inverse deviation of observations, ``[F]`` each.
        """
        rows, head = len(observations), self.network.head
        wide = (rows, head.width)
        kernel, _ = self._forward
        kernel(
            self._blocks(rows, self._processors * ACT_BLOCKS),
            {
                **self._common(flat, observations, scale),
                "rows": rows,
                "stream": address("stream", stream, (2,), torch.int64, self._device),
                "turn": turn,
                "actions": address("actions", actions, wide, self._element, self._device),
                "acted": optional_address("acted", acted, wide, torch.float32, self._device),
                "log_probs": address("log_probs", log_probs, (rows,), torch.float32, self._device),
                "greedy": int(greedy),
            },
        )

    def values(
        self,
        flat: torch.Tensor,
        observations: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Runs the critic.

        Args:
            flat: All parameters.
            observations: ``[M, F]``.
            values: ``[M]``, written.
            scale: Mean and inverse deviation of observations, ``[F]`` each.
        """
        rows = len(observations)
        _, kernel = self._forward
        kernel(
            self._blocks(rows, self._processors * ACT_BLOCKS),
            {
                **self._common(flat, observations, scale),
                "rows": rows,
                "values": address("values", values, (rows,), torch.float32, self._device),
            },
        )

    def gradients(
        self,
        flat: torch.Tensor,
        observations: torch.Tensor,
        batch: Batch,
        indices: torch.Tensor | None,
        settings: LossSettings,
        scalars: torch.Tensor,
        gradient: torch.Tensor,
        totals: torch.Tensor,
        *,
        scale: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Works out the gradient of the sum of the losses of the samples that were alive: the same bits every time.

        Args:
            flat: All parameters.
            observations: ``[M, F]``, of all samples.
            batch: What else is known of them.
            indices: int32 ``[B]``, which to take; None: all.
            settings: The loss.
            scalars: float32 [4] on the device, as of ``Ops.loss``.
            gradient: As ``flat``, written.
            totals: ``[6]``, written: the sums of ``SUMS``.
            scale: Mean and inverse deviation of observations, ``[F]`` each.
        """
        samples, device, kind, head = len(observations), self._device, torch.float32, self.network.head
        if samples != len(batch.log_probs):
            raise ValueError(f"there are observations of {samples} samples, and a batch of {len(batch.log_probs)}")
        rows = samples if indices is None else len(indices)
        if rows == 0:
            gradient.zero_()
            totals.zero_()
            return

        update, reduce = self._backward
        workers = self._blocks(rows, len(self._partials))
        update(
            2 * workers,
            {
                **self._common(flat, observations, scale),
                **loss_members(batch, indices, settings, scalars, head, device),
                "parameters": self.network.parameters,
                "partials": self._partials.data_ptr(),
            },
        )
        columns = self.network.parameters + len(SUMS)
        reduce(
            -(-columns // REDUCED_COLUMNS),
            {
                "parameters": self.network.parameters,
                "sums": len(SUMS),
                "rows": workers,
                "partials": self._partials.data_ptr(),
                "gradient": address("gradient", gradient, (self.network.parameters,), kind, device),
                "totals": address("totals", totals, (len(SUMS),), kind, device),
            },
        )

    def _common(
        self, flat: torch.Tensor, observations: torch.Tensor, scale: tuple[torch.Tensor, torch.Tensor] | None
    ) -> dict[str, int | float | None]:
        features, device, kind = self.network.features, self._device, torch.float32
        rows = len(observations)
        if rows >= 2**31:
            raise ValueError(f"there are {rows} rows of observations; give fewer than 2^31")
        mean, inverse = scale or (None, None)
        return {
            "flat": address("flat", flat, (self.network.parameters,), kind, device),
            "observations": address("observations", observations, (rows, features), kind, device),
            "mean": optional_address("mean", mean, (features,), kind, device),
            "inverse": optional_address("inverse", inverse, (features,), kind, device),
            "limit": OBSERVATION_LIMIT,
        }

    @staticmethod
    def _blocks(rows: int, most: int) -> int:
        """Blocks for so many rows, so that all have equally many tiles, or one less."""
        tiles = -(-rows // TILE)
        return -(-tiles // -(-tiles // most)) if tiles else 0
