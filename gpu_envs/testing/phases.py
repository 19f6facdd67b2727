"""Checks the text of a header: no `break` or `return` leaves a phase, and no phase is under a varying condition."""

import re
from collections.abc import Iterator

from gpu_envs.backend.text import blanked
from gpu_envs.errors import display
from gpu_envs.testing.report import FailedError

_PHASE = re.compile(r"\bFOR_EACH_AGENT(?:_NO_WAIT)?\s*\(")
_CONSTANT = frozenset(
    "int u8 bool real const constexpr auto unsigned true false role_of first_of count_of features_of".split()
)


def check_phases(file: str, text: str) -> None:
    """Raises a FailedError if `break` or `return` leaves a phase of a header, or a phase is under a condition."""
    if file.endswith(".py"):  # the translation checks rules in Python
        return
    code = blanked(text)
    for position, what in sorted({*_exits(code), *_conditional(code)}):
        line = code.count("\n", 0, position) + 1
        shown = text.splitlines()[line - 1].strip()
        raise FailedError(f"{display(file)}:{line}: {what}\n    {shown}")


def closing(code: str, at: int) -> int:
    """Returns the index after the bracket that closes the one at ``at``."""
    depth = 0
    for index in range(at, len(code)):
        depth += (code[index] in "([{") - (code[index] in ")]}")
        if depth == 0:
            return index + 1
    return len(code)


def statement(code: str, at: int) -> int:
    """Returns the index after the statement that starts at ``at``."""
    at += len(code[at:]) - len(code[at:].lstrip())
    if code[at : at + 1] == "{":
        return closing(code, at)
    head = re.compile(r"(?:if(?:\s+constexpr)?|for|while|switch|FOR_EACH_\w+)\s*\(").match(code, at)
    if head:
        end = statement(code, closing(code, head.end() - 1))
        other = re.compile(r"\s*else\b").match(code, end)
        return statement(code, other.end()) if other and head[0].startswith("if") else end
    if re.compile(r"do\b").match(code, at):
        return code.find(";", statement(code, at + 2)) + 1
    while at < len(code) and code[at] != ";":
        at = closing(code, at) if code[at] in "([{" else at + 1
    return at + 1


def _bodies(code: str) -> Iterator[tuple[int, int, int]]:
    """Yields the start of each phase, and start and end of its body."""
    for match in _PHASE.finditer(code):
        if code[code.rfind("\n", 0, match.start()) + 1 : match.start()].lstrip().startswith("#"):
            continue
        body = closing(code, match.end() - 1)
        yield match.start(), body, statement(code, body)


def _exits(code: str) -> Iterator[tuple[int, str]]:
    """Yields each `break` and `return` that leaves a phase before its iterations are complete."""
    for _, begin, end in _bodies(code):
        body = code[begin:end]
        lambdas = [
            (m.end() - 1, closing(body, m.end() - 1)) for m in re.finditer(r"\]\s*(?:\([^()]*\)[^{};]*)?\{", body)
        ]
        inner = [
            (m.start(), statement(body, m.start()))
            for m in re.finditer(r"\b(?:for|while|switch|FOR_EACH_\w+)\s*\(|\bdo\b", body)
        ]
        for match in re.finditer(r"\b(break|return)\b", body):
            within = lambdas if match[1] == "return" else [*lambdas, *inner]
            if not any(first <= match.start() < last for first, last in within):
                ends = "ends all further iterations on a CPU, but only its own on a GPU; write continue"
                yield begin + match.start(), f"{match[1]} in a phase {ends}"


def _conditional(code: str) -> Iterator[tuple[int, str]]:
    """Yields each phase under a condition or in a loop that is not a compile-time constant."""
    phases = [start for start, _, _ in _bodies(code)]
    constants = _CONSTANT | set(re.findall(r"\bconstexpr\s+\w+\s+(\w+)", code))
    for match in re.finditer(r"\b(if|for|while|switch|FOR_EACH_\w+)\s*\(", code):
        after = closing(code, match.end() - 1)
        condition, end = code[match.end() : after - 1], statement(code, match.start())
        declared = set(re.findall(r"\bint\s+(\w+)\s*=", condition)) if match[1] == "for" else set()
        words = set(re.findall(r"\b[A-Za-z_]\w*", condition)) - constants - declared
        if all(word.isupper() for word in words) and not match[1].startswith("FOR_EACH_"):
            continue
        what = (
            f"a phase under {match[1]} ({condition.strip()}), which may differ between replicas, and between "
            "threads of a replica: all must go through the same phases; put the condition inside the phase"
        )
        yield from ((start, what) for start in phases if after <= start < end)
