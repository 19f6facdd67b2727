"""Memory that all processes with a GPU each of one host can write to, and what they tell one another through it."""

import os
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
import torch.distributed as dist

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.program import Grid, KernelSettings, Program, program_of
from gpu_envs.backend.structs import Struct

BLOCK = 256
"""Numbers that a block of threads exchanges."""

BLOCKS = 4
"""So many blocks have room on each multiprocessor of a GPU at the same time."""

PATIENCE = 600.0
"""Seconds after which a process that says nothing is taken for lost."""

TURN_OFF = "GPU_ENVS_PEER_MEMORY"
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


class Reach(NamedTuple):
    """The most numbers of 32 bits that the processes of a group can exchange at a time; 0: why they cannot."""

    most: int
    why_not: str = ""


def reach_of(group: Any) -> Reach:
    """What the processes of a group can exchange through memory of their GPUs; all ask together."""
    local = torch.cuda.current_device()
    gpu = torch.cuda.get_device_properties(local)
    turned_off = os.environ.get(TURN_OFF) == "0"
    places = _gathered((turned_off, host(), str(gpu.uuid), gpu.multi_processor_count), group)
    if any(unwanted for unwanted, *_ in places):
        return Reach(0, f"{TURN_OFF} is 0")
    if any(where != places[0][1] for _, where, *_ in places):
        return Reach(0, "they are on several hosts or in several containers")
    devices = {str(torch.cuda.get_device_properties(n).uuid): n for n in range(torch.cuda.device_count())}
    peers = [peer for _, _, uuid, _ in places if (peer := devices.get(uuid)) != local]
    reached = all(peer is not None and torch.cuda.can_device_access_peer(local, peer) for peer in peers)
    if not all(_gathered(reached, group)):
        return Reach(0, "their GPUs do not reach or do not see one another")
    return Reach(BLOCK * BLOCKS * min(multiprocessors for *_, multiprocessors in places))


def _gathered(value: Any, group: Any) -> list[Any]:
    """What each process gives, by rank."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


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


@final
class SmallExchange:
    """Brings together what each process has, or what follows from it: at most so many numbers."""

    def __init__(self, group: Any, numbers: int, device: torch.device) -> None:
        """Allocates; every process makes it at the same time."""
        self._memory: Final = PeerMemory(group, numbers, device)
        kernels = load_kernels(open_backend(str(device)), small_program(dist.get_world_size(group)))
        self._gather, self._combine = (kernel.fill(**self._memory.members) for kernel in kernels)

    def gather(self, own: torch.Tensor, gathered: torch.Tensor) -> None:
        """Writes what each process has to ``gathered``, by rank; elements are of 4 or 8 bytes."""
        source, target = own.reshape(-1).view(torch.int32), gathered.view(-1).view(torch.int32)
        count = len(source)
        self._gather.launch(blocks_of(count), count=count, own=source, gathered=target.view(-1, count))

    def combine(self, figures: torch.Tensor, added: int) -> None:
        """As ``Group.combine``."""
        self._combine.launch(blocks_of(len(figures)), count=len(figures), added=added, figures=figures)
