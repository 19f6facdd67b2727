"""The processes that train one run together, each with replicas of its own, and what they tell one another."""

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from gpu_envs.errors import LostProcessError
from gpu_envs.training.process.peers import PeerMemory, Reach, SmallExchange, host, reach_of

KeptT = TypeVar("KeptT")

_SMALL = 2**14
"""Numbers of 32 bits, up to which messages of any kind go through peer memory."""

LOST = "another of the processes that train together has ended"

_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12


@contextlib.contextmanager
def _losses_told() -> Iterator[None]:
    """Says plainly that another process is no longer there, where torch says it by its sockets."""
    try:
        yield
    except RuntimeError as error:
        if any(word in str(error) for word in ("peer", "Broken pipe")):
            raise LostProcessError(LOST) from error
        raise


@final
class Group:
    """Processes of torch's that make the same calls in the same order; or one alone, for which they cost nothing."""

    def __init__(self, handle: Any = None) -> None:
        """Takes a process group of ``torch.distributed``; None: alone."""
        self.rank = dist.get_rank(handle) if handle is not None else 0
        self.size = dist.get_world_size(handle) if handle is not None else 1
        # The group of all is not held: one that outlives torch's own end of it aborts the process at its exit.
        self._handle = None if handle is None or handle is dist.group.WORLD else handle
        self._small: SmallExchange | None = None
        self._first = 0 if self._handle is None else dist.get_global_rank(handle, 0)

    @functools.cached_property
    def _reach(self) -> Reach:
        """What the processes can exchange through memory of their GPUs."""
        reach = reach_of(self._handle or dist.group.WORLD)
        if reach.why_not and self.size > 2 and "NCCL_ALGO" not in os.environ:
            warnings.warn(
                "NCCL adds up what these processes give, in an order that may differ from run to run: for the same "
                "bits every time set NCCL_ALGO=Ring,Tree in the environment before torch.distributed is initialised",
                stacklevel=2,
            )
        return reach

    @property
    def way(self) -> str:
        """What gradients are added up through, and why."""
        if self.size == 1:
            return ""
        backends = str(dist.get_backend_config(self._handle))
        if "cuda:nccl" not in backends:
            return str(dist.get_backend(self._handle))
        if self._reach.why_not:
            return f"NCCL ({self._reach.why_not})"
        return f"peer memory, and NCCL where they are more than {self._reach.most:,}"

    def peer_memory(self, numbers: int, device: torch.device) -> PeerMemory | None:
        """Memory through which to exchange so many numbers of 32 bits; None where they are left to ``sum``."""
        if self.size == 1 or device.type != "cuda" or numbers > self._reach.most:
            return None
        return PeerMemory(self._handle or dist.group.WORLD, numbers, device)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """What each process gave, ``[size, ...]``, by rank."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        parts = tensor.new_empty((self.size, *tensor.shape))
        small = self._small_exchange(tensor)
        if small is not None:
            small.gather(tensor, parts)
            return parts
        with _losses_told():
            _GATHER(parts.view(-1), tensor.reshape(-1), group=self._handle)
        return parts

    def _small_exchange(self, tensor: torch.Tensor) -> SmallExchange | None:
        numbers = tensor.numel() * tensor.element_size() // 4
        if not tensor.is_cuda or tensor.element_size() < 4 or not 0 < numbers <= _SMALL or self._reach.why_not:
            return None
        if self._small is None:
            self._small = SmallExchange(self._handle or dist.group.WORLD, _SMALL, tensor.device)
        return self._small

    def sum(self, tensor: torch.Tensor) -> None:
        """Adds up what each process gave, in place, in order of rank, save for NCCL, which has an order of its own."""
        if self.size == 1:
            return
        if tensor.is_cuda and self._small_exchange(tensor) is None:
            dist.all_reduce(tensor, group=self._handle)
        else:
            torch.sum(self.gathered(tensor), 0, out=tensor)

    def combine(self, figures: torch.Tensor, added: int) -> None:
        """Puts into place, of so many figures, the sums over what each process gave; of the others the largest."""
        if self.size == 1:
            return
        small = self._small_exchange(figures)
        if small is not None:
            small.combine(figures, added)
            return
        gathered = self.gathered(figures)
        torch.sum(gathered[:, :added], 0, out=figures[:added])
        torch.amax(gathered[:, added:], 0, out=figures[added:])

    def take_first(self, tensor: torch.Tensor) -> None:
        """Takes over what the first process has there."""
        if self.size > 1:
            tensor.copy_(self.gathered(tensor)[0])

    def told(self, message: KeptT) -> list[KeptT]:
        """What each process says, by rank: small things, which the host waits for."""
        messages: list[Any] = [message] * self.size
        if self.size > 1:
            with _losses_told():
                dist.all_gather_object(messages, message, group=self._handle)
        return messages

    def neighbours(self) -> list[int]:
        """The numbers by which this host knows the other processes that run here."""
        local = (host(), os.getpid())
        return [number for place, number in self.told(local) if place == local[0] and number != local[1]]

    def collected(self, state: KeptT) -> list[KeptT] | None:
        """The state of each process, by rank, on the first one; None on the others. It comes by way of the host."""
        if self.size == 1:
            return [state]
        states: list[Any] | None = [None] * self.size if self.rank == 0 else None
        moved = tree_map(lambda part: part.cpu() if isinstance(part, torch.Tensor) else part, state)
        with _losses_told():
            dist.gather_object(moved, states, dst=self._first, group=self._handle)
        return states

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Refuses processes that were not given the same."""
        first, *others = self.told(dict(settings))
        for rank, other in enumerate(others, 1):
            name = next((name for name in first if other.get(name) != first[name]), None)
            if name is not None:
                raise ValueError(
                    f"processes that train together must be given the same: {name} is {first[name]!r} in the first and "
                    f"{other.get(name)!r} in number {rank}"
                )
