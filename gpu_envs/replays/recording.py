"""Record replays."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.roles import RoleInterface
from gpu_envs.evaluating import call_policy
from gpu_envs.progress import Progress
from gpu_envs.replays.recorded import RUNNING
from gpu_envs.replays.recorder import Recorder
from gpu_envs.replays.replay import Replay
from gpu_envs.replays.source import ReplaySource, SourceOptions, open_source
from gpu_envs.seeds import Seed, check_seed

MAX_EPISODE_STEPS: Final = 10_000
"""Maximum number of recorded steps per episode in environments without a time limit."""

_READ_INTERVAL: Final = 32
"""Steps on a GPU between reads by the host, which synchronize."""


def record(
    source: Any,
    *,
    policy: Callable[..., Any] | None = None,
    replicas: int | Sequence[int] | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    seed: Seed | None = None,
    greedy: bool = True,
    policies: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    device: str = "auto",
    modules: Mapping[str, Any] | None = None,
    progress: bool | None = False,
    trust: bool = False,
) -> Replay:
    """Step an environment and record some of its replicas.

    Args:
        source: A run directory, or a result of ``load_policies`` or ``Trainer.policies``, whose policies act; an
            environment id, with random actions or ``policy``; or an environment. An environment continues from its
            state unless ``seed`` is given, and stays in the state after the recording (on a GPU up to 31 steps later).
        policy: Function from observations to actions, as in ``gpu_envs.evaluate``: if the environment has action masks,
            it is called with observations and masks. None for random actions, which obey the masks.
        replicas: Number of replicas, or for an environment also a list of replica numbers; None for 9, or all replicas
            of a smaller environment.
        steps: Number of steps to record, in any number of episodes.
        episodes: Number of episodes to record per replica (default: 1), each with at most 10,000 steps if the
            environment has no time limit.
        seed: Seed of replicas and actions. None takes the run's evaluation seed for a run, and 0 for an id.
        greedy: Whether policies of runs take the most likely action instead of sampling.
        policies: Policies that replace the run's for some roles, such as ``{"runner": "random"}``; also for ids.
        params: Environment parameters, which replace the run's; also for ids.
        device: Device for a run or an id.
        modules: Custom networks of the run's policies.
        progress: Whether to draw a progress bar; None draws one in terminals and notebooks, else prints every 30 s.
        trust: Whether to import the environment's Python file if the run directory names one.
    """
    if steps is not None and episodes is not None:
        raise ValueError(f"steps is {steps} and episodes is {episodes}; give only one")
    for name, number in (("steps", steps), ("episodes", episodes)):
        is_integer = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if number is not None and not (is_integer and number >= 1):
            raise ValueError(f"{name} is {number!r}; give an integer of 1 or more, or None")
    if policy is not None and not callable(policy):
        raise TypeError(f"policy is {policy!r}; give a function of observations, or None for random actions")
    for name, mapping in (("policies", policies), ("params", params), ("modules", modules)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise TypeError(f"{name} is {mapping!r}; give a dict by name, or None")
    options = SourceOptions(policy, replicas, check_seed(seed), greedy, policies, params, device, modules, trust)
    opened = open_source(source, options)
    episodes_per_replica = None if steps is not None else episodes or 1
    limit = opened.env.max_episode_steps or MAX_EPISODE_STEPS
    # + 1: in NextStep mode a step that only resets lies between two episodes
    max_steps = steps if steps is not None else (limit + 1) * (episodes or 1) - 1
    bar = Progress(max_steps * len(opened.numbers), None if progress is None else not progress)
    try:
        return _record(opened, max_steps, episodes_per_replica, bar)
    finally:
        bar.close()


def _record(opened: ReplaySource, max_steps: int, episodes: int | None, bar: Progress) -> Replay:
    """Return a replay of ``max_steps`` steps, or fewer if each replica has finished ``episodes`` (None: no limit)."""
    env, count = opened.env, len(opened.numbers)
    elapsed = to_numpy(env.elapsed)[opened.numbers].astype(np.int64)
    params = {name: _select(value, opened.numbers) for name, value in env.params_by_replica.items()}
    observations, start = opened.observations, time.perf_counter()
    interval = 1 if env.device == "cpu" else _READ_INTERVAL
    with opened.settings, env.live_metrics() as live_metrics:
        recorder = Recorder(env, opened.numbers, live_metrics)
        for step in range(1, max_steps + 1):
            observations, *results, _ = env.step(call_policy(opened.act, env, observations))
            recorder.add(*results)
            if step % interval and step < max_steps:
                continue
            recorder.read()
            bar.update(step * count, step * count / (time.perf_counter() - start), {})
            if episodes is not None and ((recorder.ends != RUNNING).sum(0) >= episodes).all():
                bar.update(max_steps * count, step * count / (time.perf_counter() - start), {})
                break
    last = _last_frames(recorder.ends, episodes)
    frames = int(last.max()) + 1
    spec = env.env_spec
    return Replay(
        env=spec.id,
        drawing=spec.drawing,
        state=_hold(recorder.state(frames), last),
        drawn=_hold(recorder.drawn(frames), last),
        params=params,
        rewards={role: _truncate(values, last, frames) for role, values in recorder.rewards(frames).items()},
        ends=_truncate(recorder.ends, last, frames),
        last=last,
        agents={name: len(role.agents) for name, role in RoleInterface(env).roles.items()},
        numbers=opened.numbers,
        elapsed=elapsed,
        pauses=env.autoreset_mode.value != "SameStep",
        device=env.device,
        title=opened.title,
        facts=opened.facts,
        metrics=_hold(recorder.metrics(frames), last),
        measured=spec.metrics,
    )


def _last_frames(ends: np.ndarray, episodes: int | None) -> np.ndarray:
    """Return the frame that ends each replica's last requested episode, or the last frame if the episode runs on."""
    if episodes is None:
        return np.full(ends.shape[1], len(ends) - 1)
    finished = (ends != RUNNING).cumsum(0) >= episodes
    return np.where(finished.any(0), finished.argmax(0), len(ends) - 1)


def _hold(fields: Mapping[str, np.ndarray], last: np.ndarray) -> dict[str, np.ndarray]:
    """Return fields ``[frames, replicas, ...]`` that keep each replica's last frame after it."""
    replicas, frames = np.arange(len(last)), np.arange(last.max() + 1)[:, None]
    return {name: values[np.minimum(frames, last), replicas] for name, values in fields.items()}


def _truncate(values: np.ndarray, last: np.ndarray, frames: int) -> np.ndarray:
    """Return the first ``frames`` of values, with zeros (``RUNNING``) after each replica's last frame."""
    return np.where(np.arange(frames)[:, None] <= last, values[:frames], values.dtype.type(0))


def _select(value: Any, numbers: np.ndarray) -> Any:
    """Return the parameter values of some replicas."""
    return to_numpy(value)[numbers] if getattr(value, "shape", ()) else value
