"""Heads of policies, by what they have."""

from gpu_envs.training.operations.heads import Head


def discrete(*sizes: int) -> Head:
    """Elements with so many choices each, which begin with 0, 1, 2 and so on."""
    return Head("discrete", sizes, tuple(range(len(sizes))), (), (), scalar=len(sizes) == 1)


def box(count: int) -> Head:
    """So many real elements from -2 to 1."""
    return Head("box", (count,), (), (-2.0,) * count, (1.0,) * count, scalar=False)
