"""Communication of kernels through peer memory: here between two threads, on the CPU."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_envs.backend import open_backend  # noqa: E402
from gpu_envs.backend.launcher import Kernel, load_kernels  # noqa: E402
from gpu_envs.backend.program import Program  # noqa: E402
from gpu_envs.training.engines import optimiser  # noqa: E402
from gpu_envs.training.process.group import BLOCK, blocks_of, small_program  # noqa: E402

Tensor = Any
Work = Callable[[list[Kernel], int], Any]


def both(program: Program, numbers: int, work: Work) -> list[Any]:
    """Return ``work(kernels, rank)`` of two threads, whose kernels share memory with the layout of ``PeerMemory``."""
    blocks = blocks_of(numbers)
    room = blocks * BLOCK
    memories = [torch.zeros(2 * 2 * room, dtype=torch.int64) for _ in range(2)]
    addresses = torch.tensor([memory.data_ptr() for memory in memories])
    found: list[Any] = [None, None]

    def run(rank: int) -> None:
        kernels = load_kernels(open_backend("cpu", 1), program)
        rounds = torch.zeros(blocks, dtype=torch.int32)
        for kernel, struct in zip(kernels, program.structs.values(), strict=True):
            if any(member.name == "rounds" for member in struct.members):
                kernel.fill(addresses=addresses, rank=rank, room=room, rounds=rounds, room_blocks=blocks)
        found[rank] = work(kernels, rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_messages_of_any_length() -> None:
    """A thread one round ahead does not overwrite unread messages; each block counts its rounds."""
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 255, 256, 257, *torch.randint(1, 4 * BLOCK, (36,), generator=generator).tolist()]
    messages = [torch.randint(-(2**31), 2**31, (2, n), generator=generator, dtype=torch.int32) for n in lengths]

    def work(kernels: list[Kernel], rank: int) -> list[Tensor]:
        found = [torch.zeros_like(message) for message in messages]
        for message, kept in zip(messages, found, strict=True):
            count = message.shape[1]
            kernels[0].launch(blocks_of(count), count=count, local=message[rank].clone(), gathered=kept)
        return found

    for found in both(small_program(2), 4 * BLOCK, work):
        assert all(torch.equal(kept, message) for kept, message in zip(found, messages, strict=True))


def test_gradients_are_added_up_in_order_of_rank() -> None:
    count, words = 700, 706
    messages = torch.randn(8, 2, words, generator=torch.Generator().manual_seed(0))
    messages[..., -1] = 4.0  # samples per thread

    def work(kernels: list[Kernel], rank: int) -> list[tuple[Tensor, float]]:
        collect, blocks = kernels[0], blocks_of(words)
        message, norm = torch.zeros(words), torch.zeros(1)
        collect.fill(count=count, blocks=blocks, words=words, message=message, block_squares=torch.zeros(blocks))
        collect.fill(arrived=torch.zeros(1, dtype=torch.int32), steps=torch.zeros(1, dtype=torch.int64))
        collect.fill(learning_rate=torch.ones(1), norm=norm, factors=torch.zeros(4), log_beta1=-0.1, log_beta2=-0.001)
        found = []
        for each in messages:
            message.copy_(each[rank])
            collect.launch(blocks, stop=None, metrics=None, max_norm=0.0, max_kl=1.0)
            found.append((message.clone(), norm.item()))
        return found

    for given, first, second in zip(messages, *both(optimiser.program(2), words, work), strict=True):
        expected = given[0] + given[1]
        assert torch.equal(first[0], expected)
        assert torch.equal(second[0], expected)
        assert first[1] == second[1] == pytest.approx(expected[:count].norm().item() / 8, rel=1e-5)


def test_numbers_are_summed_or_the_maximum() -> None:
    given = [
        torch.tensor([1.0, 2.0, 5.0, math.nan, 1.0, -math.inf]),
        torch.tensor([0.5, 3.0, 7.0, 1.0, math.nan, -2.0]),
    ]

    def work(kernels: list[Kernel], rank: int) -> Tensor:
        numbers = given[rank].clone()
        kernels[1].launch(1, count=6, added=2, numbers=numbers)
        return numbers

    for found in both(small_program(2), 6, work):
        torch.testing.assert_close(found, torch.tensor([1.5, 5.0, 7.0, math.nan, math.nan, -2.0]), equal_nan=True)
