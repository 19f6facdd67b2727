"""A parser that raises instead of leaving the process, and the ways to read what stands behind an option."""

import argparse
import contextlib
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, final

from gpu_envs.cli.report import filled, say
from gpu_envs.errors import did_you_mean

OK: Final = 0
FAILED: Final = 1
MISTAKE: Final = 2
INTERRUPTED: Final = 130
UNREAD: Final = 141


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's own, which would break the names of options at their hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


@final
class Parser(argparse.ArgumentParser):
    """Options of a command. ``-h`` is an ordinary switch, since the help depends on the other options."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=filled(description),
            epilog=epilog,
            add_help=False,
            allow_abbrev=False,
            formatter_class=_Help,
        )
        self.add_argument("-h", "--help", action="store_true", help="show this")

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print."""
        raise ValueError(f"{message} ({self.prog} --help lists the options)")

    def show_help(self) -> int:
        """Prints the options; returns the exit code."""
        say(self.format_help().rstrip("\n"))
        return OK

    def check_least(self, found: argparse.Namespace, name: str, least: int) -> None:
        """Refuses an option, where it is given, whose number is below ``least``."""
        given = getattr(found, name)
        if given is not None and given < least:
            self.error(f"--{name.replace('_', '-')} is {given}; give a whole number from {least} up")

    def flags(self) -> list[str]:
        """Every option's spelling."""
        return [flag for action in self._actions for flag in action.option_strings]

    # --- options that several commands have ---

    def add_debug(self) -> None:
        """Adds ``--debug``, which the program itself takes from wherever it stands."""
        self.add_argument("--debug", action="store_true", help="show Python's traceback of a mistake")

    def add_word(self, flag: str, default: str, what: str) -> None:
        """Adds an option that is a word."""
        self.add_argument(flag, default=default, metavar="WORD", help=f"{what} (default: {default})")

    def add_whole(self, flag: str, what: str, default: int | None = None, *, none: bool = False) -> None:
        """Adds an option that is a whole number or, where it may be, none."""
        self.add_argument(flag, type=or_none(whole) if none else whole, default=default, metavar="N", help=what)

    def add_device(self) -> None:
        """Adds ``--device``."""
        self.add_word("--device", "auto", "auto, cpu, cuda or cuda:N")

    def add_greedy(self) -> None:
        """Adds ``--greedy`` and ``--sampled``."""
        kinds = self.add_mutually_exclusive_group()
        kinds.add_argument("--greedy", action="store_true", default=True, help="take the likeliest action (default)")
        kinds.add_argument("--sampled", dest="greedy", action="store_false", help="draw actions as in training")

    def add_params(self, what: str = "a parameter of the environment") -> None:
        """Adds ``--param``."""
        self._add_pairs("--param", "params", "NAME=VALUE", entry(value), what)

    def add_policies(self, default: str) -> None:
        """Adds ``--policy``."""
        who = "a policy of the run, random, or frozen:RUN or frozen:RUN:POLICY"
        what = f"who acts for a role or an agent instead: {who} (default: {default})"
        self._add_pairs("--policy", "policies", "ROLE=NAME", entry(str), what)

    def _add_pairs(self, flag: str, name: str, form: str, read: Callable[[str, str], Any], what: str) -> None:
        text = f"{what}. May be given several times."
        self.add_argument(flag, dest=name, action=Pairs, const=read, metavar=form, default={}, help=text)

    def add_json(self) -> None:
        """Adds ``--json``."""
        self.add_argument("--json", action="store_true", help="print it as JSON, for programs")

    def add_trust(self) -> None:
        """Adds ``--trust``."""
        what = "import the environment's Python file that the run's folder names: that runs its code"
        self.add_argument("--trust", action="store_true", help=what)

    def add_progress(self) -> None:
        """Adds ``--progress`` and ``--no-progress``."""
        self.add_argument(
            "--progress",
            action="store_true",
            default=None,
            help="draw a progress bar on standard error (default: in a terminal; elsewhere a line every 30 s)",
        )
        self.add_argument(
            "--no-progress", dest="progress", action="store_false", default=None, help="say nothing meanwhile"
        )


def refuse_extras(parser: Parser, extras: Sequence[str]) -> None:
    """Says what was not understood."""
    if extras:
        parser.error(f"nothing is expected after {parser.prog} but its options; got {' '.join(extras)!r}")


def take_one(parser: Parser, words: Sequence[str], what: str) -> tuple[argparse.Namespace, str | None]:
    """Parses options, and one word, called ``what`` in messages, that may stand anywhere among them."""
    found, others = take_all(parser, words)
    if len(others) > 1:
        parser.error(f"one {what} is expected; got {' and '.join(map(repr, others))}")
    return found, others[0] if others else None


def take_all(parser: Parser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses options, and any words that may stand among them.

    argparse takes an optional word for absent as soon as an option comes before it, so it is not told of the words.
    """
    found, extras = parser.parse_known_args(_joined(parser, words))
    unknown = [word for word in extras if word.startswith("-") and word != "--"]
    if unknown:
        flag = unknown[0].partition("=")[0]
        parser.error(f"there is no option {flag!r}{did_you_mean(flag, parser.flags())}")
    return found, [word for word in extras if word != "--"]


def _joined(parser: Parser, words: Sequence[str]) -> list[str]:
    """Ties negative numbers to their options by ``=``: argparse takes ``-1e3`` for an option."""
    flags = parser.flags()
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in flags and re.match(r"-\.?\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def spelled_out(text: str) -> str:
    """Return a number without the suffix k, M or G: ``1M`` is ``1e6``."""
    match = re.fullmatch(r"(-?[\d.]+)([kMG])", text)
    return text if match is None else f"{match[1]}e{ {'k': 3, 'M': 6, 'G': 9}[match[2]] }"


def whole(text: str) -> int:
    """Reads a whole number; 1_000_000, 1e6 and 1M too."""
    text = spelled_out(text)
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")


def number(text: str) -> float:
    """Reads a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads the word none as None, and all else by ``read``."""
    return lambda text: None if text.lower() == "none" else read(text)


def explained(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Keeps the message of a ValueError, which argparse would replace by its own."""

    def read_or_explain(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_or_explain


def value(text: str) -> bool | int | float | str | list[Any]:
    """Reads a switch, a number, an array as ``[1, 2]``, or a word."""
    if text.startswith("["):
        with contextlib.suppress(ValueError):
            return list(json.loads(text))
    if re.fullmatch(r"-?[\d.]+(e-?\d+)?(, *-?[\d.]+(e-?\d+)?)+", text):
        raise argparse.ArgumentTypeError(f"an array is written in brackets: [{text}]")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def entry(read: Callable[[str], Any]) -> Callable[[str, str], dict[str, Any]]:
    """Reads NAME=VALUE whose values are all of one kind."""
    return lambda name, text: {name: read(text)}


@final
class Pairs(argparse.Action):
    """Gathers NAME=VALUE of an option that may be given again and again; its ``const`` reads name and value."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        name, equals, text = str(values).partition("=")
        if not (name and equals):
            raise argparse.ArgumentError(self, f"{values!r} is not {self.metavar}")
        try:
            read = self.const(name, text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, f"{values!r}: {error}") from None
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), **read})


@final
class Switch(argparse.Action):
    """``--x`` and ``--no-x``; of one that may be None, ``--x=none`` too."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: Any,
        option_string: str | None = None,
    ) -> None:
        flag = option_string or ""
        setattr(namespace, self.dest, None if flag.endswith("=none") else not flag.startswith("--no-"))
