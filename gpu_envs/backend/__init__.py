"""The CPU and CUDA backends, and the choice between them."""

import importlib.util
import re
import warnings

from gpu_envs.backend import driver, toolchain
from gpu_envs.backend.base import Backend
from gpu_envs.backend.cupy import import_cupy
from gpu_envs.errors import NoCompilerError


def resolve_device(device: str) -> str:
    """Returns ``cpu`` or ``cuda:N`` for the device that the user named.

    Args:
        device: ``auto`` (CUDA if the machine has a CUDA device, else the CPU), ``cpu``, ``cuda``, ``cuda:N``, or a
            ``torch.device``.
    """
    name = str(device)
    if name == "cpu":
        return name
    if name == "auto":
        if driver.device_count() == 0:
            return "cpu"
        if importlib.util.find_spec("cupy") is None:
            warnings.warn(
                "this machine has a CUDA device, but CuPy is missing: using the CPU. "
                "pip install 'gpu_envs[cuda13]' (or cuda12), or give device='cpu'",
                stacklevel=3,
            )
            return "cpu"
        return f"cuda:{_current_device()}"
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise ValueError(f"device is {device!r}; allowed: 'auto', 'cpu', 'cuda', 'cuda:0' and so on")
    return name if match[1] else f"cuda:{_current_device()}"


def device_for_one_replica() -> str:
    """Returns ``cpu``, which is faster for one replica; ``cuda`` if there is a GPU, but no C++ compiler."""
    try:
        toolchain.find_compiler()
    except NoCompilerError:
        return "cuda" if driver.device_count() > 0 else "cpu"  # the CPU can still run kernels from the cache folder
    return "cpu"


def _current_device() -> int:
    return int(import_cupy().cuda.runtime.getDevice()) if driver.device_count() > 0 else 0


def open_backend(device: str, threads: int | None = None, block_size: int | None = None) -> Backend:
    """Opens the backend of a resolved device: ``cpu`` uses ``threads``, ``cuda:N`` uses ``block_size``."""
    if device == "cpu":
        from gpu_envs.backend.host import HostBackend

        return HostBackend(threads)
    from gpu_envs.backend.cuda import CudaBackend

    return CudaBackend(int(device.partition(":")[2]), block_size)


__all__ = ["Backend", "device_for_one_replica", "open_backend", "resolve_device"]
