"""Compiles with NVRTC, NVIDIA's compiler as a library, and keeps the machine code in the cache folder."""

import functools
from pathlib import Path
from typing import NamedTuple

from gpu_envs.backend import ahead
from gpu_envs.backend.cupy import import_cupy, nvrtc_version
from gpu_envs.backend.toolchain import cache_folder, digest, kept
from gpu_envs.errors import CompileError

OPTIONS = ("--std=c++17", "--ftz=true", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""Contraction (fmad) would give other bits than the CPU's, and the CPU flushes denormals as ftz does."""


class Compiled(NamedTuple):
    """NVRTC's output: PTX, machine code (empty for an architecture of PTX, ``compute_90`` and the like), warnings."""

    ptx: str
    cubin: bytes
    log: str


def machine_code(source: str, name: str, architecture: str) -> Path:
    """Compiles a program, unless the same NVRTC compiled it before, and returns the file with the machine code.

    For an architecture of PTX, such as ``compute_80``, it has that text. No device is needed.

    Raises:
        CompileError: NVRTC refuses the source.
    """
    ahead.wait((source, architecture))
    return kept(_file_name(source, name, architecture), lambda: _for_device(source, name, architecture))


def begin(source: str, name: str, architecture: str) -> None:
    """Starts a thread that compiles a program for ``machine_code``, unless it is in the cache folder."""
    file_name = _file_name(source, name, architecture)
    if not (cache_folder() / file_name).exists():
        code = functools.partial(_for_device, source, name, architecture)
        ahead.begin((source, architecture), name, functools.partial(kept, file_name, code))


def compiled(source: str, name: str, architecture: str) -> Compiled:
    """Compiles a source with NVRTC; no device is needed.

    Raises:
        CompileError: NVRTC refuses the source.
    """
    nvrtc = import_cupy().cuda.nvrtc
    text = source.encode("utf-8", "replace").decode()  # paths in it may be any bytes
    program = nvrtc.createProgram(text, "kernels.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={architecture}"))
        code = nvrtc.getCUBIN(program) if architecture.startswith("sm_") else b""
        return Compiled(nvrtc.getPTX(program).decode().rstrip("\0"), code, nvrtc.getProgramLog(program).strip())
    except nvrtc.NVRTCError as error:
        output = nvrtc.getProgramLog(program).strip() or str(error)
        raise CompileError(f"{name} did not compile with NVRTC:\n{output}", output) from None
    finally:
        nvrtc.destroyProgram(program)


def _file_name(source: str, name: str, architecture: str) -> str:
    return f"{name}-{digest(source, *OPTIONS, architecture)[:32]}-{digest(nvrtc_version())[:8]}.cubin"


def _for_device(source: str, name: str, architecture: str) -> bytes:
    """Machine code; for a device newer than this NVRTC, PTX of the newest that it knows, for the driver to compile."""
    wanted = int("".join(filter(str.isdigit, architecture)))
    known = [each for each in import_cupy().cuda.nvrtc.getSupportedArchs() if each <= wanted]
    if known and wanted not in known:
        return compiled(source, name, f"compute_{max(known)}").ptx.encode()
    made = compiled(source, name, architecture)
    return made.cubin or made.ptx.encode()
