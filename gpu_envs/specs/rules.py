"""The functions that an author writes in Python in place of a header."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias, final

from gpu_envs.documented import documented

Function: TypeAlias = Callable[..., Any]


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of an environment as Python functions, which are translated to a header and never run.

    They have the names, the arguments and the order of arguments of a header's functions; ``step`` of a single agent
    returns the reward and whether the episode has come to its end.
    """

    reset: Function
    """``reset(s, p, random)``; of a team ``reset(w, p, team)``."""
    step: Function
    """``step(s, p, action, random)``; of a team ``step(w, p, team, actions)``."""
    observe: Function
    """``observe(s, p, observation)``; of a team ``observe(w, p, i, row)``."""
    observe_shared: Function | None = None
    """Of a team: ``observe_shared(w, p, role, row)``, what all agents of a role see alike."""
    look: Function | None = None
    """Of a team: ``look(w, p, team)``."""
    allow: Function | None = None
    """``allow(s, p, mask)``, of a team ``allow(w, p, i, mask)``: which actions are possible, for ``action_mask``."""
    active: Function | None = None
    """Of a team: ``active(w, p, i, j)``, whether element j of an action means something now, for ``active_heads``."""
    measure: Function | None = None
    """``measure(s, p, metrics)``, of a team ``measure(w, p, team, metrics)``: the spec's ``metrics``."""

    @property
    def file(self) -> str:
        """Where they are written."""
        code = getattr(self.step, "__code__", None)
        return code.co_filename if code is not None else "<rules>"
