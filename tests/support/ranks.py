"""Processes of a ``torch.distributed`` group, each of which runs a function of a test."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_envs.training.process.group import PEER_MEMORY_VARIABLE


def run_ranks(size: int, work: Callable[..., Any], folder: Path, *args: Any, device: str = "cpu") -> list[Any]:
    """Runs ``work(group, device, *args)`` in ``size`` processes; returns the results by rank.

    ``device`` is ``cpu``, ``cuda``, or ``nccl``: CUDA without peer memory, as between machines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # forks a server process that has only imported torch: a process that has used CUDA cannot be forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "gpu_envs.training"])
    ranks = [context.Process(target=_rank, args=(r, size, work, folder, args, device)) for r in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    alive = [rank for rank in ranks if rank.is_alive()]
    for rank in alive:
        rank.kill()
        rank.join()
    errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
    assert not errors, errors
    assert not alive, f"{len(alive)} of {size} processes did not end"
    return [torch.load(folder / f"result-{r}", weights_only=False) for r in range(size)]


def _rank(rank: int, size: int, work: Callable[..., Any], folder: Path, args: Any, device: str) -> None:
    torch.set_num_threads(1)
    on_gpu = device != "cpu"
    rank_device = f"cuda:{rank}" if on_gpu else "cpu"
    options: dict[str, Any] = {}
    if device == "nccl":
        os.environ[PEER_MEMORY_VARIABLE] = "0"
    if on_gpu:
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device(rank_device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        **options,
    )
    try:
        torch.save(work(dist.group.WORLD, rank_device, *args), folder / f"result-{rank}")
    except BaseException:
        (folder / f"error-{rank}").write_text(f"process {rank}:\n{traceback.format_exc()}")
        raise
    finally:
        os._exit(0)  # a normal exit could hang: torch waits for graphs with collective calls
