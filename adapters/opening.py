"""What all adapters do first: make the environment that is asked for, or look at the one that is given."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from gymnasium.vector import AutoresetMode

import gpu_envs
from gpu_envs import MultiAgentEnv, VectorEnv
from gpu_envs.specs.base import Spec

EnvT = TypeVar("EnvT")
AnyEnv: TypeAlias = VectorEnv | MultiAgentEnv


def opened(
    env: str | Spec | VectorEnv | MultiAgentEnv,
    num_envs: int | None,
    autoreset_mode: str,
    options: Mapping[str, Any],
    *,
    output: str | None = None,
    statistics: bool = False,
) -> Any:
    """An environment in the mode that an adapter needs.

    Args:
        env: An id, a place such as ``path/to/my_env.py:MY_ENV``, a spec, or an environment.
        num_envs: With an id: how many replicas; None: one.
        autoreset_mode: The mode that it must have.
        options: With an id: what else ``gpu_envs.make`` takes.
        output: The output that it must have; None: any. One made here gives torch's tensors.
        statistics: It must keep returns, lengths and metrics of episodes.

    Returns:
        A ``VectorEnv`` or a ``MultiAgentEnv``.
    """
    if isinstance(env, str | Spec):
        chosen = {"autoreset_mode": autoreset_mode, "output": "torch"}
        for name, value in chosen.items():
            given = options.get(name, value)
            if (given.value if isinstance(given, AutoresetMode) else given) != value:
                raise ValueError(f"{name} is {options[name]!r}; this adapter needs {value!r}: leave it out")
        made = gpu_envs.make(env, 1 if num_envs is None else num_envs, **{**options, **chosen})
        return whole(_with_statistics(made) if statistics else made)
    if not isinstance(env, VectorEnv | MultiAgentEnv):
        raise TypeError(
            f"env is {type(env).__name__}; give an id, such as 'CartPole-v1', a place, such as "
            "'path/to/my_env.py:MY_ENV', a spec, or what gpu_envs.make returned"
        )
    beside = [name for name, given in {"num_envs": num_envs, **options}.items() if given is not None]
    if beside:
        raise ValueError(f"{', '.join(beside)} cannot be given beside an environment; give its id to have one made")
    for name, needed, given in (
        ("autoreset_mode", autoreset_mode, env.autoreset_mode.value),
        ("output", output or env.output, env.output),
    ):
        if given != needed:
            raise ValueError(f"the environment has {name}={given!r}; make it with {name}={needed!r}")
    return whole(_with_statistics(env) if statistics else env)


def _with_statistics(env: AnyEnv) -> AnyEnv:
    """The environment, if it tells what an adapter hands on of episodes."""
    if not env.keeps_statistics:
        raise ValueError(
            "the environment has statistics=False, and this adapter hands on returns and lengths of episodes; make it "
            "without that"
        )
    return env


def whole(env: EnvT) -> EnvT:
    """The environment, if its rows hold all that an agent sees: libraries know nothing of rows in parts."""
    if getattr(env, "single_shared_spaces", {}):
        raise ValueError(
            "shared_observations=True gives rows in parts, which adapters cannot hand on; leave it out for whole rows"
        )
    return env


def check_mode_of_one(spec: Spec, render_mode: str | None) -> None:
    """Raises a ValueError where one replica cannot be shown so; that a spec has no drawing is said elsewhere."""
    if spec.drawing is not None and render_mode not in (None, "rgb_array", "human"):
        raise ValueError(
            f"render_mode is {render_mode!r}; one replica of {spec.id} can be shown by 'rgb_array' or 'human', or None"
        )
