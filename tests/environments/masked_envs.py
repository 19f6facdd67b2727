"""Small environments for tests of training: with action masks, and with observations that are no flat rows of reals."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from gpu_envs import EnvSpec, Field, TeamSpec
from gpu_envs.pictures import Drawing, Params, Picture, State, at, disc
from gpu_envs.specs.base import Spec
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role

LENGTH = 8
"""Of the corridor."""
CHOICES = 6

_CORRIDOR = """
// A corridor: in each place one choice leads on and another stays; all others are forbidden, and end badly.
FN int onward(int place) { return (place * 5 + 2) % 6; }
FN int pause(int place) { return (place * 5 + 4) % 6; }

FN void reset(State& s, const Params& p, Random& random) {
    s.place = random.integer(2);
    s.forbidden = 0;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    const bool on = action == onward(s.place), allowed = on || action == pause(s.place);
    s.forbidden += allowed ? 0 : 1;
    s.place += on ? 1 : 0;
    const bool done = s.place == 8;
    return {allowed ? (done ? real(p.prize) : real(0)) : real(-1), done || !allowed};
}

FN void allow(const State& s, const Params& p, Mask& mask) {
    for (int a = 0; a < 6; ++a) mask[a] = a == onward(s.place) || a == pause(s.place);
}
"""

_ONE_HOT = """
FN void observe(const State& s, const Params& p, Observation& observation) {
    for (int j = 0; j < 9; ++j) observation[j] = s.place == j ? 1.0f : 0.0f;
}
"""

_PICTURED = """
FN void observe(const State& s, const Params& p, Observation& observation) {
    for (int j = 0; j < 27; ++j) observation.image[j] = j / 3 == s.place ? u8(255 - j % 3) : u8(0);
    observation.counts[0] = s.place;
    observation.counts[1] = -3;
    observation.near[0] = float(s.place) / 8.0f;
}
"""

_BYTES = """
FN void observe(const State& s, const Params& p, Observation& observation) {
    for (int j = 0; j < 18; ++j) observation[j] = j / 2 == s.place ? u8(255) : u8(0);
}
"""

_TEAM = """
// Each agent walks along its own corridor; an action has two elements, and choice 1 of the second is forbidden.
FN int onward(const World& w, int i) { return (w.place[i] * 2 + 1 + i) % 3; }

FN void reset(World& w, const Params& p, Team& team) {
    FOR_EACH_AGENT(i, AGENTS) {
        w.place[i] = 0;
        w.forbidden[i] = 0;
    }
}

FN void step(World& w, const Params& p, Team& team, const TeamActions& actions) {
    FOR_EACH_AGENT(i, AGENTS) {
        if (w.in_game[i]) {
            const int first = actions[i][0] - 2, second = actions[i][1];
            const bool on = first == onward(w, i), allowed = (on || first == (onward(w, i) + 1) % 3) && second != 1;
            w.reward[i] = allowed ? (on ? real(1) : real(0)) : real(-100);
            w.forbidden[i] += allowed ? 0 : 1;
            w.place[i] += on ? 1 : 0;
            if (w.place[i] == 6) w.in_game[i] = false;
        }
    }
}

FN void look(World& w, const Params& p, Team& team) {}

FN void observe(const World& w, const Params& p, int i, const Row& row) {
    for (int j = 0; j < 7; ++j) row[j] = w.place[i] == j ? 1.0f : 0.0f;
}

FN void allow(const World& w, const Params& p, int i, const Mask& mask) {
    mask[(onward(w, i) + 2) % 3] = false;
    mask[3 + 1] = false;
}
"""

_STATE = {"place": Field("int"), "forbidden": Field("int")}

PICTURED = Dict(
    {
        "near": Box(0.0, 1.0, (1,), np.float32),
        "image": Box(0, 255, (3, 3, 3), np.uint8),
        "counts": Box(-100, 100, (2,), np.int32),
    }
)


def _draw(state: State, params: Params) -> Picture:
    """Draws the walkers."""
    del params
    return Picture((-1, 0, LENGTH + 1, 1), (disc(at(state["place"], 0.5), 0.4, (200, 0, 0)),))


def _corridor(name: str, header: Path, observation: Any, *, action_mask: bool = True) -> EnvSpec:
    return EnvSpec(
        id=name,
        header=header,
        state=_STATE,
        params={"prize": Param(1.0)},
        observation=observation,
        action=Discrete(CHOICES),
        max_episode_steps=40,
        action_mask=action_mask,
        drawing=Drawing(_draw, size=(100, 20), frames_a_second=10),
    )


def specs(folder: Path) -> list[Spec]:
    """Writes the headers into a folder and returns the specs."""

    def header(name: str, text: str) -> Path:
        path = folder / f"{name}.cuh"
        path.write_text(text)
        return path

    plain = header("corridor", _CORRIDOR + _ONE_HOT)
    row = Box(0.0, 1.0, (LENGTH + 1,), np.float32)
    places = Box(0.0, 1.0, (7,), np.float32)
    pairs = MultiDiscrete([3, 2], start=[2, 0])
    return [
        _corridor("MaskedCorridor-v0", plain, row),
        _corridor("BareCorridor-v0", plain, row, action_mask=False),
        _corridor("PicturedCorridor-v0", header("pictured", _CORRIDOR + _PICTURED), PICTURED),
        _corridor("BytesCorridor-v0", header("bytes", _CORRIDOR + _BYTES), Box(0, 255, (9, 2), np.uint8)),
        _corridor("SquareCorridor-v0", plain, Box(0.0, 1.0, (3, 3), np.float32)),
        TeamSpec(
            id="MaskedTeam-v0",
            header=header("team", _TEAM),
            params={},
            max_episode_steps=20,
            action_mask=True,
            roles=(Role("walker", 2, places, pairs), Role("hiker", 1, places, pairs)),
            state=_STATE,
            drawing=Drawing(_draw, size=(100, 20), frames_a_second=10),
        ),
    ]
