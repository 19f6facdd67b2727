"""What commands print."""

import contextlib
import errno
import json
import math
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from gpu_envs.errors import display


def training_report(result: Any, *, trust: bool = False, gpus: str | None = None) -> str:
    """Returns, steps and times of a training run's ``Result``, how to evaluate it and how to watch it.

    ``trust``: its environment is a file or module of the user's own, which a run's folder alone does not vouch for.
    ``gpus``: the option by which several processes trained it.
    """
    from gpu_envs.training.record.summary import result_rows

    rows = result_rows(result)
    since_start = process_seconds()
    if since_start is not None:
        rows.append(("since the start", f"{since_start:.2f} s, imports and compiling included"))
    if result.run_dir:
        run, program = shlex.quote(str(result.run_dir)) + " --trust" * trust, this_program()
        rows += [
            ("run directory", str(result.run_dir)),
            ("evaluate it", f"{program} eval {run}"),
            ("watch it", f"{program} play {run}"),
        ]
        if result.reason == "interrupted":
            rows.append(("go on", f"{program} train --resume {run}" + (f" --gpus {gpus}" if gpus else "")))
    return table(rows)


def this_program() -> str:
    """What to write in a shell to start this program again: its name where that is found, or the way to it."""
    name = Path(sys.argv[0]).name
    if Path(sys.argv[0]).parts[-2:] == ("gpu_envs", "__main__.py"):
        return f"{shlex.quote(display(sys.executable))} -m gpu_envs"
    found = shutil.which("gpu-envs")
    if name != "gpu-envs" or (found is not None and Path(found).samefile(sys.argv[0])):
        return "gpu-envs"
    return shlex.quote(display(sys.argv[0]))


def evaluation_report(results: Mapping[str, Any], greedy: bool) -> str:
    """How each role does, by the trainer's ``Evaluation`` of it."""
    from gpu_envs.training.record.summary import evaluation_rows

    kind = "the likeliest actions" if greedy else "actions drawn as in training"
    return f"{table(evaluation_rows(results))}\n({kind})"


_TUNING = "{:>13}  {:>11}  {:>15}  {:>16}"


def tuning_header() -> str:
    """What stands above the rows of a tuning."""
    return _TUNING.format("replicas", "memory", "rollout steps/s", "training steps/s")


def tuning_row(size: Any) -> str:
    """A ``Size`` that was measured."""
    memory = f"{size.memory / 2**20:,.1f} MiB"
    return _TUNING.format(f"{size.num_envs:,}", memory, f"{size.rollout:,.0f}", f"{size.training:,.0f}")


def tuning_report(tuning: Any) -> str:
    """What follows from the sizes of a ``Tuning``."""
    return table(
        [
            ("measured until", tuning.ended),
            ("knee", f"{tuning.knee:,} replicas, the fewest within 5 % of the fastest training"),
            ("largest that fits", f"{tuning.largest:,} replicas"),
            ("--num-envs auto", f"{tuning.chosen:,} replicas, {tuning.why}"),
        ]
    )


def say(text: str, *, error: bool = False) -> None:
    """Prints, or does nothing where the reader is gone, as behind ``| head`` and in a closed terminal."""
    stream = sys.stderr if error else sys.stdout
    with _hushed_where_unread(stream):
        print(text, file=stream, flush=True)


def say_the_rest() -> None:
    """Prints what is still to be printed; else Python would fail to when the process ends, and exit with 120.

    What fails though there is a reader, as on a full disk, Python says then.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            with contextlib.suppress(OSError), _hushed_where_unread(stream):
                stream.flush()


@contextlib.contextmanager
def _hushed_where_unread(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        hush(stream)


def say_json(value: Any) -> None:
    """Prints a value for programs; what JSON has no number for, such as NaN, is null."""
    say(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def hush(stream: TextIO) -> None:
    """Lets a stream end nowhere, so that Python can flush it when it leaves."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file has nothing to flush
        place = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, place)
        os.close(nowhere)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows with their columns under one another."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def size_of(path: Path) -> str:
    """How large a file is."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} KB"


def wrapped(rows: Sequence[tuple[str, ...]], indent: str = "") -> str:
    """Rows with their columns under one another; the last column is broken into lines where it is too long."""
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    hanging = " " * (len(indent) + sum(width + 2 for width in widths))
    below = line_width() - len(hanging) < _LEAST  # then the last column has lines of its own
    if below:
        hanging = indent + "    "
    lines = []
    for row in rows:
        start = indent + "".join(f"{cell:{width}}  " for cell, width in zip(row, widths, strict=False))
        room = line_width() - len(hanging)
        parts = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False)
        first = parts.pop(0) if parts and not below else ""
        lines += [(start + first).rstrip(), *(hanging + part for part in parts)]
    return "\n".join(lines)


def filled(text: str) -> str:
    """Paragraphs with their lines broken anew, to fit; an indented line stays one, and goes on further in."""
    paragraphs: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" ") and paragraphs and paragraphs[-1] and not paragraphs[-1].startswith(" "):
            paragraphs[-1] += f" {line}"
        else:
            paragraphs.append(line)
    lines = []
    for each in paragraphs:
        further = " " * (len(each) - len(each.lstrip()) + 2) if each.startswith(" ") else ""
        lines += textwrap.wrap(
            each, line_width(), subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


_LEAST = 24
"""Columns that text is broken into at least."""


def line_width() -> int:
    """How many columns there are: the terminal's, up to 100; 100 where there is none."""
    return max(40, min(_COLUMNS, shutil.get_terminal_size((_COLUMNS, 24)).columns))


_COLUMNS = 100


def process_seconds() -> float | None:
    """Since this process began, by the operating system's account; None where it gives none."""
    try:
        # Fields of proc(5) after the name, which may hold spaces: the twentieth is the start, in ticks since the boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
