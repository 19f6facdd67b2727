"""Compares outputs that pages show with printed ones."""

import doctest
import re


def same_output(shown: str, printed: str, *, approximate: bool = False) -> bool:
    """Returns whether a program printed the output that its page shows, in which ``...`` stands for any text.

    ``approximate``: numbers and their units may differ (36.1 M, 1.2 G, 2e-05), because they differ between machines.
    """
    if approximate:
        shown, printed = (re.sub(r"-?\d[\d.,]*(e[-+]?\d+)?( [kMG]\b)?", "0", text) for text in (shown, printed))
    return doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
