"""Communication of a training process with the launcher that started it: environment variables and files."""

import json
import os
import time
from pathlib import Path

_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
"""Environment variables that torch's launchers set."""

USER_MISTAKE, OUT_OF_MEMORY, LOST_PEER, FAILURE = "a mistake", "too little memory", "lost another", "a failure"
"""Kinds of errors that end a process."""

PID_FILE = "pid"
"""The name of the file with a process's PID, in a folder named by the process's rank."""


def launched() -> bool:
    """Return whether a launcher started this process."""
    return all(name in os.environ for name in _LAUNCHER_VARIABLES)


def report_error(message: str, kind: str) -> bool:
    """Write an error for the launcher, which prints one message for all processes; return False without a launcher."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not launched() or not file:
        return False
    partial = Path(f"{file}.partial")  # the launcher may read the file at any time
    partial.write_text(json.dumps({"message": message, "timestamp": time.time(), "kind": kind}), "utf-8")
    partial.replace(file)
    return True


def report_pid() -> None:
    """Write the PID of this process for the launcher, if there is one."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(file).with_name(PID_FILE).write_text(str(os.getpid()), "utf-8")
