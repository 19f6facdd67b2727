"""``make``, which creates environments with one or several agents, and the entry point of ``gymnasium.make_vec``."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, overload

from gymnasium.vector import AutoresetMode

from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry.catalog import env_spec, spec
from gpu_envs.specs.base import Spec
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.vector_env import VectorEnv

SingleAgentId: TypeAlias = Literal[
    "Acrobot-v1",
    "CartPole-v0",
    "CartPole-v1",
    "CartPoleHidden-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "RepeatPrevious-v0",
    "TMaze-v0",
]
"""The ids of this package's single-agent environments, for completion in editors."""

MultiAgentId: TypeAlias = Literal[
    "CovidEconomy-v0",
    "RiceN-v0",
    "Simple-v3",
    "SimpleAdversary-v3",
    "SimpleCrypto-v3",
    "SimplePush-v3",
    "SimpleReference-v3",
    "SimpleSpeakerListener-v4",
    "SimpleSpread-v3",
    "SimpleTag-v3",
    "SimpleWorldComm-v3",
    "TagContinuous-v0",
    "TagGridWorld-v0",
]
"""The ids of this package's environments with several agents."""


@overload
def make(
    id: EnvSpec | SingleAgentId,
    num_envs: int = 1,
    *,
    device: str = "auto",
    output: str = "numpy",
    autoreset_mode: str | AutoresetMode = "NextStep",
    precision: str = "float32",
    max_episode_steps: int | None = None,
    copy: bool | None = None,
    statistics: bool | None = None,
    threads: int | None = None,
    block_size: int | None = None,
    checking: bool = False,
    first_replica: int = 0,
    shared_observations: bool = False,
    active_heads: bool = False,
    observe_params: Sequence[str] | str | None = None,
    render_mode: str | None = None,
    **params: Any,
) -> VectorEnv: ...
@overload
def make(
    id: TeamSpec | MultiAgentId,
    num_envs: int = 1,
    *,
    device: str = "auto",
    output: str = "numpy",
    autoreset_mode: str | AutoresetMode = "NextStep",
    precision: str = "float32",
    max_episode_steps: int | None = None,
    copy: bool | None = None,
    statistics: bool | None = None,
    threads: int | None = None,
    block_size: int | None = None,
    checking: bool = False,
    first_replica: int = 0,
    shared_observations: bool = False,
    active_heads: bool = False,
    observe_params: Sequence[str] | str | None = None,
    render_mode: str | None = None,
    **params: Any,
) -> MultiAgentEnv: ...
@overload
def make(
    id: str | Spec,
    num_envs: int = 1,
    *,
    device: str = "auto",
    output: str = "numpy",
    autoreset_mode: str | AutoresetMode = "NextStep",
    precision: str = "float32",
    max_episode_steps: int | None = None,
    copy: bool | None = None,
    statistics: bool | None = None,
    threads: int | None = None,
    block_size: int | None = None,
    checking: bool = False,
    first_replica: int = 0,
    shared_observations: bool = False,
    active_heads: bool = False,
    observe_params: Sequence[str] | str | None = None,
    render_mode: str | None = None,
    **params: Any,
) -> Any: ...
def make(
    id: str | Spec,
    num_envs: int = 1,
    *,
    device: str = "auto",
    output: str = "numpy",
    autoreset_mode: str | AutoresetMode = "NextStep",
    precision: str = "float32",
    max_episode_steps: int | None = None,
    copy: bool | None = None,
    statistics: bool | None = None,
    threads: int | None = None,
    block_size: int | None = None,
    checking: bool = False,
    first_replica: int = 0,
    shared_observations: bool = False,
    active_heads: bool = False,
    observe_params: Sequence[str] | str | None = None,
    render_mode: str | None = None,
    **params: Any,
) -> Any:
    """Create an environment of ``num_envs`` replicas.

    Args:
        id: Id of the environment, such as ``CartPole-v1``; ``gpu_envs.ids()`` lists them. Or where a spec is defined,
            ``path/to/my_env.py:MY_ENV`` or ``package.module:MY_ENV``. Or a spec, which is then registered.
        num_envs: Number of replicas.
        device: ``auto`` (CUDA if a CUDA device is available, otherwise the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        output: Library of the returned arrays: ``numpy``, ``torch`` or ``cupy``.
        autoreset_mode: ``NextStep``, ``SameStep`` or ``Disabled``, or Gymnasium's ``AutoresetMode``.
        precision: Precision of states and rewards, ``float32`` or ``float64``. Observations are always float32.
        max_episode_steps: Step at which an episode is truncated; -1: never; None: the environment's default.
        copy: Return fresh arrays instead of views of the simulation's memory. None: only with NumPy.
        statistics: Return ``infos["episode"]`` at the end of each episode. None: not with NumPy, for which Gymnasium
            has a wrapper. False: do not record returns, lengths and metrics at all, which makes steps a little faster.
        threads: Maximum number of threads on the CPU; None: one for each core.
        block_size: Maximum number of threads of a block on CUDA; None: the default.
        checking: Check every number after every call, and raise a ``NotFiniteError`` for NaN and infinity. Every check
            synchronises with the device: use it to find bugs, and never within a CUDA graph.
        first_replica: Index of the first replica if these replicas are part of a larger batch: seeds and names count
            from it.
        shared_observations: Several agents: return observations that all agents of a role share once per replica, not
            once per agent.
        active_heads: Several agents: action masks reduce elements of actions that have no effect in the next step to
            one choice.
        observe_params: Names of parameters whose values are appended to observations. None: the environment's default.
        render_mode: ``rgb_array`` (``render`` returns a frame for each replica), ``tiled`` (one frame of many
            replicas), ``human`` (shows the tiled frame in a window at each step), or None.
        **params: Parameters of the environment, each one value or one for each replica.
            ``gpu_envs.spec(id).params`` describes them; those marked ``fixed`` take one value only.

    Returns:
        A ``VectorEnv``, which is a ``gymnasium.vector.VectorEnv``; for environments with several agents a
        ``MultiAgentEnv``.

    Example:
        >>> env = gpu_envs.make("CartPole-v1", num_envs=3, length=[0.3, 0.5, 0.7])
        >>> env.params["length"]
        array([0.3, 0.5, 0.7], dtype=float32)
        >>> env.single_action_space
        Discrete(2)
    """
    resolved = spec(id)
    env_class: Any = MultiAgentEnv if isinstance(resolved, TeamSpec) else VectorEnv
    return env_class(
        resolved,
        num_envs,
        device=device,
        output=output,
        autoreset_mode=autoreset_mode,
        precision=precision,
        max_episode_steps=max_episode_steps,
        copy=copy,
        statistics=statistics,
        threads=threads,
        block_size=block_size,
        checking=checking,
        first_replica=first_replica,
        shared_observations=shared_observations,
        active_heads=active_heads,
        observe_params=observe_params,
        render_mode=render_mode,
        **params,
    )


def make_vector_env(env_id: str, num_envs: int = 1, **kwargs: Any) -> VectorEnv:
    """Create a registered environment: ``gymnasium.make_vec`` calls this."""
    return VectorEnv(env_spec(env_id), num_envs, **kwargs)
