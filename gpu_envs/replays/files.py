"""Atomic replacement of files."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def check_folder(path: Path) -> None:
    """Raise an error if the path is a folder, or its parent folder does not exist."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of {path} does not exist; create it or give another path")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write; it replaces ``path`` at the end, or is deleted after an error."""
    check_folder(path)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        partial.touch()  # raises Python's OSError for a bad path, which is clearer than a video encoder's
        yield partial
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename = str(path)
        raise
