"""Processes that train together: each runs a function of a test's with its group, and gives back what it returned."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpu_envs.training.process.group import TURN_OFF


def run_ranks(size: int, work: Callable[..., Any], folder: Path, *given: Any, device: str = "cpu") -> list[Any]:
    """What ``work(group, device, *given)`` returns in each of so many processes, by rank.

    Devices are ``cpu``, ``cuda``, and ``nccl``: CUDA where all goes through NCCL, as it does from host to host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # forks of a process that has imported torch and does nothing else; one that has used CUDA could not be forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "gpu_envs.training"])
    ranks = [context.Process(target=_rank, args=(r, size, work, folder, given, device)) for r in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    alive = [rank for rank in ranks if rank.is_alive()]
    for rank in alive:
        rank.kill()
        rank.join()
    said = "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))
    assert not said, said
    assert not alive, f"{len(alive)} of {size} processes did not end"
    return [torch.load(folder / f"result-{r}", weights_only=False) for r in range(size)]


def _rank(rank: int, size: int, work: Callable[..., Any], folder: Path, given: Any, device: str) -> None:
    torch.set_num_threads(1)
    on_gpu = device != "cpu"
    here = f"cuda:{rank}" if on_gpu else "cpu"
    own: dict[str, Any] = {}
    if device == "nccl":
        os.environ[TURN_OFF] = "0"
    if on_gpu:
        torch.cuda.set_device(rank)
        own["device_id"] = torch.device(here)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
        **own,
    )
    try:
        torch.save(work(dist.group.WORLD, here, *given), folder / f"result-{rank}")
    except BaseException:
        (folder / f"error-{rank}").write_text(f"process {rank}:\n{traceback.format_exc()}")
        raise
    finally:
        os._exit(0)  # torch waits for graphs that hold calls to one another
