"""Checks of the ends of episodes: equal in all autoreset modes, and once for each agent."""

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.testing.report import FailedError
from gpu_envs.testing.subject import Moment, Run, Subject, difference, ended, select

_LIMIT = 25
"""Time limit for environments without one."""

_STEPS_BEFORE_LIMIT = 6
"""Half of the replicas start this many steps before the time limit, so that episodes end by rules and by the limit."""


def episode_ends(subject: Subject, device: str) -> str:
    """Checks the ends of episodes in a trajectory, and that it is equal in all autoreset modes; returns a summary."""
    limit, options = _time_limit(subject, device)
    draws = subject.draws(max(subject.steps, _STEPS_BEFORE_LIMIT + 4))
    moments = {}
    for mode in ("Disabled", "NextStep", "SameStep"):
        run = subject.run(device=device, autoreset_mode=mode, **options)
        run.reset(subject.seed)
        if mode == "Disabled":
            run.env.allow_frozen_steps()
        _approach_limit(run, limit)
        started = np.array(to_numpy(run.env.offset))
        moments[mode] = [run.step(draw) | run.state() for draw in draws]
    over = np.array([ended(moment) for moment in moments["Disabled"]])
    last = np.where(over.any(0), over.argmax(0), len(over))  # index of the last step of each replica's episode
    if subject.team:
        _check_empty_games(subject, moments["SameStep"])
    _check_truncations(moments["Disabled"], started, limit, last)
    if subject.team:
        _check_inactive_agents(subject, moments["Disabled"])
    _check_modes(moments, last)
    _check_disabled(moments["Disabled"], last)
    terminated = sum(_terminated(moments["Disabled"][t], i) for i, t in enumerate(last) if t < len(over))
    truncated = int((last < len(over)).sum()) - terminated
    by_rules = f"{terminated} episodes terminated by the rules"
    if not terminated:
        by_rules = f"no episode was terminated by the rules in {len(draws)} steps, so such ends were not tested,"
    detail = f"{by_rules} and {truncated} truncated by the limit of {limit} steps"
    if not terminated and "max_episode_steps" in options:
        return f"{detail}, which this check sets, because {subject.spec.id} has none"
    return f"{detail}, the same in all autoreset modes"


def _time_limit(subject: Subject, device: str) -> tuple[int, dict[str, int]]:
    """Returns the time limit, and the options that set it."""
    limit = subject.run(1, device=device).env.max_episode_steps
    return (int(limit), {}) if limit is not None else (_LIMIT, {"max_episode_steps": _LIMIT})


def _approach_limit(run: Run, limit: int) -> None:
    """Moves every second replica near the time limit; the elapsed steps that the rules read do not change."""
    offsets = np.zeros(run.num_envs, np.int64)
    offsets[1::2] = max(0, limit - _STEPS_BEFORE_LIMIT)
    run.env.stagger(offsets=offsets)


def _terminated(moment: Moment, replica: int) -> bool:
    flags = [values[replica] for name, values in moment.items() if name.startswith("terminations")]
    return bool(all(np.all(flag) for flag in flags))


def _check_truncations(moments: list[Moment], started: np.ndarray, limit: int, last: np.ndarray) -> None:
    """Checks that episodes are truncated at the limit, and at no other step."""
    for t, moment in enumerate(moments):
        for name, values in moment.items():
            if not name.startswith("truncations"):
                continue
            expected = (started + t + 1 == limit) & (t <= last)
            unexpected = (t <= last) & (values.reshape(len(values), -1).any(1) & ~expected)
            late = expected & ~ended(moment)
            for replica in np.flatnonzero(unexpected | late)[:1]:
                step, negation = started[replica] + t + 1, "" if unexpected[replica] else "not "
                raise FailedError(f"replica {replica} is {negation}truncated in step {step}; the limit is {limit}")


def _check_modes(moments: dict[str, list[Moment]], last: np.ndarray) -> None:
    """Checks that all modes agree until the end of an episode, and that each handles the end as it should."""
    disabled, next_step, same = moments["Disabled"], moments["NextStep"], moments["SameStep"]
    running_names = ("observations", "rewards", "terminations", "truncations", "state", "episode_metrics")
    result_names = ("rewards", "terminations", "truncations", "episode_metrics")
    for t in range(len(disabled)):
        running, ending, after = np.flatnonzero(t < last), np.flatnonzero(t == last), np.flatnonzero(t == last + 1)
        compared = (
            ("NextStep", running, next_step, running_names),
            ("SameStep", running, same, running_names),
            ("NextStep", ending, next_step, running_names),
            ("SameStep", ending, same, result_names),
        )
        pairs = [
            (f"Disabled and {mode}", some, select(disabled[t], some, names), select(of_mode[t], some, names))
            for mode, some, of_mode, names in compared
        ]
        observed, start_names = select(disabled[t], ending, ("observations",)), ("observations", "state")
        one, other = select(next_step[t], after, start_names), select(same[t - 1], after, start_names)
        pairs += [
            ("Disabled's observation and SameStep's final_obs", ending, observed, _final(same[t], ending)),
            ("the start of the next episode in NextStep and in SameStep", after, one, other),
        ]
        for what, replicas, one, other in pairs:
            message = difference(one, other) if len(replicas) else ""
            if message:
                raise FailedError(
                    f"{what} differ in step {t + 1} (of replicas {replicas.tolist()}): {message}; step may depend "
                    "only on state, parameters, action and random, and reset must set every field"
                )
        for name, values in select(next_step[t], after, result_names).items():
            if values.any():
                raise FailedError(f"{name} of the step that restarts an episode, step {t + 1}, is not zero in NextStep")


def _final(moment: Moment, replicas: np.ndarray) -> Moment:
    return {n.replace("final_obs", "observations", 1): v for n, v in select(moment, replicas, ("final_obs",)).items()}


def _check_disabled(moments: list[Moment], last: np.ndarray) -> None:
    """Checks that in Disabled mode nothing changes after the end, and rewards are zero."""
    for t in range(1, len(moments)):
        over = np.flatnonzero(t > last)
        constant = ("observations", "terminations", "truncations", "state")
        before, after = select(moments[t - 1], over, constant), select(moments[t], over, constant)
        message = difference(before, after) if len(over) else ""
        rewarded = any(values[over].any() for name, values in moments[t].items() if name.startswith("rewards"))
        if message or rewarded:
            what = message or "a reward is not zero"
            raise FailedError(f"in step {t + 1} of replicas whose episodes are over (Disabled), {what}")


def _check_empty_games(subject: Subject, moments: list[Moment]) -> None:
    """Checks that an episode ends when no agent is left in the game."""
    for t, moment in enumerate(moments):
        in_game = np.any([moment[f"alive.{role}"].any(1) for role in subject.roles], axis=0)
        for replica in np.flatnonzero(~in_game)[:1]:
            raise FailedError(
                f"in step {t + 1} of replica {replica} no agent is left in the game, but the episode continues: "
                "step must set w.terminated to true when no agent is in_game"
            )


def _check_inactive_agents(subject: Subject, moments: list[Moment]) -> None:
    """Checks that an agent that left the game stays out, is terminated, gets no reward and observes zeros."""
    for t in range(1, len(moments)):
        for role in subject.roles:
            inactive = ~moments[t - 1][f"alive.{role}"] & ~ended(moments[t - 1])[:, None]
            mistakes = {
                "is in the game again": moments[t][f"alive.{role}"],
                "gets a reward": moments[t][f"rewards.{role}"] != 0,
                "is not terminated": ~moments[t][f"terminations.{role}"],
                "observes values other than zero": (moments[t][f"observations.{role}"] != 0).any(-1),
            }
            for what, flags in mistakes.items():
                failed = np.argwhere(inactive & flags)
                if len(failed):
                    replica, agent = failed[0]
                    raise FailedError(
                        f"replica {replica}, {role}_{agent} left the game, and in step {t + 1} {what}: agents that "
                        "left stay out, so step must not set w.in_game[i] to true"
                    )
