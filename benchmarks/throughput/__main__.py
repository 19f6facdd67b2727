"""Steps per second on whatever devices are here: ``python -m benchmarks.throughput``.

It writes ``results/throughput_*.json``, and ``results/scaling_*.json``: rates of every number of replicas and agents.
``gpu-envs bench`` is a shorter look, which writes nothing.
"""

import argparse
from typing import Any

from benchmarks import record
from benchmarks.command import log
from benchmarks.throughput import on_cpu, scaling
from gpu_envs.backend.driver import device_count


def main() -> None:
    """Measures, prints, and writes ``benchmarks/results``."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "all"), default="all", help="what to measure")
    parser.add_argument("--only", choices=("throughput", "scaling"), help="one of the files; default: both")
    parser.add_argument("--commit", help="the commit measured, where the copy has no git")
    options = parser.parse_args()
    if options.device == "cuda" and device_count() == 0:
        parser.error("there is no CUDA device here; --device cpu measures the CPU")
    for device in ("cpu", "cuda"):
        if options.device not in (device, "all") or (device == "cuda" and device_count() == 0):
            continue
        for name in ("throughput", "scaling"):
            if options.only in (name, None):
                results, gpu = measured(name, device)
                log(f"wrote {record.write(f'{name}_{device}', results, options.commit, gpu)}")


def measured(name: str, device: str) -> tuple[dict[str, Any], str | None]:
    """The results that a file has, and the GPU's name."""
    if device == "cpu":
        return (on_cpu.measure(log) if name == "throughput" else scaling.measure(device, log)), None
    import torch

    from benchmarks.throughput import on_cuda

    results = on_cuda.measure(log) if name == "throughput" else scaling.measure(device, log)
    return results, torch.cuda.get_device_name(0)


if __name__ == "__main__":
    main()
