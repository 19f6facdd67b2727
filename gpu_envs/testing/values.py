"""Checks of single values: that it compiles, spaces, finite numbers, action masks, pictures."""

import collections
import itertools
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.codegen import AUTORESET_MODES, PRECISIONS
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.random_actions import choices
from gpu_envs.engine.roles import SINGLE_ROLE
from gpu_envs.errors import NotFiniteError, did_you_mean, display
from gpu_envs.pictures import Drawing, Picture
from gpu_envs.testing.builds import compile_all
from gpu_envs.testing.draws import at_bounds
from gpu_envs.testing.report import FailedError, SkippedError
from gpu_envs.testing.subject import Moment, Run, Subject, ended


def compiles(subject: Subject, device: str) -> str:
    """Compiles every build that users can ask for."""
    kinds = [(precision, mode) for precision in PRECISIONS for mode in AUTORESET_MODES]
    if device == "cpu":
        options = [Options(device=device, precision=precision, autoreset_mode=mode) for precision, mode in kinds]
        compile_all([(config_of(subject.spec, 2, each, subject.params), ()) for each in options])
    for precision, mode in kinds:
        subject.run(2, device=device, precision=precision, autoreset_mode=mode)
    return f"{', '.join(PRECISIONS)}, each in {', '.join(AUTORESET_MODES)}"


# --- spaces ---


def spaces(subject: Subject, device: str) -> str:
    """Looks whether what is observed lies in the spaces that the spec declares."""
    for numbers, what in ((subject.draws(), "random"), ([at_bounds(d) for d in subject.draws()], "extreme")):
        run = subject.run(device=device, autoreset_mode="SameStep")
        moments = itertools.chain([run.reset(subject.seed)], (run.step(draw) for draw in numbers))
        _look_at_all(subject, moments, f"of {what} actions")
    _look_at_all(subject, (moment for _, moment in subject.long_run(device)), "of a long run")
    named = [f"{part}: {_described(space)}".removeprefix(": ") for part, space in subject.observation_spaces.items()]
    return f"{subject.steps} steps of random and of extreme actions, {subject.long_told}, stay in {', '.join(named)}"


def _look_at_all(subject: Subject, moments: Iterator[Moment], where: str) -> None:
    """Looks at the observations of a reset and of the steps that follow it."""
    moment = next(moments)
    present = _present(subject, moment)
    _look_at(subject, moment, "observations", present, "after reset")
    for t, moment in enumerate(moments, start=1):
        before, present = present, _present(subject, moment)
        over = ended(moment)[:, None] if subject.team else ended(moment)
        last = {role: there & over for role, there in before.items()}
        seen = {role: np.where(over, present[role], there) for role, there in before.items()}
        _look_at(subject, moment, "final_obs", last, f"in step {t} {where}, at the end of an episode")
        _look_at(subject, moment, "observations", seen, f"in step {t} {where}")


def _described(space: gymnasium.Space[Any]) -> str:
    """A space in few words."""
    assert isinstance(space, gymnasium.spaces.Box)
    low, high = (f"{float(bound):g}" for bound in (space.low.min(), space.high.max()))
    return f"{space.dtype} {list(space.shape)} from {low} to {high}"


def _present(subject: Subject, moment: Moment) -> dict[str, np.ndarray]:
    """Who takes part from here on, by role; a single agent always does."""
    if not subject.team:
        return {SINGLE_ROLE: np.ones(len(next(iter(moment.values()))), bool)}
    return {role: moment[f"alive.{role}"] for role in subject.roles}


def _look_at(subject: Subject, moment: Moment, result: str, present: dict[str, np.ndarray], when: str) -> None:
    for part, space in subject.observation_spaces.items():
        values = moment[f"{result}.{part}" if part else result]
        role = subject.roles[part if subject.team else SINGLE_ROLE]
        name = f"the observation{f' {part!r}' if part else ''}"
        there = present[role.name]
        shape = (*role.batch_shape(len(there)), *(space.shape or ()))
        if values.shape != shape or values.dtype != space.dtype:
            raise FailedError(f"{name} is {values.dtype} {values.shape} {when}; the space says {space.dtype} {shape}")
        assert isinstance(space, gymnasium.spaces.Box)
        wrong = ~((values >= space.low) & (values <= space.high))  # NaN too
        wrong &= there.reshape(*there.shape, *(1,) * (values.ndim - there.ndim))
        if not wrong.any():
            continue
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        element, who = (at[2:], f", {role.agents[at[1]]}") if subject.team else (at[1:], "")
        low, high = space.low[element], space.high[element]
        raise FailedError(
            f"{name}{''.join(f'[{i}]' for i in element)} of replica {at[0]}{who} is {values[at]} {when}; its space "
            f"allows {low} to {high}: widen the space in the spec, or clip in observe"
        )


# --- finite numbers ---


def finite(subject: Subject, device: str) -> str:
    """Steps in checking mode, with random actions, with such as lie at the bounds, and for long."""
    try:
        for numbers in (subject.draws(), [at_bounds(d) for d in subject.draws()]):
            run = subject.run(device=device, checking=True, autoreset_mode="SameStep")
            run.reset(subject.seed)
            run.follow(numbers)
        collections.deque(subject.long_run(device, checking=True), maxlen=0)
    except NotFiniteError as error:
        raise FailedError(
            f"{error}. Look for a division by zero, a root or logarithm of what is negative, or growth without end"
        ) from None
    steps = f"{subject.steps} steps of random and of extreme actions"
    return f"states, rewards and observations in {steps}, {subject.long_told}"


# --- action masks ---


def masks(subject: Subject, device: str) -> str:
    """Looks whether masks leave a choice, and have the shape that the action space asks for."""
    if not subject.spec.masked:
        raise SkippedError("the spec has none (action_mask=False)")
    run = subject.run(device=device, autoreset_mode="SameStep")
    _look_at_masks(subject, run.reset(subject.seed), run, "after reset")
    forbidden = 0
    for t, draw in enumerate(subject.draws(), start=1):
        moment = run.step(draw)
        _look_at_masks(subject, moment, run, f"in step {t}")
        forbidden += sum(int((v == 0).sum()) for n, v in moment.items() if n.startswith("action_mask"))
    if not forbidden:
        return f"every choice is possible in all of {subject.steps} steps: is allow as it should be?"
    return f"int8, of 0 and 1, with a choice for everybody in {subject.steps} steps"


def _look_at_masks(subject: Subject, moment: Moment, run: Run, when: str) -> None:
    for role in subject.roles.values():
        name = role.array_name("action_mask")
        if name not in moment:
            raise FailedError(f"infos has no {name!r} {when}, though the spec says action_mask=True")
        mask, counts = moment[name], choices(role.action)
        shape = (*role.batch_shape(run.num_envs), sum(counts))
        if mask.shape != shape or mask.dtype != np.int8:
            raise FailedError(f"{name} is {mask.dtype} {mask.shape} {when}; expected int8 {shape}")
        if ((mask != 0) & (mask != 1)).any():
            raise FailedError(f"{name} has values beside 0 and 1 {when}; set true or false in allow")
        first = 0
        for j, count in enumerate(counts):
            none = ~mask[..., first : first + count].any(-1)
            first += count
            if none.any():
                at = [int(i) for i in np.argwhere(none)[0]]
                who = f"replica {at[0]}" + (f", {role.agents[at[1]]}" if subject.team else "")
                element = f" for element {j} of the action" if len(counts) > 1 else ""
                raise FailedError(
                    f"{who} has no possible choice{element} {when}: allow must leave at least one of {count}"
                )


# --- pictures ---


def drawing(subject: Subject, device: str) -> str:
    """Draws states of several steps, and looks at the shapes."""
    draw_state = subject.spec.drawing
    if draw_state is None:
        raise SkippedError("the spec has none (drawing=None)")
    run = subject.run(device=device)
    run.reset(subject.seed)
    for t, draw in enumerate(subject.draws(min(subject.steps, 20)), start=1):
        state = {n.removeprefix("state."): v for n, v in run.state().items() if n != "elapsed"}
        state = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in state.items()}
        picture = _drawn(draw_state, state, run.env.params_by_replica)
        own = {n: v[1:2] if np.ndim(v) else v for n, v in run.env.params_by_replica.items()}
        alone = _drawn(draw_state, {n: v[1:2] for n, v in state.items()}, own)
        if picture.view != alone.view:
            raise FailedError(
                f"the view of a replica is {alone.view} when it is drawn alone, and {picture.view} beside others: "
                "scale what differs between replicas to a view that does not"
            )
        for k, shape in enumerate(picture.shapes):
            if len(shape.points) != run.num_envs:
                raise FailedError(f"shape {k} is of {len(shape.points)} replicas; expected {run.num_envs}")
            shown = np.ones(shape.points.shape[:2], bool) if shape.shown is None else shape.shown
            wrong = shown & ~np.isfinite(shape.points).all((2, 3))
            if wrong.any():
                raise FailedError(
                    f"shape {k}, a {shape.kind}, of replica {int(np.argwhere(wrong)[0][0])} is at no finite place "
                    f"before step {t}: leave out with `shown` what is nowhere"
                )
        run.step(draw)
    return f"finite shapes of each of {run.num_envs} replicas"


def _drawn(drawing: Drawing, state: Moment, params: Mapping[str, Any]) -> Picture:
    """A picture, or where the author's code failed to draw it."""
    known = _Listing("the state", "field", state), _Listing("the parameters", "parameter", params)
    try:
        return drawing.draw(*known)
    except Exception as error:  # whatever the author's code raises
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if frame.filename != __file__]
        source = getattr(getattr(drawing.draw, "__code__", None), "co_filename", "")
        own = [frame for frame in frames if frame.filename == source] or frames
        if not own:
            raise
        said = str(error) if isinstance(error, _NoSuchError) else f"{type(error).__name__}: {error}"
        at = own[-1]
        raise FailedError(f"{display(at.filename)}:{at.lineno}: {said}\n    {at.line}") from None


class _NoSuchError(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


@final
class _Listing(dict[str, Any]):
    """A mapping whose KeyError lists the names that there are."""

    def __init__(self, what: str, of: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._what, self._of = what, of

    def __missing__(self, key: str) -> Any:
        raise _NoSuchError(
            f"there is no {self._of} {key!r} in {self._what}{did_you_mean(key, self)} There are: {', '.join(self)}"
        )
