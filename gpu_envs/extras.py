"""Imports of optional dependencies, with an error that names the extra to install."""

import contextlib
from collections.abc import Iterator


class MissingExtraError(ModuleNotFoundError):
    """An optional dependency is not installed; the message names the extra that installs it."""


@contextlib.contextmanager
def extra(name: str, *modules: str, install: str = "") -> Iterator[None]:
    """Context for the imports of one extra: if a module is missing, the error says how to install the extra.

    Args:
        name: Name of the extra.
        *modules: Top-level modules that the extra installs. Errors about other modules pass through.
        install: How to install the modules, if no extra does.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        install = install or f"pip install 'gpu_envs[{name}]'"
        raise MissingExtraError(f"{error.name!r} is not installed: {install}", name=error.name) from error
