"""Programs compiled by NVRTC, and checks of their machine code."""

import importlib.util
import pickle
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import gpu_envs
from gpu_envs.backend.cupy import import_cupy, nvrtc_version
from gpu_envs.backend.nvrtc import OPTIONS, Compiled, compile_source
from gpu_envs.backend.program import Device, Program
from gpu_envs.backend.toolchain import cached_file, digest, read_sealed
from gpu_envs.codegen import SimulationConfig, generate, layout_of
from gpu_envs.specs.distributions import Distribution

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")

REGISTERS = {"float32": 128, "float64": 255}
"""Maximum number of registers per thread: with 128, a multiprocessor still holds 512 threads."""


def nvrtc_missing() -> str:
    """Returns why NVRTC cannot compile here, or an empty string. CUDA builds of torch include NVRTC."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        import_cupy().cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        return f"NVRTC does not load: {error}"
    return ""


H200 = Device(on_gpu=True, processors=132, shared_bytes=227 * 1024)


def programs(
    env: str | gpu_envs.Spec,
    mode: str,
    precision: str,
    per_replica: bool = False,
    checked: bool = False,
    statistics: bool = True,
    drawn: Mapping[str, Distribution] | None = None,
    device: Device = H200,
    **params: Any,
) -> Iterator[Program]:
    """Generates the programs of all drivers."""
    spec = gpu_envs.spec(env) if isinstance(env, str) else env
    names = frozenset(n for n, p in spec.params.items() if not p.fixed) if per_replica else frozenset()
    config = SimulationConfig(
        spec,
        5000,
        mode,
        precision,
        500,
        spec.check_params(params, 1),
        checked,
        statistics=statistics,
        drawn=drawn or {},
    )
    layout = layout_of(config, device, names)
    for module in layout.modules:
        yield generate(layout, module)


def compile_with_nvrtc(text: str, architecture: str = "sm_90a") -> Compiled:
    """Compiles as on a machine with a GPU, without loading; the result is cached for the next test run."""
    name = f"test-{digest(text, *OPTIONS, architecture)[:32]}-{digest(nvrtc_version())[:8]}.cubin"
    path = cached_file(name, lambda: pickle.dumps(tuple(compile_source(text, "test", architecture))))
    return Compiled(*pickle.loads(read_sealed(path) or b""))


def ptx_of(text: str) -> str:
    """Compiles to PTX only: machine code would take twice as long, and most tests do not need it."""
    return compile_with_nvrtc(text, "compute_90a").ptx


def kernel_resources(cubin: bytes) -> Iterator[tuple[str, str, int]]:
    """Yields from machine code: function, `registers` or `local` (bytes of local memory per thread), amount.

    A cubin is an ELF file; its section .nv.info holds records of (format, attribute, size), symbol, value.
    """
    kinds = {0x2F: "registers", 0x11: "local"}
    (section_table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, entries, names_at = struct.unpack_from("<3H", cubin, 0x3A)
    headers = [struct.unpack_from("<2I4Q2I2Q", cubin, section_table + j * entry_size) for j in range(entries)]

    def text(table: int, offset: int) -> str:
        start = headers[table][4] + offset
        return cubin[start : cubin.index(b"\0", start)].decode()

    sections = {text(names_at, header[0]): header for header in headers}
    symbols, info = sections[".symtab"], sections[".nv.info"]
    at, end = info[4], info[4] + info[5]
    while at < end:
        form, attribute, size = struct.unpack_from("<2BH", cubin, at)
        at += 4
        if form == 4:  # the only form with a payload of `size` bytes
            if attribute in kinds:
                symbol, value = struct.unpack_from("<2I", cubin, at)
                (name,) = struct.unpack_from("<I", cubin, symbols[4] + 24 * symbol)
                yield text(symbols[6], name), kinds[attribute], value
            at += size


def check_program(program: Program, architecture: str, precision: str) -> None:
    """Checks spills and register counts and, in float32, that the arithmetic has the same bits as on a CPU."""
    ptx, cubin, _ = compile_with_nvrtc(program.source, architecture)
    resources = list(kernel_resources(cubin))
    assert {name for name, kind, _ in resources if kind == "registers" and not name.startswith("_")} == {
        f"kernel_{name}" for name in program.calls
    }
    # Teams' drivers, rollouts, and steps that draw parameters give a thread fewer registers for more threads at a time,
    # at the price of a few spilled words; the compiler's own functions are counted with who calls them.
    if "multi_agent" in program.name:
        allowed = {"kernel_": 64, "$": 64}
    elif "rollout" in program.name:
        allowed = {"kernel_rollout": 32, "$": 32}
    else:
        allowed = {"kernel_step": 80, "$": 80} if "struct Drawn {" in program.source else {}
    spilled = [(name, value) for name, kind, value in resources if kind == "local" and value]
    assert [
        each for each in spilled if each[1] > max((allowed[n] for n in allowed if each[0].startswith(n)), default=0)
    ] == []
    crowded = [(name, value) for name, kind, value in resources if kind == "registers" and value > REGISTERS[precision]]
    assert crowded == []
    if precision == "float32":
        assert double_arithmetic(ptx) == []
        assert ".local" not in ptx
        # Without .rn, a product and a sum may be contracted when the PTX is assembled: one rounding, the CPU has two.
        assert [line for line in ptx.splitlines() if re.search(r"\b(mul|add|sub)\.(ftz\.)?f32", line)] == []


# A float64 action is loaded, tested for NaN and converted as it is read; nothing else may work on doubles.
ACTION = re.compile(r"(@%p\d+ )?(ld\.global(\.nc)?\.f64|setp\.(nan|num|neu|equ|eq)\.f64|cvt\.rn\.(ftz\.)?f32\.f64)\b")

DECLARATION = re.compile(r"\.(reg|global|const|extern|visible)\b")


def double_arithmetic(ptx: str) -> list[str]:
    lines = [line.strip() for line in ptx.splitlines() if re.search(r"\.f64\b", line)]
    return [line for line in lines if not DECLARATION.match(line) and not ACTION.match(line)]
