"""Wide perceptrons as functions: their outputs, and the gradients by their weights and their inputs."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.wide_programs import WideNetwork
from gpu_envs.training.policies.wide_kernels import WideKernels
from gpu_envs.training.policies.wide_networks import Places, layers_of


def function_network(
    modules: Sequence[nn.Sequential], features: int, outputs: int, activation: str, precision: str, processors: int, *,
    by_inputs: range = range(0),
) -> WideNetwork:  # fmt: skip
    """What is compiled in for one or two modules of the same form, whose parameters lie one after another.

    Args:
        modules: Linear layers with activations, and normalised or not, between them.
        features: Inputs of each.
        outputs: Of each.
        activation: As in ``Config``.
        precision: ``tf32`` or ``bf16``.
        processors: Of the device.
        by_inputs: Of which inputs the gradient can be asked for.
    """
    places = Places(parameter for module in modules for parameter in module.parameters())
    head = Head("discrete", (outputs,), (0,), (), (), scalar=True)
    return WideNetwork(
        head, features, tuple(layers_of(module, places) for module in modules), activation, precision, places.end,
        processors=processors, functions=True, first_input=by_inputs.start, by_inputs=len(by_inputs),
    )  # fmt: skip


@final
class WideFunctions(WideKernels):
    """One or two functions of the same inputs, in one launch each way."""

    def outputs(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Writes the outputs, ``[rows, nets, outputs]``, of ``inputs``, ``[rows, features]``."""
        rows = len(inputs)
        if rows == 0:
            return
        self._pack.launch(self._blocks)
        blocks = self._blocks_for(rows * len(self.network.nets))
        self._forward[0].launch(max(blocks, len(self.network.nets)), **self._common(inputs), rows=rows, outputs=outputs)

    def back(
        self, inputs: torch.Tensor, by_outputs: torch.Tensor, *, by_inputs: torch.Tensor | None = None,
        weights: bool = True,
    ) -> None:  # fmt: skip
        """Finds the gradients of a loss whose derivatives by the outputs are known.

        Args:
            inputs: ``[rows, features]``.
            by_outputs: ``[rows, nets, outputs]``.
            by_inputs: Receives the derivatives by the inputs that the network was made for, ``[rows, nets, inputs]``.
            weights: Whether the gradient by the parameters, summed over the rows, is wanted.
        """
        if by_inputs is not None and not self.network.by_inputs:
            raise ValueError("by_inputs is given, and the network was made without; give function_network by_inputs")
        if len(inputs) == 0:
            if weights:
                self._gradient.zero_()
            return
        self._go_back(
            len(inputs),
            lambda piece: {
                **self._common(inputs[piece]), "rows": piece.stop - piece.start, "by_outputs": by_outputs[piece],
                "by_inputs": None if by_inputs is None else by_inputs[piece],
            },
            None, weights=weights,
        )  # fmt: skip
