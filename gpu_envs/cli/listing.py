"""``gpu-envs list``: list the environments and their parameters."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from gpu_envs.cli.parser import OK, Parser, parse_many
from gpu_envs.cli.report import echo, echo_json, line_width, wrap_table
from gpu_envs.errors import display
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Distribution, stored
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.tables import text_table

_LIST = """List the environments with their agents, observation and action spaces, time limit in steps, and
the mean return at which an environment counts as solved.

Without IDs, list all environments. An ID may be the path of a spec, path/to/my_env.py:MY_ENV; a
file without a name means all of its specs."""

_EXAMPLES = """examples:
  gpu-envs list
  gpu-envs list CartPole-v1 --params
  gpu-envs list path/to/my_env.py
  gpu-envs list TagContinuous-v0 --params | less"""

_HEADER = ("environment", "agents", "observation", "action", "limit", "solved", "from")


def list_environments(argv: Sequence[str]) -> int:
    """``gpu-envs list [ID ...]``: list environments and their parameters; return the exit code."""
    parser = Parser("gpu-envs list", "gpu-envs list [ID ...] [--params]", _LIST, _EXAMPLES)
    parser.add_argument(
        "--params", action="store_true", help="list parameters, reset options and metrics, with defaults"
    )
    parser.add_json()
    parser.add_debug()
    args, ids = parse_many(parser, argv)
    if args.help:
        return parser.show_help()
    specs = registry.specs(ids or registry.ids())
    if args.json:
        echo_json([environment_info(spec) for spec in specs])
        return OK
    echo("\n\n".join(map(parameter_lists, specs)) if args.params else overview(specs))
    return OK


def overview(specs: Sequence[Spec]) -> str:
    """Return a table with a row for each environment; if the terminal is too narrow, a few lines for each."""
    all_rows: list[tuple[Sequence[str], ...]] = [
        tuple((name,) for name in _HEADER),
        *((*_row(spec), (_source_of(spec),)) for spec in specs),
    ]
    has_sources = any(row[-1][0] for row in all_rows[1:])
    header, *rows = all_rows if has_sources else [row[:-1] for row in all_rows]
    text = text_table([line for row in (header, *rows) for line in itertools.zip_longest(*row, fillvalue="")])
    if max(map(len, text.splitlines())) <= line_width():
        return text
    labelled = [[(name[0], ", ".join(cell)) for name, cell in zip(header, row, strict=True) if cell[0]] for row in rows]
    return "\n".join(f"{first[1]}\n{wrap_table(cells, '  ')}" for first, *cells in labelled)


def _row(spec: Spec) -> tuple[Sequence[str], ...]:
    """Return the cells of an environment's row; observation and action have a line for each role if these differ."""
    params = spec.check_params({}, 1)
    if isinstance(spec, TeamSpec):
        agents = [f"{count} {role}" for role, count in spec.counts(params).items()]
        spaces = [
            (_format_space(spec.role_observation(role, params).full, params), _format_space(role.action, params))
            for role in spec.roles
        ]
        if len(set(spaces)) == 1:
            agents, spaces = [", ".join(agents)], spaces[:1]
    else:
        assert isinstance(spec, EnvSpec)
        agents, spaces = ["1"], [(_format_space(spec.observation, params), _format_space(spec.action, params))]
    steps = spec.step_limit(params)
    limit = "none" if steps is None else str(steps)
    solved = "" if spec.reward_threshold is None else f"{spec.reward_threshold:g}"
    return (spec.id,), agents, *zip(*spaces, strict=True), (limit,), (solved,)


def environment_info(spec: Spec) -> dict[str, Any]:
    """Return the description of an environment for ``--json``."""
    _, _, observations, actions, *_ = _row(spec)
    params, drawn = spec.check_params({}, 1), spec.drawn({name: p.default for name, p in spec.params.items()})
    counts = spec.counts(params) if isinstance(spec, TeamSpec) else {"agent": 1}
    spaces = zip(observations, actions, strict=True)
    role_spaces = dict(zip(counts, itertools.cycle(spaces), strict=False))
    settings = {
        kind: {
            name: {
                "description": param.description,
                "default": None if isinstance(param, Derived) else stored(drawn.get(name, params[name])),
                "derived": isinstance(param, Derived),
                "fixed": param.fixed,
                "choices": param.choices,
            }
            for name, param in params_of_kind.items()
        }
        for kind, params_of_kind in (("params", spec.params), ("options", spec.options))
    }
    return {
        "id": spec.id,
        "description": spec.description,
        "roles": {
            role: {"agents": count, "observation": role_spaces[role][0], "action": role_spaces[role][1]}
            for role, count in counts.items()
        },
        "max_episode_steps": spec.step_limit(params),
        "reward_threshold": spec.reward_threshold,
        "from": _source_of(spec) or "gpu_envs",
        **settings,
        "metrics": {name: dataclasses.asdict(metric) for name, metric in spec.metrics.items()},
    }


def _source_of(spec: Spec) -> str:
    """Return the file or distribution of a spec; empty for this package's environments."""
    shown = registry.origin_of(spec.id).shown
    return "" if shown == "gpu_envs" else display(shown)


def _format_space(source: Any, params: Mapping[str, Any]) -> str:
    """Format a space, or the space that a function of the parameters returns, without bounds: ``Box(4)``."""
    space = source if isinstance(source, gymnasium.Space) else source(params)
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        runs = [(choices, len(list(repeats))) for choices, repeats in itertools.groupby(space.nvec.tolist())]
        parts = [f"{count} x {size}" if count > 3 else ", ".join([str(size)] * count) for size, count in runs]
        return f"MultiDiscrete({', '.join(parts)})"
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box({', '.join(map(str, space.shape))})"
    return str(space)


def parameter_lists(spec: Spec) -> str:
    """Format an environment's parameters, reset options, metrics and explicit starts as titled lists."""
    lines = [wrap_table([(f"{spec.id}: {spec.description}" if spec.description else spec.id,)])]
    for title, named in (("parameters", spec.params), ("reset options", spec.options)):
        if named:
            rows = [(name, _format_default(param), _describe(param)) for name, param in named.items()]
            lines += [f"  {title}", wrap_table(rows, "    ")]
    if spec.metrics:
        rows = [(name, metric.reduce, metric.description) for name, metric in spec.metrics.items()]
        lines += ["  metrics", wrap_table(rows, "    ")]
    if spec.start_fields:
        lines.append(wrap_table([("explicit starts", ", ".join(spec.start_fields))], "  "))
    if any(param.fixed for param in spec.params.values()):
        note = "one value for all replicas; other parameters may differ between replicas"
        lines.append(wrap_table([("*", note)], "  "))
    return "\n".join(lines)


def _format_default(param: Param) -> str:
    """Format a parameter's default, a distribution as its text form; or return "derived" or "an array"."""
    if isinstance(param.default, Distribution):
        return str(param.default)
    if isinstance(param, Derived) or param.rank:
        return "derived" if isinstance(param, Derived) else "an array"
    return f"{param.default:.6g}" if isinstance(param.default, float) else str(param.default)


def _describe(param: Param) -> str:
    """Return a parameter's description, its allowed values in parentheses, and a star if it is ``fixed``."""
    allowed = ", ".join(param.choices)
    if param.kind in ("int", "real"):
        allowed = re.sub("^(an integer|a finite number) ?(of )?", "", param.allowed)  # the default shows the type
    return " ".join([param.description, *([f"({allowed})"] if allowed else []), *(["*"] if param.fixed else [])])
