"""Generated valid and invalid calls: invalid calls change nothing, so that the environment stays equal to a twin.

Also generated snapshots: environments of other modes and distributions continue them like the original.

``GENERATED_CALLS=100000`` sets the number of calls; ``GENERATED_SEED=7`` sets the first seed.
"""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import Calls
from harness import assert_same_bits, restored_registry
from registered import VARIANTS, assert_refused
from small_envs import walk

from gpu_envs import Field, Param, Table, Uniform, VectorEnv, register

CALLS_PER_ENV = 40

TOTAL = int(os.environ.get("GENERATED_CALLS", "2000"))

FIRST_SEED = int(os.environ.get("GENERATED_SEED", "1"))

PARTS = 32


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("part", range(PARTS))
def test_invalid_calls_change_nothing(part: int) -> None:
    """An environment that also gets invalid calls stays equal, bit for bit, to a twin that only gets the valid ones."""
    variants = list(VARIANTS.values())
    for seed in range(FIRST_SEED + part, FIRST_SEED + max(1, TOTAL // CALLS_PER_ENV), PARTS):
        calls = Calls(seed, variants[seed % len(variants)])
        try:
            for _ in range(CALLS_PER_ENV):
                calls.take()
            calls.finish()
        except Exception as error:
            raise AssertionError("\n".join(["after these calls:", *calls.log])) from error


STEPS = 8
"""Number of steps of each replica to compare."""

LOWER, UPPER = (0.5, 0.9, Uniform(0.1, 0.4), Uniform(0.6, 1.2)), (1.0, 1.5, Uniform(1, 2), Uniform(0.7, 0.8))
"""Values of an ordered pair of parameters; some combinations are out of order and refused."""


def gains_spec(folder: Path) -> Any:
    """A spec whose rewards depend on everything in a snapshot, and on no action."""
    return walk(
        folder,
        "Gains-v0",
        more={
            "state": {"x": Field(), "n": Field("int")},
            "params": {"lower": Param(0.5), "upper": Param(1.5)},
            "ordered": (("lower", "upper"),),
            "tables": {"gains": Table([1.0, 2.0, 3.0, 4.0])},
            "max_episode_steps": 4,
            "longest_episode": 4,
        },
        reset="s.x = random.uniform(p.lower, p.upper);\n    s.n = 0;",
        step="s.x += p.gains[s.n] * random.uniform(p.lower, p.upper);\n    s.n += 1;\n    return {s.x, s.x > real(4)};",
        observe="observation[0] = float(p.lower);\n    observation[1] = float(p.upper);",
    )


def next_rewards(env: VectorEnv) -> np.ndarray:
    """The next rewards of each replica, ``[num_envs, STEPS]``, which are the same in all modes."""
    env, rows = copy.deepcopy(env), [list[float]() for _ in range(env.num_envs)]
    for _ in range(2 * STEPS):  # in NextStep mode up to every other step is a reset
        over = np.array(env.get_state()["episode"]["ended"]) != 0
        if env.autoreset_mode.value == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
            over[:] = False
        observations, rewards, *_ = env.step(np.zeros(env.num_envs, int))
        assert (observations[:, 0] <= observations[:, 1]).all()
        for i in np.flatnonzero(~over):
            rows[i].append(float(rewards[i]))
    return np.array([row[:STEPS] for row in rows])


class SnapshotExchange:
    """Two random environments, and random calls that step them, set parameters, and copy snapshots between them."""

    def __init__(self, seed: int, spec: Any) -> None:
        """Create both environments with random options."""
        self.rng, self.spec, self.log = np.random.default_rng(seed), spec, [f"seed {seed}"]
        self.envs = [self._make_env() for _ in range(2)]

    def _make_env(self) -> VectorEnv:
        mode, first = str(self.rng.choice(["NextStep", "SameStep", "Disabled"])), int(self.rng.choice([0, 5]))
        count = int(self.rng.integers(1, 4))
        env = VectorEnv(self.spec, count, device="cpu", autoreset_mode=mode, first_replica=first)
        env.reset(seed=int(self.rng.integers(100)))
        env.allow_frozen_steps()
        self.log.append(f"{env!r}, first_replica={first}")
        return env

    def take(self) -> None:
        """Make one random call."""
        source, target = (self.envs[self.rng.integers(2)] for _ in range(2))
        [self._step, self._set, self._copy, self._copy, self._fork][self.rng.integers(5)](source, target)

    def _step(self, source: VectorEnv, _: VectorEnv) -> None:
        self.log.append(f"step {self.envs.index(source)}")
        source.step(np.zeros(source.num_envs, int))

    def _set(self, source: VectorEnv, _: VectorEnv) -> None:
        name, values = [("lower", LOWER), ("upper", UPPER)][self.rng.integers(2)]
        value: Any = values[self.rng.integers(len(values))]
        if isinstance(value, float) and self.rng.random() < 0.3:
            value = np.linspace(value, value + 0.05, source.num_envs)
        self.log.append(f"{self.envs.index(source)}.params[{name!r}] = {value!r}")
        try:
            source.params[name] = value
        except ValueError as error:
            if "must not exceed" not in str(error):
                raise

    def _copy(self, source: VectorEnv, target: VectorEnv) -> None:
        count, rng = target.num_envs, self.rng
        to = None if rng.random() < 0.5 else np.flatnonzero(rng.random(count) < 0.6)
        to = None if to is None or not len(to) else to
        written = np.arange(count) if to is None else to
        rows = rng.integers(0, source.num_envs, len(written) if rng.random() < 0.5 else 1)
        all_rows = source.num_envs in (1, len(written)) and rng.random() < 0.5
        state = source.get_state() if all_rows else source.get_state(rows)
        state = pickle.loads(pickle.dumps(state)) if rng.random() < 0.3 else state
        rows = np.arange(source.num_envs) if all_rows else rows
        self.log.append(f"{rows} of {self.envs.index(source)} to {to} of {self.envs.index(target)}, {all_rows=}")
        if to is not None and source.distributions != target.distributions:
            assert_refused(target, lambda: target.set_state(state, to), ValueError, "must draw the same parameters")
            return
        expected, copied = next_rewards(target), next_rewards(source)[rows]
        expected[written] = copied
        target.set_state(state, to)
        assert target.distributions == source.distributions
        assert_same_bits(next_rewards(target), expected)

    def _fork(self, source: VectorEnv, _: VectorEnv) -> None:
        self.log.append(f"fork {self.envs.index(source)}")
        assert_same_bits(next_rewards(source.fork(2)), np.repeat(next_rewards(source), 2, 0))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_snapshots_continue_in_other_environments(part: int, tmp_path: Path) -> None:
    """Environments of another mode, size, first replica or distributions continue a snapshot, or refuse it."""
    spec = gains_spec(tmp_path)
    with restored_registry():
        register(spec)  # copies and pickles look it up by its id
        for seed in range(FIRST_SEED + part, FIRST_SEED + PARTS * max(1, TOTAL // 4000), PARTS):
            exchange = SnapshotExchange(seed, spec)
            try:
                for _ in range(CALLS_PER_ENV // 2):
                    exchange.take()
            except Exception as error:
                raise AssertionError("\n".join(["after these calls:", *exchange.log])) from error
