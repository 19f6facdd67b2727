"""The text of headers."""

import functools
import re

_UNREAD = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def declares(code: str, name: str) -> bool:
    """Whether blanked C++ has a function of that name, besides what may be calls of one."""
    before = re.findall(rf"([A-Za-z_]\w*)\s+{name}\s*\(", code)
    return bool({*before} - {"return", "else", "case", "and", "or", "not"})


@functools.lru_cache(64)
def blanked(text: str) -> str:
    """C++ without its comments and strings, place for place."""
    return _UNREAD.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
