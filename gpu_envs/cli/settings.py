"""Options made from the dataclass of a training run: one for each field, with its docstring as help."""

import argparse
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from gpu_envs.cli.parser import (
    Pairs,
    Parser,
    Switch,
    entry,
    explained,
    number,
    on_off,
    or_none,
    or_word,
    value,
    whole,
    wholes,
)
from gpu_envs.documented import field_docs
from gpu_envs.training.algorithms import OWN_SETTINGS, listed
from gpu_envs.training.config import OF_A_POLICY, Config
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.values import merged

_READERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    int: (whole, "N"),
    float: (number, "X"),
    str: (str, "WORD"),
    Schedule: (explained(Schedule.of), "SCHEDULE"),
    tuple[int, ...]: (wholes, "N,N"),
    bool: (on_off, "on|off"),
}
"""How to read a type, and the word that stands for it in the help."""


@final
@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of the dataclass, as an option."""

    name: str
    """The field's name."""
    type: Any
    """The type without None."""
    optional: bool
    """Whether None is allowed."""
    words: tuple[str, ...]
    """Words that are allowed beside values of the type."""
    default: Any
    """The value where nothing is given."""

    @property
    def doc(self) -> str:
        """The docstring under the field."""
        return field_docs(Config)[self.name]

    @property
    def flag(self) -> str:
        """The option."""
        return _REPEATED[self.name][0] if self.name in _REPEATED else "--" + self.name.replace("_", "-")

    def add_to(self, options: argparse._ArgumentGroup, preset: str | None, values: Mapping[str, Any] | None) -> None:
        """Adds the option, absent from what is parsed unless given; its help, if any, shows what the preset says."""
        text = "" if values is None else self._help(preset, values)
        common: dict[str, Any] = {"dest": self.name, "default": argparse.SUPPRESS, "help": text}
        if self.name in _REPEATED:
            _, form, read = _REPEATED[self.name]
            common["help"] += " May be given several times."
            options.add_argument(self.flag, action=Pairs, const=read, metavar=form, **common)
        elif self.type is bool:
            flags = [self.flag, f"--no-{self.flag[2:]}"] + [f"{self.flag}=none"] * self.optional
            options.add_argument(*flags, action=Switch, nargs=0, **common)
        else:
            form = "|".join((_READERS[self.type][1], *self.words))
            options.add_argument(self.flag, type=self.read, metavar=form, **common)

    def _help(self, preset: str | None, values: Mapping[str, Any]) -> str:
        shown = self.shown(values.get(self.name, self.default))
        source = f"preset {preset}" if self.name in values else "default"
        doc = re.sub(r"\bNone\b", "none", self.doc)
        return f"{doc} ({source}: {shown})".replace("%", "%%")

    def read(self, text: str) -> Any:
        """Reads a value behind the option."""
        read, _ = _READERS[self.type]
        return (or_word(read, self.words) if self.words else or_none(read) if self.optional else read)(text)

    def shown(self, value: Any) -> str:
        """A value as one would write it behind the option."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if value is None:
            return "none"
        if isinstance(value, Mapping):
            pairs = []
            for name, item in value.items():
                own = item if isinstance(item, Mapping) else {}
                pairs += [f"{name}.{key}={self.shown(each)}" for key, each in own.items()] or [f"{name}={item}"]
            return " ".join(pairs) or "none"
        if self.type is Schedule:
            return str(Schedule.of(value))
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        return str(value)


def _of_a_policy(name: str, text: str) -> dict[str, dict[str, Any]]:
    """Reads a policy's own setting; one that it cannot have is left to ``Config``, which says so."""
    policy, _, setting = name.rpartition(".")
    setting = setting.replace("-", "_")
    if not (policy and setting):
        raise argparse.ArgumentTypeError("give a policy's name and a setting with a dot between them")
    read = next((each.read for each in settings() if each.name == setting and setting in OF_A_POLICY), str)
    return {policy: {setting: read(text)}}


_REPEATED: Mapping[str, tuple[str, str, Callable[[str, str], Mapping[str, Any]]]] = {
    "params": ("--param", "NAME=VALUE", entry(value)),
    "policies": ("--policy", "ROLE=NAME", entry(str)),
    "policy_settings": ("--policy-setting", "POLICY.SETTING=VALUE", _of_a_policy),
}
"""Mappings: the option that gives one entry, its form, and how to read that."""

_NO_OPTIONS = ("env", "gpus", "since")
"""The first is the command's argument, the other follows from the processes that train together."""


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Every setting that is an option, in the order of the dataclass."""
    hints = typing.get_type_hints(Config)
    made = []
    for field in dataclasses.fields(Config):
        if field.name in _NO_OPTIONS:
            continue
        union = typing.get_origin(hints[field.name]) in (types.UnionType, typing.Union)
        kinds = typing.get_args(hints[field.name]) if union else ()
        words = [word for each in kinds if typing.get_origin(each) is Literal for word in typing.get_args(each)]
        # (of the ways in which Python may give a schedule, the option reads the text)
        plain = [each for each in kinds if each is not types.NoneType and typing.get_origin(each) is not Literal]
        named = [Schedule] if Schedule in kinds else plain
        (kind,) = named or [hints[field.name]]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        made.append(Setting(field.name, kind, types.NoneType in kinds, tuple(words), default))
    return tuple(made)


def add_settings(parser: Parser, preset: str | None, values: Mapping[str, Any] | None, without: str = "") -> None:
    """Adds an option for every setting but ``without``, whose help shows what a preset says; None: it has no help."""
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    for owners in ((), *OWN_SETTINGS.values()):
        if owners not in groups:
            title = f"settings of {listed(owners)} alone" if owners else "settings of the run"
            groups[owners] = parser.add_argument_group(title)
    for setting in settings():
        if setting.name != without:
            setting.add_to(groups[OWN_SETTINGS.get(setting.name, ())], preset, values)


def given(found: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line gives, and no others."""
    names = {setting.name for setting in settings()}
    return {name: item for name, item in vars(found).items() if name in names}


def combined(preset: Mapping[str, Any], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What the options say, and below that what the preset says; mappings are combined entry by entry.

    What the preset says of single policies gives way to an option for all of them, and goes with a policy that the
    options leave without agents.
    """
    policies = merged(preset.get("policies", {}), explicit.get("policies", {}))
    unused = {*policies, *preset.get("policies", {}).values()} - {*policies.values()}
    settings_of_policies = {
        policy: {name: item for name, item in own.items() if name not in explicit}
        for policy, own in preset.get("policy_settings", {}).items()
        if policy not in unused
    }
    return merged({**preset, "policy_settings": settings_of_policies}, explicit)
