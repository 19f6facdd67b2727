"""Open the source of a recording: an environment and a policy."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

import gpu_envs
from gpu_envs.engine.random_actions import RandomActions
from gpu_envs.errors import UnknownEnvironmentError, did_you_mean
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry import catalog as registry
from gpu_envs.registry.sources import parse_spec_path
from gpu_envs.rendering.frames import MAX_TILES
from gpu_envs.seeds import derived_seed
from gpu_envs.vector_env import VectorEnv

if TYPE_CHECKING:
    from gpu_envs.training.rollout.evaluation import TrainedPolicies

AnyEnv: TypeAlias = Any
"""A ``VectorEnv`` or a ``MultiAgentEnv``."""

REPLICAS: Final = 9
"""Default number of recorded replicas."""


@final
@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """Arguments of ``record`` that select the policy, the replicas and the environment."""

    policy: Callable[..., Any] | None
    replicas: int | Sequence[int] | None
    seed: int | None
    greedy: bool
    policies: Mapping[str, str] | None
    params: Mapping[str, Any] | None
    device: str
    modules: Mapping[str, Any] | None
    trust: bool


@final
@dataclasses.dataclass(frozen=True)
class ReplaySource:
    """An environment after its reset, and a policy that acts in it."""

    env: AnyEnv
    act: Callable[..., Any]
    """Policy: a function from observations to actions, both in the environment's format."""
    observations: Any
    """Observations before the first step."""
    numbers: np.ndarray
    """Numbers of the replicas to record."""
    title: str
    facts: Mapping[str, str]
    """Names and values for the reader of the replay."""
    settings: contextlib.AbstractContextManager[None] = dataclasses.field(default_factory=contextlib.nullcontext)
    """Context manager with the process settings (random state, threads) that the policy needs."""


def open_source(source: Any, options: SourceOptions) -> ReplaySource:
    """Return the environment and policy of a run directory, an environment id, or an environment."""
    if isinstance(source, VectorEnv | MultiAgentEnv):
        return _open_env(source, options)
    if hasattr(source, "acting_in"):  # TrainedPolicies, whose module imports torch
        for name in ("policy", "policies", "params", "modules"):
            if getattr(options, name):
                raise ValueError(f"{name} is given, but source is trained policies: give it where you load them")
        env = registry.spec(source.config.env).id
        return _open_policies(source, options, env, _facts_of_training(source), source.seed)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source is {type(source).__name__}; give a run directory, an environment id, trained policies, or an "
            "environment from gpu_envs.make without wrappers (env.unwrapped)"
        )
    if options.replicas is not None and not isinstance(options.replicas, int | np.integer):
        raise TypeError(f"replicas is {options.replicas!r}; give the number of replicas to record of {str(source)!r}")
    opened = find(source)
    if isinstance(opened, Path):
        return _open_run(opened, options)
    if options.modules:
        raise ValueError(f"modules is for runs, and {opened!r} is an environment id; give policy instead")
    return _open_id_with_policies(opened, options) if options.policies else _open_id(opened, options)


def find(source: str | os.PathLike[str]) -> str | Path:
    """Return the environment id or the run directory that the source names; raise an error if it names neither."""
    if not isinstance(source, str):
        return Path(source)
    name = source.removeprefix(f"{registry.NAMESPACE}/")
    known = {spec.id for spec in registry.registered()}
    path = parse_spec_path(source)
    if name in known or (path is not None and (Path(path.source).is_file() or not Path(source).is_dir())):
        return registry.spec(source).id
    if Path(source).exists() or os.sep in name:
        return Path(source)
    if name in registry.ids():
        return name
    runs = [str(path.parent) for path in Path("runs").glob("*/config.json")]
    raise UnknownEnvironmentError(
        f"no environment and no run directory is named {source!r}{did_you_mean(name, [*registry.ids(), *runs])} "
        f"The environments are: {', '.join(registry.ids())}"
    )


def _open_env(env: AnyEnv, options: SourceOptions) -> ReplaySource:
    """Return some replicas of the environment, reset only if a seed is given, with the user's or a random policy."""
    for name in ("policies", "params", "modules"):
        if getattr(options, name):
            instead = "set them in gpu_envs.make" if name == "params" else "give policy instead"
            raise ValueError(f"{name} is for a run or an environment id, but source is an environment: {instead}")
    if options.replicas is not None and isinstance(options.replicas, Sequence | np.ndarray):
        numbers = _check_numbers(np.asarray(options.replicas), env.num_envs)
    else:
        count = _replica_count(options.replicas)
        if options.replicas is not None and count > env.num_envs:
            raise ValueError(
                f"replicas is {count}, but the environment has {env.num_envs}: give {env.num_envs} or fewer"
            )
        numbers = np.arange(min(count, env.num_envs))
    seed = options.seed
    observations = env.observe() if seed is None else env.reset(seed=seed)[0]
    act, facts = _policy(env, options, seed or 0)
    return ReplaySource(env, act, observations, numbers, env.env_spec.id, facts)


def _open_id(name: str, options: SourceOptions) -> ReplaySource:
    """Return a new environment, reset with the seed or 0, with the user's or a random policy."""
    count, seed = _replica_count(options.replicas), options.seed or 0
    env = gpu_envs.make(name, count, device=options.device, autoreset_mode="NextStep", **(options.params or {}))
    observations, _ = env.reset(seed=seed)
    act, facts = _policy(env, options, seed)
    facts |= {**_params_fact(options.params), "Seed": str(seed)}
    return ReplaySource(env, act, observations, np.arange(count), name, facts)


def _open_id_with_policies(name: str, options: SourceOptions) -> ReplaySource:
    """Return a source with a new environment and ``options.policies``; roles without one act at random."""
    from gpu_envs.training.runs import load_frozen_policies

    if options.policy is not None:
        raise ValueError("policy (for all roles) and policies (by role) are given: leave one out")
    assert options.policies is not None
    loaded = load_frozen_policies(name, options.policies, device=options.device, params=options.params)
    return _open_policies(loaded, options, name, {}, 0)


def _open_run(path: Path, options: SourceOptions) -> ReplaySource:
    """Return a new environment of a training run, with its trained policies and facts about the training."""
    from gpu_envs.training.record.run_directory import RunDirectory
    from gpu_envs.training.runs import load_policies

    if options.policy is not None:
        raise ValueError("policy is not for runs, which have policies: leave it out, or replace some with policies")
    run = RunDirectory.open(path)
    loaded = load_policies(
        run,
        device=options.device,
        policies=options.policies,
        params=options.params,
        modules=options.modules,
        purpose="play",
        trust=options.trust,
    )
    env, name = registry.spec(loaded.config.env).id, path.resolve().name
    title = name if name.startswith(env) else f"{env}: {name}"
    return _open_policies(loaded, options, title, {"Run": name, **_facts_of_training(loaded)}, loaded.seed)


def _facts_of_training(loaded: "TrainedPolicies") -> dict[str, str]:
    returns = {role: f"{value:.6g}" for role, value in loaded.returns.items() if not math.isnan(value)}
    one = len(loaded.returns) == 1
    return {
        "Trained for": f"{loaded.steps:,} steps",
        "Return in training": ", ".join(value if one else f"{role} {value}" for role, value in returns.items())
        or "no episode ended",
    }


def _open_policies(
    loaded: "TrainedPolicies", options: SourceOptions, title: str, facts: Mapping[str, str], default_seed: int
) -> ReplaySource:
    """Return a new environment with these policies, whose first episodes equal an evaluation's with this seed."""
    from gpu_envs.training.process.device import explain_out_of_memory

    seed = default_seed if options.seed is None else options.seed
    count, config, device = _replica_count(options.replicas), loaded.config, loaded.device
    with explain_out_of_memory(dataclasses.replace(config, num_envs=count, horizon=1), device):
        env = loaded.make(count)
        policies = loaded.acting_in(env, greedy=options.greedy, seed=seed)
        observations, _ = env.reset(seed=derived_seed(seed, "evaluation"))
    named = ", ".join(f"{role}: {name}" for role, name in config.policies.items() if isinstance(name, str))
    facts = {
        **facts,
        "Actions": "most likely (greedy)" if options.greedy else "sampled, as in training",
        **({"Policies": named} if named else {}),
        **_params_fact(config.params),
        "Seed": str(seed),
    }
    return ReplaySource(env, policies, observations, np.arange(count), title, facts, policies.settings())


def _policy(env: AnyEnv, options: SourceOptions, seed: int) -> tuple[Callable[..., Any], dict[str, str]]:
    """Return the user's policy, or random actions, and facts about it."""
    return (RandomActions(env, seed), {"Actions": "random"}) if options.policy is None else (options.policy, {})


def _params_fact(params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the text ``name = value, ...`` under ``Parameters``; an empty dict without parameters."""
    pairs = [f"{name} = {'one per replica' if np.ndim(value) else value}" for name, value in (params or {}).items()]
    return {"Parameters": ", ".join(pairs)} if pairs else {}


def _replica_count(replicas: Any) -> int:
    """Return the number of replicas, for None ``REPLICAS``; raise a ValueError unless from 1 to ``MAX_TILES``."""
    if replicas is None:
        return REPLICAS
    if isinstance(replicas, bool) or not isinstance(replicas, int | np.integer) or not 1 <= replicas <= MAX_TILES:
        raise ValueError(
            f"replicas is {replicas!r}; give an integer from 1 to {MAX_TILES} (a list only with an environment)"
        )
    return int(replicas)


def _check_numbers(numbers: np.ndarray, num_envs: int) -> np.ndarray:
    """Return the indices of replicas as int64, or raise a ValueError."""
    if numbers.ndim != 1 or not 1 <= len(numbers) <= MAX_TILES or numbers.dtype.kind not in "iu":
        raise ValueError(f"replicas is {numbers.tolist()!r}; give how many, or a list of 1 to {MAX_TILES} numbers")
    wrong = numbers[(numbers < 0) | (numbers >= num_envs)]
    if len(wrong):
        raise ValueError(f"replicas has number {wrong[0]}; the environment has replicas 0 to {num_envs - 1}")
    return numbers.astype(np.int64)
