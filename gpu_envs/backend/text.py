"""Searches in the text of C++ headers."""

import functools
import re

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def declares(code: str, name: str) -> bool:
    """Whether C++ without comments and strings declares a function of that name, not only calls one."""
    preceding_words = re.findall(rf"([A-Za-z_]\w*)\s+{name}\s*\(", code)
    return bool({*preceding_words} - {"return", "else", "case", "and", "or", "not"})


@functools.lru_cache(64)
def blanked(text: str) -> str:
    """C++ with comments and strings replaced by spaces, so that lines and columns stay the same."""
    return _COMMENT_OR_STRING.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
