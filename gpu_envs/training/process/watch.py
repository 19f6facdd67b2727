"""Signals that tell a process to end: it stops training, or ends where it waits for a process that has ended."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ENDED: Final = 128 + signal.SIGTERM
"""The exit code."""

REQUESTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that tell a process to end."""


@contextlib.contextmanager
def signal_reader(read: Callable[[socket.socket], None]) -> Iterator[None]:
    """Runs a function in a thread, with a socket that gives a byte for each signal, its number; it ends as this does.

    A signal's handler has to wait for the main thread, which may wait for a GPU, and that for another process; what
    Python writes to a socket at a signal need not. Elsewhere than in the main thread nothing runs.
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


@contextlib.contextmanager
def peer_monitor(peers: Sequence[int], patience: float = 5.0) -> Iterator[None]:
    """Ends this process, when it was told to end, if it may wait for a process of this host that has ended.

    It has ``patience`` seconds to find that out by itself.
    """
    done = threading.Event()

    def wait(signals: socket.socket) -> None:
        while (numbers := signals.recv(1)) and numbers[0] not in REQUESTS:
            pass
        while numbers and not done.wait(0.5):
            if any(map(_has_ended, peers)) and not done.wait(patience):
                os._exit(ENDED)

    with signal_reader(wait) if peers else contextlib.nullcontext():
        try:
            yield
        finally:
            done.set()


def _has_ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return state_of(process) == "Z"  # its parent has yet to ask how


def request_handlers() -> dict[signal.Signals, Any]:
    """What handles requests to end, but those that are ignored, as under nohup. In other threads nothing does."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in REQUESTS}
    return {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}


def set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    """Lets them handle these signals."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def interruption() -> Iterator[threading.Event]:
    """Ctrl-C, a request to terminate and a closed terminal set the event; a second one does what it did before."""
    pressed = threading.Event()
    before = request_handlers()

    def note(*_: Any) -> None:
        pressed.set()
        set_handlers(before)

    set_handlers(dict.fromkeys(before, note))
    try:
        yield pressed
    finally:
        set_handlers(before)
