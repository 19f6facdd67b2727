"""State fields of a single role, and names of agents."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from harness import Place, numpy_of

import gpu_envs
from gpu_envs import Field, NotFiniteError, Param, Role, Rules, TeamSpec
from gpu_envs.rules import NUM_HUNTERS, NUM_PREY, Params, Row, Team, TeamActions, World

SEEN = Box(-9, 9, (1,), np.float32)
OWN = {"fear": Field(), "scent": Field(shape=(2,))}
COUNTS = {"num_hunters": Param(2, minimum=1, fixed=True), "num_prey": Param(3, minimum=1, fixed=True)}


def reset(w: World, p: Params, team: Team) -> None:  # noqa: ARG001
    for i in team.agents():
        w.x[i] = i
    for k in team.agents(NUM_PREY):
        w.fear[k] = 10 * k
        for d in range(2):
            w.scent[k, d] = k + d


def step(w: World, p: Params, team: Team, actions: TeamActions) -> None:  # noqa: ARG001
    for k in team.agents(NUM_PREY):
        w.fear[k] += 1
        w.scent[k, 1] += w.x[NUM_HUNTERS + k]
        w.reward[NUM_HUNTERS + k] = w.fear[k] + actions[NUM_HUNTERS + k]


def observe(w: World, p: Params, i: int, row: Row) -> None:  # noqa: ARG001
    row[0] = w.x[i]


def chase(names: Any = None, **state: Any) -> TeamSpec:
    """Hunters, and prey with more state fields."""
    return TeamSpec(
        id="Chase-v0",
        header=Rules(reset=reset, step=step, observe=observe),
        roles=(
            Role("hunter", "num_hunters", SEEN, Discrete(3)),
            Role("prey", "num_prey", SEEN, Discrete(3), state=state or OWN, names=names),
        ),
        state={"x": Field()},
        params=COUNTS,
        max_episode_steps=40,
    )


def test_fields_of_one_role(place: Place) -> None:
    env = gpu_envs.MultiAgentEnv(chase(), 5, device=place.device, output=place.output, num_prey=4)
    env.reset(seed=0)
    assert tuple(env.state["fear"].shape) == (5, 4)
    assert tuple(env.state["scent"].shape) == (5, 4, 2)
    actions = {"hunter": np.zeros((5, 2), int), "prey": np.ones((5, 4), int)}
    for t in range(1, 4):
        rewards = env.step(actions)[1]
        fear = 10 * np.arange(4) + t
        np.testing.assert_array_equal(numpy_of(env.state["fear"]), [fear] * 5)
        np.testing.assert_array_equal(numpy_of(rewards["prey"]), [fear + 1] * 5)
        scent = np.arange(4) + 1 + t * (2 + np.arange(4))
        np.testing.assert_array_equal(numpy_of(env.state["scent"])[:, :, 1], [scent] * 5)


def test_messages_about_nan_name_the_agent() -> None:
    env = gpu_envs.MultiAgentEnv(chase(), 2, device="cpu", checking=True)
    env.reset(seed=0)
    env.state["fear"][1, 2] = np.inf
    with pytest.raises(NotFiniteError, match=r"replica 1, prey_2, step 1 of its episode: 'fear' of the state is inf"):
        env.step({"hunter": np.zeros((2, 2), int), "prey": np.zeros((2, 3), int)})


def test_agents_have_names() -> None:
    def named(params: Any) -> list[str]:
        return ["Hazel", "Fiver", "Bigwig", "Pipkin"][: params["num_prey"]]

    env = gpu_envs.MultiAgentEnv(chase(named), 2, device="cpu", num_prey=4)
    assert env.possible_agents == ["hunter_0", "hunter_1", "Hazel", "Fiver", "Bigwig", "Pipkin"]
    env.reset(seed=0)
    wrong = {"hunter": np.zeros((2, 2), int), "prey": np.array([[0, 0, 0, 0], [0, 0, 9, 0]])}
    with pytest.raises(gpu_envs.ActionError, match="replica 1, Bigwig, step 0"):
        env.step(wrong)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("Hazel", "Fiver"), "the role 'prey': its names are ('Hazel', 'Fiver'); give 3 different names"),
        (("Hazel", "Fiver", "Hazel"), "give 3 different names, one for each agent"),
        (("Hazel", "Fiver", 3), "give 3 different names, one for each agent"),
        (("Hazel", "Fiver", "hunter_1"), "names of agents must be different"),
        (lambda p: p["rabbits"], "the role 'prey': names: <lambda> reads the parameter 'rabbits'"),
    ],
)
def test_invalid_names_of_agents(names: Any, message: str) -> None:
    with pytest.raises(ValueError, match="Chase-v0") as caught:
        gpu_envs.MultiAgentEnv(chase(names), device="cpu")
    assert message in str(caught.value)


def test_invalid_fields() -> None:
    with pytest.raises(ValueError, match=r"\['x'\] occur more than once"):
        chase(x=Field())
    with pytest.raises(TypeError, match="the role 'prey': state: 'fear' is 3; give a Field"):
        chase(fear=3)
