"""Options, choice of the device and output that all benchmarks' commands share."""

import argparse

from gpu_envs.backend.driver import device_count


def log(line: str) -> None:
    """Print a line, unbuffered."""
    print(line, flush=True)


def parser(package: str, description: str | None) -> argparse.ArgumentParser:
    """Create an argument parser with the options of all commands.

    Args:
        package: The name of the package in ``benchmarks``.
        description: The description in the help.
    """
    result = argparse.ArgumentParser(
        f"python -m benchmarks.{package}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU")
    result.add_argument("--commit", help="the measured commit, for a copy without git")
    return result


def choose_device(options: argparse.Namespace, parser: argparse.ArgumentParser) -> tuple[str, str | None]:
    """Return the device to measure and the GPU's name, None for the CPU; exit if the device is missing."""
    device = options.device or ("cuda" if device_count() > 0 else "cpu")
    if device == "cpu":
        return device, None
    if device_count() == 0:
        parser.error("this machine has no CUDA device; give --device cpu")
    import torch

    return device, torch.cuda.get_device_name(0)
