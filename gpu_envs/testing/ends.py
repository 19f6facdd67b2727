"""Checks of how episodes end: in all three autoreset modes the same, and for each agent once."""

import numpy as np

from gpu_envs.testing.report import FailedError
from gpu_envs.testing.subject import Moment, Run, Subject, difference, ended, part

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
        first = run.state()
        played[mode] = [run.step(draw) | run.state() for draw in numbers]
    started = first["elapsed"]
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
    """Moves every second replica near the time limit."""
    state = run.env.get_state()
    held = state["state"] if "elapsed" in state["state"] else state["episode"]
    held["elapsed"][1::2] = max(0, limit - _BEFORE)
    run.env.set_state(state)


def _terminated(moment: Moment, replica: int) -> bool:
    flags = [values[replica] for name, values in moment.items() if name.startswith("terminations")]
    return bool(all(np.all(flag) for flag in flags))


def _limits(moments: list[Moment], started: np.ndarray, limit: int, last: np.ndarray) -> None:
    """Truncations come with the limit, and no other step."""
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
                    f"replica {replica} is {negation}truncated in step {step} of its episode; the limit is {limit}"
                )


def _agree(played: dict[str, list[Moment]], last: np.ndarray) -> None:
    """Up to the end of an episode all modes are alike; with it, and after it, as each should be."""
    disabled, following, same = played["Disabled"], played["NextStep"], played["SameStep"]
    plain = ("observations", "rewards", "terminations", "truncations", "state")
    given = ("rewards", "terminations", "truncations")
    for t in range(len(disabled)):
        running, ending, after = np.flatnonzero(t < last), np.flatnonzero(t == last), np.flatnonzero(t == last + 1)
        pairs = [
            ("Disabled and NextStep", running, part(disabled[t], running, plain), part(following[t], running, plain)),
            ("Disabled and SameStep", running, part(disabled[t], running, plain), part(same[t], running, plain)),
            ("Disabled and NextStep", ending, part(disabled[t], ending, plain), part(following[t], ending, plain)),
            ("Disabled and SameStep", ending, part(disabled[t], ending, given), part(same[t], ending, given)),
            (
                "Disabled's observation and SameStep's final_obs",
                ending,
                _seen(disabled[t], ending),
                _final(same[t], ending),
            ),
            (
                "the beginning of the next episode in NextStep and in SameStep",
                after,
                part(following[t], after, ("observations", "state")),
                part(same[t - 1], after, ("observations", "state")),
            ),
        ]
        for what, replicas, one, other in pairs:
            found = difference(one, other) if len(replicas) else ""
            if found:
                raise FailedError(
                    f"{what} differ in step {t + 1} (of replicas {replicas.tolist()}): {found}; step must depend on "
                    "state, parameters, action and random alone, and reset set every field"
                )
        for name, values in part(following[t], after, given).items():
            if values.any():
                raise FailedError(f"{name} of the step that restarts an episode, step {t + 1}, is not zero in NextStep")


def _seen(moment: Moment, replicas: np.ndarray) -> Moment:
    return part(moment, replicas, ("observations",))


def _final(moment: Moment, replicas: np.ndarray) -> Moment:
    return {n.replace("final_obs", "observations", 1): v for n, v in part(moment, replicas, ("final_obs",)).items()}


def _frozen(moments: list[Moment], last: np.ndarray) -> None:
    """In Disabled mode nothing changes after the end, and there is no reward."""
    for t in range(1, len(moments)):
        over = np.flatnonzero(t > last)
        kept = ("observations", "terminations", "truncations", "state")
        found = difference(part(moments[t - 1], over, kept), part(moments[t], over, kept)) if len(over) else ""
        rewarded = any(values[over].any() for name, values in moments[t].items() if name.startswith("rewards"))
        if found or rewarded:
            what = found or "there is a reward"
            raise FailedError(f"in step {t + 1} of replicas whose episodes are over (Disabled), {what}")


def _nobody(subject: Subject, moments: list[Moment]) -> None:
    """Where nobody is left in the game the episode is over: in SameStep the next has begun, with somebody in it."""
    for t, moment in enumerate(moments):
        left = np.any([moment[f"alive.{role}"].any(1) for role in subject.counts], axis=0)
        for replica in np.flatnonzero(~left)[:1]:
            raise FailedError(
                f"in step {t + 1} of replica {replica} nobody is left in the game, and its episode goes on: "
                "w.terminated must be set to true where nobody is in_game"
            )


def _out(subject: Subject, moments: list[Moment]) -> None:
    """Who is out stays out: he has terminated, gets no reward, and observes zeros."""
    for t in range(1, len(moments)):
        for role in subject.counts:
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
                        f"replica {replica}, {role}_{agent} went out of the game, and in step {t + 1} {what}: who is "
                        "out stays out, so step must not set w.in_game[i] to true"
                    )
