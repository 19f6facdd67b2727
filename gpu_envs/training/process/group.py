"""The processes that train one run together, each with replicas of its own, and what they tell one another.

Those with a GPU each of one host can write to memory of all of these GPUs, and exchange gradients and small messages
through it.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import Kernel, load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct
from gpu_envs.errors import LostProcessError

KeptT = TypeVar("KeptT")

_SMALL = 2**14
"""Numbers of 32 bits, up to which messages of any kind go through peer memory."""

LOST = "another of the processes that train together has ended"

_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12

BLOCK = 256
"""Numbers that a block of threads exchanges."""

BLOCKS = 4
"""So many blocks have room on each multiprocessor of a GPU at the same time."""

PATIENCE = 600.0
"""Seconds after which a process that says nothing is taken for lost."""

PEER_MEMORY_VARIABLE = "GPU_ENVS_PEER_MEMORY"
"""The environment variable that, at 0, leaves all exchanges to NCCL."""

PEERS: Final[tuple[Any, ...]] = (
    ("const u64*?", "addresses", ("processes",)),
    ("int", "rank"),
    ("Index", "room"),
    ("int*?", "rounds", ("room_blocks",)),
)
"""What a kernel that exchanges numbers must know."""

ALONE: Final[dict[str, Any]] = {"addresses": None, "rank": 0, "room": 0, "rounds": None, "room_blocks": 0}
"""Of which for one process there is nothing to know."""

GATHER_CALL = Struct.of(
    "GatherCall",
    "float",
    ("Index", "count"),
    ("const int*", "own", ("count",)),
    ("int*", "gathered", ("processes", "count")),
    *PEERS,
)

COMBINE_CALL = Struct.of(
    "CombineCall", "float", ("Index", "count"), ("Index", "added"), ("float*", "figures", ("count",)), *PEERS
)


def constants(processes: int) -> str:
    """What ``peers.cuh`` has compiled in."""
    return (
        f"constexpr int PROCESSES = {processes}, BLOCK = {BLOCK}, BLOCKS = {BLOCKS};\n"
        f"constexpr u64 PATIENCE = {int(PATIENCE * 1e9)};\n"
    )


def settings(processes: int, prologue: str = "") -> KernelSettings:
    """Of programs whose kernels exchange numbers among so many processes."""
    return KernelSettings(
        prologue=constants(processes) + prologue,
        sizes={"processes": processes},
        grid=Grid(threads=BLOCK, replicas=1),
    )


def small_program(processes: int) -> Program:
    """The source of what is exchanged beside gradients."""
    calls = {"gather": GATHER_CALL, "combine": COMBINE_CALL}
    kernels = "\n".join(
        f"KERNEL_OF_BLOCKS(kernel_{name}, {call.name}, BLOCK, BLOCKS) {{ FOR_EACH_BLOCK(block) {name}(call, block); }}"
        for name, call in calls.items()
    )
    return program_of(("training/common/peers.cuh", ("gather", kernels)), calls, settings(processes))


def blocks_of(numbers: int) -> int:
    """How many blocks exchange so many numbers."""
    return -(-numbers // BLOCK)


def host() -> tuple[str, ...]:
    """Names this host and container."""
    boot = Path("/proc/sys/kernel/random/boot_id")  # which containers have in common
    spaces = [Path("/proc/self/ns", name) for name in ("pid", "mnt")]
    name = boot.read_text() if boot.exists() else os.uname().nodename
    return name, *(str(space.readlink()) for space in spaces if space.exists())


@final
class PeerMemory:
    """Room in the memory of all for numbers of each process; ``members`` fill the kernels that exchange through it."""

    def __init__(self, group: Any, numbers: int, device: torch.device) -> None:
        """Allocates for at most so many numbers of 32 bits in a round; every process does so at the same time."""
        import torch.distributed._symmetric_memory as symmetric

        size, blocks = dist.get_world_size(group), blocks_of(numbers)
        room = blocks * BLOCK
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # which we have no use for
        self._memory: Final[Any] = symmetric.empty(2 * size * room, dtype=torch.int64, device=device)
        self._memory.zero_()
        self._handle: Final[Any] = symmetric.rendezvous(self._memory, group)
        torch.cuda.synchronize(device)
        dist.barrier(group)  # nobody writes into what is yet to be zeroed
        self.members: Final[dict[str, Any]] = {
            "addresses": torch.tensor(self._handle.buffer_ptrs, dtype=torch.int64, device=device),
            "rank": dist.get_rank(group),
            "room": room,
            "rounds": torch.zeros(blocks, dtype=torch.int32, device=device),
            "room_blocks": blocks,
        }


class PeerLimit(NamedTuple):
    """The most numbers of 32 bits that the processes of a group can exchange at a time; 0: why they cannot."""

    most: int
    why_not: str = ""


@contextlib.contextmanager
def _explain_lost_peers() -> Iterator[None]:
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
        self._memory: PeerMemory | None = None
        self._small_kernels: list[Kernel] = []

    @functools.cached_property
    def _reach(self) -> PeerLimit:
        local = torch.cuda.current_device()
        gpu = torch.cuda.get_device_properties(local)
        turned_off = os.environ.get(PEER_MEMORY_VARIABLE) == "0"
        places = self.all_gather_objects((turned_off, host(), str(gpu.uuid), gpu.multi_processor_count))
        devices = {str(torch.cuda.get_device_properties(n).uuid): n for n in range(torch.cuda.device_count())}
        peers = [peer for _, _, uuid, _ in places if (peer := devices.get(uuid)) != local]
        reached = all(peer is not None and torch.cuda.can_device_access_peer(local, peer) for peer in peers)
        why_not = ""
        if any(unwanted for unwanted, *_ in places):
            why_not = f"{PEER_MEMORY_VARIABLE} is 0"
        elif any(where != places[0][1] for _, where, *_ in places):
            why_not = "they are on several hosts or in several containers"
        elif not all(self.all_gather_objects(reached)):
            why_not = "their GPUs do not reach or do not see one another"
        if why_not and self.size > 2 and "NCCL_ALGO" not in os.environ:
            warnings.warn(
                "NCCL adds up what these processes give, in an order that may differ from run to run: for the same "
                "bits every time set NCCL_ALGO=Ring,Tree in the environment before torch.distributed is initialised",
                stacklevel=2,
            )
        return PeerLimit(0 if why_not else BLOCK * BLOCKS * min(count for *_, count in places), why_not)

    @property
    def transport(self) -> str:
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

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """What each process gave, ``[size, ...]``, by rank."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        parts = tensor.new_empty((self.size, *tensor.shape))
        kernels = self._kernels_for(tensor)
        if kernels:
            source, target = tensor.reshape(-1).view(torch.int32), parts.view(-1).view(torch.int32)
            count = len(source)
            kernels[0].launch(blocks_of(count), count=count, own=source, gathered=target.view(-1, count))
            return parts
        with _explain_lost_peers():
            _GATHER(parts.view(-1), tensor.reshape(-1), group=self._handle)
        return parts

    def _kernels_for(self, tensor: torch.Tensor) -> list[Kernel]:
        """The kernels that exchange a message through peer memory; none where it does not go that way."""
        numbers = tensor.numel() * tensor.element_size() // 4
        if not tensor.is_cuda or tensor.element_size() < 4 or not 0 < numbers <= _SMALL or self._reach.why_not:
            return []
        if self._memory is None:
            self._memory = PeerMemory(self._handle or dist.group.WORLD, _SMALL, tensor.device)
            kernels = load_kernels(open_backend(str(tensor.device)), small_program(self.size))
            self._small_kernels = [kernel.fill(**self._memory.members) for kernel in kernels]
        return self._small_kernels

    def sum(self, tensor: torch.Tensor) -> None:
        """Adds up what each process gave, in place, in order of rank, save for NCCL, which has an order of its own."""
        if self.size == 1:
            return
        if tensor.is_cuda and not self._kernels_for(tensor):
            dist.all_reduce(tensor, group=self._handle)
        else:
            torch.sum(self.all_gather(tensor), 0, out=tensor)

    def reduce_metrics(self, figures: torch.Tensor, added: int) -> None:
        """Puts into place, of so many figures, the sums over what each process gave; of the others the largest."""
        if self.size == 1:
            return
        kernels = self._kernels_for(figures)
        if kernels:
            kernels[1].launch(blocks_of(len(figures)), count=len(figures), added=added, figures=figures)
            return
        gathered = self.all_gather(figures)
        torch.sum(gathered[:, :added], 0, out=figures[:added])
        torch.amax(gathered[:, added:], 0, out=figures[added:])

    def broadcast_first(self, tensor: torch.Tensor) -> None:
        """Takes over what the first process has there."""
        if self.size > 1:
            tensor.copy_(self.all_gather(tensor)[0])

    def all_gather_objects(self, message: KeptT) -> list[KeptT]:
        """What each process says, by rank: small things, which the host waits for."""
        messages: list[Any] = [message] * self.size
        if self.size > 1:
            with _explain_lost_peers():
                dist.all_gather_object(messages, message, group=self._handle)
        return messages

    def local_peers(self) -> list[int]:
        """The numbers by which this host knows the other processes that run here."""
        local = (host(), os.getpid())
        return [number for place, number in self.all_gather_objects(local) if place == local[0] and number != local[1]]

    def gather_to_first(self, state: KeptT) -> list[KeptT] | None:
        """The state of each process, by rank, on the first one; None on the others. It comes by way of the host."""
        first = 0 if self._handle is None else dist.get_global_rank(self._handle, 0)
        states: list[Any] | None = [None] * self.size if self.rank == 0 else None
        moved = tree_map(lambda part: part.cpu() if isinstance(part, torch.Tensor) else part, state)
        with _explain_lost_peers():
            dist.gather_object(moved, states, dst=first, group=self._handle)
        return states

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Refuses processes that were not given the same."""
        first, *others = self.all_gather_objects(comparable(settings))
        for rank, other in enumerate(others, 1):
            name = next((name for name in first if other.get(name) != first[name]), None)
            if name is not None:
                raise ValueError(
                    f"processes that train together must be given the same: {name} is {first[name]!r} in the first and "
                    f"{other.get(name)!r} in number {rank}"
                )


def comparable(value: Any) -> Any:
    """Lists as tuples, arrays as nested tuples: JSON and checkpoints do not keep the difference."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return comparable(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, Mapping):
        return {name: comparable(item) for name, item in value.items()}
    return value
