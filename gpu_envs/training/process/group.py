"""Groups of processes that train a run together, each with its share of the replicas, and their communication.

Processes with one GPU each on one host exchange gradients and small messages through peer memory: memory on each GPU to
which all of these GPUs can write.
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

MessageT = TypeVar("MessageT")

_SMALL = 2**14
"""Maximum size in 32-bit words of messages, other than gradients, through peer memory."""

LOST = "another of the processes that train together has ended"

_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.12

BLOCK = 256
"""Words that a thread block exchanges, one per thread."""

BLOCKS = 4
"""Thread blocks that can be resident on each multiprocessor at the same time."""

PATIENCE = 600.0
"""Timeout in seconds after which a silent process counts as lost."""

PEER_MEMORY_VARIABLE = "GPU_ENVS_PEER_MEMORY"
"""Environment variable that, set to 0, disables peer memory: NCCL does all communication."""

PEERS: Final[tuple[Any, ...]] = (
    ("const u64*?", "addresses", ("processes",)),
    ("int", "rank"),
    ("Index", "room"),
    ("int*?", "rounds", ("room_blocks",)),
)
"""Struct members of kernels that communicate through peer memory."""

ALONE: Final[dict[str, Any]] = {"addresses": None, "rank": 0, "room": 0, "rounds": None, "room_blocks": 0}
"""Values of these members for a single process."""

GATHER_CALL = Struct.of(
    "GatherCall",
    "float",
    ("Index", "count"),
    ("const int*", "local", ("count",)),
    ("int*", "gathered", ("processes", "count")),
    *PEERS,
)

COMBINE_CALL = Struct.of(
    "CombineCall", "float", ("Index", "count"), ("Index", "added"), ("float*", "numbers", ("count",)), *PEERS
)


def constants(processes: int) -> str:
    """Return the C++ constants that ``peers.cuh`` needs."""
    return (
        f"constexpr int PROCESSES = {processes}, BLOCK = {BLOCK}, BLOCKS = {BLOCKS};\n"
        f"constexpr u64 PATIENCE = {int(PATIENCE * 1e9)};\n"
    )


def settings(processes: int, prologue: str = "") -> KernelSettings:
    """Return the settings of programs whose kernels communicate between ``processes`` processes."""
    grid = Grid(threads=BLOCK, replicas=1)
    return KernelSettings(prologue=constants(processes) + prologue, sizes={"processes": processes}, grid=grid)


def small_program(processes: int) -> Program:
    """Return the program with the kernels for small messages: gather, and the reduction of metrics."""
    calls = {"gather": GATHER_CALL, "combine": COMBINE_CALL}
    kernels = "\n".join(
        f"KERNEL_OF_BLOCKS(kernel_{name}, {call.name}, BLOCK, BLOCKS) {{ FOR_EACH_BLOCK(block) {name}(call, block); }}"
        for name, call in calls.items()
    )
    return program_of(("training/common/peers.cuh", ("gather", kernels)), calls, settings(processes))


def blocks_of(numbers: int) -> int:
    """Return the number of thread blocks that exchange ``numbers`` words."""
    return -(-numbers // BLOCK)


def host() -> tuple[str, ...]:
    """Return an identifier of this host and container."""
    boot = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a host
    spaces = [Path("/proc/self/ns", name) for name in ("pid", "mnt")]
    name = boot.read_text() if boot.exists() else os.uname().nodename
    return name, *(str(space.readlink()) for space in spaces if space.exists())


@final
class PeerMemory:
    """A communication buffer on each GPU with space for each process; ``members`` are the arguments of kernels."""

    def __init__(self, group: Any, numbers: int, device: torch.device) -> None:
        """Allocate for messages of up to ``numbers`` 32-bit words; a collective call of all processes."""
        import torch.distributed._symmetric_memory as symmetric

        size, blocks = dist.get_world_size(group), blocks_of(numbers)
        room = blocks * BLOCK
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # not used, and not available everywhere
        self._memory: Final[Any] = symmetric.empty(2 * size * room, dtype=torch.int64, device=device)
        self._memory.zero_()
        self._handle: Final[Any] = symmetric.rendezvous(self._memory, group)
        torch.cuda.synchronize(device)
        dist.barrier(group)  # no process writes before all buffers are zeroed
        self.members: Final[dict[str, Any]] = {
            "addresses": torch.tensor(self._handle.buffer_ptrs, dtype=torch.int64, device=device),
            "rank": dist.get_rank(group),
            "room": room,
            "rounds": torch.zeros(blocks, dtype=torch.int32, device=device),
            "room_blocks": blocks,
        }


class PeerMemoryLimit(NamedTuple):
    """Limit of messages through peer memory in 32-bit words, or 0 and the reason why there is no peer memory."""

    words: int
    reason: str = ""


@contextlib.contextmanager
def _explain_lost_peers() -> Iterator[None]:
    """Turn torch's errors about closed sockets into a LostProcessError."""
    try:
        yield
    except RuntimeError as error:
        if any(word in str(error) for word in ("peer", "Broken pipe")):
            raise LostProcessError(LOST) from error
        raise


@final
class Group:
    """A process group whose processes make the same calls in the same order; for one process all calls are no-ops."""

    def __init__(self, handle: Any = None) -> None:
        """Wrap a process group of ``torch.distributed``; None: a single process."""
        self.rank = dist.get_rank(handle) if handle is not None else 0
        self.size = dist.get_world_size(handle) if handle is not None else 1
        # WORLD is not stored: a reference that outlives destroy_process_group aborts the process at its exit.
        self._handle = None if handle is None or handle is dist.group.WORLD else handle
        self._memory: PeerMemory | None = None
        self._small_kernels: list[Kernel] = []

    @functools.cached_property
    def _peer_memory_limit(self) -> PeerMemoryLimit:
        """Limit of messages through peer memory, or the reason for none; at its first use a call of all processes."""
        local = torch.cuda.current_device()
        gpu = torch.cuda.get_device_properties(local)
        disabled = os.environ.get(PEER_MEMORY_VARIABLE) == "0"
        processes = self.all_gather_objects((disabled, host(), str(gpu.uuid), gpu.multi_processor_count))
        devices = {str(torch.cuda.get_device_properties(n).uuid): n for n in range(torch.cuda.device_count())}
        peers = [peer for _, _, uuid, _ in processes if (peer := devices.get(uuid)) != local]
        reachable = all(peer is not None and torch.cuda.can_device_access_peer(local, peer) for peer in peers)
        reason = ""
        if any(disabled for disabled, *_ in processes):
            reason = f"{PEER_MEMORY_VARIABLE} is 0"
        elif any(other != processes[0][1] for _, other, *_ in processes):
            reason = "the processes are on several hosts or in several containers"
        elif not all(self.all_gather_objects(reachable)):
            reason = "their GPUs cannot access each other's memory or are hidden from each other"
        if reason and self.size > 2 and "NCCL_ALGO" not in os.environ:
            warnings.warn(
                "NCCL sums gradients in an order that may differ from run to run: for reproducible bits set "
                "NCCL_ALGO=Ring,Tree in the environment before torch.distributed is initialised",
                stacklevel=2,
            )
        return PeerMemoryLimit(0 if reason else BLOCK * BLOCKS * min(count for *_, count in processes), reason)

    @property
    def transport(self) -> str:
        """The transport of gradients, and the reason if it is NCCL; empty for a single process."""
        if self.size == 1:
            return ""
        backends = str(dist.get_backend_config(self._handle))
        if "cuda:nccl" not in backends:
            return str(dist.get_backend(self._handle))
        if self._peer_memory_limit.reason:
            return f"NCCL ({self._peer_memory_limit.reason})"
        return f"peer memory, and NCCL above {self._peer_memory_limit.words:,} numbers"

    def peer_memory(self, numbers: int, device: torch.device) -> PeerMemory | None:
        """Allocate peer memory for messages of ``numbers`` 32-bit words; None if ``sum`` has to be used instead."""
        if self.size == 1 or device.type != "cuda" or numbers > self._peer_memory_limit.words:
            return None
        return PeerMemory(self._handle or dist.group.WORLD, numbers, device)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all processes, ``[size, ...]``, by rank."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        parts = tensor.new_empty((self.size, *tensor.shape))
        kernels = self._kernels_for(tensor)
        if kernels:
            source, target = tensor.reshape(-1).view(torch.int32), parts.view(-1).view(torch.int32)
            count = len(source)
            kernels[0].launch(blocks_of(count), count=count, local=source, gathered=target.view(-1, count))
            return parts
        with _explain_lost_peers():
            _GATHER(parts.view(-1), tensor.reshape(-1), group=self._handle)
        return parts

    def _kernels_for(self, tensor: torch.Tensor) -> list[Kernel]:
        """Return the kernels that send a tensor through peer memory, loaded once; empty if it cannot be sent so."""
        size, words = tensor.element_size(), tensor.nbytes // 4
        if not tensor.is_cuda or size < 4 or not 0 < words <= _SMALL or self._peer_memory_limit.reason:
            return []
        if self._memory is None:
            self._memory = PeerMemory(self._handle or dist.group.WORLD, _SMALL, tensor.device)
            kernels = load_kernels(open_backend(str(tensor.device)), small_program(self.size))
            self._small_kernels = [kernel.fill(**self._memory.members) for kernel in kernels]
        return self._small_kernels

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over all processes in place, in the order of ranks (NCCL: in an order that it chooses)."""
        if self.size == 1:
            return
        if tensor.is_cuda and not self._kernels_for(tensor):
            dist.all_reduce(tensor, group=self._handle)
        else:
            torch.sum(self.all_gather(tensor), 0, out=tensor)

    def reduce_metrics(self, metrics: torch.Tensor, summed: int) -> None:
        """Reduce metrics over all processes in place: sums of the first ``summed``, maxima of the rest."""
        if self.size == 1:
            return
        kernels = self._kernels_for(metrics)
        if kernels:
            kernels[1].launch(blocks_of(len(metrics)), count=len(metrics), added=summed, numbers=metrics)
            return
        gathered = self.all_gather(metrics)
        torch.sum(gathered[:, :summed], 0, out=metrics[:summed])
        torch.amax(gathered[:, summed:], 0, out=metrics[summed:])

    def broadcast_first(self, tensor: torch.Tensor) -> None:
        """Copy the first process's values into ``tensor``."""
        if self.size > 1:
            tensor.copy_(self.all_gather(tensor)[0])

    def all_gather_objects(self, message: MessageT) -> list[MessageT]:
        """Return small Python objects of all processes by rank; the host waits."""
        messages: list[Any] = [message] * self.size
        if self.size > 1:
            with _explain_lost_peers():
                dist.all_gather_object(messages, message, group=self._handle)
        return messages

    def local_peers(self) -> list[int]:
        """Return the process IDs of the other processes on this host."""
        local = (host(), os.getpid())
        return [pid for place, pid in self.all_gather_objects(local) if place == local[0] and pid != local[1]]

    def gather_to_first(self, state: MessageT) -> list[MessageT] | None:
        """Return the states of all processes by rank, with tensors on the CPU, in the first process; None in others."""
        first = 0 if self._handle is None else dist.get_global_rank(self._handle, 0)
        states: list[Any] | None = [None] * self.size if self.rank == 0 else None
        moved = tree_map(lambda part: part.cpu() if isinstance(part, torch.Tensor) else part, state)
        with _explain_lost_peers():
            dist.gather_object(moved, states, dst=first, group=self._handle)
        return states

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError in all processes if their settings differ."""
        first, *others = self.all_gather_objects(comparable(settings))
        for rank, other in enumerate(others, 1):
            name = next((name for name in first if other.get(name) != first[name]), None)
            if name is not None:
                raise ValueError(
                    f"processes that train together need the same settings: {name} is {first[name]!r} in process 0 and "
                    f"{other.get(name)!r} in process {rank}"
                )


def comparable(value: Any) -> Any:
    """Return a value with lists and arrays as nested tuples, for comparing values from JSON and checkpoints."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return comparable(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, Mapping):
        return {name: comparable(item) for name, item in value.items()}
    return value
