"""The log of a run: a row of log.csv and an event of TensorBoard for every entry."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from gpu_envs.errors import did_you_mean, display
from gpu_envs.training.record.checkpoint import replacing, writing
from gpu_envs.training.record.events import EventWriter

FIRST = ("iteration", "steps", "seconds")
"""The columns that every log begins with."""


@final
class RunLog:
    """Appends to log.csv, and to an event file beside it.

    The columns are those of the first entry. Rows are flushed one by one, so a killed run loses at most the last.
    """

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
        """Appends an entry.

        Args:
            iteration: Which update.
            steps: Steps of the environment so far; the horizontal axis in TensorBoard.
            record: Values by name. What the first entry had and this one lacks stays empty.
            seconds: Of training so far.

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
        cells = [str(iteration), str(steps), f"{seconds:.3f}"]
        self._append(cells + [_cell(record[name]) if name in record else "" for name in self._columns[len(FIRST) :]])
        with writing(self.path.parent / "the file of TensorBoard's events"):
            if self._events is None:
                self._events = EventWriter(self.path.parent, self._purge_step)
            self._events.scalars(steps, {name: float(value) for name, value in record.items()})
            self._events.flush()

    def resume(self, iteration: int) -> None:
        """Drops the rows after an iteration, and a last one cut short, so that the log goes on as if never stopped.

        Event files are not rewritten: the next one begins by telling TensorBoard which events to forget.
        """
        self.close()
        rows = _rows(self.path) if self.path.exists() else []
        kept, last_steps = [line for line, _ in rows[:1]], -1
        for line, row in rows[1:]:
            if int(row[0]) <= iteration:
                kept.append(line)
                last_steps = int(row[1])
        if last_steps < 0:
            kept, self._columns = [], []  # nothing was learnt of this run yet: the next entry may have other columns
        self._purge_step = last_steps + 1
        with replacing(self.path) as file:
            file.write("".join(kept).encode())

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
    """Header and rows of a log, as text and cell by cell, without a last one cut short.

    Raises:
        ValueError: It is damaged, or no log.
    """
    rows: list[tuple[str, list[str]]] = []
    try:
        for line in path.read_bytes().decode().split("\n")[:-1]:
            row = next(csv.reader([line], strict=True), [])
            _check_row(row, rows[0][1] if rows else None)
            rows.append((f"{line}\n", row))
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{display(path)} is damaged, or no log of a run, at line {len(rows) + 1} ({error}): mend it, or move it "
            "away, and a new one begins"
        ) from None
    return rows


def _check_row(row: Sequence[str], header: Sequence[str] | None) -> None:
    if header is None:
        if tuple(row[: len(FIRST)]) != FIRST:
            raise ValueError(f"it does not begin with {','.join(FIRST)}")
        return
    if len(row) != len(header):
        raise ValueError(f"it has {len(row)} cells for {len(header)} columns")
    for cell, read in zip(row, (int, int, *[float] * len(row)), strict=False):
        if cell or read is int:
            read(cell)
