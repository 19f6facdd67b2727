"""Creates or checks the environment of an adapter."""

from collections.abc import Mapping
from typing import Any, TypeVar

from gymnasium.vector import AutoresetMode

import gpu_envs
from gpu_envs import MultiAgentEnv, VectorEnv
from gpu_envs.specs.base import Spec

EnvT = TypeVar("EnvT")


def open_env(
    env: str | Spec | VectorEnv | MultiAgentEnv,
    num_envs: int | None,
    autoreset_mode: str,
    options: Mapping[str, Any],
    *,
    output: str | None = None,
    statistics: bool = False,
) -> Any:
    """Return a new environment for an adapter, or an existing one; raise an error if it does not suit the adapter.

    Args:
        env: An id, a path such as ``path/to/my_env.py:MY_ENV``, a spec, or an environment.
        num_envs: Number of replicas, if ``env`` is not an environment (default: 1).
        autoreset_mode: The required autoreset mode.
        options: Other arguments of ``gpu_envs.make``, if ``env`` is not an environment.
        output: The required output; None: any. New environments have torch output.
        statistics: Whether returns, lengths and metrics of episodes are required.
    """
    if isinstance(env, str | Spec):
        required = {"autoreset_mode": autoreset_mode, "output": "torch"}
        for name, value in required.items():
            option = options.get(name, value)
            if (option.value if isinstance(option, AutoresetMode) else option) != value:
                raise ValueError(f"{name} is {options[name]!r}, but this adapter requires {value!r}: leave it out")
        opened: Any = gpu_envs.make(env, 1 if num_envs is None else num_envs, **{**options, **required})
    elif isinstance(env, VectorEnv | MultiAgentEnv):
        unused = [name for name, value in {"num_envs": num_envs, **options}.items() if value is not None]
        if unused:
            raise ValueError(
                f"{', '.join(unused)} cannot be combined with an existing environment: leave them out, or pass an id"
            )
        for name, required_value, value in (
            ("autoreset_mode", autoreset_mode, env.autoreset_mode.value),
            ("output", output or env.output, env.output),
        ):
            if value != required_value:
                raise ValueError(f"the environment has {name}={value!r}: make it with {name}={required_value!r}")
        opened = env
    else:
        raise TypeError(
            f"env is {type(env).__name__}: pass an id such as 'CartPole-v1', a path such as "
            "'path/to/my_env.py:MY_ENV', a spec, or an environment from gpu_envs.make"
        )
    if statistics and not opened.keeps_statistics:
        raise ValueError(
            "the environment has statistics=False, but this adapter reports returns and lengths of episodes: make it "
            "without statistics=False"
        )
    return check_full_rows(opened)


def check_full_rows(env: EnvT) -> EnvT:
    """Return the environment; a ValueError if ``shared_observations=True`` keeps shared features apart from rows."""
    if getattr(env, "single_shared_spaces", {}):
        raise ValueError("shared_observations=True splits observations, which adapters do not support: leave it out")
    return env


def check_render_mode(spec: Spec, render_mode: str | None) -> None:
    """Raise a ValueError if the spec has a drawing and the mode is not ``rgb_array``, ``human`` or None."""
    if spec.drawing is not None and render_mode not in (None, "rgb_array", "human"):
        raise ValueError(
            f"render_mode is {render_mode!r}, but one replica of {spec.id} supports 'rgb_array', 'human' and None"
        )
