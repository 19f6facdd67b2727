"""Compiles with NVRTC, NVIDIA's compiler as a library; what it made lies beside what the CPU's compiler made."""

import functools
import re
import warnings
from typing import Any, NamedTuple

from gpu_envs.backend import ahead
from gpu_envs.backend.cupy import import_cuda, import_cupy
from gpu_envs.backend.toolchain import ELSEWHERE, cache_folder, digest, keep, prepare, whole
from gpu_envs.errors import CompileError

OPTIONS = ("--std=c++17", "--ftz=true", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""Contraction (fmad) would give other bits than the CPU's, and the CPU flushes denormals as ftz does."""


class Compiled(NamedTuple):
    """What NVRTC made of a source."""

    ptx: str
    cubin: bytes
    """Machine code; empty for an architecture of PTX, ``compute_90`` and the like."""
    log: str
    """Warnings."""


def architecture_of(capability: tuple[int, int]) -> str:
    """The architecture of a device, with the instructions that no other has where kernels use those."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' * (capability == (9, 0))}"


def machine_code(source: str, name: str, architecture: str) -> bytes:
    """What a device of this architecture loads: compiled, or made before of the same by the same NVRTC.

    Raises:
        CompileError: The compiler refuses it.
    """
    made = functools.cache(lambda: _for_device(source, name, architecture))
    folder = cache_folder()
    ahead.wait((source, architecture))
    try:
        prepare(folder)
        for version in (_installed, _loaded):
            path = folder / _file(source, name, architecture, version())
            found = whole(path)
            if found is not None:
                return found
        keep(path, made())
    except OSError as error:
        warnings.warn(
            f"compiled programs cannot be kept in {folder}: {error.strerror or error}. Every process compiles anew; "
            f"set {ELSEWHERE}",
            stacklevel=2,
        )
    return made()


def begin(source: str, name: str, architecture: str) -> None:
    """Begins to make what ``machine_code`` will be asked for, where it is not there."""
    path = cache_folder() / _file(source, name, architecture, _installed() or _loaded())

    def make() -> None:
        prepare(path.parent)
        keep(path, _for_device(source, name, architecture))

    if not path.exists():
        ahead.begin((source, architecture), name, make)


def _file(source: str, name: str, architecture: str, version: str) -> str:
    """What a program's file is called."""
    return f"{name}-{digest(source, *OPTIONS, architecture)[:32]}-{digest(version)[:8]}.cubin"


def compiled(source: str, name: str, architecture: str) -> Compiled:
    """What NVRTC makes of a source; no device is needed.

    Raises:
        CompileError: The compiler refuses it.
    """
    nvrtc = _nvrtc()
    text = source.encode("utf-8", "replace").decode()  # paths in it may be any bytes
    program = nvrtc.createProgram(text, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={architecture}"))
        code = nvrtc.getCUBIN(program) if architecture.startswith("sm_") else b""
        return Compiled(nvrtc.getPTX(program).decode(), code, _log(program))
    except nvrtc.NVRTCError as error:
        said = _log(program) or str(error)
        raise CompileError(f"{name} did not compile with NVRTC:\n{said}", said) from None
    finally:
        nvrtc.destroyProgram(program)


def _for_device(source: str, name: str, architecture: str) -> bytes:
    """Machine code; for a device that this NVRTC does not know yet, PTX of the newest before it, for the driver."""
    wanted = int(re.sub(r"\D", "", architecture))
    known = [each for each in _nvrtc().getSupportedArchs() if each <= wanted]
    if known and wanted not in known:
        return compiled(source, name, f"compute_{max(known)}").ptx.encode()
    return compiled(source, name, architecture).cubin


def _log(program: int) -> str:
    return str(_nvrtc().getProgramLog(program)).strip("\0\n ")


@functools.cache
def _installed() -> str:
    """The version of NVRTC's package, which is found without loading the library; empty where there is none."""
    import importlib.metadata

    major = import_cuda().driver.get_build_version() // 1000
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc" + (f"-cu{major}" if major < 13 else ""))
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _loaded() -> str:
    """The version of the library itself, as it writes it into what it makes."""
    newest = max(_nvrtc().getSupportedArchs())
    release = re.search(r"release [\d.]+, V([\d.]+)", compiled("", "nothing", f"compute_{newest}").ptx)
    return release[1] if release is not None else str(_nvrtc().getVersion())


def _nvrtc() -> Any:
    """CuPy's ``cupy.cuda.nvrtc``, in a fifth of the time that all of CuPy takes."""
    try:
        from cupy_backends.cuda.libs import nvrtc
    except ImportError:
        return import_cupy().cuda.nvrtc
    return nvrtc
