"""Small mistakes in Python and in C++ headers, for ``python -m tests.mutants``."""

import ast
import copy
import dataclasses
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
"""Replacement of each operator."""

UNSEEN = {"__repr__", "__str__"}
"""Functions whose results are only displayed."""


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """One mistake: bytes ``start`` to ``end`` of a file are replaced."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    kind: str
    scope: str
    """Function, or line of a header; at most one mutant per scope is drawn."""
    around: tuple[str, str] = ("", "")
    """Text before and after the mutation on its line, if it is on one line."""

    @property
    def name(self) -> str:
        """Formats the line before and after the mutation."""
        before, after = (" ".join(text.join(self.around).split()) for text in (self.before, self.after))
        return f"{self.file}:{self.line}: {before} -> {after}"

    def applied(self, text: bytes) -> bytes:
        """Returns the file's text with the mutation."""
        assert text[self.start : self.end].decode() == self.before
        return text[: self.start] + self.after.encode() + text[self.end :]


def draw(mutants: Sequence[Mutant], seed: int) -> Iterator[Mutant]:
    """Returns mutants in the seed's order, at most one per scope."""
    scopes = set()
    for mutant in random.Random(seed).sample(sorted(mutants), len(mutants)):
        if (mutant.file, mutant.scope) not in scopes:
            scopes.add((mutant.file, mutant.scope))
            yield mutant


def of_python(file: str, text: str) -> list[Mutant]:
    """Returns all mutants of a file's functions."""
    finder = _Finder(file, text)
    finder.visit(ast.parse(text))
    return finder.found


class _Finder(ast.NodeVisitor):
    """Visits function bodies, without docstrings, annotations, defaults, decorators, strings and exceptions."""

    def __init__(self, file: str, text: str) -> None:
        self.found: list[Mutant] = []
        self._file, self._text = file, text.encode()
        self._starts = [0]
        for line in self._text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scopes: list[str] = []
        self._in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name not in UNSEEN and not any("overload" in ast.unparse(each) for each in node.decorator_list):
            before, self._in_function = self._in_function, True
            self._visit_body(node)
            self._in_function = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # name defined by ast

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before, self._in_function = self._in_function, False
        self._visit_body(node)
        self._in_function = before

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scopes.append(f"{node.name} {node.lineno}")
        for statement in node.body:
            self.visit(statement)
        self._scopes.pop()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self._negate(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # zip's strict argument has no effect on correct code
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._drop(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._drop(node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        if not all(isinstance(target, ast.Name) for target in node.targets):  # otherwise an unused argument
            self._drop(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func).rpartition(".")[2] not in ("warn", "cast", "TypeVar"):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self._swap(node)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(_is_text(each) for each in (node.left, node.right)):
            self._swap(node)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._swap(node)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        changed = copy.deepcopy(node)
        changed.ops[0] = _swapped(node.ops[0])
        self._add(node, f"({ast.unparse(changed)})", "comparison")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add(node, f"({ast.unparse(node.operand)})", "operator")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value), "constant")
        elif isinstance(node.value, int | float):
            self._add(node, repr(node.value + 1), "constant")

    def _negate(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._add(node.test, f"(not ({self._source(node.test)}))", "condition")
        self.generic_visit(node)

    def _drop(self, node: ast.stmt) -> None:
        self._add(node, "pass", "statement")

    def _swap(self, node: ast.BinOp | ast.BoolOp | ast.AugAssign) -> None:
        if type(node.op) in OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = _swapped(node.op)
            text = ast.unparse(changed)
            self._add(node, text if isinstance(node, ast.stmt) else f"({text})", "operator")

    def _range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        starts = self._starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def _source(self, node: ast.expr) -> str:
        start, end = self._range(node)
        return self._text[start:end].decode()

    def _add(self, node: ast.expr | ast.stmt, after: str, kind: str) -> None:
        if self._in_function:
            start, end = self._range(node)
            before = self._text[start:end].decode()
            line, last = self._starts[node.lineno - 1 : node.lineno + 1]
            around = (self._text[line:start].decode(), self._text[end:last].decode()) if end < last else ("", "")
            mutant = Mutant(self._file, node.lineno, start, end, before, after, kind, ".".join(self._scopes), around)
            self.found.append(mutant)


def _swapped(operator: ast.AST) -> Any:
    return OPERATORS[type(operator)]()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


_SWAPS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "/",
    "&&": "||",
    "||": "&&",
    "&": "|",
    "|": "&",
    "^": "&",
    "<<": ">>",
    ">>": "<<",
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "/=": "*=",
    "|=": "&=",
    "&=": "|=",
}
_OPERATOR = re.compile(rf"(?<= )(?:{'|'.join(re.escape(each) for each in sorted(_SWAPS, key=len, reverse=True))})(?= )")
_NUMBER = re.compile(r"(?<![\w.'])(?<![eE][-+])(\d+)(\.\d+)?(?=f?\b(?![\w.']))")
_NOT = re.compile(r"!(?=[\w(])")
_CONDITION = re.compile(r"\b(?:if|while) (?=\()")
_STATEMENT = re.compile(
    r"^\s*(?!return\b|using\b|else\b|for\b|if\b|while\b|case\b)([\w:.>\[\]*-]+(\([^=;]*\))?"
    r"( +[-+*/|&^]?=(?!=)[^;]*)?;)\s*$"
)
_NO_CODE = re.compile(
    r"""
    //[^\n]* | /\*.*?\*/ | "(?:\\.|[^"\\\n])*"      # comments and strings
    | ^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*                # directives, with the lines that continue them
    | \bstatic_assert\b[^;]*;
    | \btemplate[ ]<(?:[^<>\n]|<[^<>\n]*>)*>
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_GPU_ONLY = re.compile(r"_for_gpu|__CUDA|__clang__")


def of_header(file: str, text: str) -> list[Mutant]:
    """Returns all mutants of the header lines that the CPU backend compiles."""
    found, start, ends_before = [], 0, True
    for number, (line, code) in enumerate(zip(text.split("\n"), _code(text).split("\n"), strict=True), start=1):
        for first, last, after, kind in _changes(code, ends_before):
            offset = start + len(line[:first].encode())
            before = line[first:last]
            end = offset + len(before.encode())
            around = (code[:first], code[last:])
            found.append(Mutant(file, number, offset, end, before, after, kind, f"line {number}", around))
        if code.strip():
            ends_before = code.rstrip()[-1] in ";{}:"
        start += len(line.encode()) + 1
    return found


def _changes(code: str, begins: bool) -> Iterator[tuple[int, int, str, str]]:
    for match in _OPERATOR.finditer(code):
        yield *match.span(), _SWAPS[match[0]], "comparison" if match[0] in "<= >= == !=" else "operator"
    for match in _NUMBER.finditer(code):
        yield *match.span(), f"{int(match[1]) + 1}{match[2] or ''}", "constant"
    for match in _NOT.finditer(code):
        yield *match.span(), "", "operator"
    for match in _CONDITION.finditer(code):
        end = _closing(code, match.end())
        if end:
            yield match.end(), end, f"(!{code[match.end() : end]})", "condition"
    statement = _STATEMENT.match(code) if begins else None
    if statement and statement[1].count("(") == statement[1].count(")") and re.search(r"[=(]", statement[1]):
        yield *statement.span(1), ";", "statement"


def _closing(code: str, start: int) -> int:
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] == "(") - (code[i] == ")")
        if depth == 0:
            return i + 1
    return 0


def _code(text: str) -> str:
    """Blanks out text that is not code for the CPU compiler."""
    lines = []
    active: list[bool] = []  # whether the CPU compiles this part, for each enclosing condition
    otherwise: list[bool] = []  # whether it compiles the following parts
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", line)
        if directive is not None:
            word, condition = directive.groups()
            for_cpu = not _GPU_ONLY.search(condition) or "!_for_gpu" in condition
            if word.startswith("if"):
                active.append(for_cpu)
                otherwise.append("!_for_gpu" not in condition)
            elif word == "endif":
                active.pop()
                otherwise.pop()
            else:
                active[-1] = otherwise[-1] and for_cpu
        lines.append(line if all(active) else " " * len(line))
    return _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), "\n".join(lines))
