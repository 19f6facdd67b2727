"""Compilers' errors as messages for the author of an environment: only the author's lines, in plainer words."""

import difflib
import linecache
import re
from collections.abc import Sequence
from typing import Final

from gpu_envs.backend.contract import Contract
from gpu_envs.backend.diagnostics import Diagnostic, diagnostics, lines_of_file, members
from gpu_envs.backend.program import ELEMENTARY_NAMES, Program
from gpu_envs.backend.text import blanked, declares
from gpu_envs.errors import CompileError, did_you_mean, display

MAX_ERRORS: Final = 5
"""Maximum number of errors in a message."""

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
_EQUIVALENTS = {
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
"""Names of the standard library, and their equivalents in rules."""

_DEVICE_ONLY = re.compile(
    r"(?<![\w.:])(?<!->)(?P<name>__\w+|(?:r?sqrt|cbrt|r?hypot|pow|exp2|exp10|expm1|log2|log10|log1p|a?tan|atan2|a?sinh?|a?cosh?"
    r"|a?tanh|sinpi|cospi|erfc?|[tl]gamma|floor|ceil|trunc|round|rint|nearbyint|fabs|abs|fmin|fmax|min|max|fmod|remainder"
    r"|copysign|ldexp|exp|log|fma)f?)\s*\("
)
"""Calls of NVRTC's builtin functions, which round differently on a GPU or do not exist on a CPU."""
_PORTABLE = frozenset({"sin", "cos", "exp", "log", "fma", *ELEMENTARY_NAMES})

_DRIVER_FIELDS = frozenset({"_running_return", "action", "pending", "finished"})
"""Fields of ``World`` that rules must not touch."""


def compile_error(program: Program, output: str, compiler: str) -> CompileError:
    """The error to raise for a program that did not compile, given the compiler's full output."""
    name, rules = program.name, program.contract
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", output).replace("\u2018", "'").replace("\u2019", "'")
    parsed = list(diagnostics(plain, rules.file if rules is not None else ""))
    errors: list[str] = []
    if rules is not None:
        errors = _include_errors(rules, program.source) + _brace_errors(rules, program.source)
        if not errors:
            errors = [_formatted(d, rules, program.source) for d in parsed if _is_authors(d.file, rules)]
            errors += _function_errors(rules, program.source, parsed)
        errors += [
            f"{display(rules.file)} declares {function} but does not define it"
            for function in re.findall(r"undefined symbol: _ZN8gpu_envs\d+([A-Za-z_]\w*?)E", plain)
        ]
        name = rules.spec
    if not errors:
        errors = [f"{d.file}:{d.line}: error: {d.text}\n    {d.excerpt}".rstrip() for d in parsed]
    if not errors:
        errors = plain.strip().splitlines()[-2 * MAX_ERRORS :]
    errors = list(dict.fromkeys(errors))
    more = [f"and {len(errors) - MAX_ERRORS} more"] if len(errors) > MAX_ERRORS else []
    last = f"{name} did not compile with {compiler}; the error's attribute `output` has the full output"
    return CompileError("\n".join([*errors[:MAX_ERRORS], *more, f"({last})"]), output)


def check_device_functions(program: Program, compiler: str) -> None:
    """Raises a CompileError if rules call NVRTC's builtin functions, which a CPU lacks or rounds otherwise."""
    rules = program.contract
    lines = [] if rules is None else _header_lines(rules, program.source)
    if rules is None or not lines:
        return
    code, errors = blanked("\n".join(lines)), []
    for number, line in enumerate(code.splitlines(), 1):
        for match in _DEVICE_ONLY.finditer(line):
            name = match["name"]
            if name not in _PORTABLE and not declares(code, name):
                error = Diagnostic(rules.file, number, match.start() + 1, f"'{name}' was not declared in this scope")
                errors.append(_formatted(error, rules, program.source))
    if errors:
        last = f"({rules.spec} did not compile with {compiler}: such functions are missing or differ on a CPU)"
        raise CompileError("\n".join([*errors[:MAX_ERRORS], last]), "\n".join(errors))


def _is_authors(file: str, rules: Contract) -> bool:
    """Whether the author wrote this file."""
    return file == rules.file or (rules.file.endswith(".py") and file.endswith(".py"))


def _formatted(diagnostic: Diagnostic, contract: Contract, source: str) -> str:
    """An error in the author's file as text: position, message, line, and for C++ a caret under the column."""
    lines = [f"{display(diagnostic.file)}:{diagnostic.line}: error: {_explanation(diagnostic, contract, source)}"]
    text = _author_line(diagnostic, source)
    if text.strip():
        lines.append(f"    {text.strip()}")
        indent = len(text) - len(text.lstrip())
        generated = diagnostic.file.endswith(".py")  # the column is that of the generated C++
        if indent < diagnostic.column <= len(text) + 1 and not generated:
            lines.append(" " * (4 + diagnostic.column - 1 - indent) + "^")
    return "\n".join(lines)


def _author_line(diagnostic: Diagnostic, source: str) -> str:
    """The author's line of code at an error, with each tab as one space, as compilers count columns."""
    lines = lines_of_file(source, diagnostic.file)
    if not lines or diagnostic.file.endswith(".py"):
        linecache.checkcache(diagnostic.file)
        lines = linecache.getlines(diagnostic.file)
    text = lines[diagnostic.line - 1] if diagnostic.line <= len(lines) else diagnostic.excerpt
    return text.rstrip().replace("\t", " ")


# --- explanations ---


def _explanation(diagnostic: Diagnostic, rules: Contract, source: str) -> str:
    """The compiler's message about an error in rules, or a clearer one."""
    text = re.sub(r"\b(struct |class )?gpu_envs::| \[-f\w+\]$", "", diagnostic.text)
    if re.search(r"""['"]std['"]|'::std'""", text):
        return "rules cannot use the standard library; use sin, exp, square_root, minimum and so on without std::"
    if "without execution space annotations" in text:
        return "this function is not marked FN, so it exists only on the CPU; write FN before it"
    member = _NO_MEMBER.search(diagnostic.text)
    if member is not None:
        kind, name = (member[a] or member[b] or member[c] for a, b, c in ("ade", "bcf"))
        return _no_member(re.sub(r"^.*\W", "", kind), name, source) or text
    unknown = _NO_NAME.search(diagnostic.text)
    if unknown is not None:
        return _no_name(unknown["a"] or unknown["b"] or unknown["c"] or unknown["d"], rules, source)
    return text


def _no_member(kind: str, name: str, source: str) -> str:
    """A message with the members that a struct has instead; empty if the source does not declare the struct."""
    what = "field" if kind in ("State", "Params", "World", "Metrics") else "function"
    names = [member for member in members(source, kind, functions=what == "function") if member not in _DRIVER_FIELDS]
    if not names:
        return ""
    return f"{kind} has no {what} {name!r}{did_you_mean(name, names)} Its {what}s are: {', '.join(names)}"


def _no_name(name: str, rules: Contract, source: str) -> str:
    """A message that a name is not defined, with its equivalent in rules, the field meant or a similar name."""
    equivalent = _EQUIVALENTS.get(name) or _EQUIVALENTS.get(name.strip("_").removesuffix("f"))
    if equivalent is not None:
        return f"there is no {name!r} in rules; use {equivalent!r}"
    team = "look" in rules.functions
    for struct, variable in (("World", "w") if team else ("State", "s"), ("Params", "p")):
        if name in members(source, struct):
            return f"there is no {name!r} here; the field of {struct} is {variable}.{name}"
    in_rules = set(re.findall(r"\b[A-Za-z_]\w{2,}\b", "\n".join(lines_of_file(source, rules.file)))) - {name}
    in_dialect = {*_EQUIVALENTS.values(), "sincos", "quotient", "real", "add", "lower"}
    similar = difflib.get_close_matches(name, in_rules | in_dialect, cutoff=0.7)
    return f"there is no {name!r} here{did_you_mean(name, similar)}"


# --- missing and wrong functions ---


def _header_lines(rules: Contract, source: str) -> list[str]:
    """The lines of an author's header; empty for rules in Python, whose C++ is generated."""
    return [] if rules.file.endswith(".py") else lines_of_file(source, rules.file)


def _include_errors(rules: Contract, source: str) -> list[str]:
    """An error for each ``#include`` line of the author, as they cause all other errors."""
    return [
        f"{display(rules.file)}:{number}: error: rules cannot include headers; sin, exp, square_root and so on "
        f"need no include\n    {line.strip()}"
        for number, line in enumerate(_header_lines(rules, source), 1)
        if re.match(r"\s*#\s*include\b", line)
    ]


def _brace_errors(rules: Contract, source: str) -> list[str]:
    """At most one error, for an unmatched brace, which compilers report in the code after the rules."""
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


def _function_errors(rules: Contract, source: str, parsed: Sequence[Diagnostic]) -> list[str]:
    """Errors for functions that the author's rules lack or declare wrongly, which compilers report in other files."""
    text = "\n".join(_header_lines(rules, source))
    if not text:
        return []
    code = blanked(text)
    where = display(rules.file)
    starts = {name: _definition(code, name) for name in rules.functions}
    missing = [name for name, start in starts.items() if start is None]
    if missing:
        return [f"{where} has no function {name}: it needs\n    {rules.functions[name]}" for name in missing]
    around = [error for error in parsed if not _is_authors(error.file, rules)]
    lines_around = "\n".join(f"{error.text} {_driver_line(error, source)}" for error in around)
    suspects = [name for name in starts if re.search(rf"\b{name}\b\s*[('\"]", lines_around)]
    errors = []
    for name in suspects:
        line = code.count("\n", 0, starts[name]) + 1
        declaration = text.splitlines()[line - 1].strip()
        if _signature(declaration) != _signature(rules.functions[name]):
            errors.append(
                f"{where}:{line}: error: {name} has the wrong arguments or return type"
                f"\n    {declaration}\n  it needs\n    {rules.functions[name]}"
            )
    return errors


def _driver_line(diagnostic: Diagnostic, source: str) -> str:
    lines = lines_of_file(source, diagnostic.file) if diagnostic.file != "generated" else []
    return lines[diagnostic.line - 1] if 0 < diagnostic.line <= len(lines) else diagnostic.excerpt


def _signature(line: str) -> str:
    """The return and argument types of a function's first line, without names and spaces."""
    head, _, arguments = line.partition("(")
    types = []
    for argument in arguments.partition(")")[0].split(","):
        words = re.findall(r"\w+|&", argument.replace("[[maybe_unused]]", ""))
        types.append("".join(words[:-1] if len(words) > 1 and words[-1] != "&" else words))
    return f"{''.join(head.split()[:-1])}({','.join(types)})"


def _definition(code: str, name: str) -> int | None:
    """The offset of a function's definition in ``code``; None if it is only declared, or missing."""
    match = re.search(rf"^[^\n;{{}}#]*\b{name}\s*\([^;{{}}]*\)\s*\{{", code, re.MULTILINE)
    return None if match is None else match.start()
