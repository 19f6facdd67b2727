"""Finds the machine's C++ compiler, and caches compiled libraries in files named by a digest of all inputs."""

import atexit
import ctypes
import errno
import functools
import glob
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gpu_envs.backend import background
from gpu_envs.errors import CompileError, NoCompilerError

NO_COMPILER = """no C++ compiler was found. The CPU backend compiles its kernels when first used. Install one of these:
  pip install ziglang            a compiler from PyPI, needs no administrator rights
  apt install g++                Debian, Ubuntu (or dnf install gcc-c++)
  xcode-select --install         macOS
  CXX=/path/to/compiler          a compiler outside PATH"""

ResultT = TypeVar("ResultT")

_CPU_FLAG = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"

# IEEE arithmetic, but without errno and floating-point traps, which nothing reads. Contraction would change results.
FLAGS = (
    "-std=c++17",
    "-O3",
    _CPU_FLAG,
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
)


# Without them zig compiles the C++ standard library on first use, which takes most of a minute and is not needed here.
ZIG_OPTIONS = ("c++", "-nostdlib++", "-fno-exceptions")


def cache_folder() -> Path:
    """The folder for compiled kernels: ``GPU_ENVS_CACHE_DIR``, or ``gpu_envs`` in the user's cache folder."""
    caches = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("GPU_ENVS_CACHE_DIR") or f"{caches}/gpu_envs")
    try:
        return folder.expanduser().absolute()
    except RuntimeError:  # the user has no home folder
        return private_folder()


def cache_files() -> list[Path]:
    """The cached programs, and folders that interrupted compilations left; no files of other programs."""
    pattern = re.compile(r".*-[0-9a-f]{32}(-[0-9a-f]{8})?\.(so|cubin)|build-\w+")
    try:
        return sorted(path for path in cache_folder().iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def find_compiler() -> tuple[str, ...]:
    """The command that compiles C++: ``CXX``, ``c++``, ``g++``, ``clang++``, or the ``ziglang`` package.

    Raises:
        NoCompilerError: No compiler was found; the message lists the ways to install one.
    """
    try:
        cxx = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NoCompilerError(
            f"CXX is {os.environ['CXX']!r}, no valid command ({error}); correct or unset it"
        ) from None
    if cxx:
        path = shutil.which(cxx[0])
        if path is None:
            raise NoCompilerError(f"CXX is {os.environ['CXX']!r}, which was not found; correct it or unset it")
        return (path, *cxx[1:])
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-P", "-m", "ziglang", *ZIG_OPTIONS)  # -P: import nothing from the working folder
    raise NoCompilerError(NO_COMPILER)


@functools.cache
def compiler_version(command: tuple[str, ...]) -> str:
    """The output of the compiler's ``--version``."""
    run = subprocess.run([*command, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    return run.stdout + run.stderr


@functools.cache
def cpu_features() -> str:
    """The processor's model and instruction sets: code compiled for this one may not run on another."""
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    lines = {line for line in _cpu_lines() if line.partition("\t")[0].strip(": ") in keys}
    return "\n".join(sorted(lines)) if _cpu_lines() else f"{platform.machine()} {platform.processor()}"


def processor_name() -> str:
    """The processor's model name."""
    names = (line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpu_lines() -> list[str]:
    """The lines of ``/proc/cpuinfo``; empty if the system has no such file."""
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []


def build(source: str, name: str, extra_flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Loads a shared library; compiles it unless the cache has it for the same source, flags and processor.

    Raises:
        NoCompilerError: No compiler was found, and the library is not cached.
        CompileError: The compiler cannot compile the source.
        OSError: The cache folder and a temporary folder cannot be used; the message says why.
    """
    background.wait((source, *extra_flags))

    def compile_and_load(folder: Path) -> ctypes.CDLL:
        library = _compile_into(folder, source, name, extra_flags)
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            if "undefined symbol" not in str(error):
                raise
            raise CompileError(f"{name} calls a function that it does not define: {error}", str(error)) from None

    return in_cache_folder(compile_and_load)


def start_build(source: str, name: str, extra_flags: Sequence[str] = ()) -> None:
    """Starts to compile a library in a background thread; ``build`` waits for it."""

    def compile_into_cache() -> None:
        folder = cache_folder()
        prepare_folder(folder)
        _compile_into(folder, source, name, extra_flags)

    background.start((source, *extra_flags), name, compile_into_cache)


def compile_library(source: str, name: str, extra_flags: Sequence[str] = ()) -> Path:
    """Returns the file of a shared library, compiled unless the cache has it; the file's name starts with ``name``.

    A library with address sanitizers can be loaded only by a process that started with the sanitizer's library.
    """
    return in_cache_folder(lambda folder: _compile_into(folder, source, name, extra_flags))


def in_cache_folder(action: Callable[[Path], ResultT]) -> ResultT:
    """Returns ``action(folder)`` for the cache folder; if it cannot be used, warns and takes a temporary folder."""
    folder = cache_folder()
    try:
        prepare_folder(folder)
        return action(folder)
    except OSError as error:
        problem = f"cannot cache compiled kernels in {folder}: {error.strerror or error}"
    try:
        result = action(private_folder())
    except OSError as error:
        problem += f"; or in {tempfile.gettempdir()}: {error.strerror or error}. Free some space, or {SET_CACHE_DIR}"
        raise OSError(error.errno or errno.EACCES, problem) from None
    _warn_once(f"{problem}. Each process will compile its kernels again; {SET_CACHE_DIR}")
    return result


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=5)


SET_CACHE_DIR = "set GPU_ENVS_CACHE_DIR to a private, writable folder on a file system that allows execution"


def prepare_folder(folder: Path) -> None:
    """Creates a cache folder if necessary, or raises an OSError if that fails or other users can write to it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if writable_by_other_users(folder):
        raise PermissionError("other users can write to it, and its files are executed: empty it and chmod 700 it")


def writable_by_other_users(folder: Path) -> bool:
    """Whether another user may write there, who could then run code as this user.

    A group whose id equals the user's id is the user's private group on most systems, so it counts as the user.
    """
    status = folder.stat()
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != os.geteuid()
    return bool(status.st_uid not in (0, os.geteuid()) or by_group or status.st_mode & stat.S_IWOTH)


def _compile_into(folder: Path, source: str, name: str, extra_flags: Sequence[str]) -> Path:
    """Returns the library's file in the folder, compiled if necessary; without a compiler, any compiler's."""
    flags = [*FLAGS, *extra_flags]
    stem = f"{name}-{digest(source, *flags, cpu_features())[:32]}"
    try:
        command = find_compiler()
    except NoCompilerError:
        libraries = sorted(folder.glob(f"{glob.escape(stem)}-*.so"))
        cached = next((path for path in libraries if read_sealed(path) is not None), None)
        if cached is None or os.environ.get("CXX"):
            raise
        return cached
    library = folder / f"{stem}-{digest(*command, compiler_version(command))[:8]}.so"
    if read_sealed(library) is not None:
        return library
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        text, output = Path(scratch) / f"{name}.cpp", Path(scratch) / library.name
        text.write_text(source, "utf-8", _PATH_ERRORS)
        result = subprocess.run(
            [*command, *flags, "-o", str(output), str(text)],
            env={**os.environ, "LC_ALL": "C.UTF-8", "TMPDIR": scratch},  # diagnostics.py parses English messages
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        errors = result.stderr.strip()
        full = re.search("No space left on device|Disk quota exceeded", errors)
        if result.returncode != 0:
            if full:
                raise OSError(errno.ENOSPC, full[0])
            errors = errors or f"exit code {result.returncode}, no output"
            raise CompileError(f"{name} did not compile with {shlex.join(command)}:\n{errors}", errors)
        if not output.is_file():
            raise NoCompilerError(f"{shlex.join(command)} is no C++ compiler: it wrote nothing. Set CXX to another")
        with output.open("ab") as file:
            file.write(_seal(output.read_bytes()))
        os.replace(output, library)  # atomic: another process may compile the same library
    return library


_PATH_ERRORS = "surrogateescape"
"""The error handler for paths in sources, which may be any bytes."""


def digest(*inputs: str) -> str:
    """The SHA-256 of all inputs, for file names."""
    return hashlib.sha256("\0".join(inputs).encode(errors=_PATH_ERRORS)).hexdigest()


def cached_file(file_name: str, make: Callable[[], bytes]) -> Path:
    """Returns a file of the cache folder; if it is missing or damaged, writes the bytes that ``make`` returns."""
    content = functools.cache(make)  # called once, even if the cache folder is full and a second folder is tried

    def write_if_missing(folder: Path) -> Path:
        path = folder / file_name
        if read_sealed(path) is None:
            write_sealed(path, content())
        return path

    return in_cache_folder(write_if_missing)


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a file and its seal atomically, as other processes may write the same file."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        complete = Path(scratch) / path.name
        complete.write_bytes(content + _seal(content))
        os.replace(complete, path)


def read_sealed(path: Path) -> bytes | None:
    """The content of a file of ``write_sealed``, without the seal; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    length = len(content) - len(_seal(b""))
    return content[:length] if length > 0 and content[length:] == _seal(content[:length]) else None


def _seal(content: bytes) -> bytes:
    """Returns the end to append to a file: a checksum, as loading a damaged library or cubin could crash the process.

    In PTX the seal is a comment, so the file stays valid.
    """
    return b"\n// gpu_envs " + hashlib.sha256(content).hexdigest().encode()


@functools.cache
def private_folder() -> Path:
    """A temporary folder of this process, removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="gpu_envs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
