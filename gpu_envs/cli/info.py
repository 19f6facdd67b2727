"""``gpu-envs info``: what is installed here, what is missing, and how to get it. It never fails."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpu_envs
from gpu_envs import sources
from gpu_envs.backend import toolchain
from gpu_envs.cli import probes
from gpu_envs.cli.parser import OK, Parser, add_debug, refuse_extras
from gpu_envs.cli.report import say, wrapped

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
    "render": "pygame",
    "video": "imageio-ffmpeg",
}
"""Of each extra the distribution that tells whether it is there."""


class Finding(NamedTuple):
    """What was found of one thing."""

    text: str
    """In some words."""
    advice: str = ""
    """What is wrong and what to do about it; empty where nothing is."""


def info(words: Sequence[str], trainer: Any) -> int:
    """``gpu-envs info``."""
    del trainer
    parser = Parser("gpu-envs info", "gpu-envs info [--clear-cache]", _INFO, _EXAMPLES)
    parser.add_argument(
        "--clear-cache", action="store_true", help="remove the compiled libraries; they are compiled anew when used"
    )
    add_debug(parser)
    found, extras = parser.parse_known_args(list(words))
    if found.help:
        say(parser.format_help().rstrip("\n"))
        return OK
    refuse_extras(parser, extras)
    if found.clear_cache:
        say(clear_cache())
        return OK
    findings = look()
    say(wrapped([(name, finding.text) for name, finding in findings]))
    advice = [finding.advice for _, finding in findings if finding.advice]
    say("\nNothing is missing." if not advice else f"\nTo do:\n{wrapped([('-', each) for each in advice])}")
    return OK


def look() -> list[tuple[str, Finding]]:
    """Everything, in the order in which it is printed."""
    trials = functools.cache(probes.Trials)
    with contextlib.suppress(Exception):  # what is wrong is said below, where it is asked for
        trials()  # at work while the rest is looked at
    rows: list[tuple[str, Finding]] = [
        ("gpu_envs", Finding(f"{gpu_envs.__version__}, {Path(gpu_envs.__file__).parent}")),
        ("Python", Finding(f"{platform.python_version()}, {sys.executable or 'unknown'}")),
        ("system", _or_unknown(_system)),
        ("NumPy, Gymnasium", Finding(f"{_version('numpy')}, {_version('gymnasium')}")),
        ("C++ compiler", _or_unknown(_compiler)),
        ("CUDA driver", _or_unknown(_driver)),
    ]
    gpus = _or_nothing(lambda: probes.driver().gpus)
    rows += [(f"cuda:{number}", Finding(gpu.text)) for number, gpu in enumerate(gpus)]
    rows += [
        ("CuPy, NVRTC", _or_unknown(lambda: _cupy(trials(), bool(gpus)))),
        ("torch", _or_unknown(lambda: _torch(trials(), bool(gpus)))),
        ("device auto", _or_unknown(_auto)),
        ("cache", _or_unknown(_cache)),
    ]
    if gpus:
        rows.append(("CuPy's cache", _or_unknown(_cupy_cache)))
    rows.append(("environments of others", _or_unknown(_environments)))
    rows.append(("other libraries", _or_unknown(_extras)))
    return rows


def _or_unknown(probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  # whatever is wrong with this machine, the rest is worth saying
        return Finding(f"unknown: {probes.brief(error)}", f"Something could not be looked at: {probes.brief(error)}")


def _or_nothing(probe: Callable[[], Iterable[Any]]) -> list[Any]:
    try:
        return list(probe())
    except Exception:  # noqa: BLE001  # it has been said what is wrong
        return []


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _system() -> Finding:
    from gpu_envs.backend.host import available_threads

    cores = available_threads()
    name = next(
        (line.partition(":")[2].strip() for line in probes.lines_of("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    return Finding(f"{platform.system()} {platform.machine()}, {name}, {cores} core{'s' * (cores != 1)}")


def _compiler() -> Finding:
    try:
        command = toolchain.find_compiler()
    except gpu_envs.NoCompilerError as error:
        return Finding("none", " ".join(str(error).split()) if "CXX is" in str(error) else NO_COMPILER)
    version = (toolchain.compiler_version(command).splitlines() or ["unknown version"])[0]
    wrong = probes.compile_something(command)
    name = " ".join(command)
    if wrong:
        return Finding(
            f"{name} ({version}) does not compile",
            f"The C++ compiler {name} fails: {wrong}. Mend it, or set CXX=/path/to/another, or pip install ziglang",
        )
    return Finding(f"{name} ({version})")


NO_COMPILER = "There is no C++ compiler, so device='cpu' does not work: pip install ziglang, or apt install g++"


def _driver() -> Finding:
    driver = probes.driver()
    if not driver.there:
        return Finding("none")
    cuda = f"CUDA {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda != (0, 0) else "CUDA unknown"
    text = f"{driver.version or 'unknown version'}, {cuda}"
    if driver.error:
        return Finding(
            f"{text}; it does not start: {driver.error}",
            f"The NVIDIA driver is there, but does not start ({driver.error}): see what nvidia-smi says",
        )
    if not driver.gpus:
        return Finding(f"{text}; it sees no GPU")
    if driver.cuda < (12, 0):
        return Finding(text, "The NVIDIA driver is older than CUDA 12: CuPy needs a newer one; the CPU does the work")
    return Finding(text)


def _cuda_extra() -> str:
    """The extra that suits the driver."""
    return "cuda13" if probes.driver().cuda >= (13, 0) else "cuda12"


def _cupy(trials: probes.Trials, has_gpu: bool) -> Finding:
    install = f"pip install 'gpu_envs[{_cuda_extra()}]'"
    tried = trials.result("cupy")
    if tried is None:
        return Finding("not installed", f"There is a GPU, but no CuPy to use it: {install}" if has_gpu else "")
    if "version" not in tried:
        reason = tried.get("error", "unknown")
        return Finding(f"does not import: {reason}", f"CuPy does not import ({reason}): {install}" if has_gpu else "")
    text = f"CuPy {tried['version']}"
    if "nvrtc" not in tried:
        reason = tried.get("nvrtc error", "unknown")
        return Finding(
            f"{text}; NVRTC does not load: {reason}",
            f"NVRTC does not load, so nothing can be compiled for the GPU: {install}" if has_gpu else "",
        )
    text += f", NVRTC {tried['nvrtc']}"
    if has_gpu and tried.get("sum") != "3":
        reason = tried.get("sum error", tried.get("error", "unknown"))
        return Finding(f"{text}; a first kernel fails: {reason}", f"CuPy cannot use the GPU ({reason}): {install}")
    return Finding(text)


def _torch(trials: probes.Trials, has_gpu: bool) -> Finding:
    tried = trials.result("torch")
    if tried is None:
        return Finding("not installed", "Training and output='torch' need torch: pip install torch")
    if "version" not in tried:
        reason = tried.get("error", "unknown")
        return Finding(f"does not import: {reason}", f"torch does not import ({reason}): pip install --upgrade torch")
    built = f"built for CUDA {tried['cuda']}" if tried.get("cuda") else "built without CUDA"
    if tried.get("available"):
        return Finding(f"{tried['version']}, {built}, sees the GPU")
    text = f"{tried['version']}, {built}{', sees no GPU' * has_gpu}"
    if not has_gpu:
        return Finding(text)
    older = " --index-url https://download.pytorch.org/whl/cu126" if _cuda_extra() == "cuda12" else ""
    advice = "torch does not see the GPU, so training would use the CPU: pip install --force-reinstall torch"
    return Finding(text, advice + older)


def _auto() -> Finding:
    from gpu_envs.backend.cuda import device_count

    return Finding("cuda:0" if device_count() > 0 and probes.is_installed("cupy") else "cpu")


def _cache() -> Finding:
    folder, libraries = toolchain.cache_folder(), toolchain.cached()
    size = sum(_size(path) for path in libraries)
    text = f"{folder}: {len(libraries)} compiled, {size / 1e6:.1f} MB"
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(nearest, os.W_OK | os.X_OK) or not nearest.is_dir():
        return Finding(
            f"{text}; it cannot be written",
            f"{folder} cannot be written, so every process compiles anew: set GPU_ENVS_CACHE_DIR to a folder that can",
        )
    return Finding(text)


def _cupy_cache() -> Finding:
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    return Finding(f"{folder}: {len(files)} compiled, {sum(map(_size, files)) / 1e6:.1f} MB, of all programs with CuPy")


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(each.stat().st_size for each in path.iterdir())
        return path.stat().st_size
    except OSError:
        return 0  # gone by now


def _environments() -> Finding:
    """The entry points of distributions that have environments, without an import of them."""
    found = [f"{sources.distribution(point)} ({point.value})" for point in sources.installed()]
    return Finding(", ".join(found) or f"none: no distribution has an entry point in {sources.GROUP}")


def _extras() -> Finding:
    versions = {extra: _version(distribution) for extra, distribution in EXTRAS.items()}
    there = [f"{EXTRAS[extra]} {found}" for extra, found in versions.items() if found != "not installed"]
    absent = [extra for extra, found in versions.items() if found == "not installed"]
    text = ", ".join(there) or "none"
    return Finding(text + (f"; pip install 'gpu_envs[{','.join(absent)}]' would bring the others" if absent else ""))


def clear_cache() -> str:
    """Removes what was compiled for the CPU, and says how much that was."""
    libraries = toolchain.cached()
    size = sum(_size(path) for path in libraries)
    for path in libraries:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    left = len(toolchain.cached())
    failed = f"; {left} could not be removed" if left else ""
    return f"removed {len(libraries) - left} compiled, {size / 1e6:.1f} MB, from {toolchain.cache_folder()}{failed}"
