"""Reads what compilers say, and the source that they say it of."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, final

_GNU = re.compile(
    r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?P<kind>[a-z ]*error|note): (?P<text>.*)"
)
_NVRTC = re.compile(r"(?P<file>\S.*?)\((?P<line>\d+)\): (?P<kind>[a-z ]*error|note)[^:]*: (?P<text>.*)")
_REQUIRED = re.compile(r"(?P<file>[^\s:][^:]*):(?P<line>\d+):(?:(?P<column>\d+):)?\s+required from here")
_DURING = re.compile(r"\s+(?:detected during|instantiation of) .*at line (?P<line>\d+) of (?P<file>\S.*)")
"""How g++, before an error, and NVRTC after it name the line that a template was used in."""
_ASSERTED = re.compile(
    r"""static.assert\S* failed(?: due to requirement '.*?')?(?:(?: with)? "(?P<quoted>.+)"|: (?P<plain>.+))$"""
)
"""A failed static assertion. Clang up to 16 and NVRTC put the message in quotes, g++ and newer clang after a colon."""
_BROUGHT_ABOUT = ("in expansion of macro", "expanded from macro", "required from here", "in instantiation of")
"""Notes that name the line which brought an error about that lies elsewhere."""


@final
@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One error, and where it lies."""

    file: str
    line: int
    column: int
    """From 1; 0: not known."""
    text: str
    excerpt: str = ""
    """The line, as the compiler shows it."""


def diagnostics(output: str, own: str) -> Iterator[Diagnostic]:
    """The errors in what g++, clang or NVRTC said, plain and without colours; a macro's at the author's line."""
    lines = output.splitlines()
    last: Diagnostic | None = None
    user: dict[str, Any] = {}  # where the author's file used the template that the next error lies in
    for number, line in enumerate(lines):
        required, during = _REQUIRED.match(line), _DURING.match(line)
        if required is not None and required["file"] == own:
            user = {"file": own, "line": int(required["line"]), "column": int(required["column"] or 0)}
        if during is not None and during["file"] == own and last is not None:
            last = dataclasses.replace(last, file=own, line=int(during["line"]), column=0)
        match = _GNU.match(line) or _NVRTC.match(line)
        if match is None:
            continue
        groups = match.groupdict()
        excerpt = lines[number + 1] if number + 1 < len(lines) else ""
        column = int(groups.get("column") or 0)
        if "column" not in groups and number + 2 < len(lines) and lines[number + 2].strip() == "^":
            column = max(0, lines[number + 2].index("^") - 1)  # NVRTC shows lines two columns to the right
        place = Diagnostic(match["file"], int(match["line"]), column, match["text"], re.sub(r"^\s*\d* \|", "", excerpt))
        if match["kind"] == "note":
            if last is not None and place.file == own and any(each in place.text for each in _BROUGHT_ABOUT):
                last = dataclasses.replace(place, text=last.text)
            continue
        if last is not None:
            yield last
        asserted = _ASSERTED.search(place.text)
        text = asserted["quoted"] or asserted["plain"] if asserted else place.text
        last, user = dataclasses.replace(place, text=text, excerpt=place.excerpt.strip(), **user), {}
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
