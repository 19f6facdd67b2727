"""The processes that train one run together, each with replicas of its own, and what they tell one another."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from gpu_envs.errors import LostProcessError

KeptT = TypeVar("KeptT")

LOST = "another of the processes that train together has ended"

_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12


@contextlib.contextmanager
def _losses_told() -> Iterator[None]:
    """Says plainly that another process is no longer there, where torch says it by its sockets."""
    try:
        yield
    except RuntimeError as error:
        if "peer" in str(error):
            raise LostProcessError(LOST) from error
        raise


@final
class Group:
    """Processes of torch's that make the same calls in the same order; or one alone, for which they cost nothing.

    Attributes:
        rank: The number of this process.
        size: How many there are.
    """

    def __init__(self, handle: Any = None) -> None:
        """Takes a process group of ``torch.distributed``; None: alone."""
        self.rank = dist.get_rank(handle) if handle is not None else 0
        self.size = dist.get_world_size(handle) if handle is not None else 1
        # The group of all is not held: one that outlives torch's own end of it aborts the process at its exit.
        self._handle = None if handle is None or handle is dist.group.WORLD else handle
        self._first = 0 if self._handle is None else dist.get_global_rank(handle, 0)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """What each process gave, ``[size, ...]``, by rank."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        parts = tensor.new_empty((self.size, *tensor.shape))
        with _losses_told():
            _GATHER(parts.view(-1), tensor.reshape(-1), group=self._handle)
        return parts

    def sum(self, tensor: torch.Tensor) -> None:
        """Adds up what each process gave, in place and in order of rank: the same bits for all, every time."""
        if self.size > 1:
            torch.sum(self.gathered(tensor), 0, out=tensor)

    def take_first(self, tensor: torch.Tensor) -> None:
        """Takes over what the first process has there."""
        if self.size > 1:
            tensor.copy_(self.gathered(tensor)[0])

    def told(self, something: KeptT) -> list[KeptT]:
        """What each process says, by rank: small things, which the host waits for."""
        found: list[Any] = [something] * self.size
        if self.size > 1:
            with _losses_told():
                dist.all_gather_object(found, something, group=self._handle)
        return found

    def collected(self, kept: KeptT) -> list[KeptT] | None:
        """What each process keeps, by rank, on the first one; None on the others. It comes by way of the host."""
        if self.size == 1:
            return [kept]
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        moved = tree_map(lambda part: part.cpu() if isinstance(part, torch.Tensor) else part, kept)
        with _losses_told():
            dist.gather_object(moved, found, dst=self._first, group=self._handle)
        return found

    def check_same(self, given: Mapping[str, Any]) -> None:
        """Refuses processes that were given different settings."""
        first, *others = self.told(dict(given))
        for rank, other in enumerate(others, 1):
            for name in first:
                if other.get(name) != first[name]:
                    raise ValueError(
                        f"processes that train together must have the same settings: {name} is {first[name]!r} in the "
                        f"first and {other.get(name)!r} in number {rank}"
                    )
