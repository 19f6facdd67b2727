"""Source code of the translated functions, and errors with its lines."""

import ast
import builtins
import contextlib
import dataclasses
import inspect
import types
from collections.abc import Iterator
from typing import Any, final

from gpu_envs.errors import TranslationError
from gpu_envs.specs.rules import source_lines


class RefusedError(Exception):
    """Code that cannot be translated; ``FunctionSource.at`` adds the line and raises a ``TranslationError``."""

    def __init__(self, problem: str, hint: str = "", at: ast.AST | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint
        self.at = at
        """Node of the author's function, if known."""


@final
@dataclasses.dataclass(frozen=True)
class FunctionSource:
    """The source of a function that the author wrote."""

    function: types.FunctionType
    tree: ast.FunctionDef
    """Syntax tree with line numbers of the file."""
    file: str
    lines: tuple[str, ...]
    """Lines of the function."""
    first: int
    """Line number of ``lines[0]`` in the file."""

    @property
    def name(self) -> str:
        return self.tree.name

    @property
    def arguments(self) -> list[ast.arg]:
        """Arguments of the function; raises a TranslationError for ``*`` and ``**``."""
        arguments = self.tree.args
        if extra := arguments.vararg or arguments.kwarg:
            raise self.error(extra, "functions of rules have no * or ** arguments", "Name each argument")
        return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the arguments, by name."""
        return {argument.arg: annotation(argument.annotation) for argument in self.arguments}

    def error(self, node: ast.AST, problem: str, hint: str = "") -> TranslationError:
        """Return an error that shows file, line and code of ``node``, with its columns marked, and the hint."""
        line = getattr(node, "lineno", self.first)
        text = self.lines[line - self.first] if line - self.first < len(self.lines) else ""
        start = len(text.encode()[: getattr(node, "col_offset", 0)].decode())
        end = len(text.rstrip())
        if getattr(node, "end_lineno", None) == line:
            end = len(text.encode()[: getattr(node, "end_col_offset", 0)].decode())
        indentation = len(text) - len(text.lstrip())
        carets = " " * (start - indentation) + "^" * max(1, end - start)
        message = f'{problem}\n  File "{self.file}", line {line}, in {self.name}\n    {text.strip()}\n    {carets}'
        return TranslationError(message + (f"\n{hint}" if hint else ""), self.file, line)

    @contextlib.contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Turn a ``RefusedError`` into a ``TranslationError`` with its line, or that of ``node`` if it has none."""
        try:
            yield
        except RefusedError as refused:
            raise self.error(refused.at or node, refused.problem, refused.hint) from None

    def find(self, name: str) -> Any:
        """Return the value of a closure, global or builtin variable of the function; KeyError if there is none."""
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
        if name not in cells:
            return {**vars(builtins), **self.function.__globals__}[name]
        try:
            return cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None


def annotation(node: ast.expr | None) -> str:
    """Return an annotation as text, without its module; ``""`` if there is none."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text if "[" in text else text.rpartition(".")[2]


def read_source(function: Any, description: str) -> FunctionSource:
    """Return a function's source; raise a TranslationError, with its ``description``, unless def defines it plainly."""
    if not isinstance(function, types.FunctionType):
        raise _not_a_function(function, description)
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    try:
        lines, first = source_lines(function)
    except (OSError, TypeError) as error:
        raise TranslationError(
            f"{description}: the function {function.__name__!r} has no source ({error}); write it in a file", file
        ) from None
    tree: ast.stmt | None = None
    text = "".join(lines)
    nested = text[:1].isspace()
    with contextlib.suppress(SyntaxError):  # a lambda in the middle of an expression
        # Parsed in a block: comments and strings of an indented function may start further left than the function.
        tree = ast.parse(f"if True:\n{text}" if nested else text).body[0]
    if isinstance(tree, ast.If) and nested:
        tree = tree.body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        kind = "a lambda" if function.__name__ == "<lambda>" else "not a function defined with def"
        raise TranslationError(f'{description} is {kind}\n  File "{file}", line {first}\nUse def', file, first)
    ast.increment_lineno(tree, first - 1 - nested)
    source = FunctionSource(function, tree, file, tuple(text.splitlines()), first)
    for decorator in tree.decorator_list:
        if not (isinstance(decorator, ast.Name) and decorator.id == "staticmethod"):
            raise source.error(decorator, "rules have no decorators", "Remove it: Python never runs the function")
    return source


def _not_a_function(function: Any, description: str) -> TranslationError:
    """Return the error for an object that is no function, with the line of the function that it wraps, if any."""
    inner = function
    for name in ("__wrapped__", "__func__", "func"):
        inner = getattr(inner, name, inner)
    kind, hint = f"{function!r}", "Pass a Python function defined with def"
    if isinstance(function, types.MethodType):
        kind, hint = "a method of a class", "Write it as a function of the module, without self"
    elif hasattr(function, "__wrapped__"):
        kind, hint = "a function with a decorator", "Remove the decorator: Python never runs rules"
    if not isinstance(inner, types.FunctionType):
        return TranslationError(f"{description} is {kind}\n{hint}")
    code = inner.__code__
    place = f'File "{code.co_filename}", line {code.co_firstlineno}, in {inner.__name__}'
    return TranslationError(f"{description} is {kind}\n  {place}\n{hint}", code.co_filename, code.co_firstlineno)
