"""Measure steps per second on the devices of this machine: ``python -m benchmarks.throughput``.

Writes ``results/throughput_*.json`` and, for different numbers of replicas and agents, ``results/scaling_*.json``.
``gpu-envs bench`` is a shorter measurement, which writes no files.
"""

import argparse
from typing import Any

from benchmarks import record
from benchmarks.command import log
from benchmarks.throughput import on_cpu, scaling
from gpu_envs.backend.driver import device_count


def main() -> None:
    """Measure, print, and write files into ``benchmarks/results``."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "all"), default="all", help="the devices to measure")
    parser.add_argument("--only", choices=("throughput", "scaling"), help="write only this file; default: both")
    parser.add_argument("--commit", help="the measured commit, for a copy without git")
    options = parser.parse_args()
    if options.device == "cuda" and device_count() == 0:
        parser.error("this machine has no CUDA device; give --device cpu")
    for device in ("cpu", "cuda"):
        if options.device not in (device, "all") or (device == "cuda" and device_count() == 0):
            continue
        for name in ("throughput", "scaling"):
            if options.only in (name, None):
                results, gpu = measure(name, device)
                log(f"wrote {record.write(f'{name}_{device}', results, options.commit, gpu)}")


def measure(name: str, device: str) -> tuple[dict[str, Any], str | None]:
    """Measure the results of a file; return them and the GPU's name."""
    if device == "cpu":
        return (on_cpu.measure(log) if name == "throughput" else scaling.measure(device, log)), None
    import torch

    from benchmarks.throughput import on_cuda

    results = on_cuda.measure(log) if name == "throughput" else scaling.measure(device, log)
    return results, torch.cuda.get_device_name(0)


if __name__ == "__main__":
    main()
