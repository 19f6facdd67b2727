"""Tests of the compiler, the driver and libraries for ``gpu-envs info``, in subprocesses where they may crash."""

import contextlib
import ctypes
import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from gpu_envs.backend.toolchain import FLAGS

TIMEOUT = 120
"""Seconds until a test is stopped."""

_CUPY_TEST = """
import json, sys
result = {}
try:
    import cupy
    result["version"] = cupy.__version__
    try:
        result["nvrtc"] = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    except Exception as error:
        result["nvrtc error"] = f"{type(error).__name__}: {error}"
    try:
        if cupy.cuda.runtime.getDeviceCount():
            result["sum"] = str(int(cupy.arange(3).sum()))
    except Exception as error:
        result["sum error"] = f"{type(error).__name__}: {error}"
except BaseException as error:
    result["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(result))
"""

_TORCH_TEST = """
import json
result = {}
try:
    import torch
    result["version"], result["cuda"] = torch.__version__, torch.version.cuda
    result["available"] = torch.cuda.is_available() and bool(torch.zeros(1, device="cuda").add(1).item())
except BaseException as error:
    result["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(result))
"""


_TEST_SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'


def brief(error: BaseException | str) -> str:
    """Return the first line of an error's message, at most 160 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def is_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@final
class LibraryProbes:
    """Tests of CuPy and torch, if installed, in parallel subprocesses that may crash; the constructor starts them."""

    def __init__(self) -> None:
        tests = {"cupy": _CUPY_TEST, "torch": _TORCH_TEST}
        self._running: Final = {name: self._start_python(code) for name, code in tests.items() if is_installed(name)}

    @staticmethod
    def _start_python(code: str) -> subprocess.Popen[bytes] | OSError:
        """Start Python code in a process without this folder's modules; return the process, or why it did not start."""
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", code],  # -P: do not import a torch.py in the working folder
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return error

    def result(self, name: str) -> dict[str, Any] | None:
        """Wait for a library's test; return its results, with ``error`` if it failed; None if it is not installed."""
        process = self._running.get(name)
        if process is None:
            return None
        if isinstance(process, OSError):
            return {"error": brief(process)}
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"no answer within {TIMEOUT} s"}
        lines = out.decode(errors="replace").splitlines()
        try:
            result = json.loads(lines[-1])
        except (IndexError, ValueError):
            last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
            return {"error": brief(f"Python exited with code {process.returncode} {last}".strip())}
        return {key: brief(value) if isinstance(value, str) else value for key, value in result.items()}


def try_compiler(command: Sequence[str]) -> str:
    """Compile a line of C++ with the backend's flags and run it; return the error, empty if it works."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text(_TEST_SOURCE)
        library = Path(folder) / "trial.so"
        try:
            arguments = [*command, *FLAGS, "-pthread", "-o", str(library), str(source)]
            process = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            return brief(error)
        if process.returncode != 0:
            return brief(process.stderr or process.stdout or f"code {process.returncode}")
        try:
            return "" if ctypes.CDLL(str(library)).answer() == 42 else "the compiled program gives wrong results"
        except (OSError, AttributeError) as error:
            return brief(error)


class Gpu(NamedTuple):
    """A CUDA device."""

    name: str
    memory: int
    capability: tuple[int, int]

    @property
    def text(self) -> str:
        """A description in one line."""
        major, minor = self.capability
        return f"{self.name}, {self.memory / 2**30:.0f} GiB, compute capability {major}.{minor}"


class Driver(NamedTuple):
    """The state of NVIDIA's driver."""

    is_present: bool
    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    """The newest CUDA version that it supports."""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    """The error at its start."""


@functools.cache
def driver() -> Driver:
    """Return the state of NVIDIA's driver, with its GPUs, as its library reports it to the first call."""
    library = _load("libcuda.so.1")
    if library is None:
        return Driver(is_present=False)
    number = ctypes.c_int(0)
    cuda = (0, 0)
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        cuda = (number.value // 1000, number.value % 1000 // 10)
    code = library.cuInit(0)
    if code != 0:
        no_device = 100  # CUDA_ERROR_NO_DEVICE
        return Driver(True, _driver_version(), cuda, (), "" if code == no_device else _reason(library, code))
    if library.cuDeviceGetCount(ctypes.byref(number)) != 0:
        number.value = 0
    return Driver(True, _driver_version(), cuda, tuple(_gpu(library, i) for i in range(number.value)))


def _gpu(library: ctypes.CDLL, number: int) -> Gpu:
    """Return the name, memory in bytes and compute capability of a GPU, from the driver's library."""
    device, memory, name = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.create_string_buffer(100)
    library.cuDeviceGet(ctypes.byref(device), number)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    library.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    library.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    return Gpu(name.value.decode(errors="replace"), memory.value, (major.value, minor.value))


def _reason(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    has_text = library.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value is not None
    return f"{text.value.decode(errors='replace')} (error {code})" if has_text and text.value else f"error {code}"


def _driver_version() -> str:
    """Return the version of NVIDIA's driver, from the library NVML; empty if unknown."""
    library = _load("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(100)
    if library is None or library.nvmlInit_v2() != 0:
        return ""
    has_version = library.nvmlSystemGetDriverVersion(text, len(text)) == 0
    library.nvmlShutdown()
    return text.value.decode(errors="replace") if has_version else ""


def _load(name: str) -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name)
    return None
