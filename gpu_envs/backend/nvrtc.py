"""Compiles with NVRTC, NVIDIA's runtime compiler, and caches the machine code in the cache folder."""

import functools
from pathlib import Path
from typing import NamedTuple

from gpu_envs.backend import background
from gpu_envs.backend.cupy import import_cupy, nvrtc_version
from gpu_envs.backend.toolchain import cache_folder, cached_file, digest
from gpu_envs.errors import CompileError

OPTIONS = ("--std=c++17", "--ftz=true", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""The same arithmetic as on the CPU, which has no contraction (fmad) and flushes denormals (ftz)."""


class Compiled(NamedTuple):
    """NVRTC's output: PTX, machine code (empty for virtual architectures such as ``compute_90``), warnings."""

    ptx: str
    cubin: bytes
    log: str


def machine_code(source: str, name: str, architecture: str) -> Path:
    """Compiles a program, or finds it in the cache folder, and returns the file with the machine code.

    For a virtual architecture, such as ``compute_80``, the file contains PTX. Needs no device.

    Raises:
        CompileError: NVRTC cannot compile the source.
    """
    background.wait((source, architecture))
    return cached_file(_file_name(source, name, architecture), lambda: _compiled_code(source, name, architecture))


def start_compiling(source: str, name: str, architecture: str) -> None:
    """Starts a thread that compiles a program for ``machine_code``, unless it is in the cache folder."""
    file_name = _file_name(source, name, architecture)
    if not (cache_folder() / file_name).exists():
        code = functools.partial(_compiled_code, source, name, architecture)
        background.start((source, architecture), name, functools.partial(cached_file, file_name, code))


def compile_source(source: str, name: str, architecture: str) -> Compiled:
    """Compiles a source with NVRTC, without the cache folder and a device; CompileError if NVRTC cannot compile it."""
    nvrtc = import_cupy().cuda.nvrtc
    text = source.encode("utf-8", "replace").decode()  # paths in #line directives may be any bytes
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


def _compiled_code(source: str, name: str, architecture: str) -> bytes:
    """Machine code; for a device newer than this NVRTC, PTX for the newest supported one, which the driver compiles."""
    number = int("".join(filter(str.isdigit, architecture)))
    supported = [arch for arch in import_cupy().cuda.nvrtc.getSupportedArchs() if arch <= number]
    if supported and number not in supported:
        return compile_source(source, name, f"compute_{max(supported)}").ptx.encode()
    output = compile_source(source, name, architecture)
    return output.cubin or output.ptx.encode()
