"""The ``benchmark_data`` of ``mpe2`` for each agent, computed from the state of one replica."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

State: TypeAlias = Mapping[str, np.ndarray]
Params: TypeAlias = Mapping[str, Any]
Rewards: TypeAlias = Mapping[str, float]


def _positions(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of agents and of landmarks, ``[count, 2]``."""
    return np.stack([state["x"], state["y"]], -1), np.stack([state["landmark_x"], state["landmark_y"]], -1)


def _pairwise_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the distances between all pairs of two arrays of positions."""
    return np.asarray(np.sqrt(np.square(a[:, None] - b).sum(-1)))


def _collisions(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Return for each adversary the number of agents that it touches, and 0 for each other agent."""
    del rewards
    agents, _ = _positions(state)
    num_adversaries = int(params["num_adversaries"])
    reach = params["agent_size"] + params["adversary_size"]
    touching = (_pairwise_distances(agents[:num_adversaries], agents[num_adversaries:]) < reach).sum(1)
    return [*touching.tolist(), *[0] * (len(agents) - num_adversaries)]


def _squared_distances(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Return squared distances: to the goal for the adversary, to all landmarks and the goal for other agents."""
    del params, rewards
    agents, landmarks = _positions(state)
    squares = np.square(agents[:, None] - landmarks).sum(-1)
    goal = int(state["goal"])
    return [squares[0, goal], *((*row, row[goal]) for row in squares[1:])]


def _coverage(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Return for each agent: reward, collisions and, the same for all, summed distance and occupied landmarks."""
    del rewards
    agents, landmarks = _positions(state)
    nearest = _pairwise_distances(landmarks, agents).min(1)
    touching = (_pairwise_distances(agents, agents) < 2 * params["agent_size"]).sum(1) - 1
    total, occupied = nearest.sum(), int((nearest < params["capture_radius"]).sum())
    return [(-total - hits, int(hits), total, occupied) for hits in touching]


def _reward(state: State, params: Params, rewards: Rewards) -> list[Any]:
    del state, params
    return list(rewards.values())


def _messages(state: State, params: Params, rewards: Rewards) -> list[Any]:
    """Return for each agent its communication and the true message, one-hot."""
    del params, rewards
    message = np.zeros(state["c"].shape[1])
    message[int(state["goal"])] = 1
    return [(communication.copy(), message) for communication in state["c"]]


BENCHMARKS: Mapping[str, Callable[[State, Params, Rewards], list[Any]]] = {
    "SimpleTag-v3": _collisions,
    "SimpleWorldComm-v3": _collisions,
    "SimpleAdversary-v3": _squared_distances,
    "SimpleSpread-v3": _coverage,
    "SimpleSpeakerListener-v4": _reward,
    "SimpleCrypto-v3": _messages,
}
"""Functions by id of the environment."""
