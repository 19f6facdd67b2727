"""Wide perceptrons as functions: their outputs, and the gradients by their weights and their inputs."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.wide_programs import WideNetwork
from gpu_envs.training.policies.wide_kernels import WideKernels
from gpu_envs.training.policies.wide_networks import Places, layers_of, why_not_wide

MOST_BY_INPUTS = 256
"""So many columns has a product at most."""


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

    Raises:
        ValueError: The kernels cannot run them; the message says why.
    """
    places = Places(parameter for module in modules for parameter in module.parameters())
    head = Head("discrete", (outputs,), (0,), (), (), scalar=True)
    nets = tuple(layers_of(module, places) for module in modules)
    hidden = tuple(layer.rows for layer in nets[0][:-1])
    reason = why_not_wide(head, features, hidden, activation, precision, "cuda")
    if reason:
        raise ValueError(f"the kernels of wide networks cannot run the functions: {reason}")
    if by_inputs.step != 1 or by_inputs.stop > features or len(by_inputs) > MOST_BY_INPUTS:
        raise ValueError(
            f"by_inputs is {by_inputs}; give up to {MOST_BY_INPUTS} of the {features} inputs that lie side by side"
        )
    return WideNetwork(
        head, features, nets, activation, precision, places.end,
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
