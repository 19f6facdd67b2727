"""What the commands of the benchmarks share: their options, the device, and lines that are printed at once."""

import argparse

from gpu_envs.backend.driver import device_count


def log(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def parser(package: str, description: str | None) -> argparse.ArgumentParser:
    """A command line with the options that all commands have.

    Args:
        package: What is run, below ``benchmarks``.
        description: For the help.
    """
    made = argparse.ArgumentParser(
        f"python -m benchmarks.{package}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    made.add_argument("--commit", help="the commit measured, where the copy has no git")
    return made


def chosen_device(options: argparse.Namespace, refusing: argparse.ArgumentParser) -> tuple[str, str | None]:
    """The device to measure, and the GPU's name where it is one; a device that is missing ends the command."""
    device = options.device or ("cuda" if device_count() > 0 else "cpu")
    if device == "cpu":
        return device, None
    if device_count() == 0:
        refusing.error("there is no CUDA device here; --device cpu measures the CPU")
    import torch

    return device, torch.cuda.get_device_name(0)
