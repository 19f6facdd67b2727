"""Check that rules compile for CUDA, on a machine without a CUDA device."""

import re
from collections.abc import Iterator

from gpu_envs.backend.cupy import import_cupy
from gpu_envs.backend.messages import check_device_functions, compile_error
from gpu_envs.backend.nvrtc import compile_source
from gpu_envs.backend.program import Device
from gpu_envs.backend.text import blanked
from gpu_envs.codegen import generate, layout_of
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.errors import CompileError, display
from gpu_envs.testing.phases import closing
from gpu_envs.testing.report import FailedError
from gpu_envs.testing.subject import Subject

_DEVICE = Device(on_gpu=True, processors=132, shared_bytes=227 * 1024)
"""Device to compile for; its properties do not matter."""


def for_cuda(subject: Subject) -> str:
    """Checks that NVRTC compiles the rules or, if it is missing, that their functions have FN; returns a summary."""
    config = config_of(subject.spec, 2, Options(autoreset_mode="SameStep"), subject.params)
    if not has_nvrtc():
        file, text = rules_part(config)
        for line, _ in [] if file.endswith(".py") else unmarked(text):
            raise FailedError(
                f"{display(file)}:{line}: error: this function is not marked FN, so it exists on the CPU only; write "
                f"FN before it\n    {text.splitlines()[line - 1].strip()}"
            )
        return "every function is marked FN; install NVRTC to compile"
    layout = layout_of(config, _DEVICE)
    program = generate(layout, layout.modules[0])
    try:
        check_device_functions(program, "NVRTC")
    except CompileError as error:
        raise FailedError(str(error)) from None
    try:
        compile_source(program.source, program.name, "compute_80")
    except CompileError as error:
        raise FailedError(str(compile_error(program, error.output, "NVRTC"))) from None
    return f"{config.precision} in {config.autoreset_mode}, compiled by NVRTC; no device to run it"


def has_nvrtc() -> bool:
    """Whether NVRTC is installed."""
    try:
        import_cupy().cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def unmarked(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and name of each function that a header defines without FN."""
    code = re.sub(r"(?m)^[ \t]*#(?:[^\n\\]|\\\n?)*", lambda match: re.sub(r"[^\n]", " ", match[0]), blanked(text))
    yield from _unmarked(code, 0, len(code))


def _unmarked(code: str, at: int, end: int) -> Iterator[tuple[int, str]]:
    """Yields line and name of functions without FN in ``code[at:end]``, also in its structs and namespaces."""
    begin = at
    while at < end:
        if code[at] in "([":
            at = closing(code, at)
            continue
        if code[at] == "{":
            head, after = code[begin:at], closing(code, at)
            function = re.search(r"([\w~]+|operator[^\w\s]+)\s*\([^{}]*\)[\s\w]*$", head)
            if re.search(r"\b(?:struct|class|union|namespace)\b[^()]*$", head):
                yield from _unmarked(code, at + 1, after - 1)
            elif function and not re.search(r"\b(?:FN|NOINLINE)\b", head) and "=" not in head[: function.start()]:
                start = begin + len(head) - len(head.lstrip())
                yield code.count("\n", 0, start) + 1, function[1]
            begin = at = after
            continue
        begin = at + 1 if code[at] == ";" else begin
        at += 1
