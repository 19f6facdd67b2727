"""What the Multi Particle Environments have in common: spaces, state, parameters and looks.

Rules, spaces, names and orders are those of PettingZoo's ``mpe2``, whose ``None`` for all neighbours is 0 here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from gpu_envs.pictures import Colour, Drawing, Params, Picture, Shape, State, disc, per_replica, polygon
from gpu_envs.specs.fields import Field
from gpu_envs.specs.params import Param

MOVES = 5
"""Of an action: none, left, right, down, up."""

OF_AGENTS: Mapping[str, Field] = {name: Field() for name in ("x", "y", "x_dot", "y_dot")}
NEXT: Mapping[str, Field] = {"next_x": Field(), "next_y": Field()}
"""Scratch of those that touch one another."""
PLACES = ("x", "y", "x_dot", "y_dot", "landmark_x", "landmark_y")
"""Explicit starts."""


def landmarks(count: Callable[[Params], int]) -> dict[str, Field]:
    """Where landmarks are; where there are none, there is one that nobody meets."""
    return {name: Field("real", lambda params: max(1, count(params))) for name in ("landmark_x", "landmark_y")}


def action(*, moves: bool = True, words: int = 0) -> Callable[[Params], Space[Any]]:
    """The actions of an agent that moves, or says one of some words, or both."""

    def space(params: Params) -> Space[Any]:
        if params["continuous_actions"]:
            return Box(0.0, 1.0, (MOVES * moves + words,), np.float32)
        return Discrete((MOVES if moves else 1) * max(1, words))

    return space


def seen(size: int | Callable[[Params], int]) -> Callable[[Params], Box]:
    """Observations of so many numbers."""
    return lambda params: Box(-np.inf, np.inf, (size(params) if callable(size) else size,), np.float32)


def common(drive: float | None = 5.0) -> dict[str, Param]:
    """The parameters of all; ``drive`` where all who move have the same."""
    own_drive = {"drive": Param(drive, "force of a move", minimum=0)} if drive is not None else {}
    return {
        "max_cycles": Param(25, "steps: max_episode_steps where no other is given", positive=True, fixed=True),
        "continuous_actions": Param(False, "Boxes in place of whole numbers", fixed=True),
        "dynamic_rescaling": Param(True, "pictures that zoom out show discs smaller, too"),
        **own_drive,
        "time_step": Param(0.1, "s", positive=True),
        "damping": Param(0.25, "the share of its velocity that an agent loses in a step", minimum=0, maximum=1),
    }


def contacts() -> dict[str, Param]:
    """The parameters of discs that touch."""
    return {
        "contact_force": Param(100.0, "of discs, for each unit of length that they are in one another", minimum=0),
        "contact_margin": Param(0.001, "length within which that force begins", positive=True),
    }


def neighbours() -> dict[str, Param]:
    """The parameters of agents that see only those nearest to them."""
    what = "how many of the nearest {} an agent sees, zeros where there are fewer; 0: all, in their order"
    return {
        f"num_{kind}_neighbors": Param(0, what.format(of), minimum=0, fixed=True)
        for kind, of in (("agent", "others"), ("landmark", "landmarks"))
    }


def chasing(adversary: float, agent: float, reward: float) -> dict[str, Param]:
    """The parameters of adversaries that catch agents, of these sizes, among obstacles."""
    found: dict[str, Param] = {}
    for role, size, drive, fastest in (("adversary", adversary, 3.0, 1.0), ("agent", agent, 4.0, 1.3)):
        found |= {
            f"{role}_size": Param(size, "radius", positive=True),
            f"{role}_drive": Param(drive, "force of a move", minimum=0),
            f"{role}_max_speed": Param(fastest, "greatest speed", minimum=0),
        }
    what = "reward of all adversaries for each agent that one touches, which it costs that agent"
    return {
        **found,
        "obstacle_size": Param(0.2, "radius", positive=True),
        "catch_reward": Param(reward, what),
        **contacts(),
    }


def limit(params: Mapping[str, Any]) -> int:
    """The step at which an episode is truncated."""
    return int(params["max_cycles"])


def start_rule(goals: int | str = 1) -> Callable[[str, np.ndarray, Params], str]:
    """What is expected of explicit starts: finite numbers, and goals below a number, or what a parameter says."""

    def rule(name: str, values: np.ndarray, params: Params) -> str:
        if name not in ("goal", "key"):
            return "" if np.isfinite(values).all() else "expected finite numbers"
        count = int(params[goals]) if isinstance(goals, str) else goals
        wrong = (values < 0) | (values >= count) | (values != np.floor(values))
        return f"expected whole numbers from 0 to {count - 1}" if wrong.any() else ""

    return rule


# --- looks ---

RED, GREEN, BLUE, GREY, DARK = (170, 70, 70), (70, 170, 70), (70, 70, 170), (150, 150, 150), (50, 50, 50)
GOLD, RIM, LEAVES = (230, 180, 40), (225, 225, 225), (180, 225, 180)
REACH = 1.1
"""Half of the side of what is seen. Somebody farther out than 1 is shown at 1, and all others nearer to the centre."""


@dataclasses.dataclass(frozen=True)
class Discs:
    """Agents or landmarks that look alike."""

    colour: Colour
    size: float | str
    """The radius, or the parameter that says it."""
    first: Callable[[Params], int]
    """The number of the first one among agents, or among landmarks."""
    count: Callable[[Params], int]
    """How many there are."""
    landmarks: bool = False


def agents(colour: Colour, size: float | str, first: int | str, count: int | str) -> Discs:
    """Agents that look alike, by their numbers or the parameters that say them."""
    return Discs(colour, size, _number(first), _number(count))


def marks(colour: Colour, size: float | str, first: int | str | Callable[[Params], int], count: int | str) -> Discs:
    """Landmarks that look alike."""
    return Discs(colour, size, first if callable(first) else _number(first), _number(count), landmarks=True)


def _number(given: int | str) -> Callable[[Params], int]:
    return lambda params: int(params[given]) if isinstance(given, str) else given


def drawing(*groups: Discs, words: int = 0, speakers: tuple[int, ...] = ()) -> Drawing:
    """Discs; golden dots on goals; and below, a row of dots for each who speaks.

    Args:
        groups: From the hindmost to the foremost.
        words: What can be said.
        speakers: The agents that speak.
    """

    def draw(state: State, params: Params) -> Picture:
        agents, marks = (np.stack([state[f"{of}x"], state[f"{of}y"]], -1) for of in ("", "landmark_"))
        count, there = len(agents), sum(group.count(params) for group in groups if group.landmarks)
        everything = np.concatenate([agents, marks[:, :there]], 1)
        zoom = 1 / np.maximum(1, np.abs(everything).reshape(count, -1).max(1))
        scale = zoom if params["dynamic_rescaling"] else np.ones(count)
        shapes: list[Shape] = []
        for group in groups:
            first = group.first(params)
            of = (marks if group.landmarks else agents)[:, first : first + group.count(params)]
            size = per_replica(params[group.size] if isinstance(group.size, str) else group.size, count)
            if of.shape[1]:
                shapes += _round(of * zoom[:, None, None], size * scale, group.colour)
        if "goal" in state and there:
            shapes += _goals(state["goal"], marks * zoom[:, None, None])
        return Picture((-REACH, -REACH, REACH, REACH), (*shapes, *_words(state, words, speakers)))

    return Drawing(draw, size=(500, 500), frames_a_second=10)


OCTAGON = np.array([[np.cos(turn), np.sin(turn)] for turn in np.arange(8) * np.pi / 4])


def _round(centres: np.ndarray, radii: np.ndarray, colour: Colour) -> list[Shape]:
    """Two octagons each, which look like a disc: discs have a radius that lasts for a whole replay."""
    eighth = np.pi / 8
    turned = OCTAGON @ np.array([[np.cos(eighth), np.sin(eighth)], [-np.sin(eighth), np.cos(eighth)]])
    sizes = radii[:, None, None, None]
    return [polygon(centres[:, :, None] + figure * sizes, colour) for figure in (OCTAGON, turned)]


def _goals(goal: np.ndarray, marks: np.ndarray) -> list[Shape]:
    """A golden dot on the landmark that is a goal."""
    chosen = np.clip(goal.reshape(len(marks), -1), 0, marks.shape[1] - 1).astype(int)
    return [disc(np.take_along_axis(marks, chosen[..., None], 1), 0.02, GOLD)]


def _words(state: State, words: int, speakers: tuple[int, ...]) -> list[Shape]:
    """What is said: a dot for each word, dark where it is said."""
    found = []
    for row, speaker in enumerate(speakers):
        x = -REACH + 0.06 * (1 + np.arange(words))
        place = np.stack([x, np.full(words, -REACH + 0.06 * (1 + row))], -1)
        places = np.broadcast_to(place, (len(state["x"]), words, 2))
        found += [disc(places, 0.022, RIM), disc(places, 0.022, DARK, state["c"][:, speaker] > 0.5)]
    return found
