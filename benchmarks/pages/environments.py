"""Tables of an environment's page: spaces, state, parameters and metrics, from its spec."""

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.pages.tables import table
from gpu_envs.envs import ALL
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.fields import Field
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec

REDUCTIONS = {
    "last": "last step",
    "mean": "mean over steps",
    "sum": "sum over steps",
    "max": "maximum over steps",
}
"""How the steps' values become an episode's value of a metric."""


def specs_of(page: Path) -> list[Spec]:
    """Return the specs of a page, the last of ``ALL`` first: the newest version of the environment."""
    return [spec for spec in reversed(ALL) if Path(str(spec.header)).stem == page.stem]


def facts(page: Path) -> str:
    """Return the table of IDs, spaces and state, and the picture."""
    specs = specs_of(page)
    spec = specs[0]
    params = spec.check_params({}, 1)
    rows = [(f"`{version.id}`", _limits(version) + _other_observation(version, spec)) for version in specs]
    rows += _team(spec, params) if isinstance(spec, TeamSpec) else _single(spec, params)
    if spec.action_mask:
        rows.append(("action mask", '`infos["action_mask"]`'))
    return f"{table(('', ''), rows)}\n\n![{spec.id}]({page.stem}.gif)"


def _limits(spec: Spec) -> str:
    steps = spec.step_limit(spec.check_params({}, 1))
    limit = "no limit" if steps is None else f"truncated after {steps} steps"
    return limit + ("" if spec.reward_threshold is None else f"; solved at a mean return of {spec.reward_threshold:g}")


def _other_observation(version: Spec, newest: Spec) -> str:
    """Return the observation space of a single-agent spec; empty if it is the newest version's."""
    if not isinstance(version, EnvSpec) or not isinstance(newest, EnvSpec):
        return ""
    own, usual = (space_text(spec.observation_space(spec.check_params({}, 1))) for spec in (version, newest))
    return "" if own == usual else f"; observation {own}"


def _single(spec: Spec, params: Mapping[str, Any]) -> list[tuple[str, str]]:
    assert isinstance(spec, EnvSpec)
    return [
        ("observation", space_text(spec.observation_space(params))),
        ("action", space_text(spec.action_space(params))),
        ("state", _fields(spec.typed_state, params)),
    ]


def _team(spec: TeamSpec, params: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("agents", ", ".join(f"{count} `{role}`" for role, count in spec.counts(params).items()))]
    spaces = [(role.name, spec.role_observation(role, params), _space(role.action, params)) for role in spec.roles]
    alike = len({(space_text(parts.full), space_text(action)) for _, parts, action in spaces}) == 1
    for name, parts, action in spaces[:1] if alike else spaces:
        suffix = "" if alike else f" of {_a(name)}"
        shared = f"; {parts.shared_size} of its numbers are alike for all agents of the role" if parts.shared else ""
        rows += [(f"observation{suffix}", space_text(parts.full) + shared), (f"action{suffix}", space_text(action))]
    groups: list[tuple[str, Mapping[str, Field]]] = [("state of an agent", {**spec.state, "in_game": Field("bool")})]
    groups += [(f"state of {_a(role.name)}", role.state) for role in spec.roles if role.state]
    groups += [("state of a replica", {**spec.shared, "elapsed": Field("int")})]
    return rows + [(what, _fields(fields, spec.fixed_params(params))) for what, fields in groups]


def _a(role: str) -> str:
    """Return a role's name with its article."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def _space(source: Any, params: Mapping[str, Any]) -> gymnasium.Space[Any]:
    return source if isinstance(source, gymnasium.Space) else source(params)


def space_text(space: gymnasium.Space[Any]) -> str:
    """Format a space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"`Discrete({space.n})`"
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        runs = [(choices, len(list(same))) for choices, same in itertools.groupby(space.nvec.tolist())]
        parts = [f"[{n}] * {count}" if count > 3 else str([n] * count) for n, count in runs]
        return f"`MultiDiscrete({' + '.join(parts)})`" if len(runs) > 1 else f"`MultiDiscrete({parts[0]})`"
    assert isinstance(space, gymnasium.spaces.Box)
    alike = all((limits == limits.flat[0]).all() and np.isfinite(limits).all() for limits in (space.low, space.high))
    bounds = f", from {space.low.flat[0]:.6g} to {space.high.flat[0]:.6g}" if alike else ""
    return f"`Box({', '.join(map(str, space.shape))})` of {space.dtype}{bounds}"


def _fields(fields: Mapping[str, Field], params: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`{_field(field, params)}" for name, field in fields.items())


def _field(field: Field, params: Mapping[str, Any]) -> str:
    shape = "all agents" if field.shape == ("AGENTS",) else " x ".join(map(str, field.sizes(params)))
    notes = [*([field.type] if field.type != "real" else []), *([shape] if shape else [])]
    return f" ({', '.join(notes)})" if notes else ""


def parameters(page: Path) -> str:
    """Return the tables of parameters and reset options: default, limits and meaning."""
    spec = specs_of(page)[0]
    parts = [
        "Each is an argument of `gpu_envs.make` and `gymnasium.make_vec`, with one value or an array with a value for\n"
        "each replica, and an option of the command line, `--param NAME=VALUE`.",
        _settings("parameter", spec.params),
    ]
    if any(param.fixed for param in spec.params.values()):
        parts.append("\\* One value for all replicas.")
    if any(param.baked for param in spec.params.values()):
        baked = ", ".join(f"`{name}`" for name, param in spec.params.items() if param.baked)
        parts.append(f"These are compiled in; a new value compiles a new program: {baked}.")
    if spec.options:
        parts += [
            "Reset options, given as `reset(options={...})`, for one reset:",
            _settings("option", spec.options),
        ]
    if spec.start_fields:
        agent_fields = spec.state if isinstance(spec, TeamSpec) else {}
        plain = [name for name in spec.start_fields if name in agent_fields and not agent_fields[name].is_array]
        other_fields = [name for name in spec.start_fields if spec.has_team and name not in plain]
        fields = ", ".join(f"`{name}`" for name in spec.start_fields if name not in other_fields)
        shape = "`[num_agents]` or `[num_envs, num_agents]`" if spec.has_team else "one value or `[num_envs]`"
        more = f"; {', '.join(f'`{name}`' for name in other_fields)}, as in the state" if other_fields else ""
        parts.append(f"Explicit starts, given as `reset(options={{...}})`: {fields}, each {shape}{more}.")
    return "\n\n".join(parts)


def _settings(kind: str, settings: Mapping[str, Param]) -> str:
    rows = [
        (f"`{name}`" + (" \\*" if param.fixed else ""), _default(param), _allowed(param), param.description)
        for name, param in settings.items()
    ]
    return table((kind, "default", "allowed", "meaning"), rows)


def _default(param: Param) -> str:
    if isinstance(param, Derived):
        return "derived"
    if param.rank:
        return "an array"
    if param.kind == "int":
        return f"{param.default:,}"
    if param.kind == "real":
        return str(float(f"{param.default:.6g}"))
    return f"`{param.default}`"


def _allowed(param: Param) -> str:
    if isinstance(param, Derived) or param.kind == "bool":
        return ""
    if param.choices:
        return ", ".join(f"`{choice}`" for choice in param.choices)
    return re.sub(r"^an? (finite number ?)?|of (?=at)", "", param.allowed)


def metrics(page: Path) -> str:
    """Return the table of metrics."""
    spec = specs_of(page)[0]
    rows = [(f"`{name}`", REDUCTIONS[metric.reduce], metric.description) for name, metric in spec.metrics.items()]
    return table(("metric", "episode value", "description"), rows)


def gallery(page: Path) -> str:
    """Return a table of the environments' pictures, each a link to its page."""
    newest = {page.parent / "environments" / f"{Path(str(spec.header)).stem}.md": spec.id for spec in ALL}
    cells = [
        f"[![{env_id}](environments/{linked.stem}.gif)](environments/{linked.name})<br>{env_id}"
        for linked, env_id in newest.items()
    ]
    rows = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    return table(("",) * 4, [row + [""] * (4 - len(row)) for row in rows])


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "facts": facts,
    "parameters": parameters,
    "metrics": metrics,
    "gallery": gallery,
}
"""Generators by the name of their block in the pages."""
