"""Recordings of random episodes in PettingZoo's ``mpe2``: states, actions, rewards, observations."""

import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu_envs import envs

PARTICLES = [spec.id for spec in envs.PARTICLES]
MODULES = {name: re.sub(r"\B([A-Z])", r"_\1", name).replace("-", "_").lower() for name in PARTICLES}
EPISODE_STEPS = 25
"""Number of steps of an episode."""


class Recording(NamedTuple):
    """Consecutive steps of many episodes: ``[steps, agents, ...]``, or ``[steps, ...]`` for fields of the replica."""

    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    actions: list[np.ndarray]
    """By agent."""
    rewards: np.ndarray
    observations: list[np.ndarray]
    """By agent, after the step."""
    margins: np.ndarray
    """By step: distance of the nearest pair of discs from a change of contact, or of the order of neighbours."""


def make_mpe2(env_id: str, **params: Any) -> Any:
    """Makes an mpe2 environment without wrappers; 0 neighbours become None."""
    kwargs = {name: None if name.endswith("_neighbors") and not value else value for name, value in params.items()}
    pytest.importorskip("mpe2")
    return importlib.import_module(f"mpe2.{MODULES[env_id]}").raw_env(**kwargs)


def mpe2_state(env: Any) -> dict[str, Any]:
    """Returns mpe2's state by our names."""
    world = env.world
    agents, marks = world.agents, world.landmarks
    state = {
        "x": [a.state.p_pos[0] for a in agents],
        "y": [a.state.p_pos[1] for a in agents],
        "x_dot": [a.state.p_vel[0] for a in agents],
        "y_dot": [a.state.p_vel[1] for a in agents],
        "landmark_x": [mark.state.p_pos[0] for mark in marks],
        "landmark_y": [mark.state.p_pos[1] for mark in marks],
    }
    if any(not a.silent for a in agents):
        state["c"] = [np.array(a.state.c, np.float64) for a in agents]
    return state | _goals(agents, marks)


def _goals(agents: list[Any], marks: list[Any]) -> dict[str, Any]:
    """Indices of the goal landmarks, shared or per agent, and of the landmark whose colour is the key."""
    if getattr(agents[0], "_goal_b", None) is not None:
        goals = [next((k for k, mark in enumerate(marks) if mark is a._goal_b), None) for a in agents]  # noqa: SLF001 - mpe2's own
        return {"goal": goals[0] if None in goals else goals}
    if getattr(agents[0], "_goal_a", None) is None:
        return {}
    indices = {"goal": next(k for k, mark in enumerate(marks) if mark is agents[0]._goal_a)}  # noqa: SLF001 - mpe2's own
    if getattr(agents[-1], "_key", None) is not None:
        indices["key"] = int(np.argmax(agents[-1].key))
    return indices


def _margin(env: Any, ordered: bool) -> float:
    """Minimum distance of discs from a change of contact and, if ``ordered``, of the order of neighbours."""
    entities = env.world.entities
    places = np.array([e.state.p_pos for e in entities])
    sizes = np.array([e.size for e in entities])
    apart = np.hypot(*(places[:, None] - places).transpose(2, 0, 1))
    pairs = np.triu_indices(len(entities), 1)
    margin = np.abs(apart - sizes[:, None] - sizes)[pairs].min()
    if ordered:
        count = len(env.world.agents)
        for row in apart[:count]:
            margin = min(margin, *(np.diff(np.sort(part)).min(initial=np.inf) for part in (row[:count], row[count:])))
    return float(margin)


@functools.cache
def record_mpe2(env_id: str, steps: int, continuous: bool, params: tuple[tuple[str, Any], ...]) -> Recording:
    """Records episodes of mpe2 with uniformly random actions."""
    env = make_mpe2(env_id, continuous_actions=continuous, max_cycles=EPISODE_STEPS, **dict(params))
    rng, spaces = np.random.default_rng(1), [env.action_space(name) for name in env.possible_agents]
    ordered = any(name.endswith("_neighbors") for name, _ in params)
    actions = [
        rng.uniform(0, 1, (steps, *space.shape)).astype(np.float32) if continuous else rng.integers(space.n, size=steps)
        for space in spaces
    ]
    before, after, rewards, seen, margins = [], [], [], [], []
    for step in range(steps):
        if step % EPISODE_STEPS == 0:
            env.reset(seed=step)
        before.append(mpe2_state(env))
        env.current_actions = [given[step] if continuous else int(given[step]) for given in actions]
        env._execute_world_step()  # noqa: SLF001 - mpe2's own
        after.append(mpe2_state(env))
        rewards.append([env.rewards[name] for name in env.possible_agents])
        seen.append([env.observe(name) for name in env.possible_agents])
        margins.append(_margin(env, ordered))
    first, then = ({name: np.array([state[name] for state in s]) for name in s[0]} for s in (before, after))
    rows = [np.stack(own) for own in zip(*seen, strict=True)]
    return Recording(first, then, actions, np.array(rewards), rows, np.array(margins))


def stack_by_role(env: Any, values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Stacks arrays of agents by role."""
    left = iter(values)
    return {role: np.stack([next(left) for _ in range(count)], 1) for role, count in env.counts.items()}


def agent_arrays(by_role: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Splits arrays by role into arrays of agents."""
    for values in by_role.values():
        yield from np.moveaxis(np.asarray(values), 1, 0)


def write_state(env: Any, state: Mapping[str, np.ndarray]) -> None:
    """Writes states into an environment."""
    for name, values in state.items():
        field = env.state[name]
        if name.startswith("landmark") and not values.shape[1]:
            continue  # gpu_envs then has one unused landmark
        env.state[name] = values.reshape(field.shape)
