"""Lets replicas play, and records what some of them do."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.engine.by_role import ByRole
from gpu_envs.replays.recorded import GOES_ON
from gpu_envs.replays.recorder import Recorder
from gpu_envs.replays.replay import Replay
from gpu_envs.replays.source import ReplaySource, Wanted, open_source
from gpu_envs.seeds import Seed, check_seed
from gpu_envs.training.record.summary import Progress

WITHOUT_LIMIT: Final = 10_000
"""Steps after which an episode that has no time limit is left as it is."""

_LOOK_EVERY: Final = 32
"""Steps of a GPU between two looks at what happened."""


def record(
    source: Any,
    *,
    policy: Callable[[Any], Any] | None = None,
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
    """Lets an environment play, and records some of its replicas.

    Args:
        source: A run's folder: its policies play. Or an environment's id: random actions, or ``policy``. Or an
            environment: it goes on from where it is, or begins anew where a ``seed`` is given, and is left where the
            recording ends (on a GPU up to 31 steps later).
        policy: Actions for observations, as the environment takes and gives them; None: random actions, where there
            are action masks among the possible ones. (One that needs the masks reads ``action_mask`` of an environment
            that is given as ``source``.)
        replicas: How many, or of an environment their numbers; None: 9, or all of an environment that has fewer.
        steps: So many steps are recorded, whatever ends in them.
        episodes: So many episodes of each replica are; None: one. Without a time limit, for 10,000 steps each at most.
        seed: Of replicas and actions. None: of a run one that follows from the run's own, as in an evaluation; of an
            id 0.
        greedy: The policies of runs take the likeliest actions; otherwise they are drawn.
        policies: Of a run or an id: others for some roles, such as ``{"runner": "random"}``.
        params: Of a run or an id: parameters of the environment, in place of those it was trained with.
        device: Of a run or an id: where they play.
        modules: Of a run: policies of your own, as the run had them.
        progress: Draw a progress bar; None: in a terminal or a notebook, and elsewhere write a line every 30 s.
        trust: Of a run: import the environment's file, where the folder names one that this process was not given.
    """
    if steps is not None and episodes is not None:
        raise ValueError(f"steps is {steps} and episodes is {episodes}; give one of them")
    for name, given in (("steps", steps), ("episodes", episodes)):
        whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
        if given is not None and not (whole and given >= 1):
            raise ValueError(f"{name} is {given!r}; give a whole number from 1 up, or None")
    if policy is not None and not callable(policy):
        raise TypeError(f"policy is {policy!r}; give a function from observations to actions, or None: random actions")
    for name, asked in (("policies", policies), ("params", params), ("modules", modules)):
        if asked is not None and not isinstance(asked, Mapping):
            raise TypeError(f"{name} is {asked!r}; give a mapping from names, or None")
    wanted = Wanted(policy, replicas, check_seed(seed), greedy, policies, params, device, modules, trust)
    opened = open_source(source, wanted)
    each = None if steps is not None else episodes or 1
    limit = opened.env.max_episode_steps or WITHOUT_LIMIT
    # (between two episodes lies a step that begins the next)
    most = steps if steps is not None else (limit + 1) * (episodes or 1) - 1
    bar = Progress(most * len(opened.numbers), None if progress is None else not progress)
    try:
        return _recorded(opened, most, each, bar)
    finally:
        bar.close()


def _recorded(opened: ReplaySource, most: int, each: int | None, bar: Progress) -> Replay:
    """Takes steps until there were so many, or each replica had so many episodes."""
    env, count = opened.env, len(opened.numbers)
    elapsed = to_numpy(env.elapsed)[opened.numbers].astype(np.int64)
    params = {name: _own(value, opened.numbers) for name, value in env.drawn_params.items()}
    observations, began = opened.observations, time.perf_counter()
    look_every = 1 if env.device == "cpu" else _LOOK_EVERY
    with opened.settings, env.measured() as so_far:
        recorder = Recorder(env, opened.numbers, so_far)
        for step in range(1, most + 1):
            observations, *results, _ = env.step(opened.act(observations))
            recorder.add(*results)
            if step % look_every and step < most:
                continue
            recorder.read()
            bar.update(step * count, step * count / (time.perf_counter() - began), {})
            if each is not None and ((recorder.ends != GOES_ON).sum(0) >= each).all():
                bar.update(most * count, step * count / (time.perf_counter() - began), {})
                break
    last = _last_frames(recorder.ends, each)
    frames = int(last.max()) + 1
    spec = env.env_spec
    return Replay(
        env=spec.id,
        drawing=spec.drawing,
        state=recorder.state(frames),
        drawn=recorder.drawn(frames),
        params=params,
        rewards={role: _until(values, last, frames) for role, values in recorder.rewards(frames).items()},
        ends=_until(recorder.ends, last, frames),
        last=last,
        agents={name: len(role.agents) for name, role in ByRole(env).roles.items()},
        numbers=opened.numbers,
        elapsed=elapsed,
        pauses=env.autoreset_mode.value != "SameStep",
        device=env.device,
        title=opened.title,
        facts=opened.facts,
        metrics={name: _until(values, last, frames) for name, values in recorder.metrics(frames).items()},
        measured=spec.metrics,
    )


def _last_frames(ends: np.ndarray, each: int | None) -> np.ndarray:
    """The frame in which each replica ended its last episode that is wanted; of one that did not, the last there is."""
    if each is None:
        return np.full(ends.shape[1], len(ends) - 1)
    had = (ends != GOES_ON).cumsum(0) >= each
    return np.where(had.any(0), had.argmax(0), len(ends) - 1)


def _until(values: np.ndarray, last: np.ndarray, frames: int) -> np.ndarray:
    """So many frames, with zeros (or ``GOES_ON``) after each replica's last."""
    return np.where(np.arange(frames)[:, None] <= last, values[:frames], values.dtype.type(0))


def _own(value: Any, numbers: np.ndarray) -> Any:
    """A parameter as these replicas have it."""
    return to_numpy(value)[numbers] if getattr(value, "shape", ()) else value
