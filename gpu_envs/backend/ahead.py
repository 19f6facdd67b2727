"""Programs are compiled ahead of need, in threads: compilers are processes, or leave Python's lock alone."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeAlias, final

Key: TypeAlias = tuple[str, ...]
"""A source, and what it is compiled for."""


def available_threads() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin(key: Key, name: str, make: Callable[[], object]) -> None:
    """Begins to make what ``wait`` will wait for: as many compilers work as there are cores.

    What goes wrong there is left to whoever asks.
    """

    def run() -> None:
        with UNDER_WAY.compilers, contextlib.suppress(Exception):
            if threading.main_thread().is_alive():  # else the process is ending, and waits for this thread
                make()

    if key not in UNDER_WAY.threads:
        thread = threading.Thread(target=run, name=f"compile {name}")
        with contextlib.suppress(RuntimeError):  # there are as many threads as there may be
            thread.start()
            UNDER_WAY.threads[key] = thread  # another thread that begins the same meanwhile compiles it, too


def wait(key: Key) -> None:
    """Waits for what was begun; if it was not, for nothing."""
    under_way = UNDER_WAY.threads.pop(key, None)
    if under_way is not None:
        under_way.join()


@final
class Compilations:
    """Threads that compile, by what; ``compilers`` lets as many work as there are cores."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins with none, as a process does that was forked: threads stay behind."""
        self.threads: dict[Key, threading.Thread] = {}
        self.compilers = threading.Semaphore(available_threads())


UNDER_WAY = Compilations()
os.register_at_fork(after_in_child=UNDER_WAY.forget)
