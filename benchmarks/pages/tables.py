"""Markdown tables, and the format of their numbers."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("  |", " |")


def digits(value: float) -> str:
    """Format a number with three significant digits, or as an integer from 100 up."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def percent(share: float, decimals: int = 0) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * share:.{decimals}f} %"
