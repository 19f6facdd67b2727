"""What ``gpu-envs info`` finds out of a machine, without anything that is wrong there ending this process."""

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

PATIENCE = 120
"""Seconds until a trial is given up."""

_CUPY = """
import json, sys
found = {}
try:
    import cupy
    found["version"] = cupy.__version__
    try:
        found["nvrtc"] = ".".join(map(str, cupy.cuda.nvrtc.getVersion()))
    except Exception as error:
        found["nvrtc error"] = f"{type(error).__name__}: {error}"
    try:
        if cupy.cuda.runtime.getDeviceCount():
            found["sum"] = str(int(cupy.arange(3).sum()))
    except Exception as error:
        found["sum error"] = f"{type(error).__name__}: {error}"
except BaseException as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

_TORCH = """
import json
found = {}
try:
    import torch
    found["version"], found["cuda"] = torch.__version__, torch.version.cuda
    found["available"] = torch.cuda.is_available() and bool(torch.zeros(1, device="cuda").add(1).item())
except BaseException as error:
    found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


_TRIAL = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'


def brief(error: BaseException | str) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def is_installed(module: str) -> bool:
    """Whether it would be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


@final
class Trials:
    """Libraries that are imported and tried in processes of their own, all at once: one that crashes ends only that."""

    def __init__(self) -> None:
        self._running: Final[dict[str, Any]] = {
            name: self._start(code) for name, code in (("cupy", _CUPY), ("torch", _TORCH)) if is_installed(name)
        }

    @staticmethod
    def _start(code: str) -> Any:
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", code],  # -P: a torch.py of the working folder is not torch
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return error

    def result(self, name: str) -> dict[str, Any] | None:
        """What was found; ``error`` says why it is little. None: it is not installed."""
        process = self._running.get(name)
        if process is None:
            return None
        if isinstance(process, OSError):
            return {"error": brief(process)}
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"no answer within {PATIENCE} s"}
        lines = out.decode(errors="replace").splitlines()
        try:
            found = json.loads(lines[-1])
        except (IndexError, ValueError):
            last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
            return {"error": brief(f"it ended Python with code {process.returncode} {last}".strip())}
        return {key: brief(each) if isinstance(each, str) else each for key, each in found.items()}


def compile_something(command: Sequence[str]) -> str:
    """Compiles a line of C++ as the backend would; returns what is wrong, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text(_TRIAL)
        made = Path(folder) / "trial.so"
        try:
            done = subprocess.run(
                [*command, *FLAGS, "-pthread", "-o", str(made), str(source)],
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return brief(error)
        if done.returncode != 0:
            return brief(done.stderr or done.stdout or f"code {done.returncode}")
        try:
            return "" if ctypes.CDLL(str(made)).answer() == 42 else "what it makes gives wrong results"
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
    """What NVIDIA's driver says."""

    there: bool
    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    """The newest CUDA that it runs."""
    gpus: tuple[Gpu, ...] = ()
    error: str = ""
    """Why it does not start."""


@functools.cache
def driver() -> Driver:
    """Asks the driver itself, so that nothing heavy is imported."""
    library = _loaded("libcuda.so.1")
    if library is None:
        return Driver(there=False)
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
    known = library.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value is not None
    return f"{text.value.decode(errors='replace')} (error {code})" if known and text.value else f"error {code}"


def _driver_version() -> str:
    library = _loaded("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(100)
    if library is None or library.nvmlInit_v2() != 0:
        return ""
    found = library.nvmlSystemGetDriverVersion(text, len(text)) == 0
    library.nvmlShutdown()
    return text.value.decode(errors="replace") if found else ""


def _loaded(name: str) -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name)
    return None
