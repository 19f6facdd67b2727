"""Command-line options of a training run: one for each setting, with the setting's docstring as its help."""

import argparse
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpu_envs.cli.parser import Pairs, Parser, Switch, expand_suffix, keep_message, parse_value
from gpu_envs.documented import field_docs
from gpu_envs.training.algorithms import ALGORITHMS, PPO
from gpu_envs.training.policy import algorithms_with, join_names
from gpu_envs.training.recurrent_settings import Memory
from gpu_envs.training.run import MAPPINGS, SETTINGS, Run
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import Setting

_METAVARS: Mapping[Any, str] = {
    int: "N",
    float: "X",
    str: "WORD",
    Schedule: "SCHEDULE",
    Memory: "KIND:N",
    tuple[int, ...]: "N,N",
    tuple[str, ...]: "NAME,NAME",
    bool: "on|off",
}
"""Placeholders for values in the help, by type."""

_OTHER_METAVARS = {"callbacks": "PLACE"}
"""Placeholders that differ from those of the type, by setting."""

_COMMAND_OPTIONS = ("gpus",)
"""Settings whose options belong to the command itself."""

_ALIASES = {"learning_rate": ("--lr",)}
"""Additional names of options."""

_MAX_SHOWN_LIMIT = 100.0
"""The help shows the limits of a float setting if its maximum is at most this."""


@functools.cache
def setting_options() -> Mapping[str, Setting]:
    """Return the settings that have an option, by flat name."""
    return {name: field for name, field in SETTINGS.items() if name not in _COMMAND_OPTIONS}


def flag_of(name: str) -> str:
    """Return the option of a setting, given by its flat name."""
    policy, dot, key = name.rpartition(".")
    singular = {"params": "--param", "policies": "--policy", "callbacks": "--callback"}
    return singular.get(name, f"--{policy}{dot}{key.replace('_', '-')}")


def add_settings(parser: Parser, preset: str | None, values: Mapping[str, Any] | None, without: str = "") -> None:
    """Add an option for every setting except ``without``; its help has the preset's ``values``; None: without help."""
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    for algorithms in ((), *map(algorithms_with, setting_options())):
        if algorithms not in groups:
            title = f"settings of {join_names(algorithms)} only" if algorithms else "settings of the run"
            groups[algorithms] = parser.add_argument_group(title)
    common: dict[str, Any] = {"default": argparse.SUPPRESS}
    preset_values = values or {}
    descriptions = {} if values is None else field_docs(Run)
    for name, metavar, parse in (("params", "NAME=VALUE", parse_value), ("policies", "ROLE=NAME", str)):
        description = f"{descriptions.get(name, '').partition(' In Python ')[0]} May be given several times."
        text = _help(description, name, _format_pairs(preset_values.get(name, {})), preset, preset_values)
        option: dict[str, Any] = {"dest": name, "action": Pairs, "const": parse, "metavar": metavar}
        groups[()].add_argument(flag_of(name), help=text, **option, **common)
    policy_settings = {name: _format_value(name, item) for name, item in preset_values.items() if "." in name}
    name, default = next(iter(policy_settings), ""), _format_pairs(policy_settings)
    text = _help("A setting of one policy, by the policy's name.", name, default, preset, policy_settings)
    groups[()].add_argument("--POLICY.SETTING", metavar="VALUE", help=text, **common)  # split_policy_settings reads it
    default = preset_values.get("algorithm", PPO.name)
    text = _help(f"Algorithm: {', '.join(ALGORITHMS)}.", "algorithm", default, preset, preset_values)
    groups[()].add_argument("--algorithm", metavar="WORD", help=text, **common)
    for name, field in setting_options().items():
        if name == without:
            continue
        flag, group, text = flag_of(name), groups[algorithms_with(name)], ""
        if values is not None:
            description, shown_value = re.sub(r"\bNone\b", "none", field.doc), values.get(name, field.default)
            default = "automatic" if shown_value is None and field.automatic else field.format(shown_value)
            if field.kind is float and field.maximum <= _MAX_SHOWN_LIMIT:
                bound = "Above" if field.exclusive_minimum else "From"
                description = f"{description} {bound} {field.minimum:g} to {field.maximum:g}."
            text = _help(description, name, default, preset, values)
        if field.kind is bool:
            flags = [flag, f"--no-{flag[2:]}"] + [f"{flag}=none"] * field.optional
            group.add_argument(*flags, dest=name, action=Switch, nargs=0, help=text, **common)
        else:
            metavar = "|".join(
                (*(field.choices or (_OTHER_METAVARS.get(name, _METAVARS[field.kind]),)), *field.keywords)
            )
            flags = [flag, *_ALIASES.get(name, ())]
            action = {"action": "extend"} if field.kind == tuple[str, ...] else {}
            of_value: dict[str, Any] = {"type": _value_parser(field), "metavar": metavar, **action}
            group.add_argument(*flags, dest=name, help=text, **of_value, **common)


def _value_parser(field: Setting) -> Callable[[str], Any]:
    return keep_message(lambda text: field.parse(expand_suffix(text) if field.kind is int else text))


def _help(description: str, name: str, default: str, preset: str | None, values: Mapping[str, Any]) -> str:
    return f"{description} ({f'preset {preset}' if name in values else 'default'}: {default})".replace("%", "%%")


def _format_pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={item}" for name, item in values.items()) or "none"


def _format_value(name: str, item: Any) -> str:
    field = SETTINGS.get(name.rpartition(".")[2])
    return str(item) if field is None else field.format(item)


def choices_of(flag: str) -> list[str]:
    """Return the values that a shell completes after an option, such as on and off after ``--runner.layer-norm``."""
    name = flag.rpartition(".")[2].removeprefix("--").replace("-", "_")
    if name == "algorithm":
        return list(ALGORITHMS)
    field = SETTINGS.get(name)
    if field is None:
        return []
    return ["on", "off"] if field.kind is bool and "." in flag else [*field.choices, *field.keywords]


def split_policy_settings(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split settings of single policies, such as ``--runner.tau 0.1``, from the other arguments.

    Returns:
        The other arguments, and the policies' settings by flat name.
    """
    rest, policy_settings = list(argv), {}
    index = 0
    while index < len(rest):
        match = re.fullmatch(r"--([^=]+)\.([\w-]+)(?:=(.*))?", rest[index], re.DOTALL)
        if match is None:
            index += 1
            continue
        name, text, consumed = match[2].replace("-", "_"), match[3], 1
        field = SETTINGS.get(name)
        if text is None:
            if index + 1 == len(rest) or rest[index + 1].startswith("--"):
                metavar = "VALUE" if field is None else _METAVARS[field.kind]
                raise ValueError(f"{rest[index]} has no value: give {rest[index]} {metavar}")
            text, consumed = rest[index + 1], 2
        try:
            policy_settings[f"{match[1]}.{name}"] = text if field is None else field.parse(text)
        except ValueError as error:
            raise ValueError(f"--{match[1]}.{match[2]}: {error}") from None
        del rest[index : index + consumed]
    return rest, policy_settings


def explicit_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the command line sets, by flat name."""
    names = {*setting_options(), "algorithm", "params", "policies"}
    return {name: item for name, item in vars(args).items() if name in names} | getattr(args, "policy_settings", {})


def combine_settings(preset: Mapping[str, Any], explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset's settings updated by the explicit ones, by flat name; mappings and ``callbacks`` are merged.

    A preset's setting of a single policy is dropped if an option sets it for all policies, or if the options leave the
    policy without agents.
    """
    mappings: dict[str, Any] = {name: {**preset.get(name, {}), **explicit.get(name, {})} for name in MAPPINGS}
    policies = mappings["policies"]
    policies_with_settings, used = [*policies, *preset.get("policies", {}).values()], [*policies.values()]
    preset_settings = {}
    for name, item in preset.items():
        policy, dot, key = name.rpartition(".")
        if not (dot and (key in explicit or (policy in policies_with_settings and policy not in used))):
            preset_settings[name] = item
    mappings["callbacks"] = [*preset.get("callbacks", ()), *explicit.get("callbacks", ())]
    return {**preset_settings, **explicit, **{name: values for name, values in mappings.items() if values}}
