"""NVRTC compiles every kernel of every environment, with no GPU needed: to machine code, without surprises in it."""

import importlib.util
import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from harness import IDS, TEAM_IDS

import gpu_envs
from gpu_envs.backend.cuda import OPTIONS
from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS, Config, Device, Program, layout_of
from gpu_envs.painter import paint_program

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
REGISTERS = {"float32": 128, "float64": 255}
"""The most a thread may use: at 128, a multiprocessor still holds 512 threads."""


def nvrtc_missing() -> str:
    """Why NVRTC cannot compile here; empty where it can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        return f"NVRTC does not load: {error}"
    return ""


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    missing = nvrtc_missing()
    if missing and os.environ.get("REQUIRE_NVRTC") == "1":
        pytest.fail(f"REQUIRE_NVRTC=1, but {missing}")
    if missing:
        pytest.skip(f"{missing}; pip install 'gpu_envs[cuda13]' brings it")


H200 = Device(on_gpu=True, processors=132, shared_bytes=227 * 1024)


def programs(
    env: str | gpu_envs.Spec,
    mode: str,
    precision: str,
    per_replica: bool = False,
    checked: bool = False,
    **params: Any,
) -> Iterator[Program]:
    """The programs of all drivers."""
    spec = gpu_envs.spec(env) if isinstance(env, str) else env
    names = frozenset(n for n, p in spec.params.items() if not p.fixed) if per_replica else frozenset()
    config = Config(spec, 5000, mode, precision, 500, spec.check_params(params, 1), checked)
    layout = layout_of(config, H200, names)
    for module in layout.modules:
        yield layout.generate(module)


def compile_with_nvrtc(text: str, architecture: str, method: str = "cubin") -> bytes:
    """What CuPy does on a machine with a GPU, options included, short of loading the result."""
    from cupy.cuda.compiler import _NVRTCProgram

    options = (*OPTIONS, "-ftz=true", f"-arch={architecture}")
    code, _ = _NVRTCProgram(text, "kernels.cu", (), (), method=method).compile(options, None)
    return code.encode() if isinstance(code, str) else bytes(code)


def resources(cubin: bytes) -> Iterator[tuple[str, str, int]]:
    """What machine code says of itself: function, `registers` or `local` (bytes of local memory a thread), amount.

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


def check(program: Program, architecture: str, precision: str) -> None:
    found = list(resources(compile_with_nvrtc(program.source, architecture)))
    assert {name for name, kind, _ in found if kind == "registers" and not name.startswith("_")} == {
        f"kernel_{name}" for name in program.calls
    }
    # Drivers of teams give a thread fewer registers for more threads at a time, at the price of a few spilled words.
    spilled = 64 if "multi_agent" in program.name else 0
    assert [(name, value) for name, kind, value in found if kind == "local" and value > spilled] == []
    crowded = [(name, value) for name, kind, value in found if kind == "registers" and value > REGISTERS[precision]]
    assert crowded == []


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_compiles(env_id: str, architecture: str, precision: str) -> None:
    for program in programs(env_id, "SameStep", precision):
        check(program, architecture, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", [mode for mode in AUTORESET_MODES if mode != "SameStep"])
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_compiles_in_every_autoreset_mode(env_id: str, mode: str, precision: str) -> None:
    for program in programs(env_id, mode, precision):
        check(program, "sm_90", precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_compiles_with_parameters_per_replica(env_id: str, precision: str) -> None:
    for program in programs(env_id, "SameStep", precision, per_replica=True):
        check(program, "sm_90", precision)


# A float64 action is loaded, tested for NaN and converted as it is read; nothing else may work on doubles.
ACTION = re.compile(r"(@%p\d+ )?(ld\.global(\.nc)?\.f64|setp\.(nan|num|neu|equ|eq)\.f64|cvt\.rn\.(ftz\.)?f32\.f64)\b")
DECLARATION = re.compile(r"\.(reg|global|const|extern|visible)\b")


def double_arithmetic(ptx: str) -> list[str]:
    lines = [line.strip() for line in ptx.splitlines() if re.search(r"\.f64\b", line)]
    return [line for line in lines if not DECLARATION.match(line) and not ACTION.match(line)]


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_float32_means_no_doubles_and_sums_and_products_rounded_one_by_one(env_id: str, mode: str) -> None:
    for program in programs(env_id, mode, "float32"):
        ptx = compile_with_nvrtc(program.source, "compute_90", "ptx").decode()
        assert double_arithmetic(ptx) == []
        assert ".local" not in ptx
        # Without .rn, a product and a sum may be contracted when the PTX is assembled: one rounding, the CPU has two.
        assert [line for line in ptx.splitlines() if re.search(r"\b(mul|add|sub)\.(ftz\.)?f32", line)] == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_painter_compiles(architecture: str) -> None:
    check(paint_program(), architecture, "float32")


def test_the_painter_rounds_as_the_host_does() -> None:
    ptx = compile_with_nvrtc(paint_program().source, "compute_90", "ptx").decode()
    assert double_arithmetic(ptx) == []
    assert re.findall(r"\b(?:mul|add|sub|div|sqrt|fma)\.(?!rn\b)\S*f32", ptx) == []


def test_an_error_names_the_header_and_its_line() -> None:
    from cupy.cuda.compiler import CompileException

    program = next(programs("CartPole-v1", "SameStep", "float32"))
    text = program.source.replace("FN Outcome step(", "FN Outcome step(Nonsense, ", 1)
    with pytest.raises(CompileException, match=r"cartpole\.cuh\(\d+\)"):
        compile_with_nvrtc(text, "sm_90")


def strings(ptx: str) -> set[bytes]:
    """The strings that a kernel could print."""
    found = re.findall(r"\$str[^\[]*\[\d+\] = \{([^}]*)\}", ptx)
    return {bytes(map(int, codes.split(","))).rstrip(b"\0") for codes in found}


@pytest.mark.parametrize("env_id", [*IDS, *TEAM_IDS])
def test_a_build_that_looks_at_every_index_compiles(env_id: str) -> None:
    for program in programs(env_id, "SameStep", "float32", checked=True):
        compile_with_nvrtc(program.source, "sm_90")


def test_a_build_that_looks_at_every_index_names_lines_of_the_rules() -> None:
    """Not those of the header that looks."""
    for env_id in ("TagContinuous-v0", "TagGridWorld-v0"):
        header = str(gpu_envs.spec(env_id).header)
        for program in programs(env_id, "SameStep", "float32", checked=True):
            found = strings(compile_with_nvrtc(program.source, "compute_90", "ptx").decode())
            assert header.encode() in found
            assert b"checked.cuh" not in found
