"""NVIDIA's driver, called by its own library: CuPy's module for it imports all of CuPy when first called."""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

MOST_THREADS, SHARED_BYTES = 0, 8
"""``CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`` and ``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""

TOGETHER, EARLY = 2, 6
"""``CU_LAUNCH_ATTRIBUTE_COOPERATIVE`` and ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``."""


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: one that is a number."""

    _fields_ = (("id", ctypes.c_int), ("_gap", ctypes.c_int), ("value", ctypes.c_int), ("_rest", ctypes.c_char * 60))


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The driver's library; None where there is no driver."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


@functools.cache
def device_count() -> int:
    """How many CUDA devices the driver sees."""
    driver, count = library(), ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def start(index: int) -> None:
    """Makes the context of a device that all share who call CUDA's runtime; where there is no such device, nothing."""
    driver, device, context = library(), ctypes.c_int(0), ctypes.c_void_p()
    if driver is not None and driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@functools.cache
def version() -> int:
    """The newest CUDA that the driver knows, 12030 for 12.3; 0 where there is no driver."""
    driver, found = library(), ctypes.c_int(0)
    return found.value if driver is not None and driver.cuDriverGetVersion(ctypes.byref(found)) == 0 else 0


def load_module(code: bytes) -> int:
    """Loads machine code, or PTX, into the current context."""
    return _handle("cuModuleLoadData", code)


def function_of(module: int, name: str) -> int:
    """The handle of a module's kernel."""
    return _handle("cuModuleGetFunction", ctypes.c_void_p(module), name.encode())


def attribute_of(function: int, attribute: int) -> int:
    """A number that the driver keeps of a kernel."""
    value = ctypes.c_int()
    _call("cuFuncGetAttribute", ctypes.byref(value), attribute, ctypes.c_void_p(function))
    return value.value


def set_attribute(function: int, attribute: int, value: int) -> None:
    """Changes a number that the driver keeps of a kernel."""
    _call("cuFuncSetAttribute", ctypes.c_void_p(function), attribute, value)


def launcher(
    function: int, argument: ctypes.Structure, *, blocks: int, threads: int, shared_bytes: int, attribute: int | None
) -> Callable[[int], None]:
    """Prepares launches of a kernel that takes one struct, by value, on a stream of the current context.

    Args:
        function: The kernel's handle.
        argument: The struct; a launch takes what it holds then.
        blocks: Blocks of the grid.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        attribute: ``TOGETHER`` or ``EARLY``, or neither.
    """
    driver = library()
    assert driver is not None, "who has a function has loaded it by the driver"
    launch, handle = driver.cuLaunchKernelEx, ctypes.c_void_p(function)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    attributes = [] if attribute is None else [Attribute(attribute, 0, 1)]
    chosen = (Attribute * 1)(*attributes)
    configs: dict[int, Any] = {}  # by stream: Python lets another thread go on while the driver reads one

    def run(stream: int, _keep: ctypes.Structure = argument) -> None:
        config = configs.get(stream)
        if config is None:
            made = Config(blocks, 1, 1, threads, 1, 1, shared_bytes, stream, chosen, len(attributes))
            configs[stream] = config = ctypes.byref(made)
        status = launch(config, handle, arguments, None)
        if status:
            raise _error("cuLaunchKernelEx", status)

    return run


def _handle(function: str, *given: Any) -> int:
    """What a function of the driver makes, whose handle it writes to its first argument."""
    made = ctypes.c_void_p()
    _call(function, ctypes.byref(made), *given)
    return made.value or 0


def _call(function: str, *given: Any) -> None:
    status = getattr(library(), function)(*given)
    if status != 0:
        raise _error(function, status)


def _error(function: str, status: int) -> RuntimeError:
    """What the driver says of a call that it refuses."""
    said = []
    for what in ("Name", "String"):
        text = ctypes.c_char_p()
        getattr(library(), f"cuGetError{what}")(status, ctypes.byref(text))
        said.append((text.value or b"unknown").decode())
    return RuntimeError(f"{': '.join(said)} ({function}, {status})")
