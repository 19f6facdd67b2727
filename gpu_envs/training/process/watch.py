"""Ends a process that was told to end, and waits for another that is no more."""

import math
import os
import signal
import socket
import threading
import time
from types import TracebackType
from typing import Final, final

PATIENCE = 20.0
"""Seconds without a sign of life, at least, after which a process that was told to end is ended."""

_REQUESTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@final
class Watch:
    """Watches one of several processes while they train.

    A signal's handler has to wait for the main thread, which may wait for a GPU, and that for another process; what
    Python writes to a socket at a signal need not. Elsewhere than in the main thread nothing is watched.
    """

    def __init__(self, wanted: bool) -> None:
        """Prepares; only a process that may wait for others wants it."""
        self._wanted: Final = wanted and threading.current_thread() is threading.main_thread()
        self._done: Final = threading.Event()
        self._last, self._longest = time.monotonic(), 0.0
        self._tell: socket.socket | None = None
        self._before = -1

    def __enter__(self) -> "Watch":
        """Begins."""
        if self._wanted:
            told, self._tell = socket.socketpair()
            self._tell.setblocking(False)
            self._before = signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._wait, args=(told,), name="watch", daemon=True).start()
        self.alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        del kind, error, trace
        self._done.set()
        if self._tell is not None:
            signal.set_wakeup_fd(self._before)
            self._tell.close()

    def alive(self) -> None:
        """Is told after every iteration."""
        now = time.monotonic()
        if math.isfinite(self._last):
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def rest(self) -> None:
        """Until the next sign of life, nothing is too long: a checkpoint is written."""
        self._last = math.inf

    def _wait(self, told: socket.socket) -> None:
        with told:
            while (numbers := told.recv(1)) and numbers[0] not in _REQUESTS:
                pass
        while numbers and not self._done.wait(0.5):
            if time.monotonic() - self._last > max(PATIENCE, 2 * self._longest):
                os._exit(1)
