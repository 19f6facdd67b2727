"""Checks of values: compilation, spaces, finite numbers, action masks and drawings."""

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
from gpu_envs.pictures import Drawing, Picture, Shape
from gpu_envs.testing.builds import compile_all
from gpu_envs.testing.draws import at_bounds
from gpu_envs.testing.report import FailedError, SkippedError
from gpu_envs.testing.subject import Moment, Run, Subject, ended


def compiles(subject: Subject, device: str) -> str:
    """Compiles the environment in each precision and autoreset mode; returns a summary."""
    kinds = [(precision, mode) for precision in PRECISIONS for mode in AUTORESET_MODES]
    if device == "cpu":
        options = [Options(device=device, precision=precision, autoreset_mode=mode) for precision, mode in kinds]
        compile_all([(config_of(subject.spec, 2, option_set, subject.params), ()) for option_set in options])
    for precision, mode in kinds:
        subject.run(2, device=device, precision=precision, autoreset_mode=mode)
    return f"{', '.join(PRECISIONS)}, each in {', '.join(AUTORESET_MODES)}"


# --- spaces ---


def spaces(subject: Subject, device: str) -> str:
    """Checks that observations are in the spaces of the spec; returns a summary."""
    for draws, what in ((subject.draws(), "random"), ([at_bounds(d) for d in subject.draws()], "extreme")):
        run = subject.run(device=device, autoreset_mode="SameStep")
        moments = itertools.chain([run.reset(subject.seed)], (run.step(draw) for draw in draws))
        _check_trajectory(subject, moments, f"of {what} actions")
    _check_trajectory(subject, (moment for _, moment in subject.long_run(device)), "of a long run")
    named = [f"{part}: {_describe_box(space)}".removeprefix(": ") for part, space in subject.observation_spaces.items()]
    return (
        f"{subject.steps} steps of random and of extreme actions, {subject.long_run_text}, stay in {', '.join(named)}"
    )


def _check_trajectory(subject: Subject, moments: Iterator[Moment], where: str) -> None:
    """Checks that the observations of a reset and of the following steps are in the spaces of the spec."""
    moment = next(moments)
    present = _present(subject, moment)
    _check_values(subject, moment, "observations", present, "after reset")
    for t, moment in enumerate(moments, start=1):
        before, present = present, _present(subject, moment)
        over = ended(moment)[:, None] if subject.team else ended(moment)
        last = {role: active & over for role, active in before.items()}
        checked = {role: np.where(over, present[role], active) for role, active in before.items()}
        _check_values(subject, moment, "final_obs", last, f"in step {t} {where}, at the end of an episode")
        _check_values(subject, moment, "observations", checked, f"in step {t} {where}")


def _describe_box(space: gymnasium.Space[Any]) -> str:
    """Returns a Box's dtype, shape and bounds as text."""
    assert isinstance(space, gymnasium.spaces.Box)
    low, high = (f"{float(bound):g}" for bound in (space.low.min(), space.high.max()))
    return f"{space.dtype} {list(space.shape)} from {low} to {high}"


def _present(subject: Subject, moment: Moment) -> dict[str, np.ndarray]:
    """Active agents after a moment, by role; a single agent is always active."""
    if not subject.team:
        return {SINGLE_ROLE: np.ones(len(next(iter(moment.values()))), bool)}
    return {role: moment[f"alive.{role}"] for role in subject.roles}


def _check_values(subject: Subject, moment: Moment, result: str, present: dict[str, np.ndarray], when: str) -> None:
    """Raises a FailedError if a result has not its space's shape and dtype, or is outside it for a present agent."""
    for part, space in subject.observation_spaces.items():
        values = moment[f"{result}.{part}" if part else result]
        role = subject.roles[part if subject.team else SINGLE_ROLE]
        name = f"the observation{f' {part!r}' if part else ''}"
        active = present[role.name]
        shape = (*role.batch_shape(len(active)), *(space.shape or ()))
        if values.shape != shape or values.dtype != space.dtype:
            raise FailedError(f"{name} is {values.dtype} {values.shape} {when}; the space has {space.dtype} {shape}")
        assert isinstance(space, gymnasium.spaces.Box)
        invalid = ~((values >= space.low) & (values <= space.high))  # NaN too
        invalid &= active.reshape(*active.shape, *(1,) * (values.ndim - active.ndim))
        if not invalid.any():
            continue
        index = tuple(int(i) for i in np.argwhere(invalid)[0])
        element, who = (index[2:], f", {role.agents[index[1]]}") if subject.team else (index[1:], "")
        low, high = space.low[element], space.high[element]
        raise FailedError(
            f"{name}{''.join(f'[{i}]' for i in element)} of replica {index[0]}{who} is {values[index]} {when}; its "
            f"space allows {low} to {high}: widen the space in the spec, or clip in observe"
        )


# --- finite numbers ---


def finite(subject: Subject, device: str) -> str:
    """Checks that numbers are finite with random actions, actions at the bounds and a long run; returns a summary."""
    try:
        for draws in (subject.draws(), [at_bounds(d) for d in subject.draws()]):
            run = subject.run(device=device, checking=True, autoreset_mode="SameStep")
            run.reset(subject.seed)
            run.run_steps(draws)
        collections.deque(subject.long_run(device, checking=True), maxlen=0)
    except NotFiniteError as error:
        raise FailedError(
            f"{error}. Look for a division by zero, a root or logarithm of a negative number, or unbounded growth"
        ) from None
    steps = f"{subject.steps} steps of random and of extreme actions"
    return f"states, rewards and observations in {steps}, {subject.long_run_text}"


# --- action masks ---


def masks(subject: Subject, device: str) -> str:
    """Checks that masks leave a choice, and have the shape of the action space; returns a summary."""
    if not subject.spec.masked:
        raise SkippedError("the spec has no action masks (action_mask is not True)")
    run = subject.run(device=device, autoreset_mode="SameStep")
    _check_masks(subject, run.reset(subject.seed), run, "after reset")
    forbidden = 0
    for t, draw in enumerate(subject.draws(), start=1):
        moment = run.step(draw)
        _check_masks(subject, moment, run, f"in step {t}")
        forbidden += sum(int((v == 0).sum()) for n, v in moment.items() if n.startswith("action_mask"))
    if not forbidden:
        return f"every choice is possible in all of {subject.steps} steps: check that allow is correct"
    return f"int8 of 0 and 1, with a choice for each agent in {subject.steps} steps"


def _check_masks(subject: Subject, moment: Moment, run: Run, when: str) -> None:
    """Raises a FailedError if a mask is missing, has a wrong shape or value, or leaves an agent no choice."""
    for role in subject.roles.values():
        name = role.array_name("action_mask")
        if name not in moment:
            raise FailedError(
                f"infos has no {name!r} {when}, though action_mask is True: this is a defect of gpu_envs, not of the "
                "rules; please report it"
            )
        mask, counts = moment[name], choices(role.action)
        shape = (*role.batch_shape(run.num_envs), sum(counts))
        if mask.shape != shape or mask.dtype != np.int8:
            raise FailedError(
                f"infos[{name!r}] is {mask.dtype} {mask.shape} {when}, not int8 {shape}: this is a defect of gpu_envs, "
                "not of the rules; please report it"
            )
        if ((mask != 0) & (mask != 1)).any():
            raise FailedError(f"{name} has values other than 0 and 1 {when}; allow must set each entry true or false")
        start = 0
        for j, count in enumerate(counts):
            no_choice = ~mask[..., start : start + count].any(-1)
            start += count
            if no_choice.any():
                index = [int(i) for i in np.argwhere(no_choice)[0]]
                who = f"replica {index[0]}" + (f", {role.agents[index[1]]}" if subject.team else "")
                element = f" for element {j} of the action" if len(counts) > 1 else ""
                raise FailedError(
                    f"{who} has no possible choice{element} {when}: allow must leave at least one choice of {count}"
                )


# --- pictures ---


def drawing(subject: Subject, device: str) -> str:
    """Checks that pictures have finite shapes, the same for one replica as for all; returns a summary."""
    draw_state = subject.spec.drawing
    if draw_state is None:
        raise SkippedError("the spec has no drawing (drawing=None)")
    run = subject.run(device=device)
    run.reset(subject.seed)
    for t, draw in enumerate(subject.draws(min(subject.steps, 20)), start=1):
        state = {n.removeprefix("state."): v for n, v in run.state().items() if n != "elapsed"}
        state = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in state.items()}
        one_replica = {n: v[1:2] if np.ndim(v) else v for n, v in run.env.params_by_replica.items()}
        try:
            picture = _draw(draw_state, state, run.env.params_by_replica).for_replicas(run.num_envs)
            alone = _draw(draw_state, {n: v[1:2] for n, v in state.items()}, one_replica).for_replicas(1)
        except ValueError as error:
            raise FailedError(str(error)) from None
        if picture.view != alone.view:
            raise FailedError(
                f"the view of a replica is {alone.view} when it is drawn alone, and {picture.view} with others: "
                "the view must be the same for all replicas; scale the shapes instead"
            )
        for k, shape in enumerate(picture.shapes):
            invalid = _mask(shape) & ~np.isfinite(shape.points).all((2, 3))
            if invalid.any():
                raise FailedError(
                    f"shape {k}, a {shape.kind}, of replica {int(np.argwhere(invalid)[0][0])} has positions that are "
                    f"not finite before step {t}: hide the shape with `shown`"
                )
            if len(alone.shapes) == len(picture.shapes) and not _same_shapes(shape, alone.shapes[k]):
                raise FailedError(
                    f"shape {k}, a {shape.kind}, of replica 1 differs before step {t} when the replica is drawn alone: "
                    "draw each replica by its own state and parameters"
                )
        run.step(draw)
    return f"finite shapes of each of {run.num_envs} replicas"


def _mask(shape: Shape) -> np.ndarray:
    return np.ones(shape.points.shape[:2], bool) if shape.shown is None else shape.shown


def _same_shapes(all_replicas: Shape, alone: Shape) -> bool:
    """Returns whether replica 1 has the same shapes, up to rounding, drawn with all replicas and drawn alone."""
    shown, points = _mask(alone)[0], alone.points[0]
    return (
        np.array_equal(_mask(all_replicas)[1], shown)
        and all_replicas.points.shape[1:] == alone.points.shape[1:]
        and np.allclose(all_replicas.points[1][shown], points[shown], 1e-6, 1e-6)
    )


def _draw(drawing: Drawing, state: Moment, params: Mapping[str, Any]) -> Picture:
    """Draws a picture, or raises a FailedError with the line of the author's code that failed."""
    arguments = _ListedNames("the state", "field", state), _ListedNames("the parameters", "parameter", params)
    try:
        return drawing.draw(*arguments)
    except Exception as error:  # the author's code may raise anything
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if frame.filename != __file__]
        source = getattr(getattr(drawing.draw, "__code__", None), "co_filename", "")
        author_frames = [frame for frame in frames if frame.filename == source] or frames
        if not author_frames:
            raise
        message = str(error) if isinstance(error, _NoSuchError) else f"{type(error).__name__}: {error}"
        frame = author_frames[-1]
        raise FailedError(f"{display(frame.filename)}:{frame.lineno}: {message}\n    {frame.line}") from None


class _NoSuchError(KeyError):
    def __str__(self) -> str:
        return str(self.args[0])


@final
class _ListedNames(dict[str, Any]):
    """A mapping whose KeyError lists the valid names."""

    def __init__(self, what: str, of: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._what, self._of = what, of

    def __missing__(self, key: str) -> Any:
        raise _NoSuchError(
            f"there is no {self._of} {key!r} in {self._what}{did_you_mean(key, self)} There are: {', '.join(self)}"
        )
