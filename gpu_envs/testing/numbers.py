"""A check of the text of rules: no number is silently converted to another type."""

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

_MOST = 5
"""Lines that are shown."""

_WARNINGS = ("-Wfloat-conversion", "-Wdouble-promotion")
_WARNING = re.compile(
    r"^(?P<file>[^\n]+?):(?P<line>\d+):\d+: warning: (?P<text>.*) \[-W(?P<flag>[\w-]+)\]$", re.MULTILINE
)
_TO_REAL = re.compile(r"to '[^']*\breal'|to '(?:const )?float'")

_CUT = "a real number becomes a whole one, which cuts it off: write int(...) where that is meant"
_DOUBLE = "computed in double, in float32 too, which is slow on a GPU: write literals as real(0.5)"


def types(subject: Subject) -> str:
    """Has the compiler say where the author's lines turn reals into whole numbers, or compute in double.

    Clang does not see what ``x *= 0.5`` is computed in.
    """
    layout = layout_of(config_of(subject.spec, 2, Options(device="cpu"), subject.params), Device(on_gpu=False))
    program = generate(layout, layout.modules[0])
    own = program.contract.file if program.contract is not None else ""
    found = list(dict.fromkeys(conversions(_said(program.source), own)))
    if found:
        texts = Path(own).read_text("utf-8", "replace").splitlines() if Path(own).is_file() else []
        shown = [
            f"{display(own)}:{line}: {what}" + (f"\n    {texts[line - 1].strip()}" if line <= len(texts) else "")
            for line, what in found[:_MOST]
        ]
        more = [f"and {len(found) - _MOST} more"] if len(found) > _MOST else []
        raise FailedError("\n".join([*shown, *more]))
    return "no real number is cut off to a whole one, and nothing is computed in double in float32"


def _said(source: str) -> str:
    """What the compiler says of a source when it is asked about conversions."""
    with tempfile.TemporaryDirectory(prefix="gpu_envs-") as folder:
        file = Path(folder) / "rules.cpp"
        file.write_text(source, "utf-8", "surrogateescape")
        flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
        done = subprocess.run(
            [*find_compiler(), *flags, "-fsyntax-only", *_WARNINGS, str(file)],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode != 0:
        raise SkippedError(f"this compiler does not know {' and '.join(_WARNINGS)}")
    return done.stderr


def conversions(said: str, own: str) -> Iterator[tuple[int, str]]:
    """The lines of the author's ``own`` file that g++ or clang warns of, and what is wrong there."""
    plain = said.replace("\u2018", "'").replace("\u2019", "'")
    for match in _WARNING.finditer(plain):
        if match["file"] != own:
            continue
        to_real = _TO_REAL.search(match["text"])
        if match["flag"] == "double-promotion" or (to_real and "changes value" not in match["text"]):
            yield int(match["line"]), _DOUBLE
        elif match["flag"] in ("float-conversion", "literal-conversion") and not to_real:
            yield int(match["line"]), _CUT  # (a constant that is rounded to a real, once, is as it should be)
