"""Serialises a spec for another process; functions are replaced by the values that they return."""

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import gymnasium

from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.specs.base import Spec
from gpu_envs.specs.fields import Field, Table, sizes_of
from gpu_envs.specs.params import Param
from gpu_envs.specs.rules import Rules
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import Role, TeamSpec

_OMITTED = ("drawing", "start_rule")
"""Fields that simulations do not need."""


@final
class ConstantFunction:
    """A function of the parameters that always returns the same value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _params: Mapping[str, Any]) -> Any:
        return self.value


def to_bytes(spec: Spec, params: Mapping[str, Any], folder: Path) -> bytes:
    """Serialises a spec with these parameters' values; translates Python rules to a header, written into the folder."""
    config = config_of(spec, 1, Options(), params)
    names = [field.name for field in dataclasses.fields(spec) if field.init and field.name not in _OMITTED]
    params = {**config.params, **spec.fixed_params(config.params)}
    values = {name: _without_functions(getattr(spec, name), params) for name in names}
    name, text = rules_part(config)
    values["header"] = name  # the spec's file, or a header of this package
    if isinstance(spec.header, Rules):
        values["header"] = folder / "rules.cuh"
        (folder / "rules.cuh").write_text(f'#line 1 "{name}"\n{text}', "utf-8")
    return pickle.dumps((type(spec).__name__, values))


def from_bytes(packed: bytes) -> Spec:
    """Deserialises the result of ``to_bytes``, which must come from the parent process."""
    kind, values = pickle.loads(packed)
    spec: Spec = {"EnvSpec": EnvSpec, "TeamSpec": TeamSpec}[kind](**values)
    return spec


def _without_functions(value: Any, params: Mapping[str, Any], name: str = "") -> Any:
    """Returns a spec's value, of the parameter ``name``, with constants in place of functions of the parameters."""
    if isinstance(value, Param):
        shape = value.shape and sizes_of(value.shape, params, "a shape")
        default = ConstantFunction(params[name]) if callable(value.default) else value.default
        return dataclasses.replace(value, default=default, shape=shape)
    if isinstance(value, Table):
        return Table(value.array(params), value.type)
    if isinstance(value, Field):
        return Field(value.type, shape=value.sizes(params)) if value.is_array else value
    if isinstance(value, Role):
        packed = {
            name: _without_functions(getattr(value, name), params)
            for name in ("observation", "action", "shared_observation", "state")
        }
        at = params[value.shared_at] if isinstance(value.shared_at, str) else value.shared_at
        return Role(value.name, value.size(params), shared_at=at, **packed)
    if isinstance(value, gymnasium.Space):  # a Dict is a mapping too
        return value
    if isinstance(value, Mapping):
        return {name: _without_functions(entry, params, name) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_without_functions(entry, params) for entry in value)
    return ConstantFunction(value(params)) if callable(value) and not isinstance(value, type | Rules) else value
