"""Lets several threads of Python share an environment: one call at a time."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TakesTurns(Protocol):
    """What has a lock for its calls."""

    @property
    def _turn(self) -> AbstractContextManager[bool]: ...


SelfT = TypeVar("SelfT", bound=TakesTurns)


def in_turn(method: Callable[Concatenate[SelfT, P], T]) -> Callable[Concatenate[SelfT, P], T]:
    """Makes a method wait for the calls of other threads that are under way in the same environment.

    A launch frees Python's lock while it runs, and another thread's would overwrite what it is called with.
    """

    @functools.wraps(method)
    def called(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return called
