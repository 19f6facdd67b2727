"""Text output of the commands: reports, tables and wrapped paragraphs."""

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
from gpu_envs.tables import text_table


def training_report(result: Any, *, trust: bool = False, gpus: str | None = None, resumed: bool = False) -> str:
    """Format a training run's ``Result``: returns, steps, times, and the commands to evaluate and watch it.

    ``trust``: add ``--trust`` to the commands, which need it to import the environment.
    ``gpus``: the value of ``--gpus``, None without it.
    ``resumed``: whether the run was resumed; its steps and training time then include earlier processes.
    """
    from gpu_envs.training.record.summary import result_rows

    rows = result_rows(result)
    since_start = process_seconds()
    if since_start is not None:
        label = "since it resumed" if resumed else "since the start"
        rows.append((label, f"{since_start:.2f} s, with imports and compilation"))
    if result.run_dir:
        run, program = shlex.quote(str(result.run_dir)) + " --trust" * trust, program_command()
        rows += [
            ("run directory", str(result.run_dir)),
            ("evaluate it", f"{program} eval {run}"),
            ("watch it", f"{program} play {run}"),
        ]
        if result.reason == "interrupted":
            rows.append(("resume it", f"{program} train --resume {run}" + (f" --gpus {gpus}" if gpus else "")))
    return text_table(rows)


PROGRAM = "GPU_ENVS_PROGRAM"
"""Environment variable that gives processes of one run ``program_command`` of the process that started them."""


def program_command() -> str:
    """Return the shell command that starts this program: gpu-envs, its path, or ``python -m gpu_envs``."""
    if started_by := os.environ.get(PROGRAM):
        return started_by
    name = Path(sys.argv[0]).name
    if Path(sys.argv[0]).parts[-2:] == ("gpu_envs", "__main__.py"):
        return f"{shlex.quote(display(sys.executable))} -m gpu_envs"
    installed = shutil.which("gpu-envs")
    if name != "gpu-envs" or (installed is not None and Path(installed).samefile(sys.argv[0])):
        return "gpu-envs"
    return shlex.quote(display(sys.argv[0]))


def evaluation_report(results: Mapping[str, Any], greedy: bool, policies: Mapping[str, str]) -> str:
    """Format the ``Evaluation`` of each role as a table; ``policies`` replaced those of the run, by role or agent."""
    from gpu_envs.evaluating import evaluation_rows

    kind = "the most likely actions" if greedy else "actions sampled as in training"
    random = [name for name, policy in policies.items() if policy == "random"]
    if random:
        every = len(random) == len(policies) and set(results) <= set(random)
        kind = "random actions" if every else f"{kind}; random actions of {', '.join(random)}"
    return f"{text_table(evaluation_rows(results))}\n({kind})"


_TUNING_ROW = "{:>13}  {:>11}  {:>15}  {:>16}"


def tuning_header() -> str:
    """Return the header of the table that ``gpu-envs tune`` prints."""
    return _TUNING_ROW.format("replicas", "memory", "rollout steps/s", "training steps/s")


def tuning_row(size: Any) -> str:
    """Format a measured ``Size``."""
    memory = f"{size.memory / 2**20:,.1f} MiB"
    return _TUNING_ROW.format(f"{size.num_envs:,}", memory, f"{size.rollout:,.0f}", f"{size.training:,.0f}")


def tuning_report(tuning: Any) -> str:
    """Format the results of a ``Tuning``."""
    return text_table(
        [
            ("measured until", tuning.stop_reason),
            ("knee", f"{tuning.knee:,} replicas, the fewest within 5 % of the fastest training"),
            ("largest that fits", f"{tuning.max_fitting:,} replicas"),
            ("--num-envs auto", f"{tuning.chosen:,} replicas, {tuning.reason}"),
        ]
    )


def echo(text: str, *, error: bool = False) -> None:
    """Print a line. Does nothing if the output is closed, as by ``| head`` or a closed terminal."""
    stream = sys.stderr if error else sys.stdout
    with _redirected_if_closed(stream):
        print(text, file=stream, flush=True)


def flush_output() -> None:
    """Flush standard output and error, and ignore closed ones, for which Python would exit with 120.

    Python itself reports other errors, such as a full disk, when it exits.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            with contextlib.suppress(OSError), _redirected_if_closed(stream):
                stream.flush()


@contextlib.contextmanager
def _redirected_if_closed(stream: TextIO) -> Iterator[None]:
    """Redirect a stream to the null device if writing to it inside the block fails because it is closed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        redirect_to_devnull(stream)


def echo_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinity become null."""
    echo(json.dumps(_to_json_types(value), indent=2, allow_nan=False))


def _to_json_types(value: Any) -> Any:
    """Return a value with arrays and sequences as lists, names as strings, and NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(name): _to_json_types(item) for name, item in value.items()}
    if hasattr(value, "tolist"):
        return _to_json_types(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_json_types(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def redirect_to_devnull(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that Python can flush it at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a file descriptor needs no flush
        descriptor = stream.fileno()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, descriptor)
        os.close(devnull)


def file_size(path: Path) -> str:
    """Format a file's size."""
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} KB"


def wrap_table(rows: Sequence[tuple[str, ...]], indent: str = "") -> str:
    """Format rows with aligned columns; the last column is wrapped to the width of the terminal."""
    widths = [max(len(cell) for cell in column) for column in list(zip(*rows, strict=True))[:-1]]
    hanging = " " * (len(indent) + sum(column_width + 2 for column_width in widths))
    on_next_line = line_width() - len(hanging) < _MIN_COLUMN_WIDTH
    if on_next_line:  # otherwise the last column would be too narrow
        hanging = indent + "    "
    lines = []
    for row in rows:
        start = indent + "".join(f"{cell:{column_width}}  " for cell, column_width in zip(row, widths, strict=False))
        width = line_width() - len(hanging)
        pieces = textwrap.wrap(row[-1], width, break_long_words=False, break_on_hyphens=False)
        first_piece = pieces.pop(0) if pieces and not on_next_line else ""
        lines += [(start + first_piece).rstrip(), *(hanging + piece for piece in pieces)]
    return "\n".join(lines)


def fill_paragraphs(text: str) -> str:
    """Wrap paragraphs to the width of the terminal; an indented line is wrapped by itself, with a deeper indent."""
    paragraphs: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" ") and paragraphs and paragraphs[-1] and not paragraphs[-1].startswith(" "):
            paragraphs[-1] += f" {line}"
        else:
            paragraphs.append(line)
    lines = []
    for paragraph in paragraphs:
        indent = " " * (len(paragraph) - len(paragraph.lstrip()) + 2) if paragraph.startswith(" ") else ""
        lines += textwrap.wrap(
            paragraph, line_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


_MIN_COLUMN_WIDTH = 24
"""Minimum width of the last column of ``wrap_table``, in characters."""


def line_width() -> int:
    """Return the line width in characters: the terminal's, from 40 to 100; without a terminal 100."""
    return max(40, min(_MAX_LINE_WIDTH, shutil.get_terminal_size((_MAX_LINE_WIDTH, 24)).columns))


_MAX_LINE_WIDTH = 100


def process_seconds() -> float | None:
    """Return the seconds since the start of this process, from ``/proc``; None on other systems."""
    try:
        # proc(5): the twentieth field after the name, which may hold spaces, is the start time in ticks since the boot.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
