"""Tables in Markdown, and numbers in them."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("  |", " |")


def digits(value: float, count: int = 3) -> str:
    """A number with so many significant digits, or with all that stand before the point."""
    decimals = max(0, count - len(f"{abs(value):.{count}e}".partition(".")[0]) - _exponent(value, count))
    return f"{value:,.{decimals}f}"


def _exponent(value: float, count: int) -> int:
    return int(f"{value:.{count - 1}e}".partition("e")[2])


def rate(value: float) -> str:
    """So many a second, with G, M or k."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= 0.9995 * size:
            return digits(value / (1e3 if size == 1e4 else size)) + letter
    return digits(value)


def percent(share: float, decimals: int = 0) -> str:
    """A share of one."""
    return f"{100 * share:.{decimals}f} %"
