"""Python files of environments that this user has trained with: their runs need no ``--trust`` on this machine.

A file in the user's cache records the path and content of each. A file that has changed is not trusted any more; files
that it imports are not recorded.
"""

import contextlib
import hashlib
from pathlib import Path

from gpu_envs.backend.toolchain import cache_folder, prepare_folder


def remember(path: str) -> None:
    """Records that this user trusts a Python file, if only this user can write to the cache folder."""
    with contextlib.suppress(OSError):
        _record(path).touch(mode=0o600)


def is_trusted(path: str) -> bool:
    """Whether this user has trained with this file, and it has not changed since."""
    with contextlib.suppress(OSError):
        return _record(path).is_file()
    return False


def _record(path: str) -> Path:
    """The file whose existence records this path with its present content; OSError: other users can write there."""
    folder = cache_folder() / "trusted"
    prepare_folder(folder.parent)
    prepare_folder(folder)
    return folder / hashlib.sha256(path.encode(errors="surrogateescape") + b"\0" + Path(path).read_bytes()).hexdigest()
