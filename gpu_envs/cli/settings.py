"""Options made from the settings of a training run: one for each, with its docstring as help."""

import argparse
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_envs.cli.parser import Pairs, Parser, Switch, entry, explained, spelled_out, value
from gpu_envs.documented import field_docs
from gpu_envs.training.algorithms import ALGORITHMS, PPO
from gpu_envs.training.policy import listed, owners_of
from gpu_envs.training.run import SETTINGS, Run
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import Setting

_FORMS: Mapping[Any, str] = {
    int: "N",
    float: "X",
    str: "WORD",
    Schedule: "SCHEDULE",
    tuple[int, ...]: "N,N",
    bool: "on|off",
}
"""Placeholder of a value in the help, by its type."""

_NO_OPTIONS = ("gpus",)
"""It is an option of the command itself."""


_ALIASES = {"learning_rate": ("--lr",)}
"""Other names of options."""

_TOLD = 100.0
"""Greatest upper limit that the help names."""


@functools.cache
def options() -> Mapping[str, Setting]:
    """The settings that are options, by their flat names."""
    return {name: field for name, field in SETTINGS.items() if name not in _NO_OPTIONS}


def flag_of(name: str) -> str:
    """The option of a setting."""
    policy, dot, key = name.rpartition(".")
    return {"params": "--param", "policies": "--policy"}.get(name, f"--{policy}{dot}{key.replace('_', '-')}")


def add_settings(parser: Parser, preset: str | None, values: Mapping[str, Any] | None, without: str = "") -> None:
    """Adds an option for every setting except ``without``; its help shows the preset's ``values``; None: no help."""
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    for owners in ((), *map(owners_of, options())):
        if owners not in groups:
            title = f"settings of {listed(owners)} alone" if owners else "settings of the run"
            groups[owners] = parser.add_argument_group(title)
    common: dict[str, Any] = {"default": argparse.SUPPRESS}
    preset_values = values or {}
    docs = {} if values is None else field_docs(Run)
    for name, form, read in (("params", "NAME=VALUE", entry(value)), ("policies", "ROLE=NAME", entry(str))):
        doc = f"{docs.get(name, '').partition(' In Python ')[0]} May be given several times."
        text = _help(doc, name, _pairs(preset_values.get(name, {})), preset, preset_values)
        groups[()].add_argument(flag_of(name), dest=name, action=Pairs, const=read, metavar=form, help=text, **common)
    own = {name: _shown(name, item) for name, item in preset_values.items() if "." in name}
    text = _help("A setting of one policy, by the policy's name.", next(iter(own), ""), _pairs(own), preset, own)
    groups[()].add_argument("--POLICY.SETTING", metavar="VALUE", help=text, **common)  # split_own reads it
    shown = preset_values.get("algorithm", PPO.name)
    text = _help(f"Algorithm: {', '.join(ALGORITHMS)}.", "algorithm", shown, preset, preset_values)
    groups[()].add_argument("--algorithm", metavar="WORD", help=text, **common)
    for name, field in options().items():
        if name == without:
            continue
        flag, group, text = flag_of(name), groups[owners_of(name)], ""
        if values is not None:
            doc, value_shown = re.sub(r"\bNone\b", "none", field.doc), values.get(name, field.default)
            shown = "automatic" if value_shown is None and field.automatic else field.shown(value_shown)
            if field.kind is float and field.most <= _TOLD:
                start = "Above" if field.above else "From"
                doc = f"{doc} {start} {field.least:g} to {field.most:g}."
            text = _help(doc, name, shown, preset, values)
        if field.kind is bool:
            flags = [flag, f"--no-{flag[2:]}"] + [f"{flag}=none"] * field.optional
            group.add_argument(*flags, dest=name, action=Switch, nargs=0, help=text, **common)
        else:
            form = "|".join((*(field.words or (_FORMS[field.kind],)), *field.others))
            group.add_argument(
                flag, *_ALIASES.get(name, ()), dest=name, type=_reader(field), metavar=form, help=text, **common
            )


def _reader(field: Setting) -> Callable[[str], Any]:
    return explained(lambda text: field.parsed(spelled_out(text) if field.kind is int else text))


def _help(doc: str, name: str, shown: str, preset: str | None, values: Mapping[str, Any]) -> str:
    return f"{doc} ({f'preset {preset}' if name in values else 'default'}: {shown})".replace("%", "%%")


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={item}" for name, item in values.items()) or "none"


def _shown(name: str, item: Any) -> str:
    field = SETTINGS.get(name.rpartition(".")[2])
    return str(item) if field is None else field.shown(item)


def words_of(flag: str) -> list[str]:
    """The words that may follow an option, of which a shell offers one."""
    name = flag.rpartition(".")[2].removeprefix("--").replace("-", "_")
    if name == "algorithm":
        return list(ALGORITHMS)
    field = SETTINGS.get(name)
    if field is None:
        return []
    return ["on", "off"] if field.kind is bool and "." in flag else [*field.words, *field.others]


def split_own(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes the settings of single policies, ``--runner.tau 0.1``, out of a command line.

    Returns:
        The other words, and those settings by their flat names.
    """
    rest, own = list(words), {}
    at = 0
    while at < len(rest):
        match = re.fullmatch(r"--([^=]+)\.([\w-]+)(?:=(.*))?", rest[at], re.DOTALL)
        if match is None:
            at += 1
            continue
        name, text, taken = match[2].replace("-", "_"), match[3], 1
        field = SETTINGS.get(name)
        if text is None:
            if at + 1 == len(rest) or rest[at + 1].startswith("--"):
                form = "" if field is None else f", {_FORMS[field.kind]}"
                raise ValueError(f"{rest[at]} needs a value{form}")
            text, taken = rest[at + 1], 2
        try:
            own[f"{match[1]}.{name}"] = text if field is None else field.parsed(text)
        except ValueError as error:
            raise ValueError(f"--{match[1]}.{match[2]}: {error}") from None
        del rest[at : at + taken]
    return rest, own


def given(found: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line gives, by their flat names, and no others."""
    names = {*options(), "algorithm", "params", "policies"}
    return {name: item for name, item in vars(found).items() if name in names} | getattr(found, "own", {})


def combined(preset: Mapping[str, Any], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their flat names: those of the options over those of the preset; mappings are combined by name.

    A preset's setting of a single policy gives way to an option for all policies, and goes if the options leave the
    policy without agents.
    """
    mappings = {name: {**preset.get(name, {}), **explicit.get(name, {})} for name in ("params", "policies")}
    policies = mappings["policies"]
    known, used = [*policies, *preset.get("policies", {}).values()], [*policies.values()]
    kept = {}
    for name, item in preset.items():
        policy, dot, key = name.rpartition(".")
        if not (dot and (key in explicit or (policy in known and policy not in used))):
            kept[name] = item
    return {**kept, **explicit, **{name: values for name, values in mappings.items() if values}}
