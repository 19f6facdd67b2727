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
        for record in _records(path):
            record.touch(mode=0o600)


def is_trusted(path: str) -> bool:
    """Whether this user has trained with this file, and it has not changed since."""
    with contextlib.suppress(OSError):
        return _records(path)[0].is_file()
    return False


def was_trusted(path: str) -> bool:
    """Whether this user has trained with a file of this path, even if its content was different."""
    with contextlib.suppress(OSError):
        return _records(path)[1].is_file()
    return False


def _records(path: str) -> tuple[Path, Path]:
    """The files whose existence records this path with its present content, and this path with any content.

    Raises:
        OSError: The file cannot be read, or other users can write to the folder of the records.
    """
    folder = cache_folder() / "trusted"
    prepare_folder(folder.parent)
    prepare_folder(folder)
    name = path.encode(errors="surrogateescape")
    with_content = hashlib.sha256(name + b"\0" + Path(path).read_bytes()).hexdigest()
    return folder / with_content, folder / hashlib.sha256(name).hexdigest()
