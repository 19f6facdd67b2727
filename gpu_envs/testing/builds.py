"""Checks with special builds: with sanitizers, with little optimisation, with bounds checks."""

import concurrent.futures
import dataclasses
import json
import os
import pickle
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_envs.backend.messages import compile_error
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import compile_library, compiler_version, find_compiler
from gpu_envs.codegen import SimulationConfig, generate, layout_of
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.errors import CompileError
from gpu_envs.testing.phases import check_phases
from gpu_envs.testing.portable import to_bytes
from gpu_envs.testing.probe import MODES, PROGRESS, VERDICT, Plan, builds_of
from gpu_envs.testing.report import FailedError, SkippedError, UnsafeError
from gpu_envs.testing.subject import Subject

_REPLICAS = 3
"""Replicas in these checks: few, because the builds are slow."""

_LONG_RUN_ITERATIONS = 20_000
"""Iterations over agents in a long run of the slow build that follows every access."""

_LIMIT_S = 300
"""Seconds after which the process that runs a build is killed."""

UNDEFINED = "bounds,integer-divide-by-zero,float-cast-overflow,signed-integer-overflow,shift"

_OPTIMISED = ("-O1", "-fno-tree-vectorize", "-DSCRATCH_FILL=0xfe")
_UNOPTIMISED = ("-O0", "-DSCRATCH_FILL=0x01")
_REVERSED = ("-O0", "-DTURNS")
_SANITIZED = ("-O0", "-g", "-fno-sanitize-recover=all")


_SAME_PHASES = "phases must not depend on World or on parameters; put the condition inside the phase"
_SAME_AGENT = (
    "within a phase, an iteration writes the fields of its agent only, reads what earlier phases wrote, and changes "
    "integers of other agents with add() and lower() only"
)


_INSTRUMENTED = """
extern "C" __attribute__((visibility("default"))) int something(const int (&a)[4], int b, float c) {
    return a[b] / b + (a[0] << b) + static_cast<int>(c);
}
"""
"""Code that each check in ``UNDEFINED`` instruments: some compilers accept a flag but lack its run-time library."""


def accepts(flags: tuple[str, ...], library: str = "") -> bool:
    """Whether the compiler accepts these flags, and a Python process that preloads ``library`` can load the result."""
    try:
        path = compile_library(_INSTRUMENTED, "flags", flags)
    except CompileError:
        return False
    command = [sys.executable, "-P", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
    result = subprocess.run(command, env={**os.environ, **_settings(library)}, capture_output=True, check=False)
    return result.returncode == 0


def _settings(library: str) -> dict[str, str]:
    """Environment variables of a process that runs code with sanitizers and preloads ``library``."""
    settings = {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": ""}
    return {**settings, "LD_PRELOAD": library} if library else settings


def sanitizer(kind: str) -> str:
    """Path of the library to preload for a sanitizer, asan or ubsan; empty if none is needed."""
    if sys.platform != "linux":
        return ""
    command = find_compiler()
    if "clang" in compiler_version(command):
        stem = f"libclang_rt.{kind}" if kind == "asan" else f"libclang_rt.{kind}_standalone"
        names = [f"{stem}.so", f"{stem}-{platform.machine()}.so"]
    else:  # GCC links libubsan itself
        names = ["libasan.so"] if kind == "asan" else []
    for name in names:
        result = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        path = result.stdout.strip()
        if result.returncode == 0 and Path(path).is_file():
            return path
    return ""


def undefined_values(subject: Subject) -> str:
    """Checks that builds of other optimisation and initial memory give equal results; returns a summary."""
    filled = [("-ftrivial-auto-var-init=pattern",), ("-ftrivial-auto-var-init=zero",)]
    pattern, zero = filled if all(map(accepts, filled)) else ((), ())
    # the builds with bounds checks first
    verdict = _run_builds(subject, ((*_OPTIMISED, *pattern), (*_UNOPTIMISED, *zero), ()))
    if verdict:
        raise FailedError(verdict)
    return f"{_extent(subject)}; the same results with -O0, -O1, -O3 and other bytes in uninitialised memory"


def phases(subject: Subject) -> str:
    """Checks that agents in reverse order, or one kernel per phase, as on GPUs, change no result; returns a summary."""
    if not subject.team:
        raise SkippedError("only teams have phases")
    check_phases(*rules_part(config_of(subject.spec, 1, Options(), subject.params)))
    try:
        agents = sum(len(role.agents) for role in subject.roles.values())
        longest = _LONG_RUN_ITERATIONS // agents
        verdict = _run_builds(subject, (_REVERSED, ()), longest=longest)
        if verdict:  # a build that reports the line, if it is known
            _run_builds(subject, ((*_REVERSED, "-DSTRICT_TURNS"),), longest=longest)
    except UnsafeError as error:
        raise FailedError(str(error)) from None
    if verdict:
        raise FailedError(
            f"{verdict.partition(' in builds of ')[0]} when each phase iterates over the agents in reverse order: an "
            "iteration reads or writes what another iteration of its phase writes, or a variable outside World is used "
            "in several phases; write in one phase, read in the next, and count with add(w.field, value)"
        )
    return f"{subject.steps} steps give the same with agents in reverse order, one kernel per phase"


def sanitized(subject: Subject) -> str:
    """Checks that a build with bounds checks and sanitizers runs without an error; returns a summary."""
    address = sanitizer("asan")
    for library, kinds in ((address, f"address,{UNDEFINED}"), (sanitizer("ubsan"), UNDEFINED)):
        flags = (*_SANITIZED, f"-fsanitize={kinds}")
        if (address or kinds == UNDEFINED) and accepts(flags, library):
            _run_builds(subject, (flags,), library)
            return f"{_extent(subject)}; sanitizers: {kinds.replace(',', ', ')}"
    raise SkippedError("the compiler has no sanitizers")


def on_cuda(subject: Subject, device: str) -> str:
    """Checks that a CUDA build with bounds checks runs, in compute-sanitizer if it is installed; returns a summary."""
    tool = shutil.which("compute-sanitizer")
    command = (tool, "--tool", "memcheck", "--error-exitcode", "98") if tool else ()
    _run_builds(subject, ((),), device=device, command=command)
    tool_name = "in compute-sanitizer" if tool else "without compute-sanitizer, which is not on PATH"
    return f"{subject.steps} steps in each autoreset mode, with bounds checks, {tool_name}"


def _extent(subject: Subject) -> str:
    return f"{subject.steps} steps in each autoreset mode, {subject.long_run_text}, with bounds checks"


def _run_builds(
    subject: Subject,
    builds: tuple[tuple[str, ...], ...],
    library: str = "",
    device: str = "cpu",
    command: tuple[str, ...] = (),
    longest: int = sys.maxsize,
) -> str:
    """Runs a subject in builds with these flags in another process; returns how their results differ, or "".

    Raises an UnsafeError if the process ends early or does not end.

    Args:
        subject: The environment and the actions.
        builds: Compiler flags of each build.
        library: Library to preload, such as that of a sanitizer.
        device: Device of the builds.
        command: Prefix of the command.
        longest: Maximum steps of a long run.
    """
    with tempfile.TemporaryDirectory(prefix="gpu_envs-") as folder:
        packed = to_bytes(subject.spec, subject.params, Path(folder))
        compare = len(builds) > 1
        lengths = (subject.steps, min(subject.longest[0], longest) if device == "cpu" else 0)
        plan = Plan(packed, subject.params, _REPLICAS, *lengths, subject.seed, device, builds, compare)
        if device == "cpu":
            compile_all([(build.config, build.flags) for mode in MODES for build in builds_of(plan, mode)])
        file = Path(folder) / "plan"
        file.write_bytes(pickle.dumps({f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}))
        paths = os.pathsep.join(path for path in sys.path if path)
        python = [sys.executable, "-P", "-c", "from gpu_envs.testing.probe import main; main()"]
        environment = {**os.environ, **_settings(library), "PYTHONPATH": paths}
        code, stdout, stderr = _run_process([*command, *python, str(file)], environment, _LIMIT_S)
        if code is None:
            steps = [line.removeprefix(PROGRESS) for line in stdout.splitlines() if line.startswith(PROGRESS)]
            raise UnsafeError(
                f"{subject.spec.id}: {steps[-1] if steps else 'the first reset'} did not end within {_LIMIT_S:g} s: "
                "look for an endless loop in the rules, or check fewer steps"
            )
        verdicts = [line for line in stdout.splitlines() if line.startswith(VERDICT)]
        if code == 0 and verdicts:
            return str(json.loads(verdicts[-1].removeprefix(VERDICT)))
        raise UnsafeError(describe_exit(stdout + stderr, code))


def _run_process(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[int | None, str, str]:
    """Runs a process, and kills it and its children if it takes too long or this call is interrupted.

    Returns:
        Exit code (None if it was killed after ``limit_s`` seconds), standard output and standard error.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=env, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace", start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            stdout, stderr = process.communicate()
            return None, stdout, stderr
        return process.returncode, stdout, stderr


def compile_all(configs: Sequence[tuple[SimulationConfig, tuple[str, ...]]]) -> None:
    """Compiles programs for the CPU in parallel, with further flags; later calls find them in the cache."""

    def compile_one(program_and_flags: tuple[Program, tuple[str, ...]]) -> Path:
        program, flags = program_and_flags
        try:
            return compile_library(program.source, program.name, flags)
        except CompileError as error:
            raise compile_error(program, error.output, shlex.join(find_compiler())) from None

    layouts = [(layout_of(config, Device(on_gpu=False)), flags) for config, flags in configs]
    programs = [(generate(layout, layout.modules[0]), flags) for layout, flags in layouts]  # modules of single steps
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, programs))


def describe_exit(output: str, code: int) -> str:
    """Describes in a sentence how a process ended, from its output and exit code."""
    index = re.search(r"^(.+:\d+): (index -?\d+ of .+)$", output, re.MULTILINE)
    if index:
        return f"{index[1]}: {index[2]}: fix the index, or give the field more elements in the spec"
    phase = re.search(r"^(.+:\d+): phase: (.+)$", output, re.MULTILINE)
    if phase:
        return f"{phase[1]}: {phase[2]}: {_SAME_PHASES if 'goes through' in phase[2] else _SAME_AGENT}"
    asserted = re.search(r"^(.+:\d+): index: .*Assertion `(.+)` failed", output, re.MULTILINE)
    if asserted:
        return f"{asserted[1]}: an index outside {asserted[2]!r}: fix the index, or give the field more elements"
    undefined = re.search(r"^(.+:\d+):\d+: runtime error: (.+)$", output, re.MULTILINE)
    if undefined:
        return f"{undefined[1]}: {undefined[2]}"
    address = re.search(r"ERROR: AddressSanitizer: (\S+)", output)
    if address:
        frames: list[Any] = re.findall(r"^ +#\d+ \S+ in (.+?) (\S+:\d+)", output, re.MULTILINE)
        rules_frames = [location for function, location in frames if "gpu_envs::" in function or "kernel_" in function]
        return f"{[*rules_frames, 'the rules'][0]}: {address[1]}: the rules read or write outside an array"
    memory = re.search(r"(Invalid __\w+__ (?:read|write) of size .+)", output)
    if memory:
        location = re.search(r"(\S+\.cuh:\d+)", output[memory.end() :])
        return f"{location[1] if location else 'a kernel'}: {memory[1]}"
    last = "\n".join(output.strip().splitlines()[-12:])
    return f"the process that ran it ended with exit code {code}:\n{last}"
