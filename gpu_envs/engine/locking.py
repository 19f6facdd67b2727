"""A lock per environment, so that Python threads can share one."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HasLock(Protocol):
    """An object with a lock."""

    @property
    def _lock(self) -> AbstractContextManager[bool]: ...


SelfT = TypeVar("SelfT", bound=HasLock)


def synchronized(method: Callable[Concatenate[SelfT, P], T]) -> Callable[Concatenate[SelfT, P], T]:
    """Decorator that runs a method under the lock of its environment, so that calls of several threads never overlap.

    A launch releases Python's global lock while it runs; another thread's call would overwrite its kernel arguments.
    """

    @functools.wraps(method)
    def locked(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked
