"""Tables as text and as HTML."""

import html
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Row: TypeAlias = tuple[str, ...]
"""The cells of a row."""


def text_table(rows: Sequence[Row]) -> str:
    """Format rows with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def html_table(rows: Sequence[Row], *, heading: bool = False) -> str:
    """Return an HTML table; the first cell of each row is a heading, and with ``heading`` the first row, too."""
    lines = []
    for number, row in enumerate(rows):
        kinds = ["th" if column == 0 or (heading and number == 0) else "td" for column in range(len(row))]
        cells = (f"<{kind}>{html.escape(cell)}</{kind}>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>"])


def html_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Return an HTML list of names and their texts."""
    items = (f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in facts)
    return f"<dl>{''.join(items)}</dl>"
