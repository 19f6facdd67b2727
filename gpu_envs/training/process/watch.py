"""Ends a process that was told to end, and waits for another that is no more."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, final

ENDED: Final = 128 + signal.SIGTERM
"""The exit code."""

REQUESTS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that tell a process to end."""


@contextlib.contextmanager
def signal_reader(read: Callable[[socket.socket], None]) -> Iterator[None]:
    """Runs a function in a thread, with a socket that gives a byte for each signal, its number.

    A signal's handler has to wait for the main thread, which may wait for a GPU, and that for another process; what
    Python writes to a socket at a signal need not. The socket ends with the context. Elsewhere than in the main thread
    nothing runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=read, args=(reader,), name="signals", daemon=True)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join()
        reader.close()


def state_of(process: int) -> str:
    """Returns the state of a process, such as ``T`` where it is stopped (see proc_pid_stat(5)); empty where unknown."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    return ""


@final
class Watch:
    """Watches one of several processes while they train."""

    def __init__(self, others: Sequence[int], patience: float = 5.0) -> None:
        """Prepares.

        Args:
            others: The processes of this host that this one may wait for.
            patience: Seconds to find out by itself that another is gone.
        """
        self._others: Final = others
        self._patience: Final = patience
        self._done: Final = threading.Event()
        self._reader: Final = signal_reader(self._wait) if others else contextlib.nullcontext()

    def __enter__(self) -> None:
        """Begins."""
        self._reader.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        self._done.set()
        self._reader.__exit__(kind, error, trace)

    def _wait(self, told: socket.socket) -> None:
        while (numbers := told.recv(1)) and numbers[0] not in REQUESTS:
            pass
        while numbers and not self._done.wait(0.5):
            if any(map(_gone, self._others)) and not self._done.wait(self._patience):
                os._exit(ENDED)


def _gone(process: int) -> bool:
    """Whether a process has ended, be it that nobody has yet asked how."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return state_of(process) == "Z"
