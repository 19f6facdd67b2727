"""An argument parser that raises ValueError instead of exiting, and the functions that parse options' values."""

import argparse
import contextlib
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, final

from gpu_envs.cli.report import echo, fill_paragraphs
from gpu_envs.errors import did_you_mean

OK: Final = 0
FAILED: Final = 1
MISTAKE: Final = 2
INTERRUPTED: Final = 130
CLOSED_OUTPUT: Final = 141


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's formatter, except that it does not break the names of options at their hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


@final
class Parser(argparse.ArgumentParser):
    """The parser of a command's options. ``-h`` is an ordinary switch, since the help depends on the other options."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str | None = None) -> None:
        description = fill_paragraphs(description)
        super().__init__(prog, usage, description, epilog, formatter_class=_Help, add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action="store_true", help="show this help")

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a ValueError."""
        raise ValueError(f"{message} ({self.prog} --help lists the options)")

    def show_help(self) -> int:
        """Print the help; return the exit code."""
        echo(self.format_help().rstrip("\n"))
        return OK

    def check_minimum(self, args: argparse.Namespace, name: str, minimum: int) -> None:
        """Raise a ValueError if the parsed option ``name`` is given and below ``minimum``."""
        value = getattr(args, name)
        if value is not None and value < minimum:
            self.error(f"--{name.replace('_', '-')} is {value}; give an integer of at least {minimum}")

    def flags(self) -> list[str]:
        """The names of all options, with their hyphens."""
        return [flag for action in self._actions for flag in action.option_strings]

    def add_debug(self) -> None:
        """Add ``--debug`` to the help; ``main`` itself reads it, at any position."""
        self.add_argument("--debug", action="store_true", help="show Python's traceback of an error")

    def add_string(self, flag: str, default: str, help_text: str) -> None:
        """Add an option that takes a string."""
        self.add_argument(flag, default=default, metavar="WORD", help=f"{help_text} (default: {default})")

    def add_integer(self, flag: str, help_text: str, default: int | None = None, *, optional: bool = False) -> None:
        """Add an option that takes an integer or, if ``optional``, the word none."""
        parse = or_none(parse_integer) if optional else parse_integer
        self.add_argument(flag, type=parse, default=default, metavar="N", help=help_text)

    def add_device(self) -> None:
        """Add ``--device``."""
        self.add_string("--device", "auto", "auto, cpu, cuda or cuda:N")

    def add_greedy(self) -> None:
        """Add ``--greedy`` and ``--sampled``."""
        kinds = self.add_mutually_exclusive_group()
        kinds.add_argument("--greedy", action="store_true", default=True, help="take the most likely action (default)")
        kinds.add_argument("--sampled", dest="greedy", action="store_false", help="sample actions, as in training")

    def add_params(self, help_text: str = "a parameter of the environment") -> None:
        """Add ``--param``."""
        self._add_pairs("--param", "params", "NAME=VALUE", parse_value, help_text)

    def add_policies(self, default: str) -> None:
        """Add ``--policy ROLE=NAME``; ``default``: the help's text for the default."""
        names = "a policy of the run, random, frozen:RUN or frozen:RUN:POLICY"
        help_text = f"the policy of a role or an agent: {names} (default: {default})"
        self._add_pairs("--policy", "policies", "ROLE=NAME", str, help_text)

    def _add_pairs(self, flag: str, name: str, metavar: str, parse: Callable[[str], Any], help_text: str) -> None:
        text = f"{help_text}. May be given several times."
        self.add_argument(flag, dest=name, action=Pairs, const=parse, metavar=metavar, default={}, help=text)

    def add_json(self) -> None:
        """Add ``--json``."""
        self.add_argument("--json", action="store_true", help="print JSON")

    def add_trust(self) -> None:
        """Add ``--trust``."""
        help_text = (
            "allow the import of the Python file that the run directory names as its environment: this runs its code"
        )
        self.add_argument("--trust", action="store_true", help=help_text)

    def add_progress(self) -> None:
        """Add ``--progress`` and ``--no-progress``."""
        help_text = "show a progress bar on standard error (default: in a terminal; elsewhere a line every 30 s)"
        self.add_argument("--progress", action="store_true", default=None, help=help_text)
        self.add_argument("--no-progress", dest="progress", action="store_false", default=None, help="show no progress")


def refuse_arguments(parser: Parser, extras: Sequence[str]) -> None:
    """Raise a ValueError if there are ``extras``, arguments that the parser does not take."""
    if extras:
        parser.error(f"{parser.prog} does not take {' '.join(extras)!r}; leave it out")


def parse_one(parser: Parser, argv: Sequence[str], what: str) -> tuple[argparse.Namespace, str | None]:
    """Parse options and at most one positional argument (None: missing), at any position; messages call it ``what``."""
    args, positionals = parse_many(parser, argv)
    if len(positionals) > 1:
        parser.error(f"one {what} is expected; got {' and '.join(map(repr, positionals))}")
    return args, positionals[0] if positionals else None


def parse_many(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse options and any number of positional arguments, at any position.

    The positional arguments are not declared: argparse misses an optional one that follows an option.
    """
    args, extras = parser.parse_known_args(_join_negative_numbers(parser, argv))
    unknown = [word for word in extras if word.startswith("-") and word != "--"]
    if unknown:
        flag = unknown[0].partition("=")[0]
        parser.error(f"there is no option {flag!r}{did_you_mean(flag, parser.flags())}")
    return args, [word for word in extras if word != "--"]


def _join_negative_numbers(parser: Parser, argv: Sequence[str]) -> list[str]:
    """Join negative numbers to their options with ``=``: argparse mistakes ``-1e3`` for an option."""
    flags = parser.flags()
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in flags and re.match(r"-\.?\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def expand_suffix(text: str) -> str:
    """Return text with a number's suffix k, M or G as its exponent: ``1e6`` for ``1M``; any other text unchanged."""
    match = re.fullmatch(r"(-?[\d.]+)([kMG])", text)
    return text if match is None else f"{match[1]}e{ {'k': 3, 'M': 6, 'G': 9}[match[2]] }"


def parse_integer(text: str) -> int:
    """Parse an integer, also as 1_000_000, 1e6 or 1M."""
    text = expand_suffix(text)
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise argparse.ArgumentTypeError(f"{text!r} is not an integer; give one such as 5000, 5e3 or 5k")


def parse_number(text: str) -> float:
    """Parse a float, also inf or nan."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; give one such as 0.5 or 3e-4") from None


def or_none(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that parses the word none as None and any other text with ``parse``."""
    return lambda text: None if text.lower() == "none" else parse(text)


def keep_message(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap ``parse`` so that argparse shows the message of its ValueError; argparse would write another one."""

    def parse_keeping_message(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_keeping_message


def parse_value(text: str) -> bool | int | float | str | list[Any]:
    """Parse true or false, a number, an array such as ``[1, 2]``, or any other string."""
    if text.startswith("["):
        with contextlib.suppress(ValueError):
            return list(json.loads(text))
    if re.fullmatch(r"-?[\d.]+(e-?\d+)?(, *-?[\d.]+(e-?\d+)?)+", text):
        raise argparse.ArgumentTypeError(f"an array is written in brackets: [{text}]")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


@final
class Pairs(argparse.Action):
    """Collect the NAME=VALUE arguments of an option in a dict; the option's ``const`` parses a value."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        name, equals, text = str(values).partition("=")
        if not (name and equals):
            raise argparse.ArgumentError(self, f"{values!r} is not {self.metavar}")
        try:
            value = self.const(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, f"{values!r}: {error}") from None
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: value})


@final
class Switch(argparse.Action):
    """Store True for ``--x``, False for ``--no-x`` and None for ``--x=none``."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, _values: Any, option: str | None = None) -> None:
        flag = option or ""
        setattr(namespace, self.dest, None if flag.endswith("=none") else not flag.startswith("--no-"))
