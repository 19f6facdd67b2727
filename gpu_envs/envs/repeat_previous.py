"""Naming the suit of a card that was shown k steps ago, as in POPGym's RepeatPrevious."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, rectangle
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec

DECK, SPAN, MAX_K = 52, 32, 63
"""Cards of a deck, number of remembered cards for which an episode has another deck, and the maximum of ``k``."""

SUITS = {"spades": (36, 113, 163), "diamonds": (214, 137, 16), "clubs": (39, 174, 96), "hearts": (192, 57, 43)}
"""Colours of the suits."""
HIGH = 0.32
"""Height of the picture, whose width is 1."""


def _steps(params: Mapping[str, Any]) -> int:
    """Return the length of an episode: the cards of POPGym's one, two or three decks, which count k + 1 cards as k."""
    return int(DECK * (1 + (params["k"] + 1) // SPAN))


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, the last k + 1 cards, the newest to the right, and a frame around the one to name."""
    count, steps = int(params["k"]) + 1, state["steps"].astype(int)[:, None]
    left, width = np.arange(count)[None] / count, 1 / count
    suits = np.take_along_axis(state["suits"], (steps + 1 + np.arange(count)) % count, 1)
    visible = steps + 1 + np.arange(count) >= count
    return Picture(
        (0, 0, 1, HIGH),
        (
            rectangle(0, 0, width, HIGH, BLACK, visible[:, 0]),
            *(
                rectangle(left + 0.1 * width, 0.02, left + 0.9 * width, HIGH - 0.02, colour, visible & (suits == suit))
                for suit, colour in enumerate(SUITS.values())
            ),
        ),
    )


REPEAT_PREVIOUS = EnvSpec(
    id="RepeatPrevious-v0",
    header="repeat_previous.cuh",
    description="Name the suit of the card that was shown k steps ago.",
    state={"suits": Field("byte", lambda params: params["k"] + 1), "steps": Field("int"), "right": Field("int")},
    params={
        "k": Param(4, "number of steps to remember a suit", positive=True, maximum=MAX_K, fixed=True),
        "penalty": Param(1.0, "penalty of a wrong answer, relative to the reward of a right one", minimum=0),
        "share": Derived(
            lambda params: 1 / (_steps(params) - params["k"]), "reward of a right answer: 1 / answers that count"
        ),
    },
    metrics={"right": Metric("number of right answers")},
    observation=Box(0.0, 1.0, (len(SUITS),), np.float32),
    action=Discrete(len(SUITS)),
    max_episode_steps=_steps,
    drawing=Drawing(_draw, size=(500, 160), frames_a_second=4, legend=SUITS),
)
