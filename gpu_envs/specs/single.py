"""Spec of an environment with a single agent."""

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
    """State, parameters, spaces and limits of a single-agent environment.

    Gymnasium registers it as ``gpu_envs/<id>``.
    """

    has_team: ClassVar[bool] = False

    state: Mapping[str, Field] | tuple[str, ...]
    """Fields of ``State``; a tuple of names declares fields of type ``real``."""
    observation: SpaceSource
    """Observation space of one replica: a Box of float32, uint8 or int32, or a Dict of such Boxes."""
    action: SpaceSource
    """Action space of one replica: Discrete, MultiDiscrete or Box of float32; the latter two with one dimension."""

    def __post_init__(self) -> None:
        """Validates the state's fields and the spaces."""
        state = self.state
        if isinstance(state, str):
            raise TypeError(f"{self.id}: state is {state!r}; give names, such as ({state!r},), or a mapping to Field()")
        repeated = [name for name in state if tuple(state).count(name) > 1]
        if repeated:
            raise ValueError(f"{self.id}: state names {repeated[0]!r} more than once; name each field once")
        fields = dict(state) if isinstance(state, Mapping) else {name: Field() for name in state}
        check_types(f"{self.id}: state", fields, Field, "Field('int')")
        object.__setattr__(self, "state", MappingProxyType(fields))
        Spec.__post_init__(self)
        for what in ("observation", "action"):
            check_space(f"{self.id}: {what}", getattr(self, what))
        for name, field in fields.items():
            if field.type == "agent":
                raise ValueError(f"{self.id}: the field {name!r} is of type 'agent', which only a team has; give 'int'")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the state's fields."""
        return tuple(self.state)

    @property
    def spaces(self) -> Mapping[str, SpaceSource]:
        """Observation space and action space."""
        return {"observation": self.observation, "action": self.action}

    @property
    def typed_state(self) -> Mapping[str, Field]:
        """Fields of the state by name."""
        assert isinstance(self.state, Mapping)
        return self.state

    def observation_space(self, params: Mapping[str, ParamValue]) -> gymnasium.Space[Any]:
        """Observation space of one replica under these parameters."""
        what = f"{self.id}: observation"
        return self.append_observed_params(space_of(self.observation, params, what), params, what)

    def action_space(self, params: Mapping[str, ParamValue]) -> gymnasium.Space[Any]:
        """Action space of one replica under these parameters."""
        return space_of(self.action, params, f"{self.id}: action")
