"""Ends a process that was told to end, and waits for another that is no more."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, final

ENDED: Final = 128 + signal.SIGTERM
"""The exit code."""

REQUESTS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that tell a process to end."""


@final
class Watch:
    """Watches one of several processes while they train.

    A signal's handler has to wait for the main thread, which may wait for a GPU, and that for another process; what
    Python writes to a socket at a signal need not. Elsewhere than in the main thread nothing is watched.
    """

    def __init__(self, others: Sequence[int], patience: float = 5.0) -> None:
        """Prepares.

        Args:
            others: The processes of this host that this one may wait for.
            patience: Seconds to find out by itself that another is gone.
        """
        self._others: Final = others
        self._patience: Final = patience
        self._done: Final = threading.Event()
        self._tell: socket.socket | None = None
        self._before = -1

    def __enter__(self) -> None:
        """Begins."""
        if self._others and threading.current_thread() is threading.main_thread():
            told, self._tell = socket.socketpair()
            self._tell.setblocking(False)
            self._before = signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._wait, args=(told,), name="watch", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        del kind, error, trace
        if self._tell is not None:
            signal.set_wakeup_fd(self._before)
            self._tell.close()
        self._done.set()

    def _wait(self, told: socket.socket) -> None:
        with told:
            while (numbers := told.recv(1)) and numbers[0] not in REQUESTS:
                pass
            while numbers and not self._done.wait(0.5):  # what is told of further signals needs a reader still
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
    with contextlib.suppress(OSError):
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    return False
