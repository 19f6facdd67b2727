"""``gpu-envs info``: what is installed here, what is missing, and how to get it. It never fails."""

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
from gpu_envs.cli.parser import OK, Parser, refuse_extras
from gpu_envs.cli.report import say, say_json, wrapped
from gpu_envs.registry import sources

_INFO = """Say what is installed here: versions, the C++ compiler, GPUs, CuPy, NVRTC, torch and caches;
what is missing, and the command that brings it. What is installed is tried out, which takes some
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
}
"""Of each extra the distribution that tells whether it is there."""


class Status(NamedTuple):
    """The state of one thing on this machine."""

    text: str
    """A description."""
    advice: str = ""
    """What is wrong and what to do about it; empty where nothing is."""


def info(words: Sequence[str]) -> int:
    """``gpu-envs info``."""
    parser = Parser("gpu-envs info", "gpu-envs info [--clear-cache]", _INFO, _EXAMPLES)
    parser.add_argument(
        "--clear-cache", action="store_true", help="remove the compiled programs; they are compiled anew when used"
    )
    parser.add_json()
    parser.add_debug()
    found, extras = parser.parse_known_args(list(words))
    if found.help:
        return parser.show_help()
    refuse_extras(parser, extras)
    if found.clear_cache:
        say(clear_cache())
        return OK
    statuses = look()
    if found.json:
        say_json([{"name": name, "text": status.text, "advice": status.advice} for name, status in statuses])
        return OK
    say(wrapped([(name, status.text) for name, status in statuses]))
    advice = [status.advice for _, status in statuses if status.advice]
    say("\nNothing is missing." if not advice else f"\nTo do:\n{wrapped([('-', each) for each in advice])}")
    return OK


def look() -> list[tuple[str, Status]]:
    """Everything, in the order in which it is printed."""
    trials = functools.cache(probes.Trials)
    with contextlib.suppress(Exception):  # what is wrong is said below, where it is asked for
        trials()  # at work while the rest is looked at
    rows: list[tuple[str, Status]] = [
        ("gpu_envs", Status(f"{gpu_envs.__version__}, {Path(gpu_envs.__file__).parent}")),
        ("Python", Status(f"{platform.python_version()}, {sys.executable or 'unknown'}")),
        ("system", _or_unknown(_system)),
        ("NumPy, Gymnasium", Status(f"{_version('numpy')}, {_version('gymnasium')}")),
        ("C++ compiler", _or_unknown(_compiler)),
        ("CUDA driver", _or_unknown(_driver)),
    ]
    gpus: Sequence[probes.Gpu] = ()
    with contextlib.suppress(Exception):  # the row of the driver says what is wrong
        gpus = probes.driver().gpus
    rows += [(f"cuda:{number}", Status(gpu.text)) for number, gpu in enumerate(gpus)]
    rows += [
        ("CuPy, NVRTC", _or_unknown(lambda: _cupy(trials(), bool(gpus)))),
        ("torch", _or_unknown(lambda: _torch(trials(), bool(gpus)))),
        ("device auto", _or_unknown(_auto)),
        ("cache", _or_unknown(_cache)),
        ("environments of others", _or_unknown(_environments)),
        ("other libraries", _or_unknown(_extras)),
    ]
    return rows


def _or_unknown(probe: Callable[[], Status]) -> Status:
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  # whatever is wrong with this machine, the rest is worth saying
        return Status(f"unknown: {probes.brief(error)}", f"Something could not be looked at: {probes.brief(error)}")


def _version(distribution: str) -> str:
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
    try:
        command = toolchain.find_compiler()
    except gpu_envs.NoCompilerError as error:
        return Status("none", " ".join(str(error).split()) if "CXX is" in str(error) else NO_COMPILER)
    version = (toolchain.compiler_version(command).splitlines() or ["unknown version"])[0]
    wrong = probes.compile_something(command)
    name = " ".join(command)
    if wrong:
        return Status(
            f"{name} ({version}) does not compile",
            f"The C++ compiler {name} fails: {wrong}. Mend it, or set CXX=/path/to/another, or pip install ziglang",
        )
    return Status(f"{name} ({version})")


NO_COMPILER = "There is no C++ compiler, so device='cpu' does not work: pip install ziglang, or apt install g++"


def _driver() -> Status:
    driver = probes.driver()
    if not driver.there:
        return Status("none")
    cuda = f"CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda != (0, 0) else "CUDA unknown"
    text = f"{driver.version or 'unknown version'}, {cuda}"
    if driver.error:
        return Status(
            f"{text}; it does not start: {driver.error}",
            f"The NVIDIA driver is there, but does not start ({driver.error}): see what nvidia-smi says",
        )
    if not driver.gpus:
        return Status(f"{text}; it sees no GPU")
    if driver.cuda < (12, 0):
        return Status(text, "The NVIDIA driver is older than CUDA 12: CuPy needs a newer one; the CPU does the work")
    return Status(text)


def _cuda_extra() -> str:
    """The extra that suits the driver."""
    return "cuda13" if probes.driver().cuda >= (13, 0) else "cuda12"


def _cupy(trials: probes.Trials, has_gpu: bool) -> Status:
    install = f"pip install 'gpu_envs[{_cuda_extra()}]'"
    tried = trials.result("cupy")
    if tried is None:
        return Status("not installed", f"There is a GPU, but no CuPy to use it: {install}" if has_gpu else "")
    if "version" not in tried:
        reason = tried.get("error", "unknown")
        return Status(f"does not import: {reason}", f"CuPy does not import ({reason}): {install}" if has_gpu else "")
    text = f"CuPy {tried['version']}"
    if "nvrtc" not in tried:
        reason = tried.get("nvrtc error", "unknown")
        return Status(
            f"{text}; NVRTC does not load: {reason}",
            f"NVRTC does not load, so nothing can be compiled for the GPU: {install}" if has_gpu else "",
        )
    text += f", NVRTC {tried['nvrtc']}"
    if has_gpu and tried.get("sum") != "3":
        reason = tried.get("sum error", tried.get("error", "unknown"))
        return Status(f"{text}; a first kernel fails: {reason}", f"CuPy cannot use the GPU ({reason}): {install}")
    return Status(text)


def _torch(trials: probes.Trials, has_gpu: bool) -> Status:
    tried = trials.result("torch")
    if tried is None:
        return Status("not installed", "Training and output='torch' need torch: pip install 'gpu_envs[train]'")
    if "version" not in tried:
        reason = tried.get("error", "unknown")
        return Status(f"does not import: {reason}", f"torch does not import ({reason}): pip install --upgrade torch")
    built = f"built for CUDA {tried['cuda']}" if tried.get("cuda") else "built without CUDA"
    if tried.get("available"):
        return Status(f"{tried['version']}, {built}, sees the GPU")
    text = f"{tried['version']}, {built}{', sees no GPU' * has_gpu}"
    if not has_gpu:
        return Status(text)
    older = " --index-url https://download.pytorch.org/whl/cu126" if _cuda_extra() == "cuda12" else ""
    advice = "torch does not see the GPU, so training would use the CPU: pip install --force-reinstall torch"
    return Status(text, advice + older)


def _auto() -> Status:
    from gpu_envs.backend.driver import device_count

    return Status("cuda:0" if device_count() > 0 and probes.is_installed("cupy") else "cpu")


def _cache() -> Status:
    folder, libraries = toolchain.cache_folder(), toolchain.cache_files()
    size = sum(_size(path) for path in libraries)
    text = f"{folder}: {len(libraries)} compiled, {size / 1e6:.1f} MB"
    if folder.is_dir() and toolchain.writable_by_others(folder):
        return Status(
            f"{text}; it is not used, as others can write to it",
            f"{folder} can be written by others, so it is not used: empty it and chmod 700 it, or set "
            "GPU_ENVS_CACHE_DIR to a folder of your own",
        )
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        return Status(
            f"{text}; it cannot be written",
            f"{folder} cannot be written, so every process compiles anew: set GPU_ENVS_CACHE_DIR to a folder that can",
        )
    return Status(text)


def _size(path: Path) -> int:
    try:
        return sum(each.stat().st_size for each in (path.iterdir() if path.is_dir() else (path,)))
    except OSError:
        return 0  # gone by now


def _environments() -> Status:
    """The entry points of distributions that have environments, without an import of them."""
    found = [f"{sources.distribution(point)} ({point.value})" for point in sources.installed()]
    return Status(", ".join(found) or f"none: no distribution has an entry point in {sources.GROUP}")


def _extras() -> Status:
    versions = {extra: _version(distribution) for extra, distribution in EXTRAS.items()}
    there = [f"{EXTRAS[extra]} {found}" for extra, found in versions.items() if found != "not installed"]
    absent = [extra for extra, found in versions.items() if found == "not installed"]
    text = ", ".join(there) or "none"
    return Status(text + (f"; pip install 'gpu_envs[{','.join(absent)}]' would bring the others" if absent else ""))


def clear_cache() -> str:
    """Removes what was compiled, and says how much that was."""
    libraries = toolchain.cache_files()
    size = sum(_size(path) for path in libraries)
    for path in libraries:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    left = len(toolchain.cache_files())
    failed = f"; {left} could not be removed" if left else ""
    return f"removed {len(libraries) - left} compiled, {size / 1e6:.1f} MB, from {toolchain.cache_folder()}{failed}"
