"""Tables in Markdown, and numbers in them."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("  |", " |")


def digits(value: float) -> str:
    """A number with three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def percent(share: float, decimals: int = 0) -> str:
    """A share of one."""
    return f"{100 * share:.{decimals}f} %"
