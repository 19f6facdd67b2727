"""Reads what compilers say, and the source that they say it of."""

import dataclasses
import re
from collections.abc import Iterator
from typing import final

_GNU = re.compile(
    r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>[a-z ]*error|note): (?P<text>.*)"
)
_NVRTC = re.compile(r"(?P<file>\S.*?)\((?P<line>\d+)\): (?P<kind>[a-z ]*error|note)[^:]*: (?P<text>.*)")
_BROUGHT_ABOUT = ("in expansion of macro", "expanded from macro", "required from here", "in instantiation of")
"""Notes that name the line which brought an error about that lies elsewhere."""


@final
@dataclasses.dataclass(frozen=True)
class Finding:
    """One error, and where it lies."""

    file: str
    line: int
    column: int
    """From 1; 0: not known."""
    text: str
    excerpt: str = ""
    """The line, as the compiler shows it."""


def findings(output: str, own: str) -> Iterator[Finding]:
    """The errors in what g++, clang or NVRTC said; those of a macro at the author's line that uses it.

    Args:
        output: What was said, with plain quotation marks and without colours.
        own: The author's file.
    """
    lines = output.splitlines()
    last: Finding | None = None
    for number, line in enumerate(lines):
        match = _GNU.match(line) or _NVRTC.match(line)
        if match is None:
            continue
        groups = match.groupdict()
        excerpt = lines[number + 1] if number + 1 < len(lines) else ""
        column = int(groups.get("column") or 0)
        if "column" not in groups and number + 2 < len(lines) and lines[number + 2].strip() == "^":
            column = max(0, lines[number + 2].index("^") - 1)  # NVRTC shows lines two columns to the right
        place = Finding(match["file"], int(match["line"]), column, match["text"], re.sub(r"^\s*\d* \|", "", excerpt))
        if match["kind"] == "note":
            if last is not None and place.file == own and any(each in place.text for each in _BROUGHT_ABOUT):
                last = dataclasses.replace(place, text=last.text)
            continue
        if last is not None:
            yield last
        last = dataclasses.replace(place, excerpt=place.excerpt.strip())
    if last is not None:
        yield last


def part_of(source: str, file: str) -> list[str]:
    """The lines of a source that come from a file."""
    found: list[str] = []
    inside = False
    for line in source.splitlines():
        if line.startswith("#line "):
            inside = line.partition('"')[2].rstrip('"').replace("\\\\", "\\").replace('\\"', '"') == file
        elif inside:
            found.append(line)
    return found


def members(source: str, struct: str, *, functions: bool = False) -> list[str]:
    """The fields or the functions of a struct that a source declares."""
    body = re.search(rf"^struct {struct} \{{\n(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    if body is None:
        return []
    found = []
    for line in body[1].splitlines():
        code = line.partition("//")[0]
        field = re.match(r"    (?:const )?[\w:]+(?:<[^;()]*>)?[\s*&]+(\w+)(?:\[[^;]*\])?;\s*$", code)
        function = re.match(r"    FN [\w:&*<> ]*?(\w+)\(", code)
        match = function if functions else field
        found += [match[1]] if match is not None and match[1] != struct else []
    return list(dict.fromkeys(found))
