"""Finds the machine's C++ compiler, and compiles once: what it made is kept by a digest of all that went in."""

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

from gpu_envs.backend import ahead
from gpu_envs.errors import CompileError, NoCompilerError

NO_COMPILER = """no C++ compiler was found. The CPU backend compiles its kernels when first used; any of these will do:
  pip install ziglang            a compiler from PyPI, no administrator needed
  apt install g++                Debian, Ubuntu (or dnf install gcc-c++)
  xcode-select --install         macOS
  CXX=/path/to/compiler          one that is somewhere else"""

MadeT = TypeVar("MadeT")

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


# It would compile C++'s own library when first used, most of a minute, and nothing here needs that.
ZIG_OPTIONS = ("c++", "-nostdlib++", "-fno-exceptions")


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``GPU_ENVS_CACHE_DIR``, or the user's cache folder."""
    caches = "~/Library/Caches" if sys.platform == "darwin" else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("GPU_ENVS_CACHE_DIR") or f"{caches}/gpu_envs")
    try:
        return folder.expanduser().absolute()
    except RuntimeError:  # there is no such home
        return private_folder()


def cached() -> list[Path]:
    """What is kept in the cache folder and was made here: programs, and what an interrupted compilation left."""
    made = re.compile(r".*-[0-9a-f]{32}(-[0-9a-f]{8})?\.(so|cubin)|build-\w+")
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
        raise NoCompilerError(f"CXX is {os.environ['CXX']!r}, which is not a command ({error}); correct it") from None
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
        return (sys.executable, "-P", "-m", "ziglang", *ZIG_OPTIONS)  # -P: not one of the working folder
    raise NoCompilerError(NO_COMPILER)


@functools.cache
def compiler_version(command: tuple[str, ...]) -> str:
    """What the compiler prints as its version."""
    done = subprocess.run([*command, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False)
    return done.stdout + done.stderr


@functools.cache
def cpu_features() -> str:
    """The processor's model and instruction sets: code compiled for this one may not run on another."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    found = {line for line in _cpu_lines() if line.partition("\t")[0].strip(": ") in wanted}
    return "\n".join(sorted(found)) if _cpu_lines() else f"{platform.machine()} {platform.processor()}"


def processor_name() -> str:
    """The processor's name as its maker has it."""
    names = (line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []


def build(source: str, name: str, extra_flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles and loads a shared library, or loads the one made before from the same source, flags and machine.

    Raises:
        NoCompilerError: There is no compiler, and it was never made before.
        CompileError: The compiler refuses it.
        OSError: No folder will do; the message says why.
    """
    ahead.wait((source, *extra_flags))

    def load(folder: Path) -> ctypes.CDLL:
        library = _compiled(source, name, extra_flags, folder)
        try:
            return ctypes.CDLL(str(library))
        except OSError as error:
            if "undefined symbol" in str(error):
                raise CompileError(f"{name} uses a function that is not there: {error}", str(error)) from None
            raise

    return in_a_folder(load)


def begin(source: str, name: str, extra_flags: Sequence[str] = ()) -> None:
    """Begins to make what ``build`` will be asked for."""

    def make() -> None:
        folder = cache_folder()
        prepare(folder)
        _compiled(source, name, extra_flags, folder)

    ahead.begin((source, *extra_flags), name, make)


def compile_library(source: str, name: str, extra_flags: Sequence[str] = ()) -> Path:
    """Compiles a shared library, or finds the one made before. The name begins its file's name, for people who look.

    One with address sanitizers can be loaded only by a process that began with their library.
    """
    return in_a_folder(lambda folder: _compiled(source, name, extra_flags, folder))


def in_a_folder(make: Callable[[Path], MadeT]) -> MadeT:
    """Returns ``make(folder)`` for the cache folder.

    If the folder cannot be used, warns and takes a temporary folder of this process.
    """
    folder = cache_folder()
    try:
        prepare(folder)
        return make(folder)
    except OSError as error:
        refused = f"compiled kernels cannot be kept in {folder}: {error.strerror or error}"
    try:
        made = make(private_folder())
    except OSError as error:
        nor = f"nor in {tempfile.gettempdir()}: {error.strerror or error}. Free some space, or set {ELSEWHERE}"
        raise OSError(error.errno or errno.EACCES, f"{refused}; {nor}") from None
    _warn_once(f"{refused}. Every process compiles anew; set {ELSEWHERE}")
    return made


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=5)


ELSEWHERE = "GPU_ENVS_CACHE_DIR to a folder of your own that can be written and run from"


def prepare(folder: Path) -> None:
    """Makes a cache folder, or raises why this one is not to be used."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if open_to_others(folder):
        raise PermissionError("others can write to it, and what is in it is run; empty it and chmod 700 it")


def open_to_others(folder: Path) -> bool:
    """Whether somebody else may write there, who could then run code as this user.

    A group with the user's own number has no other members where systems give each user one.
    """
    found = folder.stat()
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid != os.geteuid()
    return bool(found.st_uid not in (0, os.geteuid()) or by_group or found.st_mode & stat.S_IWOTH)


def _compiled(source: str, name: str, extra_flags: Sequence[str], folder: Path) -> Path:
    """The library in this folder; without a compiler, the one that any compiler made there."""
    flags = [*FLAGS, *extra_flags]
    stem = f"{name}-{digest(source, *flags, cpu_features())[:32]}"
    try:
        command = find_compiler()
    except NoCompilerError:
        made_before = (path for path in sorted(folder.glob(f"{glob.escape(stem)}-*.so")) if whole(path) is not None)
        library = None if os.environ.get("CXX") else next(made_before, None)
        if library is None:
            raise
        return library
    library = folder / f"{stem}-{digest(*command, compiler_version(command))[:8]}.so"
    if whole(library) is not None:
        return library
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        text, made = Path(scratch) / f"{name}.cpp", Path(scratch) / library.name
        text.write_text(source, "utf-8", _PATHS)
        done = subprocess.run(
            [*command, *flags, "-o", str(made), str(text)],
            env={**os.environ, "LC_ALL": "C.UTF-8", "TMPDIR": scratch},  # messages that can be read here too
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        said = done.stderr.strip()
        full = re.search("No space left on device|Disk quota exceeded", said)
        if done.returncode != 0 and full:
            raise OSError(errno.ENOSPC, full[0])
        if done.returncode != 0:
            said = said or f"it ended with code {done.returncode} and said nothing"
            raise CompileError(f"{name} did not compile with {shlex.join(command)}:\n{said}", said)
        if not made.is_file():
            raise NoCompilerError(f"{shlex.join(command)} is no C++ compiler: it made nothing. Correct CXX or unset it")
        with made.open("ab") as file:
            file.write(_seal(made.read_bytes()))
        os.replace(made, library)  # whole or not at all, whoever else is compiling the same
    return library


_PATHS = "surrogateescape"
"""How paths, which may be any bytes, stand in sources."""


def digest(*ingredients: str) -> str:
    """Names a file by all that goes into it."""
    return hashlib.sha256("\0".join(ingredients).encode(errors=_PATHS)).hexdigest()


def kept(file_name: str, make: Callable[[], bytes]) -> Path:
    """Returns a file of the cache folder; where it is missing or damaged, with the content that ``make`` returns."""
    content = functools.cache(make)  # made once even if the cache folder turns out to be full

    def keep_in(folder: Path) -> Path:
        path = folder / file_name
        if whole(path) is None:
            keep(path, content())
        return path

    return in_a_folder(keep_in)


def keep(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, whoever else is writing the same."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        made = Path(scratch) / path.name
        made.write_bytes(content + _seal(content))
        os.replace(made, path)


def whole(path: Path) -> bytes | None:
    """The content of a file that was kept, without its seal; None where it is not there or is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    length = len(content) - len(_seal(b""))
    return content[:length] if length > 0 and content[length:] == _seal(content[:length]) else None


def _seal(content: bytes) -> bytes:
    """Marks the end of a complete file: loading a truncated or damaged one could end the process.

    A file of PTX stays valid: the mark is a comment there.
    """
    return b"\n// gpu_envs " + hashlib.sha256(content).hexdigest().encode()


@functools.cache
def private_folder() -> Path:
    """A folder of this process, which is removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="gpu_envs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
