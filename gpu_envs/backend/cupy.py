"""Imports CuPy."""

import contextlib
import functools
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_envs.backend.toolchain import prepare, private_folder


@contextlib.contextmanager
def on_device(index: int) -> Iterator[None]:
    """Makes a device the current one, and restores the device that was current before."""
    runtime = import_cupy().cuda.runtime
    before = runtime.getDevice()
    runtime.setDevice(index)
    try:
        yield
    finally:
        runtime.setDevice(before)


def import_cupy() -> Any:
    """Imports CuPy.

    Raises:
        ImportError: CuPy cannot be imported; the message names the extra that installs it.
    """
    _look_at_cache()
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "device='cuda' needs CuPy: pip install 'gpu_envs[cuda13]' for a driver of CUDA 13, "
            f"'gpu_envs[cuda12]' for CUDA 12, or use device='cpu' ({error})"
        ) from error
    return cupy


@functools.cache
def nvrtc_version() -> str:
    """NVRTC's version: of its Python package, without loading the library, or as the library says."""
    cuda = import_cupy().cuda
    major = cuda.runtime.runtimeGetVersion() // 1000
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc" + (f"-cu{major}" if major < 13 else ""))
    except importlib.metadata.PackageNotFoundError:
        return ".".join(map(str, cuda.nvrtc.getVersion()))


@functools.cache
def _look_at_cache() -> None:
    """Where CuPy's folder for small kernels of its own will not do, it is to keep them in memory."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))  # noqa: PTH111  # as it does
    try:
        prepare(folder)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
    except OSError:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        if not folder.is_dir():
            os.environ["CUPY_CACHE_DIR"] = str(private_folder())  # to make it is what CuPy's import begins with


_ROOM = 2**20
"""Bytes that it must have room for: a few kernels."""
