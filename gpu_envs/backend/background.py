"""Compiles programs in background threads before they are needed: compilers are processes, or release the GIL."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TypeAlias, final

Key: TypeAlias = tuple[str, ...]
"""A source and its compiler options."""


def available_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(key: Key, name: str, compile_program: Callable[[], object]) -> None:
    """Calls ``compile_program`` in a thread, which ``wait(key)`` waits for; at most one compiler runs per core.

    Errors are dropped: the caller of ``wait`` compiles again and gets them.
    """

    def compile_quietly() -> None:
        with COMPILATIONS.compilers, contextlib.suppress(Exception):
            if threading.main_thread().is_alive():  # else the process is ending, and waits for this thread
                compile_program()

    if key not in COMPILATIONS.threads:
        thread = threading.Thread(target=compile_quietly, name=f"compile {name}")
        with contextlib.suppress(RuntimeError):  # the system's limit of threads is reached
            thread.start()
            COMPILATIONS.threads[key] = thread  # if two threads start the same key at once, both compile it


def wait(key: Key) -> None:
    """Waits for the compilation of ``key``, if one was started."""
    thread = COMPILATIONS.threads.pop(key, None)
    if thread is not None:
        thread.join()


@final
class Compilations:
    """The running threads by key; ``compilers`` lets one run per core."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all threads, as a forked child does not have its parent's."""
        self.threads: dict[Key, threading.Thread] = {}
        self.compilers = threading.Semaphore(available_threads())


COMPILATIONS = Compilations()
os.register_at_fork(after_in_child=COMPILATIONS.reset)
