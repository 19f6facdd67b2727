"""A spec as bytes, for another process: its functions are replaced by the values that they return."""

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

_LEFT_OUT = ("drawing", "start_rule")
"""What no simulation needs."""


@final
class Always:
    """A function that gives one value, whatever it is asked."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _params: Mapping[str, Any]) -> Any:
        return self.value


def to_bytes(spec: Spec, params: Mapping[str, Any], folder: Path) -> bytes:
    """Packs a spec; rules in Python are written into the folder, as a header."""
    config = config_of(spec, 1, Options(), params)
    names = [field.name for field in dataclasses.fields(spec) if field.init and field.name not in _LEFT_OUT]
    params = {**config.params, **spec.fixed_params(config.params)}
    values = {name: _packed(getattr(spec, name), params) for name in names}
    name, text = rules_part(config)
    values["header"] = name  # its own file, or one of this package's
    if isinstance(spec.header, Rules):
        values["header"] = folder / "rules.cuh"
        (folder / "rules.cuh").write_text(f'#line 1 "{name}"\n{text}', "utf-8")
    return pickle.dumps((type(spec).__name__, values))


def from_bytes(packed: bytes) -> Spec:
    """Unpacks what ``to_bytes`` gave, in a process that was started by the one that packed it."""
    kind, values = pickle.loads(packed)
    made: Spec = {"EnvSpec": EnvSpec, "TeamSpec": TeamSpec}[kind](**values)
    return made


def _packed(value: Any, params: Mapping[str, Any], name: str = "") -> Any:
    if isinstance(value, Param):
        settled = value.shape and sizes_of(value.shape, params, "a shape")
        default = Always(params[name]) if callable(value.default) else value.default
        return dataclasses.replace(value, default=default, shape=settled)
    if isinstance(value, Table):
        return Table(value.array(params), value.type)
    if isinstance(value, Field):
        return Field(value.type, shape=value.sizes(params)) if value.is_array else value
    if isinstance(value, Role):
        packed = {
            name: _packed(getattr(value, name), params)
            for name in ("observation", "action", "shared_observation", "state")
        }
        at = params[value.shared_at] if isinstance(value.shared_at, str) else value.shared_at
        return Role(value.name, value.size(params), shared_at=at, **packed)
    if isinstance(value, gymnasium.Space):  # a Dict is a mapping too
        return value
    if isinstance(value, Mapping):
        return {name: _packed(entry, params, name) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_packed(entry, params) for entry in value)
    return Always(value(params)) if callable(value) and not isinstance(value, type | Rules) else value
