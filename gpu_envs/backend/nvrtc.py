"""Compiles with NVRTC, NVIDIA's compiler as a library; what it made lies beside what the CPU's compiler made."""

import ctypes
import functools
import re
import warnings
from typing import Any, NamedTuple

from gpu_envs.backend import ahead
from gpu_envs.backend.cupy import import_runtime, importing
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
        for version in (package_version, library_version):
            path = folder / file_name(source, name, architecture, version())
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
    path = cache_folder() / file_name(source, name, architecture, package_version() or library_version())

    def make() -> None:
        prepare(path.parent)
        keep(
            path.with_name(file_name(source, name, architecture, _own_version())),
            _for_device(source, name, architecture),
        )

    if not path.exists():
        ahead.begin((source, architecture), name, make)


def file_name(source: str, name: str, architecture: str, version: str) -> str:
    """What a program's file is called."""
    return f"{name}-{digest(source, *OPTIONS, architecture)[:32]}-{digest(version)[:8]}.cubin"


def compiled(source: str, name: str, architecture: str) -> Compiled:
    """What NVRTC makes of a source; no device is needed.

    Raises:
        CompileError: The compiler refuses it.
    """
    program = ctypes.c_void_p()
    text = source.encode("utf-8", "replace")  # paths in it may be any bytes
    options = [option.encode() for option in (*OPTIONS, f"-arch={architecture}")]
    _call("CreateProgram", ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    try:
        _call("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
        code = _made("CUBIN", program) if architecture.startswith("sm_") else b""
        return Compiled(_text("PTX", program), code, _text("ProgramLog", program))
    except _NvrtcError as error:
        said = _text("ProgramLog", program) or str(error)
        raise CompileError(f"{name} did not compile with NVRTC:\n{said}", said) from None
    finally:
        _call("DestroyProgram", ctypes.byref(program))


def version() -> str:
    """The library's version, 13.0 or the like.

    Raises:
        ImportError: The library, or what finds it, is not there.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("Version", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _for_device(source: str, name: str, architecture: str) -> bytes:
    """Machine code; for a device that this NVRTC does not know yet, PTX of the newest before it, for the driver."""
    wanted = int(re.sub(r"\D", "", architecture))
    known = [each for each in _architectures() if each <= wanted]
    if known and wanted not in known:
        return compiled(source, name, f"compute_{max(known)}").ptx.encode()
    return compiled(source, name, architecture).cubin


def _architectures() -> list[int]:
    """Those that NVRTC compiles for: 90 is ``sm_90``."""
    count = ctypes.c_int()
    _call("GetNumSupportedArchs", ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    _call("GetSupportedArchs", found)
    return list(found)


@functools.cache
def package_version() -> str:
    """The version of NVRTC's package, which is found without loading the library; empty where there is none."""
    import importlib.metadata

    major = import_runtime().runtimeGetVersion() // 1000
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc" + (f"-cu{major}" if major < 13 else ""))
    except importlib.metadata.PackageNotFoundError:
        return ""


def _own_version() -> str:
    """The version of what compiles in this process, where another library was loaded before, too."""
    return package_version() if package_version().startswith(f"{version()}.") else library_version()


@functools.cache
def library_version() -> str:
    """The version of the library itself, as it writes it into what it makes."""
    newest = max(_architectures())
    release = re.search(r"release [\d.]+, V([\d.]+)", compiled("", "nothing", f"compute_{newest}").ptx)
    return release[1] if release is not None else version()


class _NvrtcError(RuntimeError):
    """What NVRTC says of a call that it refuses."""


@functools.cache
def _library() -> ctypes.CDLL:
    """The library, where NVIDIA's own search finds it: CuPy's module for it would import all of CuPy first."""
    with importing():
        from cuda.pathfinder import load_nvidia_dynamic_lib

        try:
            library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
        except (RuntimeError, OSError) as error:
            raise ImportError(f"NVRTC does not load: {error}") from error
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _call(function: str, *given: Any) -> None:
    status = getattr(_library(), f"nvrtc{function}")(*given)
    if status != 0:
        raise _NvrtcError(f"NVRTC says {_library().nvrtcGetErrorString(status).decode()} ({function})")


def _made(what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(f"Get{what}Size", program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    _call(f"Get{what}", program, made)
    return made.raw


def _text(what: str, program: ctypes.c_void_p) -> str:
    return _made(what, program).decode(errors="replace").strip("\0\n ")
