"""Imports what not everybody has installed, or says which extra brings it."""

import contextlib
from collections.abc import Iterator


class MissingExtraError(ModuleNotFoundError):
    """What is not installed comes with an extra of this package; the message says how to install it."""


@contextlib.contextmanager
def extra(name: str, *modules: str) -> Iterator[None]:
    """Within it, the imports of one extra; where the extra is not installed the error says how to install it.

    Args:
        name: The extra's.
        *modules: The top-level modules that it brings. An error about any other module passes through.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        raise MissingExtraError(
            f"{error.name!r} is not installed: pip install 'gpu_envs[{name}]'", name=error.name
        ) from error
