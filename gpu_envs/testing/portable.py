"""A spec as bytes, for another process: its functions become what they give under these parameters."""

import dataclasses
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import gymnasium

from gpu_envs.codegen import rules_part
from gpu_envs.fields import Field, Table
from gpu_envs.options import Options
from gpu_envs.replicas import config_of
from gpu_envs.spec import EnvSpec, Role, Spec, TeamSpec
from gpu_envs.translation import Rules

_LEFT_OUT = ("drawing", "layout_rule")
"""What no simulation needs."""


@final
class Always:
    """A function that gives one value, whatever it is asked."""

    def __init__(self, value: Any) -> None:
        """Keeps the value."""
        self.value = value

    def __call__(self, params: Mapping[str, Any]) -> Any:
        """The value."""
        del params
        return self.value


def to_bytes(spec: Spec, params: Mapping[str, Any], folder: Path) -> bytes:
    """Packs a spec.

    Args:
        spec: The environment.
        params: Its parameters, as a user gives them.
        folder: Where rules that are no header yet are written as one.
    """
    config = config_of(spec, 1, Options(), params)
    names = [field.name for field in dataclasses.fields(spec) if field.init and field.name not in _LEFT_OUT]
    values = {name: _packed(getattr(spec, name), config.params) for name in names}
    name, text = rules_part(config)
    values["header"] = name  # its own file, or one of this package's
    if isinstance(spec.header, Rules):
        values["header"] = folder / "rules.cuh"
        (folder / "rules.cuh").write_text(f'#line 1 "{name}"\n{text}')
    return pickle.dumps((type(spec).__name__, values))


def from_bytes(packed: bytes) -> Spec:
    """Unpacks what ``to_bytes`` gave, in a process that was started by the one that packed it."""
    kind, values = pickle.loads(packed)
    made: Spec = {"EnvSpec": EnvSpec, "TeamSpec": TeamSpec}[kind](**values)
    return made


def _packed(value: Any, params: Mapping[str, Any]) -> Any:
    if isinstance(value, Table):
        return Table(value.array(params), value.type)
    if isinstance(value, Field):
        return Field(value.type, Always(value.elements(params)) if callable(value.length) else value.length)
    if isinstance(value, Role):
        return Role(value.name, value.size(params), _packed(value.observation, params), _packed(value.action, params))
    if isinstance(value, gymnasium.Space):  # a Dict is a mapping too
        return value
    if isinstance(value, Mapping):
        return {name: _packed(entry, params) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_packed(entry, params) for entry in value)
    return Always(value(params)) if _is_function(value) else value


def _is_function(value: object) -> bool:
    return isinstance(value, Callable) and not isinstance(value, type | Rules)  # type: ignore[arg-type]  # an ABC
