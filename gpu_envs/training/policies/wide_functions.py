"""Wide perceptrons as functions: their outputs, and the gradients by their weights and their inputs."""

from typing import final

import torch

from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.perceptrons import Form
from gpu_envs.training.operations.wide_programs import WideNetwork
from gpu_envs.training.policies.wide_kernels import WideKernels
from gpu_envs.training.policies.wide_networks import why_not_wide

MOST_BY_INPUTS = 256
"""So many columns has a product at most."""


def why_no_functions(form: Form, precision: str, device: str) -> str:
    """Why the kernels cannot run such functions on a CUDA device; empty where they can."""
    features, *hidden, outputs = form.sizes
    return why_not_wide(_head(outputs), features, tuple(hidden), form.activation, precision, device)


def function_network(form: Form, precision: str, processors: int) -> WideNetwork:
    """What is compiled in for one or two functions.

    Args:
        form: Linear layers with activations, and normalised or not, between them.
        precision: ``tf32`` or ``bf16``.
        processors: Of the device.

    Raises:
        ValueError: The kernels cannot run them; the message says why.
    """
    features, *_, outputs = form.sizes
    reason, by_inputs = why_no_functions(form, precision, "cuda"), form.by_inputs
    if reason:
        raise ValueError(f"the kernels of wide networks cannot run the functions: {reason}")
    if by_inputs.step != 1 or by_inputs.stop > features or len(by_inputs) > MOST_BY_INPUTS:
        raise ValueError(
            f"by_inputs is {by_inputs}; give up to {MOST_BY_INPUTS} of the {features} inputs that lie side by side"
        )
    return WideNetwork(
        _head(outputs), features, form.nets, form.activation, precision, form.count,
        processors=processors, functions=True, first_input=by_inputs.start, by_inputs=len(by_inputs),
    )  # fmt: skip


def _head(outputs: int) -> Head:
    """So many outputs, which mean nothing to the kernels."""
    return Head("discrete", (outputs,), (0,), (), (), scalar=True)


@final
class WideFunctions(WideKernels):
    """One or two functions of the same inputs, in one launch each way."""

    _inputs: torch.Tensor

    def outputs(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        """Writes the outputs, ``[rows, nets, outputs]``, of ``inputs``, ``[rows, features]``."""
        rows, self._inputs = len(inputs), inputs
        if rows == 0:
            return
        self._pack_weights()
        blocks = self._blocks_for(rows * len(self.network.nets))
        self._forward[0].launch(max(blocks, len(self.network.nets)), **self._common(inputs), rows=rows, outputs=outputs)

    def back(self, by_outputs: torch.Tensor, *, by_inputs: torch.Tensor | None = None, weights: bool = True) -> None:
        """Finds the gradients of a loss whose derivatives by the last outputs are known; their inputs are as then.

        Args:
            by_outputs: ``[rows, nets, outputs]``.
            by_inputs: Receives the derivatives by the inputs that the network was made for, ``[rows, nets, inputs]``.
            weights: Whether the gradient by the parameters, summed over the rows, is wanted.
        """
        self._go_through(None, by_outputs, None, by_inputs, weights)

    def forth_and_back(
        self, inputs: torch.Tensor, outputs: torch.Tensor, by_outputs: torch.Tensor,
        curvatures: torch.Tensor | None = None, *, by_inputs: torch.Tensor | None = None, weights: bool = True,
    ) -> None:  # fmt: skip
        """Does both in one launch, where the derivatives are ``by_outputs``, plus ``curvatures * outputs`` if given."""
        self._inputs = inputs
        self._go_through(outputs, by_outputs, curvatures, by_inputs, weights)

    def _go_through(
        self, outputs: torch.Tensor | None, by_outputs: torch.Tensor, curvatures: torch.Tensor | None,
        by_inputs: torch.Tensor | None, weights: bool,
    ) -> None:  # fmt: skip
        inputs = self._inputs
        if by_inputs is not None and not self.network.by_inputs:
            raise ValueError("by_inputs is given, and the network was made without; give function_network by_inputs")
        if len(inputs) == 0:
            if weights:
                self._gradient.zero_()
            return
        self._go_back(
            len(inputs),
            lambda piece: {
                **self._common(inputs[piece]), "rows": piece.stop - piece.start, "weights": int(weights),
                "outputs": None if outputs is None else outputs[piece], "by_outputs": by_outputs[piece],
                "curvatures": None if curvatures is None else curvatures[piece],
                "by_inputs": None if by_inputs is None else by_inputs[piece],
            },
            None, weights=weights, packed=outputs is None,
        )  # fmt: skip
