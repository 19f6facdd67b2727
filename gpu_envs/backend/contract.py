"""The functions that a header of rules must have, for messages about one that does not compile."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

_ONE = {
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
    """The author's part of a program, and what it must have."""

    spec: str
    """The environment's id."""
    file: str
    """What its lines are named by in compilers' messages."""
    functions: Mapping[str, str]
    """How each function begins, by its name."""


def contract(spec: str, file: str, *, team: bool, masks: bool, metrics: bool, more: Sequence[str] = ()) -> Contract:
    """What the rules of an environment must have, which has a team or one agent, and what else or not."""
    optional = {"allow": masks, "measure": metrics, **{name: name in more for name in ("active", "observe_shared")}}
    without = {name for name, wanted in optional.items() if not wanted}
    functions = _TEAM if team else _ONE
    return Contract(spec, file, {name: text for name, text in functions.items() if name not in without})
