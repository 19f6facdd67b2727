"""A process that was told to end, and waits for another, does not wait for ever."""

import signal
import subprocess
import sys
import time

import pytest
from harness import with_package

pytest.importorskip("torch")

PROGRAM = """
import signal, threading, time
from gpu_envs.training.process import watch
from gpu_envs.training.process.settings import interruption
watch.PATIENCE = 1.0
signal.signal(signal.SIGUSR1, lambda *_: None)
with watch.Watch(True) as watched, interruption():
    print("ready", flush=True)
    {}
"""


@pytest.mark.parametrize(
    ("does", "told", "expected"),
    [
        ("threading.Event().wait()", signal.SIGTERM, 1),
        ("threading.Event().wait(3)", signal.SIGUSR1, 0),
        ("[(time.sleep(0.1), watched.alive()) for _ in range(30)]", signal.SIGTERM, 0),
        ("watched.rest(); threading.Event().wait(3)", signal.SIGINT, 0),
    ],
)
def test_ends_what_hangs(does: str, told: signal.Signals, expected: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(does)], env=with_package(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(told)
    began = time.monotonic()
    assert process.wait(30) == expected
    assert time.monotonic() - began < 10
    process.stdout.close()
