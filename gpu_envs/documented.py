"""Docstrings of fields, which ``help`` and the command line show."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import textwrap
from typing import SupportsIndex, TypeVar, final

ClassT = TypeVar("ClassT", bound=type)


def documented(cls: ClassT) -> ClassT:
    """Append the docstrings of a dataclass's or named tuple's fields, which Python itself discards, to the class's."""
    type.__setattr__(cls, "__doc__", _Docstring(cls.__doc__ or "", cls))
    return cls


@final
class _Docstring(str):
    """A docstring assembled only when it is read, because parsing the source takes time."""

    owner: type

    def __new__(cls, text: str, owner: type) -> "_Docstring":
        docstring = super().__new__(cls, text)
        docstring.owner = owner
        return docstring

    def __get__(self, _instance: object, _owner: type) -> str:
        return self._assemble()

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        """Expand tabs in the full text: ``help`` calls this for abstract classes, whose ``__get__`` it skips."""
        return self._assemble().expandtabs(tabsize)

    def _assemble(self) -> str:
        """Return the class's docstring with a list of its public fields that have docstrings."""
        docs = field_docs(self.owner)
        fields = (f"{name}: {docs[name]}" for name in field_names(self.owner) if name in docs)
        lines = [textwrap.fill(text, 100, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in fields]
        return "\n".join([inspect.cleandoc(str(self)), "", "Attributes:", *lines]) if lines else str(self)


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the public fields of a dataclass or a named tuple, in order."""
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields  # type: ignore[attr-defined]  # a named tuple has them
    return tuple(name for name in names if not name.startswith("_"))


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its base classes, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):  # no source file, such as for builtins
            docs |= _parse_field_docs(inspect.getsource(base))
    return docs


def _parse_field_docs(source: str) -> dict[str, str]:
    """Return the docstrings of fields by name from a class's source, each in one line; base classes are not read."""
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs[field.target.id] = " ".join(text.value.value.split())
    return docs
