"""Naming the suit of a card that was shown k steps ago, as in POPGym's RepeatPrevious."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import BLACK, Drawing, Params, Picture, State, rectangle
from gpu_envs.specs.fields import Field
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.single import EnvSpec

CARDS, MAX_K = 52, 15
"""Cards of a deck, one for each step, and the maximum of ``k``: 16 suits of two bits fit in an integer."""
SUITS = {"spades": (36, 113, 163), "diamonds": (214, 137, 16), "clubs": (39, 174, 96), "hearts": (192, 57, 43)}
"""Colours of the suits."""
HIGH = 0.32
"""Height of the picture, whose width is 1."""


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, the last k + 1 cards, the newest to the right, and a frame around the one to name."""
    count = int(params["k"]) + 1
    age = np.arange(count)[None, ::-1]
    left, width = 1 - (age + 1) / count, 1 / count
    suits = state["suits"].astype(int)[:, None] >> 2 * age & 3
    visible = state["steps"][:, None] >= age
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
    state={"suits": Field("int"), "steps": Field("int"), "correct": Field("int")},
    params={
        "k": Param(4, "number of steps to remember a suit", positive=True, maximum=MAX_K, fixed=True),
        "reward": Param(1.0, "return of an episode with only correct answers"),
        "penalty": Param(1.0, "minus the return of an episode with only wrong answers", minimum=0),
    },
    metrics={"correct": Metric("number of correct answers")},
    observation=Box(0.0, 1.0, (len(SUITS),), np.float32),
    action=Discrete(len(SUITS)),
    max_episode_steps=CARDS,
    drawing=Drawing(_draw, size=(500, 160), frames_a_second=4, legend=SUITS),
)
