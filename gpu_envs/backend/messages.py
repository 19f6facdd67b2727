"""What compilers say, for the author of an environment: the author's own lines first, without the noise around them."""

import difflib
import linecache
import re
from collections.abc import Sequence
from typing import Final

from gpu_envs.backend.contract import Contract
from gpu_envs.backend.diagnostics import Diagnostic, diagnostics, members, part_of
from gpu_envs.backend.program import ELEMENTARY_NAMES, Program
from gpu_envs.backend.text import blanked, declares
from gpu_envs.errors import CompileError, did_you_mean, display

MOST: Final = 5
"""Errors that are shown."""

_NO_MEMBER = re.compile(
    r"(?:'(?P<a>[^']*)' has no member named '(?P<b>\w+)'"
    r"|no member named '(?P<c>\w+)' in '(?P<d>[^']*)'"
    r'|class "(?P<e>[^"]*)" has no member "(?P<f>\w+)")'
)
_NO_NAME = re.compile(
    r"(?:'(?P<a>\w+)' (?:was not declared in this scope|has not been declared|does not name a type)"
    r"|use of undeclared identifier '(?P<b>\w+)'"
    r"|unknown type name '(?P<c>\w+)'"
    r'|identifier "(?P<d>\w+)" is undefined)'
)
_LIKE = {
    "sqrt": "square_root",
    "floor": "round_down",
    "min": "minimum",
    "fmin": "minimum",
    "max": "maximum",
    "fmax": "maximum",
    "clamp": "clip",
    "fabs": "abs",
    "pow": "power",
    "ceil": "-round_down(-x)",
    "sin": "sin",
    "cos": "cos",
    "exp": "exp",
    "log": "log",
    "fma": "fma",
    "double": "real",
}
"""Names of the standard library, and what stands for them in rules."""

_DEVICE_ONLY = re.compile(
    r"(?<![\w.:])(?<!->)(?P<name>__\w+|(?:r?sqrt|cbrt|r?hypot|pow|exp2|exp10|expm1|log2|log10|log1p|a?tan|atan2|a?sinh?|a?cosh?"
    r"|a?tanh|sinpi|cospi|erfc?|[tl]gamma|floor|ceil|trunc|round|rint|nearbyint|fabs|abs|fmin|fmax|min|max|fmod|remainder"
    r"|copysign|ldexp|exp|log|fma)f?)\s*\("
)
"""Calls of what NVRTC has of its own, whose bits are other ones or which a CPU's compiler lacks."""
_SHARED = frozenset({"sin", "cos", "exp", "log", "fma", *ELEMENTARY_NAMES})

_DRIVERS = frozenset({"_running_return", "action", "pending", "finished"})
"""Fields of ``World`` that rules must not touch."""


def compile_error(program: Program, output: str, compiler: str) -> CompileError:
    """The error to raise where a program did not compile, and this is all that the compiler said."""
    name, rules = program.name, program.contract
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", output).replace("\u2018", "'").replace("\u2019", "'")
    found = list(diagnostics(plain, rules.file if rules is not None else ""))
    shown: list[str] = []
    if rules is not None:
        own = [each for each in found if _is_own(each.file, rules)]
        shown = _of_includes(rules, program.source) + _of_braces(rules, program.source)
        if not shown:
            shown = [_shown(each, rules, program.source) for each in own]
            shown += _of_functions(rules, program.source, found)
        shown += [
            f"{display(rules.file)} declares {each}, and has no {each} that does anything"
            for each in re.findall(r"undefined symbol: _ZN8gpu_envs\d+([A-Za-z_]\w*?)E", plain)
        ]
        name = rules.spec
    if not shown:
        shown = [f"{each.file}:{each.line}: error: {each.text}\n    {each.excerpt}".rstrip() for each in found]
    if not shown:
        shown = plain.strip().splitlines()[-2 * MOST :]
    shown = list(dict.fromkeys(shown))
    more = [f"and {len(shown) - MOST} more"] if len(shown) > MOST else []
    said = f"{name} did not compile with {compiler}; the error's attribute `output` is all that it said"
    return CompileError("\n".join([*shown[:MOST], *more, f"({said})"]), output)


def check_library(program: Program, compiler: str) -> None:
    """Refuses rules that call functions which a GPU's compiler has of its own, as a CPU's compiler would.

    Raises:
        CompileError: They do.
    """
    rules = program.contract
    lines = [] if rules is None else _header_lines(rules, program.source)
    if rules is None or not lines:
        return
    code, found = blanked("\n".join(lines)), []
    for number, line in enumerate(code.splitlines(), 1):
        for match in _DEVICE_ONLY.finditer(line):
            name = match["name"]
            if name not in _SHARED and not declares(code, name):
                text = f"'{name}' was not declared in this scope"
                found.append(_shown(Diagnostic(rules.file, number, match.start() + 1, text), rules, program.source))
    if found:
        last = f"({rules.spec} did not compile with {compiler}, which has such functions, but not a CPU's, or its bits)"
        raise CompileError("\n".join([*found[:MOST], last]), "\n".join(found))


def _is_own(file: str, rules: Contract) -> bool:
    return file == rules.file or (rules.file.endswith(".py") and file.endswith(".py"))


def _shown(diagnostic: Diagnostic, rules: Contract, source: str) -> str:
    """An error in the author's file: where, what, the line, and a mark under the place."""
    lines = [f"{display(diagnostic.file)}:{diagnostic.line}: error: {_explained(diagnostic, rules, source)}"]
    text = _line(diagnostic, source)
    if text.strip():
        lines.append(f"    {text.strip()}")
        indent = len(text) - len(text.lstrip())
        generated = diagnostic.file.endswith(".py")  # so columns are not its own
        if indent < diagnostic.column <= len(text) + 1 and not generated:
            lines.append(" " * (4 + diagnostic.column - 1 - indent) + "^")
    return "\n".join(lines)


def _line(diagnostic: Diagnostic, source: str) -> str:
    """A line of the author's, with tabs as single columns."""
    lines = part_of(source, diagnostic.file)
    if not lines or diagnostic.file.endswith(".py"):
        linecache.checkcache(diagnostic.file)
        lines = linecache.getlines(diagnostic.file)
    text = lines[diagnostic.line - 1] if diagnostic.line <= len(lines) else diagnostic.excerpt
    return text.rstrip().replace("\t", " ")


# --- what is meant ---


def _explained(diagnostic: Diagnostic, rules: Contract, source: str) -> str:
    """The compiler's words, or better ones."""
    text = re.sub(r"\b(struct |class )?gpu_envs::| \[-f\w+\]$", "", diagnostic.text)
    if re.search(r"""['"]std['"]|'::std'""", text):
        return "the standard library is not there in rules: sin, exp, square_root, minimum and the like are"
    if "without execution space annotations" in text:
        return "this function is not marked FN, so it is there on a CPU alone; write FN before it"
    member = _NO_MEMBER.search(diagnostic.text)
    if member is not None:
        kind, name = (member[a] or member[b] or member[c] for a, b, c in ("ade", "bcf"))
        return _no_member(re.sub(r"^.*\W", "", kind), name, source) or text
    unknown = _NO_NAME.search(diagnostic.text)
    if unknown is not None:
        return _no_name(unknown["a"] or unknown["b"] or unknown["c"] or unknown["d"], rules, source)
    return text


def _no_member(kind: str, name: str, source: str) -> str:
    """Says that a struct lacks a member, and which it has; empty where nothing is known of the struct."""
    what = "field" if kind in ("State", "Params", "World", "Metrics") else "function"
    known = [each for each in members(source, kind, functions=what == "function") if each not in _DRIVERS]
    if not known:
        return ""
    return f"{kind} has no {what} {name!r}{did_you_mean(name, known)} Its {what}s are: {', '.join(known)}"


def _no_name(name: str, rules: Contract, source: str) -> str:
    """Says that a name is not known here, and where it is."""
    like = _LIKE.get(name) or _LIKE.get(name.strip("_").removesuffix("f"))
    if like is not None:
        return f"there is no {name!r} in rules; {like!r} is what you want"
    team = "look" in rules.functions
    for struct, variable in (("World", "w") if team else ("State", "s"), ("Params", "p")):
        if name in members(source, struct):
            return f"there is no {name!r} here; the field of {struct} is {variable}.{name}"
    own = set(re.findall(r"\b[A-Za-z_]\w{2,}\b", "\n".join(part_of(source, rules.file)))) - {name}
    words = {*own, *_LIKE.values(), "sin", "cos", "sincos", "exp", "log", "fma", "quotient", "real", "add", "lower"}
    return f"there is no {name!r} here{did_you_mean(name, difflib.get_close_matches(name, words, cutoff=0.7))}"


# --- the functions that there must be ---


def _header_lines(rules: Contract, source: str) -> list[str]:
    """The lines of an author's header; none where the rules are in Python, whose lines are put together anew."""
    return [] if rules.file.endswith(".py") else part_of(source, rules.file)


def _of_includes(rules: Contract, source: str) -> list[str]:
    """Says which line includes something; all else that is said then follows from it."""
    return [
        f"{display(rules.file)}:{number}: error: a header of rules includes nothing: sin, exp, "
        f"square_root and the like are there\n    {line.strip()}"
        for number, line in enumerate(_header_lines(rules, source), 1)
        if re.match(r"\s*#\s*include\b", line)
    ]


def _of_braces(rules: Contract, source: str) -> list[str]:
    """Says which brace has no other; compilers find the end of the rules in the middle of the code that follows."""
    lines = _header_lines(rules, source)
    opened: list[int] = []
    for number, line in enumerate(blanked("\n".join(lines)).splitlines(), 1):
        for brace in re.findall("[{}]", line):
            if brace == "{":
                opened.append(number)
            elif opened:
                opened.pop()
            else:
                return [
                    f"{display(rules.file)}:{number}: error: this '}}' has no '{{'\n    {lines[number - 1].strip()}"
                ]
    return [f"{display(rules.file)}:{n}: error: this '{{' has no '}}'\n    {lines[n - 1].strip()}" for n in opened[-1:]]


def _of_functions(rules: Contract, source: str, found: Sequence[Diagnostic]) -> list[str]:
    """What is wrong where errors lie in the code around the rules: a function that is missing, or its arguments."""
    text = "\n".join(_header_lines(rules, source))
    if not text:
        return []
    code = blanked(text)
    where = display(rules.file)
    starts = {name: _definition(code, name) for name in rules.functions}
    missing = [name for name, start in starts.items() if start is None]
    if missing:
        return [f"{where} has no function {name}: it needs\n    {rules.functions[name]}" for name in missing]
    around = [each for each in found if not _is_own(each.file, rules)]
    named = "\n".join(f"{each.text} {_driver_line(each, source)}" for each in around)
    wrong = [name for name in starts if re.search(rf"\b{name}\b\s*[('\"]", named)]
    shown = []
    for name in wrong:
        line = code.count("\n", 0, starts[name]) + 1
        given = text.splitlines()[line - 1].strip()
        if _signature(given) != _signature(rules.functions[name]):
            shown.append(
                f"{where}:{line}: error: {name} has other arguments, or returns something else, than it must"
                f"\n    {given}\n  it needs\n    {rules.functions[name]}"
            )
    return shown


def _driver_line(diagnostic: Diagnostic, source: str) -> str:
    lines = part_of(source, diagnostic.file) if diagnostic.file != "generated" else []
    return lines[diagnostic.line - 1] if 0 < diagnostic.line <= len(lines) else diagnostic.excerpt


def _signature(line: str) -> str:
    """The types of a function's beginning, without names and spaces."""
    head, _, arguments = line.partition("(")
    kinds = []
    for argument in arguments.partition(")")[0].split(","):
        words = re.findall(r"\w+|&", argument.replace("[[maybe_unused]]", ""))
        kinds.append("".join(words[:-1] if len(words) > 1 and words[-1] != "&" else words))
    return f"{''.join(head.split()[:-1])}({','.join(kinds)})"


def _definition(code: str, name: str) -> int | None:
    """Where a function begins; None where it is not there."""
    match = re.search(rf"^[^\n;{{}}#]*\b{name}\s*\([^;{{}}]*\)\s*\{{", code, re.MULTILINE)
    return None if match is None else match.start()
