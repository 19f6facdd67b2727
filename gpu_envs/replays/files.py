"""Files that are there whole, or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def check_folder(path: Path) -> None:
    """Raises an error if a file cannot be there."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} of {path} does not exist; make it, or give another")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside it to write into; it takes the place of ``path`` when it is complete, and goes when it is not."""
    check_folder(path)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        partial.touch()  # what cannot be there is said in Python's words, not in a video encoder's
        yield partial
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename = str(path)
        raise
