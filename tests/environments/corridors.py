"""Single-agent test environments: the same rules with several observation and action spaces, and optional masks.

An agent walks along a corridor of cells and digs in each cell once. Walking into a wall or digging twice in a cell
is forbidden, has a reward of -100 and is counted.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from gpu_envs import EnvSpec, Field, Param

CELLS, SIDE, LIMIT = 5, 36, 9
"""Number of cells, height and width of images, time limit."""

POSITION = Box(-1, CELLS, (2,), np.float32)
IMAGE = Box(0, 255, (SIDE, SIDE, 1), np.uint8)
COUNTS = Box(-1000, 1000, (3,), np.int32)
EVERYTHING = Dict({"position": POSITION, "image": IMAGE, "counts": COUNTS})
"""Its keys are not in alphabetical order."""

SPACES: dict[str, gymnasium.Space[Any]] = {
    "position": POSITION,
    "image": IMAGE,
    "counts": COUNTS,
    "everything": EVERYTHING,
    "floats": Dict({"position": POSITION, "glance": Box(-1, CELLS, (1,), np.float32)}),
}

ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "one": Discrete(4),
    "real": Box(-1, 1, (2,), np.float32),
}
"""``one``: stay, back, forward, dig; ``real``: walk and dig where the absolute value exceeds 0.5."""

READ = {
    "one": "const int walk = action < 3 ? action : 0; const bool dig = action == 3;",
    "real": (
        "const int walk = action[0] > real(0.5) ? 2 : action[0] < real(-0.5) ? 1 : 0;"
        " const bool dig = action[1] > real(0.5);"
    ),
}

RULES = """
// An agent walks along a corridor of cells and digs.
FN bool may_walk(const State& s, int walk) { return walk == 0 || (walk == 1 ? s.cell > 0 : s.cell < CELLS - 1); }

FN void reset(State& s, const Params& p, Random& random) {
    s.cell = random.integer(CELLS);
    s.steps = 0;
    s.wrong = 0;
    for (int j = 0; j < CELLS; j++) s.dug[j] = false;
}

FN Outcome step(State& s, const Params& p, const Action& action, Random& random) {
    READ
    const bool wrong = !may_walk(s, walk) || (dig && s.dug[s.cell]);
    const real found = dig && !wrong ? p.prize : real(0);
    if (dig) s.dug[s.cell] = true;
    if (!wrong) s.cell += walk == 2 ? 1 : walk == 1 ? -1 : 0;
    s.wrong += wrong ? 1 : 0;
    s.steps += 1;
    int left = 0;
    for (int j = 0; j < CELLS; j++) left += s.dug[j] ? 0 : 1;
    return {wrong ? real(-100) : found, left == 0};
}
"""

POSITION_RULE = "{to}[0] = float(s.cell); {to}[1] = float(s.steps) * 0.25f;"
IMAGE_RULE = f"for (int j = 0; j < {SIDE * SIDE}; j++) {{to}}[j] = u8((s.cell * 50 + j) % 256);"  # {to} is left
COUNTS_RULE = "{to}[0] = s.cell; {to}[1] = -s.steps; {to}[2] = s.wrong;"
OBSERVE = {
    "position": POSITION_RULE.replace("{to}", "observation"),
    "image": IMAGE_RULE.replace("{to}", "observation"),
    "counts": COUNTS_RULE.replace("{to}", "observation"),
    "everything": "\n    ".join(
        rule.replace("{to}", f"observation.{key}")
        for key, rule in (("position", POSITION_RULE), ("image", IMAGE_RULE), ("counts", COUNTS_RULE))
    ),
    "floats": POSITION_RULE.replace("{to}", "observation.position") + " observation.glance[0] = float(s.steps);",
}

ALLOW = "mask[1] = may_walk(s, 1); mask[2] = may_walk(s, 2); mask[3] = !s.dug[s.cell];"


def header(shown: str, acted: str, *, masked: bool) -> str:
    """Returns the rules in C++."""
    text = RULES.replace("READ", READ[acted]).replace("CELLS", str(CELLS))
    text += (
        f"\nFN void observe(const State& s, const Params& p, Observation& observation) {{\n    {OBSERVE[shown]}\n}}\n"
    )
    if masked:
        text += f"\nFN void allow(const State& s, const Params& p, Mask& mask) {{\n    {ALLOW}\n}}\n"
    return text


def corridor(folder: Path, shown: str = "position", acted: str = "one", *, masked: bool = False) -> EnvSpec:
    """Writes a header and returns its spec.

    Args:
        folder: Folder of the header.
        shown: Observation space, a key of ``SPACES``.
        acted: Action space, a key of ``ACTIONS``.
        masked: Whether the rules define action masks; for discrete actions.
    """
    name = f"corridor_{shown}_{acted}_{'masked' if masked else 'open'}"
    path = folder / f"{name}.cuh"
    if not path.exists():
        path.write_text(header(shown, acted, masked=masked))
    return EnvSpec(
        id=f"{name}-v0",
        header=path,
        state={"cell": Field("int"), "steps": Field("int"), "wrong": Field("int"), "dug": Field("bool", CELLS)},
        params={"prize": Param(1.0, "for a cell that is dug")},
        observation=SPACES[shown],
        action=ACTIONS[acted],
        action_mask=masked,
        max_episode_steps=LIMIT,
    )


def write_file(folder: Path, id: str) -> Path:
    """Writes a Python file with a spec named ``CORRIDOR``, and its header."""
    path = folder / "my_corridor.py"
    lines = [
        "import dataclasses",
        "from pathlib import Path",
        "from corridors import corridor",
        f"CORRIDOR = dataclasses.replace(corridor(Path(__file__).parent, masked=True), id={id!r})",
    ]
    path.write_text("\n".join(lines))
    return path


Fields = Mapping[str, np.ndarray]
"""The state, ``[num_envs]`` or ``[num_envs, length]``."""


def _position(state: Fields) -> np.ndarray:
    return np.stack([state["cell"], state["steps"] * 0.25], 1).astype(np.float32)


def _image(state: Fields) -> np.ndarray:
    pixels = (state["cell"][:, None] * 50 + np.arange(SIDE * SIDE)) % 256
    return pixels.reshape(-1, SIDE, SIDE, 1).astype(np.uint8)


def _counts(state: Fields) -> np.ndarray:
    return np.stack([state["cell"], -state["steps"], state["wrong"]], 1).astype(np.int32)


_SHOWN: dict[str, Callable[[Fields], np.ndarray]] = {
    "position": _position,
    "image": _image,
    "counts": _counts,
    "glance": lambda state: state["steps"][:, None].astype(np.float32),
}


def expected_observations(shown: str, state: Fields) -> Any:
    """Returns the observations of a state."""
    space = SPACES[shown]
    return {key: _SHOWN[key](state) for key in space} if isinstance(space, Dict) else _SHOWN[shown](state)


def expected_mask(state: Fields) -> np.ndarray:
    """Returns the action mask of a state."""
    back, on = state["cell"] > 0, state["cell"] < CELLS - 1
    dig = ~state["dug"][np.arange(len(back)), state["cell"]].astype(bool)
    return np.stack([np.ones_like(back), back, on, dig], 1)
