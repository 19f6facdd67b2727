"""Functions that go forth and back at once."""

from typing import Any

import torch


def check_both_ways(functions: Any, gradient: Any, inputs: Any, by: Any, outputs: Any, by_inputs: Any | None) -> None:
    """Finds what two calls do, bit for bit, and leaves the gradient by the weights alone if it is not wanted.

    Args:
        functions: Whose last inputs were ``inputs``.
        gradient: Where they leave the gradient by their weights.
        inputs: Of both ways.
        by: The derivatives by the outputs, but for what follows from these.
        outputs: What ``inputs`` gave.
        by_inputs: What ``by`` gave, if the gradient by inputs can be had.
    """
    curvatures = (torch.rand_like(by) < 0.5).float()
    functions.back(torch.where(curvatures > 0, by + outputs, by))
    whole = gradient.clone()
    found = torch.full_like(outputs, torch.nan)
    functions.forth_and_back(inputs, found, by, curvatures)
    assert torch.equal(found, outputs)
    assert torch.equal(gradient, whole)
    if by_inputs is not None:
        wanted = torch.full_like(by_inputs, torch.nan)
        functions.forth_and_back(inputs, found.fill_(torch.nan), by, by_inputs=wanted, weights=False)
        assert torch.equal(found, outputs)
        assert torch.equal(wanted, by_inputs)
        assert torch.equal(gradient, whole)
