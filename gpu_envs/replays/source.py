"""Opens what is to be recorded: an environment, and who acts in it."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

import gpu_envs
from gpu_envs.errors import UnknownEnvironmentError, did_you_mean
from gpu_envs.multi_agent_env import MultiAgentEnv
from gpu_envs.registry import known as registry
from gpu_envs.registry.sources import parse
from gpu_envs.rendering.frames import MOST_TILES
from gpu_envs.replays.actors import AnyEnv, RandomActions
from gpu_envs.seeds import derived_seed
from gpu_envs.specs.base import Spec
from gpu_envs.vector_env import VectorEnv

if TYPE_CHECKING:
    from gpu_envs.training.rollout.evaluation import TrainedPolicies

REPLICAS: Final = 9
"""So many are recorded where nobody says how many."""


@final
@dataclasses.dataclass(frozen=True)
class Wanted:
    """What of a run or an environment is to be recorded, as ``record`` takes it."""

    policy: Callable[[Any], Any] | None
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
    """An environment that has been reset, and who acts in it."""

    env: AnyEnv
    act: Callable[[Any], Any]
    """Actions for observations, as the environment takes and gives them."""
    observations: Any
    """Before the first step."""
    numbers: np.ndarray
    """Of the replicas that are looked at."""
    title: str
    facts: Mapping[str, str]
    """What a reader may want to know, by what it is called."""
    settings: contextlib.AbstractContextManager[None] = dataclasses.field(default_factory=contextlib.nullcontext)
    """Of the process, while they act."""


def open_source(source: Any, wanted: Wanted) -> ReplaySource:
    """Opens a run, an environment by its id, or one that is there already."""
    if isinstance(source, VectorEnv | MultiAgentEnv):
        return _of_env(source, wanted)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source is {type(source).__name__}; give a run's folder, an environment's id, or what gpu_envs.make "
            "returned, without wrappers: of a wrapped one env.unwrapped"
        )
    if wanted.replicas is not None and not isinstance(wanted.replicas, int | np.integer):
        raise TypeError(f"replicas is {wanted.replicas!r}; of {str(source)!r} say how many")
    where = find(source)
    if isinstance(where, Path):
        return _of_run(where, wanted)
    if wanted.modules:
        raise ValueError(f"modules are given, and {where!r} is no run; give policy, or leave them out")
    return _of_guests(where, wanted) if wanted.policies else _of_id(where, wanted)


def find(source: str | os.PathLike[str]) -> str | Path:
    """The id of an environment, or the folder of a run, whichever a word is the name of."""
    if not isinstance(source, str):
        return Path(source)
    name = source.removeprefix(f"{registry.NAMESPACE}/")
    known = {spec.id for spec in registry.registered()}
    if name in known or (parse(source) is not None and not Path(source).is_dir()):
        return registry.spec(source).id
    if Path(source).exists() or os.sep in name:
        return Path(source)
    if name in registry.ids():
        return name
    runs = [str(path.parent) for path in Path("runs").glob("*/config.json")]
    raise UnknownEnvironmentError(
        f"{source!r} is neither an environment nor the folder of a run{did_you_mean(name, [*registry.ids(), *runs])} "
        f"The environments are: {', '.join(registry.ids())}"
    )


def _check_drawing(spec: Spec) -> None:
    """Raises an error if an environment cannot be drawn."""
    if spec.drawing is None:
        drawn = [name for name in registry.ids() if registry.spec(name).drawing is not None]
        raise ValueError(
            f"{spec.id} cannot be shown: its spec has no drawing (give it drawing=gpu_envs.pictures.Drawing(...)). "
            f"Those that can are: {', '.join(drawn)}"
        )


def _of_env(env: AnyEnv, wanted: Wanted) -> ReplaySource:
    for name in ("policies", "params", "modules"):
        if getattr(wanted, name):
            raise ValueError(f"{name} are for a run or an id; make the environment with what you want, and give policy")
    _check_drawing(env.env_spec)
    if wanted.replicas is not None and isinstance(wanted.replicas, Sequence | np.ndarray):
        numbers = _checked_numbers(np.asarray(wanted.replicas), env.num_envs)
    else:
        count = _count(wanted.replicas)
        if wanted.replicas is not None and count > env.num_envs:
            raise ValueError(f"replicas is {count}; the environment has {env.num_envs}")
        numbers = np.arange(min(count, env.num_envs))
    seed = wanted.seed
    observations = env.observe() if seed is None else env.reset(seed=seed)[0]
    act, facts = _actions(env, wanted, seed or 0)
    return ReplaySource(env, act, observations, numbers, env.env_spec.id, facts)


def _of_id(name: str, wanted: Wanted) -> ReplaySource:
    _check_drawing(registry.spec(name))
    count, seed = _count(wanted.replicas), wanted.seed or 0
    env = gpu_envs.make(name, count, device=wanted.device, autoreset_mode="NextStep", **(wanted.params or {}))
    observations, _ = env.reset(seed=seed)
    act, facts = _actions(env, wanted, seed)
    facts |= {**_shown_params(wanted.params), "Seed": str(seed)}
    return ReplaySource(env, act, observations, np.arange(count), name, facts)


def _of_guests(name: str, wanted: Wanted) -> ReplaySource:
    from gpu_envs.training.runs import load_guests

    _check_drawing(registry.spec(name))
    if wanted.policy is not None:
        raise ValueError("policy acts for everybody, and policies for some; give one of them")
    assert wanted.policies is not None
    loaded = load_guests(name, wanted.policies, device=wanted.device, params=wanted.params)
    return _played(loaded, wanted, name, {}, wanted.seed or 0)


def _of_run(path: Path, wanted: Wanted) -> ReplaySource:
    from gpu_envs.training.record.run_directory import RunDirectory
    from gpu_envs.training.runs import load_policies

    if wanted.policy is not None:
        raise ValueError("policy is given, and a run has policies of its own; leave it out, or give policies")
    run = RunDirectory.open(path)
    _check_drawing(run.spec(trust=wanted.trust))
    loaded = load_policies(
        run,
        device=wanted.device,
        policies=wanted.policies,
        params=wanted.params,
        modules=wanted.modules,
        purpose="play",
        trust=wanted.trust,
    )
    reached = {role: f"{value:.6g}" for role, value in loaded.returns.items() if not math.isnan(value)}
    one = len(loaded.returns) == 1
    facts = {
        "Run": path.resolve().name,
        "Trained for": f"{loaded.steps:,} steps",
        "Return in training": ", ".join(value if one else f"{role} {value}" for role, value in reached.items())
        or "no episode ended",
    }
    env, name = registry.spec(loaded.config.env).id, facts["Run"]
    title = name if name.startswith(env) else f"{env}: {name}"
    return _played(loaded, wanted, title, facts, loaded.seed if wanted.seed is None else wanted.seed)


def _played(loaded: "TrainedPolicies", wanted: Wanted, title: str, facts: Mapping[str, str], seed: int) -> ReplaySource:
    """An environment as an evaluation has it, with the same first episodes, but for the next one's beginning."""
    from gpu_envs.training.process.device import explain_shortage

    count, config, device = _count(wanted.replicas), loaded.config, loaded.device
    with explain_shortage(dataclasses.replace(config, num_envs=count, horizon=1), device):
        env = loaded.make(count)
        policies = loaded.acting_in(env, greedy=wanted.greedy, seed=seed)
        observations, _ = env.reset(seed=derived_seed(seed, "evaluation"))
    others = {
        "Policies": ", ".join(f"{role}: {name}" for role, name in config.policies.items() if isinstance(name, str))
    }
    facts = {
        **facts,
        "Actions": "the likeliest" if wanted.greedy else "drawn, as in training",
        **(others if others["Policies"] else {}),
        **_shown_params(config.params),
        "Seed": str(seed),
    }
    return ReplaySource(env, policies, observations, np.arange(count), title, facts, policies.settings())


def _actions(env: AnyEnv, wanted: Wanted, seed: int) -> tuple[Callable[[Any], Any], dict[str, str]]:
    """Who acts, and what a reader may want to know of it."""
    return (RandomActions(env, seed), {"Actions": "random"}) if wanted.policy is None else (wanted.policy, {})


def _shown_params(params: Mapping[str, Any] | None) -> dict[str, str]:
    shown = [
        f"{name} = {value if np.ndim(value) == 0 else 'of each its own'}" for name, value in (params or {}).items()
    ]
    return {"Parameters": ", ".join(shown)} if shown else {}


def _count(replicas: Any) -> int:
    if replicas is None:
        return REPLICAS
    if isinstance(replicas, bool) or not isinstance(replicas, int | np.integer) or not 1 <= replicas <= MOST_TILES:
        raise ValueError(f"replicas is {replicas!r}; give a whole number from 1 to {MOST_TILES}")
    return int(replicas)


def _checked_numbers(numbers: np.ndarray, num_envs: int) -> np.ndarray:
    if numbers.ndim != 1 or not 1 <= len(numbers) <= MOST_TILES or numbers.dtype.kind not in "iu":
        raise ValueError(f"replicas is {numbers.tolist()!r}; give 1 to {MOST_TILES} whole numbers, or how many")
    wrong = numbers[(numbers < 0) | (numbers >= num_envs)]
    if len(wrong):
        raise ValueError(f"replicas names {wrong[0]}; the environment has 0 to {num_envs - 1}")
    return numbers.astype(np.int64)
