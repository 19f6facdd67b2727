"""What readers do with the page of a replay."""

from collections.abc import Callable
from typing import Any

from browser import Tab

READY = "document.getElementById('player') && !document.getElementById('player').hidden"
STILL = [{"name": "prefers-reduced-motion", "value": "reduce"}]

Open = Callable[..., Tab]
"""Opens the page of a replay; see the fixture ``opened``."""


def frame(tab: Tab) -> int:
    """The frame that the page says it shows."""
    text = tab.run("document.getElementById('frame').textContent")
    return int(text.split()[1])


def set_to(tab: Tab, name: str, value: Any) -> None:
    """What a user does with a slider or a list."""
    tab.run(
        f"(() => {{ const it = document.getElementById('{name}'); it.value = '{value}';"
        " it.dispatchEvent(new Event('input')); it.dispatchEvent(new Event('change')); })()"
    )


def text(tab: Tab, selector: str) -> str:
    return str(tab.run(f"document.querySelector({selector!r}).textContent"))


def middle_of(tab: Tab, selector: str, across: float, down: float) -> tuple[float, float]:
    """A place in the window: so much of the width and height of what is there."""
    left, top, width, height = tab.run(
        f"(() => {{ const it = document.querySelector({selector!r}); it.scrollIntoView();"
        " const box = it.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )
    return left + across * width, top + down * height
