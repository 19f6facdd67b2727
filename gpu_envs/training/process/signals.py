"""Stop signals: they stop the training, or end a process that waits for a peer that has ended."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code of a process that ``peer_monitor`` ends."""

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to stop."""


@contextlib.contextmanager
def signal_reader(read: Callable[[socket.socket], None]) -> Iterator[None]:
    """Run ``read`` in a thread, with a socket that receives a byte per signal: its number.

    Signal handlers run in the main thread, which may be waiting for a GPU whose kernels wait for another process;
    Python writes to the socket at once. At the end the socket is closed, which must end ``read``. Outside of the main
    thread nothing is run.
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
    """Return the state of a process, such as ``T`` for stopped (see proc_pid_stat(5)); empty if it is unknown."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    return ""


@contextlib.contextmanager
def peer_monitor(peers: Sequence[int], patience: float = 5.0) -> Iterator[None]:
    """End this process after a stop signal if a peer has ended, since it may be waiting for that peer.

    Args:
        peers: Process IDs on this host.
        patience: Seconds that the process has to stop by itself.
    """
    done = threading.Event()

    def end_if_peer_ended(signals: socket.socket) -> None:
        """Wait for a stop signal; from then on, until the context ends, end this process once a peer has ended."""
        while (numbers := signals.recv(1)) and numbers[0] not in STOP_SIGNALS:
            pass
        while numbers and not done.wait(0.5):
            if any(map(_has_ended, peers)) and not done.wait(patience):
                os._exit(TERMINATED)

    with signal_reader(end_if_peer_ended) if peers else contextlib.nullcontext():
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
    return state_of(process) == "Z"  # a zombie: its parent has not collected the exit code yet


def request_handlers() -> dict[signal.Signals, Any]:
    """Return the handlers of stop signals, without ignored signals (as under nohup); empty in other threads."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}


def set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    """Install signal handlers."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def interruption() -> Iterator[threading.Event]:
    """Return an event that the first stop signal sets; a second one is handled as without this context."""
    stop = threading.Event()
    previous = request_handlers()

    def handle(*_: Any) -> None:
        stop.set()
        set_handlers(previous)

    set_handlers(dict.fromkeys(previous, handle))
    try:
        yield stop
    finally:
        set_handlers(previous)
