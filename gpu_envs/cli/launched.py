"""What a process that a launcher started knows of that, and tells it."""

import json
import os
import time
from pathlib import Path

_PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
"""What launchers set."""

MISTOOK, SHORT, LOST, FELL = "a mistake", "too little memory", "lost another", "a failure"
"""What processes say of their ends."""

PROCESS = "pid"
"""The file in which a process leaves its ID, in the folder that is called as its rank."""


def launched() -> bool:
    """Whether this process is one of several that a launcher has started."""
    return all(name in os.environ for name in _PLACE)


def tell_launcher(message: str, kind: str) -> bool:
    """Leaves the launcher, where there is one, to tell what went wrong: it may be the same in all processes."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not launched() or not file:
        return False
    partial = Path(f"{file}.partial")  # the launcher reads the file when it has ended this process, and as it is
    partial.write_text(json.dumps({"message": message, "timestamp": time.time(), "kind": kind}), "utf-8")
    partial.replace(file)
    return True


def tell_process() -> None:
    """Leaves the launcher, where there is one, the ID of this process."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        Path(file).with_name(PROCESS).write_text(str(os.getpid()), "utf-8")
