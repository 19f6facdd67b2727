"""Spaces, state, parameters and drawing shared by the Multi Particle Environments.

Rules, spaces, names and orders agree with PettingZoo's ``mpe2``; 0 neighbours mean all, which is ``None`` there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from gpu_envs.pictures import Colour, Drawing, Params, Picture, Shape, State, at, disc, polygon
from gpu_envs.specs.fields import Field
from gpu_envs.specs.params import Param

MOVES = 5
"""Number of moves: none, left, right, down, up."""

AGENT_STATE: Mapping[str, Field] = {name: Field() for name in ("x", "y", "x_dot", "y_dot")}
CONTACT_SCRATCH: Mapping[str, Field] = {"next_x": Field(), "next_y": Field()}
"""Scratch fields for agents that collide."""
START_FIELDS = ("x", "y", "x_dot", "y_dot", "landmark_x", "landmark_y")
"""State fields that ``reset(options=...)`` can set in every environment."""


def landmarks(count: Callable[[Params], int]) -> dict[str, Field]:
    """Return the state fields of landmarks. Without landmarks there is one element, which the rules ignore."""
    return {name: Field("real", lambda params: max(1, count(params))) for name in ("landmark_x", "landmark_y")}


def action(*, moves: bool = True, words: int = 0) -> Callable[[Params], Space[Any]]:
    """Return a function to the action space of an agent that moves, or chooses among ``words``, or both."""

    def action_space(params: Params) -> Space[Any]:
        if params["continuous_actions"]:
            return Box(0.0, 1.0, (MOVES * moves + words,), np.float32)
        return Discrete((MOVES if moves else 1) * max(1, words))

    return action_space


def observation(size: int | Callable[[Params], int]) -> Callable[[Params], Box]:
    """Return a function to the observation space of this size."""
    return lambda params: Box(-np.inf, np.inf, (size(params) if callable(size) else size,), np.float32)


def common(drive: float | None = 5.0) -> dict[str, Param]:
    """Return the parameters of all environments; ``drive`` None: without it, as roles have their own."""
    drive_param = {"drive": Param(drive, "force of a move", minimum=0)} if drive is not None else {}
    return {
        "max_cycles": Param(25, "default of max_episode_steps, in steps", positive=True, fixed=True),
        "continuous_actions": Param(False, "Box actions instead of Discrete", fixed=True),
        "dynamic_rescaling": Param(True, "scale the discs when a picture zooms out"),
        **drive_param,
        "time_step": Param(0.1, "time step, s", positive=True),
        "damping": Param(0.25, "fraction of its velocity that an agent loses per step", minimum=0, maximum=1),
    }


def contacts() -> dict[str, Param]:
    """Return the parameters of colliding discs."""
    return {
        "contact_force": Param(100.0, "force per unit of overlap of two discs", minimum=0),
        "contact_margin": Param(0.001, "distance over which the contact force rises", positive=True),
    }


def neighbours() -> dict[str, Param]:
    """Return the parameters of agents that observe only their nearest neighbours."""
    what = "number of nearest {} in an observation, padded with zeros; 0: all, in their order"
    return {
        f"num_{kind}_neighbors": Param(0, what.format(of), minimum=0, fixed=True)
        for kind, of in (("agent", "agents"), ("landmark", "landmarks"))
    }


def chasing(adversary_radius: float, agent_radius: float, catch_reward: float) -> dict[str, Param]:
    """Return the parameters of a chase of agents by adversaries among obstacles, with contacts."""
    role_params: dict[str, Param] = {}
    for role, size, drive, max_speed in (("adversary", adversary_radius, 3.0, 1.0), ("agent", agent_radius, 4.0, 1.3)):
        role_params |= {
            f"{role}_size": Param(size, "radius of the role's discs", positive=True),
            f"{role}_drive": Param(drive, "force of a move", minimum=0),
            f"{role}_max_speed": Param(max_speed, "maximum speed", minimum=0),
        }
    what = "reward of all adversaries for each touch of an agent, and penalty of that agent"
    return {
        **role_params,
        "obstacle_size": Param(0.2, "radius of an obstacle", positive=True),
        "catch_reward": Param(catch_reward, what),
        **contacts(),
    }


def limit(params: Mapping[str, Any]) -> int:
    """Return the step at which an episode is truncated."""
    return int(params["max_cycles"])


def start_rule(goals: int | str = 1) -> Callable[[str, np.ndarray, Params], str]:
    """Return a ``start_rule`` that allows finite numbers, and goals below ``goals``, a number or a parameter's name."""

    def explain_invalid_start(name: str, values: np.ndarray, params: Params) -> str:
        """Return what is expected of the initial values of a state field, or an empty string if they are valid."""
        if name not in ("goal", "key"):
            return "" if np.isfinite(values).all() else "expected finite numbers"
        count = int(params[goals]) if isinstance(goals, str) else goals
        wrong = (values < 0) | (values >= count) | (values != np.floor(values))
        return f"expected integers from 0 to {count - 1}" if wrong.any() else ""

    return explain_invalid_start


# --- drawing ---

RED, GREEN, BLUE, GREY, DARK = (170, 70, 70), (70, 170, 70), (70, 70, 170), (150, 150, 150), (50, 50, 50)
GOLD, RIM, LEAVES = (230, 180, 40), (225, 225, 225), (180, 225, 180)
REACH = 1.1
"""Half of the side of the picture. It zooms out until the farthest disc is at a coordinate of 1."""


@dataclasses.dataclass(frozen=True)
class Discs:
    """Agents or landmarks of the same colour and size."""

    colour: Colour
    size: float | str
    """Radius, or name of a parameter."""
    first: Callable[[Params], int]
    """Index of the first disc, among agents or among landmarks."""
    count: Callable[[Params], int]
    """Number of discs."""
    name: str
    """Name in the legend; empty for none."""
    landmarks: bool = False


def agents(colour: Colour, size: float | str, first: int | str, count: int | str, name: str = "") -> Discs:
    """Return discs of agents; integers may be names of parameters."""
    return Discs(colour, size, _number(first), _number(count), name)


def marks(
    colour: Colour, size: float | str, first: int | str | Callable[[Params], int], count: int | str, name: str = ""
) -> Discs:
    """Return discs of landmarks; integers may be names of parameters."""
    return Discs(colour, size, first if callable(first) else _number(first), _number(count), name, landmarks=True)


def _number(value: int | str) -> Callable[[Params], int]:
    return lambda params: int(params[value]) if isinstance(value, str) else value


def drawing(*groups: Discs, goals: bool = False, words: int = 0, speakers: tuple[int, ...] = ()) -> Drawing:
    """Return a drawing of discs, golden dots on goals, and below them a row of dots for each speaker.

    ``groups`` are ordered from back to front; ``words`` is a number; ``speakers`` are indices of agents.
    """

    def draw_particles(state: State, params: Params) -> Picture:
        """Draw discs, zoomed out if one is far, golden dots on goals, and a row of dots for each speaker."""
        agents, marks = (np.stack([state[f"{of}x"], state[f"{of}y"]], -1) for of in ("", "landmark_"))
        count, there = len(agents), sum(group.count(params) for group in groups if group.landmarks)
        everything = np.concatenate([agents, marks[:, :there]], 1)
        zoom = 1 / np.maximum(1, np.abs(everything).reshape(count, -1).max(1))
        scale = zoom if params["dynamic_rescaling"] else np.ones(count)
        shapes: list[Shape] = []
        for group in groups:
            first = group.first(params)
            of = (marks if group.landmarks else agents)[:, first : first + group.count(params)]
            size = params[group.size] if isinstance(group.size, str) else group.size
            if of.shape[1]:
                shapes += _octagons(of * zoom[:, None, None], size * scale, group.colour)
        if goals and there:
            shapes += _goals(state["goal"], marks * zoom[:, None, None])
        return Picture((-REACH, -REACH, REACH, REACH), (*shapes, *_words(state, words, speakers)))

    legend = {group.name: group.colour for group in reversed(groups) if group.name} | ({"goal": GOLD} if goals else {})
    return Drawing(draw_particles, size=(500, 500), frames_a_second=10, legend=legend)


OCTAGON = np.array([[np.cos(turn), np.sin(turn)] for turn in np.arange(8) * np.pi / 4])


def _octagons(centres: np.ndarray, radii: np.ndarray, colour: Colour) -> list[Shape]:
    """Return two octagons that approximate each disc: ``discs`` needs a constant radius for a whole replay."""
    eighth = np.pi / 8
    turned = OCTAGON @ np.array([[np.cos(eighth), np.sin(eighth)], [-np.sin(eighth), np.cos(eighth)]])
    sizes = radii[:, None, None, None]
    return [polygon(centres[:, :, None] + figure * sizes, colour) for figure in (OCTAGON, turned)]


def _goals(goal: np.ndarray, marks: np.ndarray) -> list[Shape]:
    """Return golden dots on the landmarks that are goals."""
    chosen = np.clip(goal.reshape(len(marks), -1), 0, marks.shape[1] - 1).astype(int)
    return [disc(np.take_along_axis(marks, chosen[..., None], 1), 0.02, GOLD)]


def _words(state: State, words: int, speakers: tuple[int, ...]) -> list[Shape]:
    """Return a dot for each word of each speaker, dark if the speaker says it."""
    dots = []
    for row, speaker in enumerate(speakers):
        positions = at(-REACH + 0.06 * (1 + np.arange(words)[None]), -REACH + 0.06 * (1 + row))
        dots += [disc(positions, 0.022, RIM), disc(positions, 0.022, DARK, state["c"][:, speaker] > 0.5)]
    return dots
