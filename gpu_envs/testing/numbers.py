"""Check that rules convert no numbers implicitly to another type."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu_envs.backend.program import Device
from gpu_envs.backend.toolchain import FLAGS, find_compiler
from gpu_envs.codegen import generate, layout_of
from gpu_envs.engine.options import Options, config_of
from gpu_envs.errors import display
from gpu_envs.testing.report import FailedError, SkippedError
from gpu_envs.testing.subject import Subject

_MAX_LINES = 5
"""Maximum number of reported lines."""

_WARNINGS = ("-Wfloat-conversion", "-Wdouble-promotion")
_WARNING = re.compile(
    r"^(?P<file>[^\n]+?):(?P<line>\d+):\d+: warning: (?P<text>.*) \[-W(?P<flag>[\w-]+)\]$", re.MULTILINE
)
_TO_REAL = re.compile(r"to '[^']*\breal'|to '(?:const )?float'")

_CUT = "a real number is converted to an integer, which truncates it: write int(...) if this is intended"
_DOUBLE = "computed in double even in float32, which is slow on a GPU: write literals as real(0.5)"


def no_conversions(subject: Subject) -> str:
    """Raises a FailedError if rules convert reals to integers or compute in double; otherwise returns a summary.

    Clang does not report that ``x *= 0.5`` is computed in double.
    """
    layout = layout_of(config_of(subject.spec, 2, Options(device="cpu"), subject.params), Device(on_gpu=False))
    program = generate(layout, layout.modules[0])
    rules_file = program.contract.file if program.contract is not None else ""
    warnings = list(dict.fromkeys(conversions(_warnings_of(program.source), rules_file)))
    if warnings:
        texts = Path(rules_file).read_text("utf-8", "replace").splitlines() if Path(rules_file).is_file() else []
        lines = [
            f"{display(rules_file)}:{line}: {what}" + (f"\n    {texts[line - 1].strip()}" if line <= len(texts) else "")
            for line, what in warnings[:_MAX_LINES]
        ]
        more = [f"and {len(warnings) - _MAX_LINES} more"] if len(warnings) > _MAX_LINES else []
        raise FailedError("\n".join([*lines, *more]))
    return "no real number is truncated to an integer, and float32 rules compute nothing in double"


def _warnings_of(source: str) -> str:
    """Returns the compiler's warnings about conversions in a source."""
    with tempfile.TemporaryDirectory(prefix="gpu_envs-") as folder:
        file = Path(folder) / "rules.cpp"
        file.write_text(source, "utf-8", "surrogateescape")
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        result = subprocess.run(
            [*find_compiler(), *flags, "-fsyntax-only", *_WARNINGS, str(file)],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if result.returncode != 0:
        raise SkippedError(f"the compiler does not support {' and '.join(_WARNINGS)}")
    return result.stderr


def conversions(output: str, file: str) -> Iterator[tuple[int, str]]:
    """Yields line and advice for each warning about ``file``: a real converted to an int, or doubles."""
    plain = output.replace("\u2018", "'").replace("\u2019", "'")
    for match in _WARNING.finditer(plain):
        if match["file"] != file:
            continue
        to_real = _TO_REAL.search(match["text"])
        if match["flag"] == "double-promotion" or (to_real and "changes value" not in match["text"]):
            yield int(match["line"]), _DOUBLE
        elif match["flag"] in ("float-conversion", "literal-conversion") and not to_real:
            yield int(match["line"]), _CUT  # rounding a constant to real is fine
