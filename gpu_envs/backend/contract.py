"""The functions that a rules header must define, for messages about headers that do not compile."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

_SINGLE_AGENT = {
    "reset": "FN void reset(State& s, const Params& p, Random& random)",
    "step": "FN Outcome step(State& s, const Params& p, const Action& action, Random& random)",
    "observe": "FN void observe(const State& s, const Params& p, Observation& observation)",
    "allow": "FN void allow(const State& s, const Params& p, Mask& mask)",
    "measure": "FN void measure(const State& s, const Params& p, Metrics& metrics)",
}
_TEAM = {
    "reset": "FN void reset(World& w, const Params& p, Team& team)",
    "step": "FN void step(World& w, const Params& p, Team& team, const TeamActions& actions)",
    "look": "FN void look(World& w, const Params& p, Team& team)",
    "observe_shared": "FN void observe_shared(const World& w, const Params& p, int role, const Row& row)",
    "observe": "FN void observe(const World& w, const Params& p, int i, const Row& row)",
    "allow": "FN void allow(const World& w, const Params& p, int i, const Mask& mask)",
    "active": "FN bool active(const World& w, const Params& p, int i, int j)",
    "measure": "FN void measure(World& w, const Params& p, Team& team, Metrics& metrics)",
}


@final
@dataclasses.dataclass(frozen=True)
class Contract:
    """The author's part of a program, and the functions that it must define."""

    spec: str
    """The environment's id."""
    file: str
    """The file name that compilers' messages use for its lines."""
    functions: Mapping[str, str]
    """The C++ declaration of each required function, by name."""


def contract(spec: str, file: str, *, team: bool, masks: bool, metrics: bool, more: Sequence[str] = ()) -> Contract:
    """The functions that the rules of an environment, ``spec``, must define, with their C++ declarations.

    Args:
        spec: The environment's id.
        file: The file name of the rules in compilers' messages.
        team: Whether the environment has a team of agents.
        masks: Whether it has action masks, from ``allow``.
        metrics: Whether it has metrics, from ``measure``.
        more: Names of further functions of a team: ``active``, ``observe_shared``.
    """
    optional = {"allow": masks, "measure": metrics, **{name: name in more for name in ("active", "observe_shared")}}
    functions = (_TEAM if team else _SINGLE_AGENT).items()
    return Contract(spec, file, {name: text for name, text in functions if optional.get(name, True)})
