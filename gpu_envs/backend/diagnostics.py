"""Parses compilers' error messages, and finds the source lines they refer to."""

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
"""The line that uses a template: g++ names it before an error (``_REQUIRED``), NVRTC after it (``_DURING``)."""
_ASSERTED = re.compile(
    r"""static.assert\S* failed(?: due to requirement '.*?')?(?:(?: with)? "(?P<quoted>.+)"|: (?P<plain>.+))$"""
)
"""A failed static assertion. Clang up to 16 and NVRTC put the message in quotes, g++ and newer clang after a colon."""
_ORIGIN_NOTES = ("in expansion of macro", "expanded from macro", "required from here", "in instantiation of")
"""Notes that name the author's line if it causes an error in another file."""


@final
@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One error and its position."""

    file: str
    line: int
    column: int
    """From 1; 0: unknown."""
    text: str
    excerpt: str = ""
    """The source line, as the compiler prints it."""


def diagnostics(output: str, author_file: str) -> Iterator[Diagnostic]:
    """Yields the errors in the output of g++, clang or NVRTC (without colours), and no warnings.

    An error in a macro or template that the author's file uses gets the position of that use.
    """
    lines = output.splitlines()
    last: Diagnostic | None = None
    template_use: dict[str, Any] = {}  # the position in the author's file that used the next error's template
    for number, line in enumerate(lines):
        required, during = _REQUIRED.match(line), _DURING.match(line)
        if required is not None and required["file"] == author_file:
            line_number, column = int(required["line"]), int(required["column"] or 0)
            template_use = {"file": author_file, "line": line_number, "column": column}
        if during is not None and during["file"] == author_file and last is not None:
            last = dataclasses.replace(last, file=author_file, line=int(during["line"]), column=0)
        match = _GNU.match(line) or _NVRTC.match(line)
        if match is None:
            continue
        groups = match.groupdict()
        excerpt = lines[number + 1] if number + 1 < len(lines) else ""
        column = int(groups.get("column") or 0)
        if "column" not in groups and number + 2 < len(lines) and lines[number + 2].strip() == "^":
            column = max(0, lines[number + 2].index("^") - 1)  # NVRTC indents the line by two columns
        new = Diagnostic(match["file"], int(match["line"]), column, match["text"], re.sub(r"^\s*\d* \|", "", excerpt))
        if match["kind"] == "note":
            if last is not None and new.file == author_file and any(note in new.text for note in _ORIGIN_NOTES):
                last = dataclasses.replace(new, text=last.text)
            continue
        if last is not None:
            yield last
        asserted = _ASSERTED.search(new.text)
        text = asserted["quoted"] or asserted["plain"] if asserted else new.text
        last = dataclasses.replace(new, text=text, excerpt=new.excerpt.strip(), **template_use)
        template_use = {}
    if last is not None:
        yield last


def lines_of_file(source: str, file: str) -> list[str]:
    """The lines of a joined source that come from one file, by its ``#line`` directives."""
    file_lines: list[str] = []
    inside = False
    for line in source.splitlines():
        if line.startswith("#line "):
            inside = line.partition('"')[2].rstrip('"').replace("\\\\", "\\").replace('\\"', '"') == file
        elif inside:
            file_lines.append(line)
    return file_lines


def members(source: str, struct: str, *, functions: bool = False) -> list[str]:
    """The names of a struct's fields, or of its functions, in a source; empty if the source does not define it."""
    body = re.search(rf"^struct {struct} \{{\n(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    field, function = r"(?:const )?[\w:]+(?:<[^;()]*>)?[\s*&]+(\w+)(?:\[[^;]*\])?;\s*$", r"FN [\w:&*<> ]*?(\w+)\("
    member = re.compile("    " + (function if functions else field))
    lines = body[1].splitlines() if body is not None else []
    matches = [member.match(line.partition("//")[0]) for line in lines]
    return list(dict.fromkeys(match[1] for match in matches if match is not None and match[1] != struct))
