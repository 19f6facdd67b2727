"""Imports of CuPy: as a whole where its arrays are wanted, and otherwise no more of it than a launch needs."""

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpu_envs.backend.toolchain import prepare, private_folder


class Cuda(NamedTuple):
    """CuPy's ways to call CUDA: ``cupy.cuda.driver`` and ``cupy.cuda.runtime``."""

    driver: Any
    runtime: Any


def import_cuda() -> Cuda:
    """Imports what a launch needs, in a hundredth of the time that all of CuPy takes; or says what brings CuPy."""
    try:
        from cupy_backends.cuda.api import driver, runtime
    except ImportError:
        cuda = import_cupy().cuda
        return Cuda(cuda.driver, cuda.runtime)
    return Cuda(driver, runtime)


@contextlib.contextmanager
def on_device(index: int) -> Iterator[None]:
    """Makes a device the current one, and puts back which was it."""
    runtime = import_cuda().runtime
    before = runtime.getDevice()
    runtime.setDevice(index)
    try:
        yield
    finally:
        runtime.setDevice(before)


def import_cupy() -> Any:
    """Imports CuPy, or says which extra brings it."""
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
