"""Checks of how episodes end: in all three autoreset modes the same, and for each agent once."""

import numpy as np

from gpu_envs.backend.arrays import to_numpy
from gpu_envs.testing.report import FailedError
from gpu_envs.testing.subject import Moment, Run, Subject, difference, ended, picked

_LIMIT = 25
"""The time limit, where the environment has none."""

_BEFORE = 6
"""Steps before the time limit from which half of the replicas start, so that all ways to end are seen."""


def ends(subject: Subject, device: str) -> str:
    """Plays one trajectory in each autoreset mode, past the ends of episodes, and compares."""
    limit, options = _limit(subject, device)
    numbers = subject.draws(max(subject.steps, _BEFORE + 4))
    played = {}
    for mode in ("Disabled", "NextStep", "SameStep"):
        run = subject.run(device=device, autoreset_mode=mode, **options)
        run.reset(subject.seed)
        if mode == "Disabled":
            run.env.allow_frozen_steps()
        _hurry(run, limit)
        started = np.array(to_numpy(run.env.offset))
        played[mode] = [run.step(draw) | run.state() for draw in numbers]
    over = np.array([ended(moment) for moment in played["Disabled"]])
    last = np.where(over.any(0), over.argmax(0), len(over))  # the step, from 0, with which a replica's episode ends
    if subject.team:
        _nobody(subject, played["SameStep"])
    _limits(played["Disabled"], started, limit, last)
    if subject.team:
        _out(subject, played["Disabled"])
    _agree(played, last)
    _frozen(played["Disabled"], last)
    terminated = sum(_terminated(played["Disabled"][t], i) for i, t in enumerate(last) if t < len(over))
    truncated = int((last < len(over)).sum()) - terminated
    told = f"{terminated} episodes ended by the rules and {truncated} by the limit of {limit} steps"
    if not terminated and "max_episode_steps" in options:
        return f"{told}, which is the check's own: without one, episodes of {subject.spec.id} may never end"
    return f"{told}, alike in all autoreset modes"


def _limit(subject: Subject, device: str) -> tuple[int, dict[str, int]]:
    """The time limit, and what must be said to have it."""
    own = subject.run(1, device=device).env.max_episode_steps
    return (int(own), {}) if own is not None else (_LIMIT, {"max_episode_steps": _LIMIT})


def _hurry(run: Run, limit: int) -> None:
    """Brings the time limit near to every second replica: the clock that rules read stays."""
    offsets = np.zeros(run.num_envs, np.int64)
    offsets[1::2] = max(0, limit - _BEFORE)
    run.env.stagger(offsets=offsets)


def _terminated(moment: Moment, replica: int) -> bool:
    flags = [values[replica] for name, values in moment.items() if name.startswith("terminations")]
    return bool(all(np.all(flag) for flag in flags))


def _limits(moments: list[Moment], started: np.ndarray, limit: int, last: np.ndarray) -> None:
    """Episodes are truncated at the limit, and at no other step."""
    for t, moment in enumerate(moments):
        for name, values in moment.items():
            if not name.startswith("truncations"):
                continue
            due = (started + t + 1 == limit) & (t <= last)
            wrong = (t <= last) & (values.reshape(len(values), -1).any(1) & ~due)
            late = due & ~ended(moment)
            for replica in np.flatnonzero(wrong | late)[:1]:
                step, negation = started[replica] + t + 1, "" if wrong[replica] else "not "
                raise FailedError(
                    f"replica {replica} is {negation}truncated in step {step} on its way to the limit of {limit}"
                )


def _agree(played: dict[str, list[Moment]], last: np.ndarray) -> None:
    """All modes agree up to the end of an episode; at the end and after it, each does what it should."""
    disabled, following, same = played["Disabled"], played["NextStep"], played["SameStep"]
    plain = ("observations", "rewards", "terminations", "truncations", "state", "episode_metrics")
    given = ("rewards", "terminations", "truncations", "episode_metrics")
    for t in range(len(disabled)):
        running, ending, after = np.flatnonzero(t < last), np.flatnonzero(t == last), np.flatnonzero(t == last + 1)
        compared = (
            ("NextStep", running, following, plain),
            ("SameStep", running, same, plain),
            ("NextStep", ending, following, plain),
            ("SameStep", ending, same, given),
        )
        pairs = [
            (f"Disabled and {mode}", some, picked(disabled[t], some, names), picked(moments[t], some, names))
            for mode, some, moments, names in compared
        ]
        seen, begun = picked(disabled[t], ending, ("observations",)), ("observations", "state")
        one, other = picked(following[t], after, begun), picked(same[t - 1], after, begun)
        pairs += [
            ("Disabled's observation and SameStep's final_obs", ending, seen, _final(same[t], ending)),
            ("the beginning of the next episode in NextStep and in SameStep", after, one, other),
        ]
        for what, replicas, one, other in pairs:
            found = difference(one, other) if len(replicas) else ""
            if found:
                raise FailedError(
                    f"{what} differ in step {t + 1} (of replicas {replicas.tolist()}): {found}; step must depend on "
                    "state, parameters, action and random alone, and reset set every field"
                )
        for name, values in picked(following[t], after, given).items():
            if values.any():
                raise FailedError(f"{name} of the step that restarts an episode, step {t + 1}, is not zero in NextStep")


def _final(moment: Moment, replicas: np.ndarray) -> Moment:
    return {n.replace("final_obs", "observations", 1): v for n, v in picked(moment, replicas, ("final_obs",)).items()}


def _frozen(moments: list[Moment], last: np.ndarray) -> None:
    """In Disabled mode nothing changes after the end, and there is no reward."""
    for t in range(1, len(moments)):
        over = np.flatnonzero(t > last)
        kept = ("observations", "terminations", "truncations", "state")
        found = difference(picked(moments[t - 1], over, kept), picked(moments[t], over, kept)) if len(over) else ""
        rewarded = any(values[over].any() for name, values in moments[t].items() if name.startswith("rewards"))
        if found or rewarded:
            what = found or "there is a reward"
            raise FailedError(f"in step {t + 1} of replicas whose episodes are over (Disabled), {what}")


def _nobody(subject: Subject, moments: list[Moment]) -> None:
    """The episode is over when no agent is left in the game: in SameStep the next has begun, with agents in it."""
    for t, moment in enumerate(moments):
        left = np.any([moment[f"alive.{role}"].any(1) for role in subject.roles], axis=0)
        for replica in np.flatnonzero(~left)[:1]:
            raise FailedError(
                f"in step {t + 1} of replica {replica} nobody is left in the game, and its episode goes on: "
                "w.terminated must be set to true where nobody is in_game"
            )


def _out(subject: Subject, moments: list[Moment]) -> None:
    """An agent that is out stays out: it is terminated, gets no reward, and observes zeros."""
    for t in range(1, len(moments)):
        for role in subject.roles:
            out = ~moments[t - 1][f"alive.{role}"] & ~ended(moments[t - 1])[:, None]
            wrongs = {
                "is in the game again": moments[t][f"alive.{role}"],
                "gets a reward": moments[t][f"rewards.{role}"] != 0,
                "is not terminated": ~moments[t][f"terminations.{role}"],
                "observes something": (moments[t][f"observations.{role}"] != 0).any(-1),
            }
            for what, found in wrongs.items():
                wrong = np.argwhere(out & found)
                if len(wrong):
                    replica, agent = wrong[0]
                    raise FailedError(
                        f"replica {replica}, {role}_{agent} went out of the game, and in step {t + 1} {what}: agents "
                        "that are out stay out, so step must not set w.in_game[i] to true"
                    )
