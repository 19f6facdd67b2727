"""The spec of an environment with one agent."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

import gymnasium

from gpu_envs.documented import documented
from gpu_envs.specs.base import Spec
from gpu_envs.specs.fields import Field, check_types
from gpu_envs.specs.params import ParamValue
from gpu_envs.specs.spaces import SpaceSource, check_space, space_of


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EnvSpec(Spec):
    """Names the state, the parameters, the spaces and the limits of a single-agent environment.

    Gymnasium knows it as ``gpu_envs/<id>``.
    """

    has_team: ClassVar[bool] = False

    state: Mapping[str, Field] | tuple[str, ...]
    """The fields of ``State``; names alone are of type ``real``."""
    observation: SpaceSource
    """The observation space of one replica: a Box of float32, uint8 or int32, or a Dict of such."""
    action: SpaceSource
    """The action space of one replica: Discrete, or a MultiDiscrete or a Box of float32 with one dimension."""

    def __post_init__(self) -> None:
        """Checks names and types of the state's fields."""
        given = self.state
        if isinstance(given, str):
            raise TypeError(f"{self.id}: state is {given!r}; give names, such as ({given!r},), or a mapping to Field()")
        repeated = [name for name in given if tuple(given).count(name) > 1]
        if repeated:
            raise ValueError(f"{self.id}: state names {repeated[0]!r} more than once; name each field once")
        named = dict(given) if isinstance(given, Mapping) else {name: Field() for name in given}
        check_types(f"{self.id}: state", named, Field, "Field('int')")
        object.__setattr__(self, "state", MappingProxyType(named))
        Spec.__post_init__(self)
        for what in ("observation", "action"):
            check_space(f"{self.id}: {what}", getattr(self, what))
        for name, field in named.items():
            if field.type == "agent":
                raise ValueError(f"{self.id}: the field {name!r} is of type 'agent', which only a team has; give 'int'")

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the state's fields."""
        return tuple(self.state)

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Observation and action."""
        return {"observation": self.observation, "action": self.action}

    @property
    def typed_state(self) -> Mapping[str, Field]:
        """The state's fields with their types."""
        assert isinstance(self.state, Mapping)
        return self.state

    def observation_space(self, params: Mapping[str, ParamValue]) -> gymnasium.Space[Any]:
        """The observation space of one replica under these parameters."""
        what = f"{self.id}: observation"
        return self.append_observed_params(space_of(self.observation, params, what), params, what)

    def action_space(self, params: Mapping[str, ParamValue]) -> gymnasium.Space[Any]:
        """The action space of one replica under these parameters."""
        return space_of(self.action, params, f"{self.id}: action")
