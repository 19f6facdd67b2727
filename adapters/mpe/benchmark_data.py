"""What ``mpe2`` tells of each agent after a step with ``benchmark_data=True``, from the state of one replica."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

State: TypeAlias = Mapping[str, np.ndarray]
Params: TypeAlias = Mapping[str, Any]
Rewards: TypeAlias = Mapping[str, float]


def _places(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Of agents and of landmarks."""
    return np.stack([state["x"], state["y"]], -1), np.stack([state["landmark_x"], state["landmark_y"]], -1)


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distances between all of two rows of places."""
    return np.asarray(np.sqrt(np.square(one[:, None] - other).sum(-1)))


def _collisions(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Of an adversary, how many agents it touches; of agents 0."""
    del rewards
    agents, _ = _places(state)
    first = int(params["num_adversaries"])
    reach = params["agent_size"] + params["adversary_size"]
    touching = (_apart(agents[:first], agents[first:]) < reach).sum(1)
    return [*touching.tolist(), *[0] * (len(agents) - first)]


def _distances(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Of the adversary its squared distance from the goal; of agents those from all landmarks, then from the goal."""
    del params, rewards
    agents, marks = _places(state)
    squares = np.square(agents[:, None] - marks).sum(-1)
    goal = int(state["goal"])
    return [squares[0, goal], *((*row, row[goal]) for row in squares[1:])]


def _covering(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Reward, collisions, sum of distances, and landmarks that are occupied."""
    del rewards
    agents, marks = _places(state)
    nearest = _apart(marks, agents).min(1)
    touching = (_apart(agents, agents) < 2 * params["agent_size"]).sum(1) - 1
    total, occupied = nearest.sum(), int((nearest < params["capture_radius"]).sum())
    return [(-total - hits, int(hits), total, occupied) for hits in touching]


def _reward(state: State, params: Params, rewards: Rewards) -> list[Any]:
    del state, params
    return list(rewards.values())


def _said(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """What an agent says, and the message."""
    del params, rewards
    message = np.zeros(state["c"].shape[1])
    message[int(state["goal"])] = 1
    return [(said.copy(), message) for said in state["c"]]


BENCHMARKS: Mapping[str, Callable[[State, Params, Rewards], list[Any]]] = {
    "SimpleTag-v3": _collisions,
    "SimpleWorldComm-v3": _collisions,
    "SimpleAdversary-v3": _distances,
    "SimpleSpread-v3": _covering,
    "SimpleSpeakerListener-v4": _reward,
    "SimpleCrypto-v3": _said,
}
"""By environment."""
