"""The source of the functions that are translated, and errors that point into it."""

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
    """Something cannot be translated; the caller that knows where it stands makes a ``TranslationError`` of it."""

    def __init__(self, what: str, instead: str = "", at: ast.AST | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.instead = instead
        self.at = at
        """Where it stands, if that is known here."""


@final
@dataclasses.dataclass(frozen=True)
class Written:
    """A function as its author wrote it."""

    function: types.FunctionType
    tree: ast.FunctionDef
    """With the line numbers of the file."""
    file: str
    lines: tuple[str, ...]
    """The function's own lines."""
    first: int
    """The number of the first of them in the file."""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.tree.name

    @property
    def arguments(self) -> list[ast.arg]:
        """The function's arguments."""
        given = self.tree.args
        if extra := given.vararg or given.kwarg:
            raise self.error(extra, "the arguments of rules are listed by name", "Name each of them")
        return [*given.posonlyargs, *given.args, *given.kwonlyargs]

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the arguments, by their names."""
        return {argument.arg: annotation(argument.annotation) for argument in self.arguments}

    def error(self, node: ast.AST, what: str, instead: str = "") -> TranslationError:
        """An error that shows where ``node`` is."""
        line = getattr(node, "lineno", self.first)
        text = self.lines[line - self.first] if line - self.first < len(self.lines) else ""
        start = len(text.encode()[: getattr(node, "col_offset", 0)].decode())
        end = len(text.rstrip())
        if getattr(node, "end_lineno", None) == line:
            end = len(text.encode()[: getattr(node, "end_col_offset", 0)].decode())
        margin = len(text) - len(text.lstrip())
        marks = " " * (start - margin) + "^" * max(1, end - start)
        message = f'{what}\n  File "{self.file}", line {line}, in {self.name}\n    {text.strip()}\n    {marks}'
        return TranslationError(message + (f"\n{instead}" if instead else ""), self.file, line)

    @contextlib.contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Shows where what is refused in this block stands: at ``node``, where nothing else is known."""
        try:
            yield
        except RefusedError as refused:
            raise self.error(refused.at or node, refused.what, refused.instead) from None

    def find(self, name: str) -> Any:
        """What a name means outside the function: in what encloses it, in its module, or in Python itself.

        Raises:
            KeyError: The name means nothing there.
        """
        cells = dict(zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True))
        if name not in cells:
            return {**vars(builtins), **self.function.__globals__}[name]
        try:
            return cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None


def annotation(node: ast.expr | None) -> str:
    """The last part of an annotation's name, or the whole of one with brackets; ``""`` where there is none."""
    if node is None:
        return ""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    return text if "[" in text else text.rpartition(".")[2]


def read(function: Any, what: str) -> Written:
    """Reads the source of a function; messages say ``what`` it is."""
    if not isinstance(function, types.FunctionType):
        raise _no_function(function, what)
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    try:
        lines, first = source_lines(function)
    except (OSError, TypeError) as error:
        raise TranslationError(
            f"{what}: there is no source of the function {function.__name__!r} ({error}); write it in a file", file
        ) from None
    tree: ast.stmt | None = None
    source = "".join(lines)
    nested = source[:1].isspace()
    with contextlib.suppress(SyntaxError):  # of a lambda in the middle of an expression
        # In a block, as comments and texts of an indented function may begin further left.
        tree = ast.parse(f"if True:\n{source}" if nested else source).body[0]
    if isinstance(tree, ast.If) and nested:
        tree = tree.body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.name != function.__name__:
        kind = "a lambda" if function.__name__ == "<lambda>" else "not a function that begins with def"
        raise TranslationError(f'{what} is {kind}\n  File "{file}", line {first}\nWrite it with def', file, first)
    ast.increment_lineno(tree, first - 1 - nested)
    written = Written(function, tree, file, tuple(source.splitlines()), first)
    for decorator in tree.decorator_list:
        if not (isinstance(decorator, ast.Name) and decorator.id == "staticmethod"):
            raise written.error(decorator, "rules have no decorators", "Remove it: the function is never run by Python")
    return written


def _no_function(function: Any, what: str) -> TranslationError:
    """Something else that can be called, with the place of the function within it where there is one."""
    inner = function
    for name in ("__wrapped__", "__func__", "func"):
        inner = getattr(inner, name, inner)
    kind, instead = f"{function!r}", "Give a function that is written in Python with def"
    if isinstance(function, types.MethodType):
        kind, instead = "a method of a class", "Write it as a function of the module, without self"
    elif hasattr(function, "__wrapped__"):
        kind, instead = "a function with a decorator", "Remove the decorator: rules are never run by Python"
    if not isinstance(inner, types.FunctionType):
        return TranslationError(f"{what} is {kind}\n{instead}")
    code = inner.__code__
    place = f'File "{code.co_filename}", line {code.co_firstlineno}, in {inner.__name__}'
    return TranslationError(f"{what} is {kind}\n  {place}\n{instead}", code.co_filename, code.co_firstlineno)
