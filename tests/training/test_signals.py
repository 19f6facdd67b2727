"""After a stop signal, a process does not wait forever for another."""

import signal
import subprocess
import sys
import time

import pytest
from harness import subprocess_env

pytest.importorskip("torch")

from gpu_envs.training.process.signals import TERMINATED

PROGRAM = """
import os, signal, subprocess, threading
from gpu_envs.training.process.signals import interruption, peer_monitor
signal.signal(signal.SIGUSR1, lambda *_: None)
other = subprocess.Popen(["sleep", "30"])
with peer_monitor([other.pid], patience=1.0), interruption():
    print("ready", flush=True)
    if {gone}:
        other.kill()
    threading.Event().wait({seconds})
other.kill()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "seconds", "stop_signal", "expected"),
    [(True, None, signal.SIGTERM, TERMINATED), (True, 3, signal.SIGUSR1, 0), (False, 4, signal.SIGINT, 0)],
)
def test_a_process_that_waits_for_an_ended_peer_ends(
    gone: bool, seconds: int | None, stop_signal: signal.Signals, expected: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(gone=gone, seconds=seconds)],
        env=subprocess_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(stop_signal)
    time.sleep(0.2)
    process.send_signal(signal.SIGUSR1)  # the monitor has received the signal, and keeps running
    began = time.monotonic()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == expected
    assert time.monotonic() - began < 10
