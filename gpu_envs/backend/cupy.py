"""Imports CuPy, and sets the current device."""

import contextlib
import functools
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_envs.backend.toolchain import prepare_folder, private_folder


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
    """Imports and returns CuPy, or raises an ImportError that names the extra to install."""
    _check_cupy_cache()
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
    """NVRTC's version, from its Python package if there is one, so that the library need not be loaded."""
    cuda = import_cupy().cuda
    major = cuda.runtime.runtimeGetVersion() // 1000
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc" + (f"-cu{major}" if major < 13 else ""))
    except importlib.metadata.PackageNotFoundError:
        return ".".join(map(str, cuda.nvrtc.getVersion()))


@functools.cache
def _check_cupy_cache() -> None:
    """Makes CuPy cache its own small kernels in memory if its cache folder is unsafe, read-only or full."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))  # noqa: PTH111  # as it does
    try:
        prepare_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_MIN_FREE_BYTES))
    except OSError:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        if not folder.is_dir():
            os.environ["CUPY_CACHE_DIR"] = str(private_folder())  # CuPy creates the folder when it is imported


_MIN_FREE_BYTES = 2**20
"""Free space that the folder must have: a few kernels."""
