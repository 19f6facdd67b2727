"""Helpers that make, step, record and compare single-agent and team environments, by role."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from harness import HAS_CUDA, HAS_TORCH, IDS, Array, Make, Place, assert_unchanged, numpy_of, sentinel_array, to_place

import gpu_envs
from gpu_envs.engine.roles import RoleInterface

HOST = Place("cpu", "numpy")

LIMIT = 11

CONTINUOUS, GRID, RICE, COVID = "TagContinuous-v0", "TagGridWorld-v0", "RiceN-v0", "CovidEconomy-v0"
CARDS, MAZE = "RepeatPrevious-v0", "TMaze-v0"

RESULTS = ("observations", "rewards", "terminations", "truncations")

EXTRAS = ("final_obs", "episode_return", "episode_length")

SMALL: dict[str, dict[str, Any]] = {
    CONTINUOUS: {"num_taggers": 3, "num_runners": 12, "grid_length": 6.0, "tagging_distance": 0.3},
    GRID: {"grid_length": 4},
    RICE: {"num_regions": 3, "activities": 3},
    MAZE: {"length": 2},
}
"""Parameters of small environments, in which random agents end some episodes before the limit."""


FEW_STARTS = {RICE: 1, COVID: 1, CARDS: 4, MAZE: 2}
"""Numbers of different initial observations, where they are few."""


class Variant(NamedTuple):
    """An environment, and its parameters in addition to ``SMALL``."""

    env_id: str
    params: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments for ``make``; episodes end at ``LIMIT`` at the latest."""
        return {**SMALL.get(self.env_id, {}), "max_episode_steps": LIMIT, **self.params}

    @property
    def draws(self) -> bool:
        """Whether episodes have random initial states that hardly ever repeat."""
        return self.env_id not in FEW_STARTS

    @property
    def has_team(self) -> bool:
        """Whether it is a team environment."""
        return self.env_id not in IDS


TEAM_VARIANTS = {
    "continuous-nearest": Variant(CONTINUOUS, {}),
    "continuous-full": Variant(CONTINUOUS, {"use_full_observation": True}),
    "continuous-box": Variant(CONTINUOUS, {"actions": "continuous"}),
    "continuous-stay": Variant(CONTINUOUS, {"runner_exits_game_after_tagged": False}),
    "grid-full": Variant(GRID, {}),
    "grid-nearest": Variant(GRID, {"use_full_observation": False}),
    "rice": Variant(RICE, {"activities": 8}),
    "rice-talks": Variant(RICE, {"negotiation": True}),
    "covid": Variant(COVID, {}),
}
VARIANTS = {**{env_id: Variant(env_id, {}) for env_id in IDS}, **TEAM_VARIANTS}
BOXES = {name: VARIANTS[name] for name in ("Pendulum-v1", "continuous-box")}


def parametrize_variants(variants: Mapping[str, Variant]) -> pytest.MarkDecorator:
    """Returns a mark that runs a test for each variant."""
    return pytest.mark.parametrize("variant", variants.values(), ids=variants)


each_variant, each_team_variant = parametrize_variants(VARIANTS), parametrize_variants(TEAM_VARIANTS)

needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs a CUDA device")

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")

Actions = dict[str, np.ndarray]
"""Actions of one step, by role."""


def make_variant(make: Make, variant: Variant, count: int, place: Place = HOST, **kwargs: Any) -> Any:
    """Makes an environment of a variant; ``kwargs`` override its arguments."""
    return make(variant.env_id, count, **{**place._asdict(), **variant.arguments, **kwargs})


def split_by_role(env: Any, value: Any) -> dict[str, Any]:
    """Splits an environment's result by role."""
    return RoleInterface(env).split(value)


def join_actions(env: Any, actions: Mapping[str, Any]) -> Any:
    """Converts actions by role to the environment's argument."""
    return RoleInterface(env).join(actions)


def roles_of(env: Any) -> list[str]:
    """Returns the names of the roles."""
    return list(RoleInterface(env).roles)


def buffer_name(env: Any, name: str, role: str) -> str:
    """Returns the simulator's name of a role's buffer."""
    return f"{name}.{role}" if env.env_spec.has_team else name


def shape_of(env: Any, name: str, role: str) -> tuple[tuple[int, ...], str]:
    """Returns shape and dtype of a role's result."""
    shape, kind = env.simulation.shapes[buffer_name(env, name, role)]
    return tuple(shape), str(kind)


def draw_actions(env: Any, steps: int, seed: int = 0, beyond: float = 1.2) -> list[Actions]:
    """Returns uniformly random actions by role for each step; a Box's bounds are multiplied by ``beyond``."""
    rng, view = np.random.default_rng(seed), RoleInterface(env)
    block: Actions = {}
    for role, seen in view.roles.items():
        space: Any = seen.action
        shape = (steps, *view.batch_shape(role), *(space.shape or ()))
        if isinstance(space, Box):
            block[role] = rng.uniform(beyond * space.low, beyond * space.high, shape).astype(np.float32)
        else:
            size = space.n if isinstance(space, Discrete) else space.nvec
            block[role] = rng.integers(space.start, space.start + size, shape)
    return [{role: values[t] for role, values in block.items()} for t in range(steps)]


def place_actions(env: Any, actions: Mapping[str, np.ndarray], place: Place = HOST) -> Any:
    """Converts actions by role to the environment's argument, in a place's library and device."""
    return join_actions(env, {role: to_place(values, place) for role, values in actions.items()})


def zero_actions(env: Any) -> Actions:
    """Returns actions that are zero."""
    return {role: np.zeros_like(values) for role, values in draw_actions(env, 1)[0].items()}


def actions_of_replicas(actions: Iterable[Mapping[str, np.ndarray]], replicas: slice) -> list[Actions]:
    """Selects the actions of some replicas."""
    return [{role: values[replicas] for role, values in step.items()} for step in actions]


def numpy_by_role(env: Any, value: Any) -> dict[str, np.ndarray]:
    """Copies an environment's result to NumPy, by role."""
    return {role: numpy_of(array) for role, array in split_by_role(env, value).items()}


def reset_info_names(env: Any) -> set[str]:
    """Returns the names of the infos of a reset."""
    return {name for name, given in (("alive", env.env_spec.has_team), ("action_mask", env.env_spec.masked)) if given}


def step_outcome(env: Any, step: tuple[Any, ...]) -> dict[str, dict[str, np.ndarray]]:
    """Copies a step's results to NumPy, by name and role; ``final_obs`` is zero where no episode ended."""
    results = {name: numpy_by_role(env, values) for name, values in zip(RESULTS, step, strict=False)}
    infos = step[4]
    if "alive" in infos:
        results["alive"] = numpy_by_role(env, infos["alive"])
    final = {role: np.zeros_like(values) for role, values in results["observations"].items()}
    if "final_obs" in infos:
        mask = numpy_of(infos["_final_obs"])
        for role, values in split_by_role(env, infos["final_obs"]).items():
            final[role][mask] = numpy_of(values)[mask]
    return {**results, "final_obs": final}


def take_step(env: Any, actions: Mapping[str, np.ndarray], place: Place = HOST, **kwargs: Any) -> Any:
    """Takes a step and returns its results by name and role."""
    return step_outcome(env, env.step(place_actions(env, actions, place), **kwargs))


def ended_replicas(given: Mapping[str, Mapping[str, np.ndarray]]) -> np.ndarray:
    """Returns the mask of replicas whose agents are all terminated or truncated."""
    flags = [given["terminations"][role] | given["truncations"][role] for role in given["terminations"]]
    return np.asarray(np.concatenate([part.reshape(len(part), -1) for part in flags], axis=1).all(axis=1))


def record(
    env: Any, actions: Iterable[Mapping[str, np.ndarray]], place: Place = HOST
) -> dict[str, dict[str, np.ndarray]]:
    """Records a step with each of the actions, ``[steps, num_envs, ...]`` by name and role; resets in Disabled mode."""
    steps = []
    for action in actions:
        steps.append(take_step(env, action, place))
        if env.autoreset_mode is AutoresetMode.DISABLED and ended_replicas(steps[-1]).any():
            first = env.reset(options={"reset_mask": ended_replicas(steps[-1])})[0]
            steps[-1]["restarted"] = numpy_by_role(env, first)
        else:
            steps[-1]["restarted"] = steps[-1]["observations"]
    return {name: {role: np.stack([s[name][role] for s in steps]) for role in steps[0][name]} for name in steps[0]}


def record_of_replicas(
    recorded: Mapping[str, Mapping[str, np.ndarray]], replicas: slice
) -> dict[str, dict[str, np.ndarray]]:
    """Selects some replicas of a recording."""
    return {name: {role: v[:, replicas] for role, v in by_role.items()} for name, by_role in recorded.items()}


def join_agents(env: Any, value: Any) -> np.ndarray:
    """Copies an environment's result to one array of all agents, ``[num_envs, agents, ...]``."""
    return agent_rows(env, numpy_by_role(env, value))


def agent_rows(env: Any, by_role: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenates arrays by role to one array of all agents, ``[num_envs, agents, ...]``."""
    parts = [v if env.env_spec.has_team else v[:, None] for v in by_role.values()]
    if len({part.shape[2:] for part in parts}) > 1:  # observations of several widths
        widest = max(part.shape[2] for part in parts)
        parts = [np.pad(part, ((0, 0), (0, 0), (0, widest - part.shape[2]))) for part in parts]
    return np.concatenate(parts, axis=1)


def trajectory_state(env: Any) -> dict[str, Any]:
    """Returns the state and the statistics, without the mask of episodes that the last step finished."""
    state: dict[str, Any] = env.get_state()
    state["episode"] = {name: numpy_of(values) for name, values in state["episode"].items() if name != "finished"}
    return state


def all_buffers(env: Any) -> dict[str, np.ndarray]:
    """Copies all buffers of a simulation, except scratch."""
    return {name: numpy_of(array) for name, array in env.simulation.buffers.items() if not name.startswith("scratch.")}


def set_elapsed(env: Any, steps: Any) -> None:
    """Sets the number of elapsed steps."""
    if "elapsed" in env.state:
        env.state["elapsed"] = steps
        return
    state = env.get_state()
    state["episode"]["elapsed"] = np.broadcast_to(steps, env.num_envs).astype(np.int32)
    env.set_state(state)


STEPS = 40


class Team(NamedTuple):
    """A team size that selects a particular schedule."""

    taggers: int
    runners: int
    seen: int = 10
    full: bool = False
    box: bool = False

    @property
    def params(self) -> dict[str, Any]:
        """Parameters for ``make``."""
        return {
            "num_taggers": self.taggers,
            "num_runners": self.runners,
            "num_other_agents_observed": self.seen,
            "use_full_observation": self.full,
            "actions": "continuous" if self.box else "discrete",
            "grid_length": 1.5 * math.sqrt(self.taggers + self.runners),
            "tagging_distance": 0.5 / math.sqrt(self.taggers + self.runners),
            "edge_hit_penalty": -0.1,
        }


def starts_of(env: Any, rows: int | None = None) -> dict[str, np.ndarray]:
    """Returns cells of agents, with runners far from taggers; ``rows``: number of replicas with different cells."""
    taggers = np.arange(env.num_agents) < env.counts["tagger"]
    x = np.where(taggers, 0, 3)
    y = np.where(taggers, 0, 4)
    if rows is not None:
        x = x + (np.arange(rows) % 2)[:, None]
        y = np.broadcast_to(y, x.shape)
    return {"x": x, "y": y}


def distant_starts(env: Any) -> dict[str, Any]:
    """Returns reset options after which no episode ends within a few steps."""
    return starts_of(env) if "tagger" in roles_of(env) else {}


def dtype(array: Array) -> str:
    """Returns the name of an array's dtype."""
    return str(array.dtype).rpartition(".")[2]


def library_name(array: Array) -> str:
    """Returns the name of an array's library."""
    return type(array).__module__.partition(".")[0]


def storage_place(place: Place) -> Place:
    """Returns a place for user-supplied output arrays: NumPy arrays cannot be on a GPU."""
    return Place("cuda", "cupy") if place == ("cuda", "numpy") else place


def guarded_array(place: Place, shape: tuple[int, ...], kind: str) -> tuple[Array, Array]:
    """Returns an array with one guard element at each end, and the view between them."""
    array = sentinel_array(storage_place(place), (math.prod(shape) + 2,), kind)
    return array, array[1:-1].reshape(shape)


def assert_guards(array: Array) -> None:
    """Fails if the guard elements of an array were written."""
    ends = numpy_of(array)[[0, -1]]
    assert (ends == np.full(2, 77).astype(ends.dtype)).all()


def has_integer_actions(env: Any) -> bool:
    """Whether no action space is a Box."""
    return not any(isinstance(seen.action, Box) for seen in RoleInterface(env).roles.values())


def time_limit_name(spec: gpu_envs.Spec) -> str:
    """Returns the name of the time limit parameter, or an empty string."""
    return next((name for name in ("episode_length", "max_cycles") if name in spec.params), "")


def first_real(variant: Variant) -> str:
    """Returns the first real parameter that may differ between replicas."""
    params = gpu_envs.spec(variant.env_id).params
    return next(name for name, p in params.items() if p.kind == "real" and not p.fixed)


def assert_refused(env: Any, act: Callable[[], object], error: Any, match: str) -> None:
    """Fails unless a call raises an error with a matching message and leaves the state unchanged."""
    with pytest.raises(error, match=match):
        assert_unchanged(env, act)
