"""``gpu-envs info``: show what is installed and how to install what is missing. It never fails."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import gpu_envs
from gpu_envs.backend import toolchain
from gpu_envs.cli import probes
from gpu_envs.cli.parser import OK, Parser, refuse_arguments
from gpu_envs.cli.report import echo, echo_json, wrap_table
from gpu_envs.registry import sources

_INFO = """Show what is installed: versions, the C++ compiler, GPUs, CuPy, NVRTC, torch and the cache of
compiled programs; and commands that install what is missing. Tests each library, which takes some
seconds."""

_EXAMPLES = """examples:
  gpu-envs info
  gpu-envs info --clear-cache"""

EXTRAS = {
    "pettingzoo": "pettingzoo",
    "sb3": "stable-baselines3",
    "torchrl": "torchrl",
    "skrl": "skrl",
    "rsl-rl": "rsl-rl-lib",
    "lightning": "lightning",
    "render": "pygame",
    "video": "imageio-ffmpeg",
    "plot": "matplotlib",
    "onnx": "onnxruntime",
    "safetensors": "safetensors",
    "wandb": "wandb",
    "mlflow": "mlflow-skinny",
}
"""Extras, and the distribution that each installs."""


class Status(NamedTuple):
    """The state of a program, library or device on this machine."""

    text: str
    """A description."""
    advice: str = ""
    """A problem and how to fix it; empty without a problem."""


def info(argv: Sequence[str]) -> int:
    """``gpu-envs info``: print what is installed and what is missing, or clear the cache; return the exit code."""
    parser = Parser("gpu-envs info", "gpu-envs info [--clear-cache]", _INFO, _EXAMPLES)
    clear = "remove the compiled programs; the next use compiles them again"
    parser.add_argument("--clear-cache", action="store_true", help=clear)
    parser.add_json()
    parser.add_debug()
    args, extras = parser.parse_known_args(list(argv))
    if args.help:
        return parser.show_help()
    refuse_arguments(parser, extras)
    if args.clear_cache:
        echo(clear_cache())
        return OK
    statuses = collect_statuses()
    if args.json:
        echo_json([{"name": name, "text": status.text, "advice": status.advice} for name, status in statuses])
        return OK
    echo(wrap_table([(name, status.text) for name, status in statuses]))
    advice = [status.advice for _, status in statuses if status.advice]
    echo(f"\nTo do:\n{wrap_table([('-', line) for line in advice])}" if advice else "\nNothing required is missing.")
    return OK


def collect_statuses() -> list[tuple[str, Status]]:
    """Return the names and states of all rows, in the order of the output."""
    library_probes = functools.cache(probes.LibraryProbes)
    with contextlib.suppress(Exception):  # the rows of the libraries report the error
        library_probes()  # run while the other rows are collected
    rows: list[tuple[str, Status]] = [
        ("gpu_envs", Status(f"{gpu_envs.__version__}, {Path(gpu_envs.__file__).parent}")),
        ("Python", Status(f"{platform.python_version()}, {sys.executable or 'unknown'}")),
        ("system", _try(_system)),
        ("NumPy, Gymnasium", Status(f"{_version('numpy')}, {_version('gymnasium')}")),
        ("C++ compiler", _try(_compiler)),
        ("CUDA driver", _try(_driver)),
    ]
    gpus: Sequence[probes.Gpu] = ()
    with contextlib.suppress(Exception):  # the row of the driver reports the error
        gpus = probes.driver().gpus
    rows += [(f"cuda:{number}", Status(gpu.text)) for number, gpu in enumerate(gpus)]
    rows += [
        ("CuPy, NVRTC", _try(lambda: _cupy(library_probes(), bool(gpus)))),
        ("torch", _try(lambda: _torch(library_probes(), bool(gpus)))),
        ("device auto", _try(_default_device)),
        ("cache", _try(_cache)),
        ("other environments", _try(_external_environments)),
        ("other libraries", _try(_optional_libraries)),
    ]
    return rows


def _try(probe: Callable[[], Status]) -> Status:
    """Return a probe's status or, if it raises an exception, a status with the exception's message."""
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  # an error must not hide the other rows
        return Status(f"unknown: {probes.brief(error)}", f"A check failed: {probes.brief(error)}")


def _version(distribution: str) -> str:
    """Return the version of a distribution, or "not installed"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _system() -> Status:
    from gpu_envs.backend.background import available_threads

    cores = available_threads()
    name = toolchain.processor_name()
    return Status(f"{platform.system()} {platform.machine()}, {name}, {cores} core{'s' * (cores != 1)}")


def _compiler() -> Status:
    """Return the compiler's command and version, with advice if it is missing or cannot compile a test program."""
    try:
        command = toolchain.find_compiler()
    except gpu_envs.NoCompilerError as error:
        return Status("none", " ".join(str(error).split()) if "CXX is" in str(error) else NO_COMPILER)
    version = (toolchain.compiler_version(command).splitlines() or ["unknown version"])[0]
    message = probes.try_compiler(command)
    name = " ".join(command)
    if message:
        return Status(
            f"{name} ({version}) does not compile",
            f"The C++ compiler {name} fails: {message}. Fix it, or set CXX=/path/to/another, or pip install ziglang",
        )
    return Status(f"{name} ({version})")


NO_COMPILER = "device='cpu' needs a C++ compiler, and none is installed: pip install ziglang, or apt install g++"


def _driver() -> Status:
    """Return the versions of NVIDIA's driver and of CUDA, with advice if the driver does not start or is too old."""
    driver = probes.driver()
    if not driver.is_present:
        return Status("none")
    cuda = f"CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda != (0, 0) else "CUDA unknown"
    text = f"{driver.version or 'unknown version'}, {cuda}"
    if driver.error:
        return Status(
            f"{text}; it does not start: {driver.error}",
            f"The NVIDIA driver is installed, but does not start ({driver.error}): run nvidia-smi for details",
        )
    if not driver.gpus:
        return Status(f"{text}; it finds no GPU")
    if driver.cuda < (12, 0):
        return Status(text, "The NVIDIA driver is older than CUDA 12, so the CPU is used: CuPy needs a newer driver")
    return Status(text)


def _cuda_extra() -> str:
    """Return the CUDA extra for the driver's version."""
    return "cuda13" if probes.driver().cuda >= (13, 0) else "cuda12"


def _cupy(library_probes: probes.LibraryProbes, has_gpu: bool) -> Status:
    """Return the versions of CuPy and NVRTC, with advice if the machine has a GPU that they cannot use."""
    install = f"pip install 'gpu_envs[{_cuda_extra()}]'"
    result = library_probes.result("cupy")
    if result is None:
        return Status("not installed", f"The GPU needs CuPy, which is not installed: {install}" if has_gpu else "")
    if "version" not in result:
        reason = result.get("error", "unknown")
        return Status(f"does not import: {reason}", f"CuPy does not import ({reason}): {install}" if has_gpu else "")
    text = f"CuPy {result['version']}"
    if "nvrtc" not in result:
        reason = result.get("nvrtc error", "unknown")
        return Status(
            f"{text}; NVRTC does not load: {reason}",
            f"NVRTC does not load, so nothing can be compiled for the GPU: {install}" if has_gpu else "",
        )
    text += f", NVRTC {result['nvrtc']}"
    if has_gpu and result.get("sum") != "3":
        reason = result.get("sum error", result.get("error", "unknown"))
        return Status(f"{text}; a first kernel fails: {reason}", f"CuPy cannot use the GPU ({reason}): {install}")
    return Status(text)


def _torch(library_probes: probes.LibraryProbes, has_gpu: bool) -> Status:
    """Return the version of torch and its CUDA, with advice if it is missing or does not find the machine's GPU."""
    result = library_probes.result("torch")
    if result is None:
        return Status("not installed", "Training and output='torch' need torch: pip install 'gpu_envs[train]'")
    if "version" not in result:
        reason = result.get("error", "unknown")
        return Status(f"does not import: {reason}", f"torch does not import ({reason}): pip install --upgrade torch")
    built = f"built for CUDA {result['cuda']}" if result.get("cuda") else "built without CUDA"
    if result.get("available"):
        return Status(f"{result['version']}, {built}, finds the GPU")
    text = f"{result['version']}, {built}{', finds no GPU' * has_gpu}"
    if not has_gpu:
        return Status(text)
    older = " --index-url https://download.pytorch.org/whl/cu126" if _cuda_extra() == "cuda12" else ""
    advice = "torch does not find the GPU, so training uses the CPU: pip install --force-reinstall torch"
    return Status(text, advice + older)


def _default_device() -> Status:
    from gpu_envs.backend.driver import device_count

    return Status("cuda:0" if device_count() > 0 and probes.is_installed("cupy") else "cpu")


def _cache() -> Status:
    """Return the folder and size of the cache of compiled programs, with advice if the folder cannot be used."""
    folder, libraries = toolchain.cache_folder(), toolchain.cache_files()
    size = sum(_size(path) for path in libraries)
    text = f"{folder}: {len(libraries)} compiled programs, {size / 1e6:.1f} MB"
    if folder.is_dir() and toolchain.writable_by_other_users(folder):
        return Status(
            f"{text}; it is not used, because other users can write to it",
            f"{folder} is not used, because other users can write to it: empty it and chmod 700 it, or set "
            "GPU_ENVS_CACHE_DIR to a folder that only you can write to",
        )
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        return Status(
            f"{text}; it is not writable",
            f"{folder} is not writable, so every process compiles again: set GPU_ENVS_CACHE_DIR to a writable folder",
        )
    return Status(text)


def _size(path: Path) -> int:
    """Return the size of a file, or of the files in a folder, in bytes; 0 if another process has removed it."""
    try:
        return sum(path.stat().st_size for path in (path.iterdir() if path.is_dir() else (path,)))
    except OSError:
        return 0


def _external_environments() -> Status:
    """Return a list of other distributions' entry points with environments, without importing them."""
    entry_points = [f"{sources.distribution_name(point)} ({point.value})" for point in sources.installed_entry_points()]
    return Status(", ".join(entry_points) or f"none: no distribution has an entry point in {sources.GROUP}")


def _optional_libraries() -> Status:
    """Return the versions of the extras' libraries, and how to install the missing ones."""
    versions = {extra: _version(distribution) for extra, distribution in EXTRAS.items()}
    installed = [f"{EXTRAS[extra]} {version}" for extra, version in versions.items() if version != "not installed"]
    missing = [extra for extra, version in versions.items() if version == "not installed"]
    text = ", ".join(installed) or "none"
    return Status(text + (f"; optional: pip install 'gpu_envs[{','.join(missing)}]'" if missing else ""))


def clear_cache() -> str:
    """Remove the compiled programs; return their number and size as text."""
    libraries = toolchain.cache_files()
    size = sum(_size(path) for path in libraries)
    for path in libraries:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    left = len(toolchain.cache_files())
    failed = f"; {left} could not be removed" if left else ""
    removed = len(libraries) - left
    return f"removed {removed} compiled programs, {size / 1e6:.1f} MB, from {toolchain.cache_folder()}{failed}"
