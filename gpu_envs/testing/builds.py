"""Checks by builds that find mistakes: with sanitizers, with little optimisation, with every index looked at."""

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
from gpu_envs.testing.phases import demand_phases
from gpu_envs.testing.portable import to_bytes
from gpu_envs.testing.probe import MODES, PLACE, VERDICT, Plan, builds_of
from gpu_envs.testing.report import FailedError, SkippedError, UnsafeError
from gpu_envs.testing.subject import Subject

_REPLICAS = 3
"""How much is played: little, since it is slow."""

_TURNS_OF_A_LONG_RUN = 20_000
"""Of all agents, where every access is followed, which is slow."""

_LIMIT_S = 300
"""Seconds after which a process that plays is given up."""

UNDEFINED = "bounds,integer-divide-by-zero,float-cast-overflow,signed-integer-overflow,shift"

_PLAIN = ("-O1", "-fno-tree-vectorize", "-DSCRATCH_FILL=0xfe")
_PLAINEST = ("-O0", "-DSCRATCH_FILL=0x01")
_TURNS = ("-O0", "-DTURNS")
_SANITIZED = ("-O0", "-g", "-fno-sanitize-recover=all")


_SAME_PHASES = "no phase may depend on what is in World or in parameters; put the condition inside the phase"
_OWN_TURN = (
    "within a phase, a turn writes what is its own agent's, reads what earlier phases wrote, and changes integers of "
    "others by add() and lower() alone"
)


_OF_EACH_KIND = """
extern "C" __attribute__((visibility("default"))) int something(const int (&a)[4], int b, float c) {
    return a[b] / b + (a[0] << b) + static_cast<int>(c);
}
"""
"""What each kind of UNDEFINED looks at: some compilers know a kind and lack what it calls."""


def accepts(flags: tuple[str, ...], library: str = "") -> bool:
    """Whether the compiler knows these flags, and what it makes runs where ``library`` was loaded first."""
    try:
        made = compile_library(_OF_EACH_KIND, "flags", flags)
    except CompileError:
        return False
    loading = [sys.executable, "-P", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(made)]
    done = subprocess.run(loading, env={**os.environ, **_settings(library)}, capture_output=True, check=False)
    return done.returncode == 0


def _settings(library: str) -> dict[str, str]:
    """Of a process that runs code with sanitizers."""
    settings = {"PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": ""}
    return {**settings, "LD_PRELOAD": library} if library else settings


def sanitizer(kind: str) -> str:
    """What a process must have loaded first to run code with this sanitizer, asan or ubsan; empty: nothing."""
    if sys.platform != "linux":
        return ""
    command = find_compiler()
    if "clang" in compiler_version(command):
        stem = f"libclang_rt.{kind}" if kind == "asan" else f"libclang_rt.{kind}_standalone"
        names = [f"{stem}.so", f"{stem}-{platform.machine()}.so"]
    else:  # what GCC compiles names libubsan itself
        names = ["libasan.so"] if kind == "asan" else []
    for name in names:
        done = subprocess.run([*command, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        path = done.stdout.strip()
        if done.returncode == 0 and Path(path).is_file():
            return path
    return ""


def undefined_values(subject: Subject) -> str:
    """Compares builds that differ where C++ defines nothing: in optimisation, and in what memory holds beforehand."""
    filled = [("-ftrivial-auto-var-init=pattern",), ("-ftrivial-auto-var-init=zero",)]
    pattern, zero = filled if all(map(accepts, filled)) else ((), ())
    # first those that look at every index
    verdict = _play(subject, ((*_PLAIN, *pattern), (*_PLAINEST, *zero), ()))
    if verdict:
        raise FailedError(verdict)
    return f"{_played(subject)}; -O0, -O1 and other bytes in memory give the same as -O3"


def phases(subject: Subject) -> str:
    """Plays phases as a GPU might: turns from the last to the first, and a launch for each phase."""
    if not subject.team:
        raise SkippedError("of teams only")
    demand_phases(*rules_part(config_of(subject.spec, 1, Options(), subject.params)))
    try:
        agents = sum(len(role.agents) for role in subject.roles.values())
        longest = _TURNS_OF_A_LONG_RUN // agents
        verdict = _play(subject, (_TURNS, ()), longest=longest)
        if verdict:  # name the place, where it is known
            _play(subject, ((*_TURNS, "-DSTRICT_TURNS"),), longest=longest)
    except UnsafeError as error:
        raise FailedError(str(error)) from None
    if verdict:
        raise FailedError(
            f"{verdict.partition(' in builds of ')[0]} where turns go from the last to the first, each phase by itself:"
            " a turn reads or writes what another turn of its phase does, or something but World's fields is to last "
            "from one phase to the next; write in one phase, read in the next, and count with add(w.field, value)"
        )
    return f"{subject.steps} steps with turns from the last to the first, each phase by itself, give the same"


def sanitized(subject: Subject) -> str:
    """Plays a build with every index looked at, and with sanitizers."""
    address = sanitizer("asan")
    for library, kinds in ((address, f"address,{UNDEFINED}"), (sanitizer("ubsan"), UNDEFINED)):
        flags = (*_SANITIZED, f"-fsanitize={kinds}")
        if (address or kinds == UNDEFINED) and accepts(flags, library):
            _play(subject, (flags,), library)
            return f"{_played(subject)}; sanitizers: {kinds.replace(',', ', ')}"
    raise SkippedError("this compiler has no sanitizers")


def on_cuda(subject: Subject, device: str) -> str:
    """Plays a build with every index looked at on CUDA; in compute-sanitizer, where that is there."""
    tool = shutil.which("compute-sanitizer")
    command = (tool, "--tool", "memcheck", "--error-exitcode", "98") if tool else ()
    _play(subject, ((),), device=device, command=command)
    told = "in compute-sanitizer" if tool else "without compute-sanitizer, which is not on PATH"
    return f"{subject.steps} steps in each autoreset mode, every index looked at, {told}"


def _played(subject: Subject) -> str:
    return f"{subject.steps} steps in each autoreset mode, {subject.long_told}, every index looked at"


def _play(
    subject: Subject,
    builds: tuple[tuple[str, ...], ...],
    library: str = "",
    device: str = "cpu",
    command: tuple[str, ...] = (),
    longest: int = sys.maxsize,
) -> str:
    """Has another process play some builds, and returns its verdict, or raises what ended it."""
    with tempfile.TemporaryDirectory(prefix="gpu_envs-") as folder:
        packed = to_bytes(subject.spec, subject.params, Path(folder))
        compare = len(builds) > 1
        steps = (subject.steps, min(subject.longest[0], longest) if device == "cpu" else 0)
        plan = Plan(packed, subject.params, _REPLICAS, *steps, subject.seed, device, builds, compare)
        if device == "cpu":
            compile_all([(build.config, build.flags) for mode in MODES for build in builds_of(plan, mode)])
        file = Path(folder) / "plan"
        file.write_bytes(pickle.dumps({f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}))
        paths = os.pathsep.join(path for path in sys.path if path)
        words = [*command, sys.executable, "-P", "-c", "from gpu_envs.testing.probe import main; main()", str(file)]
        code, stdout, stderr = _ran(words, {**os.environ, **_settings(library), "PYTHONPATH": paths}, _LIMIT_S)
        if code is None:
            at = [line.removeprefix(PLACE) for line in stdout.splitlines() if line.startswith(PLACE)]
            raise UnsafeError(
                f"{subject.spec.id}: {at[-1] if at else 'the first reset'} did not end within {_LIMIT_S:g} s of the "
                "beginning: look for a loop without an end in the rules; or check fewer steps"
            )
        said = [line for line in stdout.splitlines() if line.startswith(VERDICT)]
        if code == 0 and said:
            return str(json.loads(said[-1].removeprefix(VERDICT)))
        raise UnsafeError(explained(stdout + stderr, code))


def _ran(words: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[int | None, str, str]:
    """Runs a process, which must not outlive this call, nor may what it starts.

    Returns:
        What it ended with, None where it was killed after ``limit_s`` seconds; and what it wrote.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, env=env, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace", start_new_session=True
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


def compile_all(kinds: Sequence[tuple[SimulationConfig, tuple[str, ...]]]) -> None:
    """Compiles for the CPU, side by side, what will then be found in the cache: each with further flags."""

    def compiled(work: tuple[Program, tuple[str, ...]]) -> Path:
        program, flags = work
        try:
            return compile_library(program.source, program.name, flags)
        except CompileError as error:
            raise compile_error(program, error.output, shlex.join(find_compiler())) from None

    layouts = [(layout_of(config, Device(on_gpu=False)), flags) for config, flags in kinds]
    work = [(generate(layout, layout.modules[0]), flags) for layout, flags in layouts]  # of single steps
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, work))


def explained(said: str, code: int) -> str:
    """What ended a process, in a sentence: of a long report what names the rules."""
    index = re.search(r"^(.+:\d+): (index -?\d+ of .+)$", said, re.MULTILINE)
    if index:
        return f"{index[1]}: {index[2]}: fix the index, or give the field more elements in the spec"
    phase = re.search(r"^(.+:\d+): phase: (.+)$", said, re.MULTILINE)
    if phase:
        return f"{phase[1]}: {phase[2]}: {_SAME_PHASES if 'goes through' in phase[2] else _OWN_TURN}"
    asserted = re.search(r"^(.+:\d+): index: .*Assertion `(.+)` failed", said, re.MULTILINE)
    if asserted:
        return f"{asserted[1]}: an index outside {asserted[2]!r}: fix the index, or give the field more elements"
    undefined = re.search(r"^(.+:\d+):\d+: runtime error: (.+)$", said, re.MULTILINE)
    if undefined:
        return f"{undefined[1]}: {undefined[2]}"
    address = re.search(r"ERROR: AddressSanitizer: (\S+)", said)
    if address:
        frames: list[Any] = re.findall(r"^ +#\d+ \S+ in (.+?) (\S+:\d+)", said, re.MULTILINE)
        own = [place for function, place in frames if "gpu_envs::" in function or "kernel_" in function]
        return f"{own[0] if own else 'the rules'}: {address[1]}: memory outside an array is read or written"
    memory = re.search(r"(Invalid __\w+__ (?:read|write) of size .+)", said)
    if memory:
        at = re.search(r"(\S+\.cuh:\d+)", said[memory.end() :])
        return f"{at[1] if at else 'a kernel'}: {memory[1]}"
    last = "\n".join(said.strip().splitlines()[-12:])
    return f"the process that played it ended with {code}:\n{last}"
