"""The log of a run: a row of log.csv and an event of TensorBoard for every entry."""

import csv
import io
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from gpu_envs.errors import did_you_mean
from gpu_envs.training.events import EventWriter

FIRST = ("iteration", "steps", "seconds")
"""The columns that every log begins with."""


@final
class RunLog:
    """Appends to log.csv, and to an event file beside it.

    The columns are those of the first entry. Rows are flushed one by one, so a killed run loses at most the last.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens a log, one that is there too: then call ``resume`` before the first ``write``.

        Args:
            path: The CSV file.
        """
        self.path = Path(path)
        self._columns: list[str] = []
        self._purge_step: int | None = None
        self._events: EventWriter | None = None
        self._seconds = 0.0
        self._began = time.perf_counter()
        if self.path.exists() and self.path.stat().st_size > 0:
            header = _whole_lines(self.path)[:1]
            self._columns = next(csv.reader(header), [])

    def write(self, iteration: int, steps: int, record: Mapping[str, float], seconds: float | None = None) -> None:
        """Appends an entry.

        Args:
            iteration: Which update.
            steps: Steps of the environment so far; the horizontal axis in TensorBoard.
            record: Values by name. What the first entry had and this one lacks stays empty.
            seconds: Of training so far; None: since this log was opened, plus what a resumed one says.

        Raises:
            ValueError: A name that the first entry did not have.
        """
        if not self._columns:
            clash = [name for name in record if name in FIRST]
            if clash:
                raise ValueError(f"the log has a column {clash[0]!r} of its own; give the value another name")
            self._columns = [*FIRST, *record]
            self._append(self._columns)
        for name in record:
            if name not in self._columns or name in FIRST:
                raise ValueError(
                    f"the log has no column {name!r}{did_you_mean(name, self._columns)} The first entry fixes the "
                    f"columns; they are {', '.join(self._columns)}"
                )
        if seconds is None:
            seconds = self._seconds + time.perf_counter() - self._began
        cells = [str(iteration), str(steps), f"{seconds:.3f}"]
        self._append(cells + [_cell(record[name]) if name in record else "" for name in self._columns[len(FIRST) :]])
        if self._events is None:
            self._events = EventWriter(self.path.parent, self._purge_step)
        self._events.scalars(steps, {name: float(value) for name, value in record.items()})
        self._events.flush()

    def resume(self, iteration: int) -> None:
        """Drops the rows after an iteration, and a last one cut short, so that the log goes on as if never stopped.

        Event files are not rewritten: the next one begins by telling TensorBoard which events to forget.
        """
        if self._events is not None:
            self._events.close()
            self._events = None
        lines = _whole_lines(self.path) if self.path.exists() else []
        kept, last_steps = lines[:1], -1
        for line in lines[1:]:
            row = next(csv.reader([line]))
            if len(row) == len(self._columns) and int(row[0]) <= iteration:
                kept.append(line)
                last_steps, self._seconds = int(row[1]), float(row[2])
        if last_steps < 0:
            kept, self._columns = [], []  # nothing was learnt of this run yet: the next entry may have other columns
            self._seconds = 0.0
        self._began = time.perf_counter()
        self._purge_step = last_steps + 1
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("".join(kept))
        os.replace(partial, self.path)

    def close(self) -> None:
        """Closes the event file; the CSV file is closed after every row."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _append(self, cells: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        with self.path.open("a", newline="") as file:
            file.write(text.getvalue())  # one write: a row is there, or is not


def _cell(value: float) -> str:
    """Digits that read back as the same number."""
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def _whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
