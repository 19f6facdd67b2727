"""The strings under the fields of a class: ``help`` shows them, and the command line."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import textwrap
from typing import SupportsIndex, TypeVar, final

ClassT = TypeVar("ClassT", bound=type)


def documented(cls: ClassT) -> ClassT:
    """Adds to the docstring of a dataclass or a named tuple what its fields are, which Python itself forgets."""
    type.__setattr__(cls, "__doc__", _Docstring(cls.__doc__ or "", cls))
    return cls


@final
class _Docstring(str):
    """A docstring that is put together when it is asked for, since reading the source takes time."""

    owner: type

    def __new__(cls, text: str, owner: type) -> "_Docstring":
        made = super().__new__(cls, text)
        made.owner = owner
        return made

    def __get__(self, _instance: object, _owner: type) -> str:
        return self._whole()

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        """What ``help`` asks first of the docstring of an abstract class, whose ``__get__`` it does not call."""
        return self._whole().expandtabs(tabsize)

    def _whole(self) -> str:
        docs = field_docs(self.owner)
        fields = (f"{name}: {docs[name]}" for name in field_names(self.owner) if name in docs)
        lines = [textwrap.fill(text, 100, initial_indent=" " * 4, subsequent_indent=" " * 8) for text in fields]
        return "\n".join([inspect.cleandoc(str(self)), "", "Attributes:", *lines]) if lines else str(self)


def field_names(cls: type) -> tuple[str, ...]:
    """The public fields of a dataclass or a named tuple, in order."""
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields  # type: ignore[attr-defined]  # a named tuple has them
    return tuple(name for name in names if not name.startswith("_"))


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The string that stands under each field of a class and of those it inherits from, by the field's name."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        with contextlib.suppress(OSError, TypeError):  # its source is not there
            docs |= _own_docs(inspect.getsource(each))
    return docs


def _own_docs(source: str) -> dict[str, str]:
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
