"""The log of a run: a row of log.csv and an event of TensorBoard for every entry."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import final

from gpu_envs.errors import did_you_mean, display
from gpu_envs.training.record.checkpoint import replacing, writing
from gpu_envs.training.record.events import EventWriter

FIRST = ("iteration", "steps", "seconds")
"""The columns that every log begins with."""


@final
class RunLog:
    """Appends to log.csv, row by row, and to an event file beside it; the columns are those of the first entry."""

    def __init__(self, path: str | Path) -> None:
        """Opens a CSV file, one that is there too: then call ``resume`` before the first ``write``."""
        self.path = Path(path)
        self._columns: list[str] = []
        self._purge_step: int | None = None
        self._events: EventWriter | None = None
        if self.path.exists() and not self.path.is_file():  # to read from a pipe never ends
            raise ValueError(f"{display(path)} is no regular file: move it away, and a new log begins")
        if self.path.exists() and self.path.stat().st_size > 0:
            self._columns = next(iter(_rows(self.path)), ("", []))[1]

    def write(self, iteration: int, steps: int, record: Mapping[str, float], seconds: float) -> None:
        """Appends an entry of values by name, some of those that the first one had; ``seconds`` are of training."""
        if not self._columns:
            clash = [name for name in record if name in FIRST]
            if clash:
                raise ValueError(f"the log has a column {clash[0]!r} of its own; give the value another name")
            self._columns = [*FIRST, *record]
            self._append(self._columns)
        others = [name for name in record if name not in self._columns[len(FIRST) :]]
        if others:
            raise ValueError(
                f"the log has no column {others[0]!r}{did_you_mean(others[0], self._columns)} The first entry fixes "
                f"the columns; they are {', '.join(self._columns)}"
            )
        cells = [str(iteration), str(steps), f"{seconds:.3f}"]
        self._append(cells + [_cell(record[name]) if name in record else "" for name in self._columns[len(FIRST) :]])
        with writing(self.path.parent / "the file of TensorBoard's events"):
            if self._events is None:
                self._events = EventWriter(self.path.parent, self._purge_step)
            self._events.scalars(steps, {name: float(value) for name, value in record.items()})

    def resume(self, iteration: int) -> None:
        """Drops the rows after an iteration, and a last one cut short; the next event file says what to forget."""
        self.close()
        rows = _rows(self.path) if self.path.exists() else []
        done = [(line, int(row[1])) for line, row in rows[1:] if int(row[0]) <= iteration]
        if not done:
            rows, self._columns = [], []  # nothing was learnt of this run yet: the next entry may have other columns
        self._purge_step = done[-1][1] + 1 if done else 0
        lines = [*(line for line, _ in rows[:1]), *(line for line, _ in done)]
        with replacing(self.path) as file:
            file.write("".join(lines).encode())

    def close(self) -> None:
        """Closes the event file; the CSV file is closed after every row."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _append(self, cells: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        with writing(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
            file.write(text.getvalue())  # one write: a row is there, or is not


def _cell(value: float) -> str:
    """Digits that read back as the same number."""
    return str(int(value)) if isinstance(value, int) else repr(float(value))


def _rows(path: Path) -> list[tuple[str, list[str]]]:
    """Header and rows of a log, as text and cell by cell, without a last one cut short."""
    rows: list[tuple[str, list[str]]] = []
    try:
        for line in path.read_bytes().decode().split("\n")[:-1]:
            row = next(csv.reader([line], strict=True), [])
            if not rows and tuple(row[: len(FIRST)]) != FIRST:
                raise ValueError(f"it does not begin with {','.join(FIRST)}")
            if rows and len(row) != len(rows[0][1]):
                raise ValueError(f"it has {len(row)} cells for {len(rows[0][1])} columns")
            for cell, kind in zip(row if rows else (), (int, int, *[float] * len(row)), strict=False):
                if cell or kind is int:
                    kind(cell)
            rows.append((f"{line}\n", row))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{display(path)} is damaged, or no log of a run, at line {len(rows) + 1} ({error}): mend it, or move it "
            "away, and a new one begins"
        ) from None
    return rows
