"""``gpu-envs list``: the environments that there are, and their parameters."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from gpu_envs.cli.parser import OK, Parser, take_all
from gpu_envs.cli.report import line_width, say, say_json, table, wrapped
from gpu_envs.errors import display
from gpu_envs.registry import catalog as registry
from gpu_envs.specs.base import Spec
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.distributions import Distribution, stored
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec

_LIST = """List the environments: how many agents they have, what those see and do, the step at which an
episode is cut off, and the mean return from which on an environment counts as solved.

After IDs, only those. An ID may be the place of a spec, path/to/my_env.py:MY_ENV; a file without
a name stands for all of its specs."""

_EXAMPLES = """examples:
  gpu-envs list
  gpu-envs list CartPole-v1 --params
  gpu-envs list path/to/my_env.py
  gpu-envs list TagContinuous-v0 --params | less"""

_HEAD = ("environment", "agents", "observation", "action", "limit", "solved", "from")


def list_environments(words: Sequence[str]) -> int:
    """``gpu-envs list [ID ...]``."""
    parser = Parser("gpu-envs list", "gpu-envs list [ID ...] [--params]", _LIST, _EXAMPLES)
    parser.add_argument(
        "--params", action="store_true", help="their parameters, reset options and metrics, with defaults"
    )
    parser.add_json()
    parser.add_debug()
    found, ids = take_all(parser, words)
    if found.help:
        return parser.show_help()
    specs = registry.specs(ids or registry.ids())
    if found.json:
        say_json([facts(spec) for spec in specs])
        return OK
    say("\n\n".join(map(parameters, specs)) if found.params else overview(specs))
    return OK


def overview(specs: Sequence[Spec]) -> str:
    """A table with a row for each environment; where it is too wide for the terminal, a few lines for each."""
    whole: list[tuple[Sequence[str], ...]] = [
        tuple((name,) for name in _HEAD),
        *((*_row(spec), (_origin(spec),)) for spec in specs),
    ]
    elsewhere = any(row[-1][0] for row in whole[1:])
    head, *rows = whole if elsewhere else [row[:-1] for row in whole]
    wide = table([line for row in (head, *rows) for line in itertools.zip_longest(*row, fillvalue="")])
    if max(map(len, wide.splitlines())) <= line_width():
        return wide
    named = [[(name[0], ", ".join(cell)) for name, cell in zip(head, row, strict=True) if cell[0]] for row in rows]
    return "\n".join(f"{of_all[1]}\n{wrapped(others, '  ')}" for of_all, *others in named)


def _row(spec: Spec) -> tuple[Sequence[str], ...]:
    """Its cells, with a line for each role where these differ."""
    params = spec.check_params({}, 1)
    if isinstance(spec, TeamSpec):
        agents = [f"{count} {role}" for role, count in spec.counts(params).items()]
        spaces = [
            (_shown(spec.role_observation(role, params).full, params), _shown(role.action, params))
            for role in spec.roles
        ]
        if len(set(spaces)) == 1:
            agents, spaces = [", ".join(agents)], spaces[:1]
    else:
        assert isinstance(spec, EnvSpec)
        agents, spaces = ["1"], [(_shown(spec.observation, params), _shown(spec.action, params))]
    steps = spec.step_limit(params)
    limit = "none" if steps is None else str(steps)
    solved = "" if spec.reward_threshold is None else f"{spec.reward_threshold:g}"
    return (spec.id,), agents, *zip(*spaces, strict=True), (limit,), (solved,)


def facts(spec: Spec) -> dict[str, Any]:
    """All that is listed of an environment, for programs."""
    _, _, observations, actions, *_ = _row(spec)
    params, drawn = spec.check_params({}, 1), spec.drawn({name: p.default for name, p in spec.params.items()})
    counts = spec.counts(params) if isinstance(spec, TeamSpec) else {"agent": 1}
    spaces = zip(observations, actions, strict=True)
    seen = dict(zip(counts, itertools.cycle(spaces), strict=False))
    named = {
        kind: {
            name: {
                "description": param.description,
                "default": None if isinstance(param, Derived) else stored(drawn.get(name, params[name])),
                "derived": isinstance(param, Derived),
                "fixed": param.fixed,
                "choices": param.choices,
            }
            for name, param in of_kind.items()
        }
        for kind, of_kind in (("params", spec.params), ("options", spec.options))
    }
    return {
        "id": spec.id,
        "description": spec.description,
        "roles": {
            role: {"agents": count, "observation": seen[role][0], "action": seen[role][1]}
            for role, count in counts.items()
        },
        "max_episode_steps": spec.step_limit(params),
        "reward_threshold": spec.reward_threshold,
        "from": _origin(spec) or "gpu_envs",
        **named,
        "metrics": {
            name: {"description": metric.description, "reduce": metric.reduce} for name, metric in spec.metrics.items()
        },
    }


def _origin(spec: Spec) -> str:
    """Where a spec comes from; empty for those of this package."""
    shown = registry.origin_of(spec.id).shown
    return "" if shown == "gpu_envs" else display(shown)


def _shown(source: Any, params: Mapping[str, Any]) -> str:
    """A space in few letters."""
    space = source if isinstance(source, gymnasium.Space) else source(params)
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"Discrete({space.n})"
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        runs = [(choices, len(list(same))) for choices, same in itertools.groupby(space.nvec.tolist())]
        shown = [f"{count} x {n}" if count > 3 else ", ".join([str(n)] * count) for n, count in runs]
        return f"MultiDiscrete({', '.join(shown)})"
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box({', '.join(map(str, space.shape))})"
    return str(space)


def parameters(spec: Spec) -> str:
    """An environment's parameters, reset options and metrics, one a line."""
    lines = [wrapped([(f"{spec.id}: {spec.description}" if spec.description else spec.id,)])]
    for title, named in (("parameters", spec.params), ("reset options", spec.options)):
        if named:
            rows = [(name, _default(param), _described(param)) for name, param in named.items()]
            lines += [f"  {title}", wrapped(rows, "    ")]
    if spec.metrics:
        rows = [(name, metric.reduce, metric.description) for name, metric in spec.metrics.items()]
        lines += ["  metrics", wrapped(rows, "    ")]
    if spec.start_fields:
        lines.append(wrapped([("explicit starts", ", ".join(spec.start_fields))], "  "))
    if any(param.fixed for param in spec.params.values()):
        lines.append(wrapped([("*", "one value for all replicas; of the others each may have its own")], "  "))
    return "\n".join(lines)


def _default(param: Param) -> str:
    if isinstance(param.default, Distribution):
        return str(param.default)
    if isinstance(param, Derived) or param.rank:
        return "derived" if isinstance(param, Derived) else "an array"
    return f"{param.default:.6g}" if isinstance(param.default, float) else str(param.default)


def _described(param: Param) -> str:
    allowed = ", ".join(param.choices)
    if param.kind in ("int", "real"):
        allowed = re.sub("^a (whole|finite) number ?(of )?", "", param.allowed)  # which, the default shows
    return " ".join([param.description, *([f"({allowed})"] if allowed else []), *(["*"] if param.fixed else [])])
