"""Finds the machine's C++ compiler, and compiles once: what it made is kept by a digest of all that went in."""

import atexit
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpu_envs.errors import CompileError, NoCompilerError

NO_COMPILER = """no C++ compiler was found. The CPU backend compiles its kernels when first used; any of these will do:
  pip install ziglang            a compiler from PyPI, no administrator needed
  apt install g++                Debian, Ubuntu (or dnf install gcc-c++)
  xcode-select --install         macOS
  CXX=/path/to/compiler          one that is somewhere else"""

_CPU_FLAG = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"

# Exact, but not strict about what nobody observes: no errno, no floating-point traps. Contraction would change results.
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


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``GPU_ENVS_CACHE_DIR``, or the user's cache folder."""
    chosen = os.environ.get("GPU_ENVS_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gpu_envs"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpu_envs"


def cached() -> list[Path]:
    """What is kept in the cache folder and was made here: libraries, and what an interrupted compilation left."""
    made = re.compile(r".*-[0-9a-f]{32}\.so|build-\w+")
    try:
        return sorted(path for path in cache_folder().iterdir() if made.fullmatch(path.name))
    except OSError:
        return []


def find_compiler() -> tuple[str, ...]:
    """The command that compiles C++: ``CXX``, ``c++``, ``g++``, ``clang++``, or the ``ziglang`` package.

    Raises:
        NoCompilerError: There is none; the message names the ways to get one.
    """
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NoCompilerError(f"CXX is {os.environ['CXX']!r}, which is no command ({error}); correct it") from None
    if chosen:
        path = shutil.which(chosen[0])
        if path is None:
            raise NoCompilerError(f"CXX is {os.environ['CXX']!r}, which is not there; correct it or unset it")
        return (path, *chosen[1:])
    for name in ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "c++")
    raise NoCompilerError(NO_COMPILER)


@functools.cache
def compiler_version(command: tuple[str, ...]) -> str:
    """What the compiler says of itself."""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@functools.cache
def cpu_features() -> str:
    """The processor's model and instruction sets: code compiled for this one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(sorted({line for line in lines if line.partition("\t")[0].strip(": ") in wanted}))


def build(source: str, name: str, extra_flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles and loads a shared library, or loads the one made before from the same source, flags and machine.

    Args:
        source: The C++ text.
        name: Begins the file's name, for people who look into the cache.
        extra_flags: Added to ``FLAGS``.

    Returns:
        The loaded library.
    """
    try:
        return ctypes.CDLL(str(compile_library(source, name, extra_flags)))
    except OSError as error:  # damaged, though whole
        if "undefined symbol" in str(error):
            raise CompileError(f"{name} uses a function that is not there: {error}", str(error)) from None
        return ctypes.CDLL(str(compile_library(source, name, extra_flags, anew=True)))


def compile_library(source: str, name: str, extra_flags: Sequence[str] = (), *, anew: bool = False) -> Path:
    """Compiles a shared library, or finds the one made before; arguments as of ``build``.

    Returns:
        Its file. One with address sanitizers can be loaded only by a process that began with their library.
    """
    command = find_compiler()
    flags = [*FLAGS, *extra_flags]
    ingredients = [source, *flags, *command, compiler_version(command), cpu_features()]
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:32]
    folder = _usable_folder()
    library = folder / f"{name}-{digest}.so"
    if not anew and _is_whole(library):
        return library
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        text, made = Path(scratch) / f"{name}.cpp", Path(scratch) / library.name
        text.write_text(source)
        done = subprocess.run(
            [*command, *flags, "-o", str(made), str(text)],
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # messages that can be read here too
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip()
            raise CompileError(f"{name} did not compile with {shlex.join(command)}:\n{said}", said)
        with made.open("ab") as file:
            file.write(_SEAL + file.tell().to_bytes(8, "little"))
        os.replace(made, library)  # whole or not at all, whoever else is compiling the same
    return library


_SEAL = b"gpu_envs library"
"""Ends a whole file, before its length: to load one that was cut off would end the process."""


def _is_whole(library: Path) -> bool:
    try:
        with library.open("rb") as file:
            length = file.seek(-len(_SEAL) - 8, os.SEEK_END)
            return file.read() == _SEAL + length.to_bytes(8, "little")
    except OSError:
        return False


def _usable_folder() -> Path:
    """The cache folder; where it cannot be written, a private one for this process."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return _private_folder()
    return folder if os.access(folder, os.W_OK | os.X_OK) else _private_folder()


@functools.cache
def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gpu_envs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
