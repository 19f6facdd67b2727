"""Generated calls, right and wrong ones, in all modes and outputs: the environment stays equal to its untouched twin.

Generated snapshots, which environments of other modes and distributions continue as the original does.

``GENERATED_CALLS=100000`` makes so many; ``GENERATED_SEED=7`` begins with the calls of that seed.
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

EACH = 40
"""Calls to one environment."""

TOTAL = int(os.environ.get("GENERATED_CALLS", "2000"))

FIRST = int(os.environ.get("GENERATED_SEED", "1"))

PARTS = 32


@pytest.mark.fast_cases(9)
@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_calls_leave_no_trace(part: int) -> None:
    """An environment that is given wrong calls as well goes on, bit for bit, as its twin that never was."""
    variants = list(VARIANTS.values())
    for seed in range(FIRST + part, FIRST + max(1, TOTAL // EACH), PARTS):
        calls = Calls(seed, variants[seed % len(variants)])
        try:
            for _ in range(EACH):
                calls.take()
            calls.finish()
        except Exception as error:
            raise AssertionError("\n".join(["these calls came before:", *calls.log])) from error


STEPS = 8
"""How many steps of each replica are compared."""

LOWER, UPPER = (0.5, 0.9, Uniform(0.1, 0.4), Uniform(0.6, 1.2)), (1.0, 1.5, Uniform(1, 2), Uniform(0.7, 0.8))
"""Values of an ordered pair of parameters, of which some do not go together."""


def gains(folder: Path) -> Any:
    """An environment whose rewards depend on all that a snapshot holds, and on no action."""
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


def rewards_from_here(env: VectorEnv) -> np.ndarray:
    """The next rewards of each replica, ``[num_envs, STEPS]``: the same in all modes."""
    env, rows = copy.deepcopy(env), [list[float]() for _ in range(env.num_envs)]
    for _ in range(2 * STEPS):  # in NextStep mode at most every other step begins an episode
        over = np.array(env.get_state()["episode"]["ended"]) != 0
        if env.autoreset_mode.value == "Disabled" and over.any():
            env.reset(options={"reset_mask": over})
            over[:] = False
        seen, rewards, *_ = env.step(np.zeros(env.num_envs, int))
        assert (seen[:, 0] <= seen[:, 1]).all()
        for i in np.flatnonzero(~over):
            rows[i].append(float(rewards[i]))
    return np.array([row[:STEPS] for row in rows])


class Moments:
    """Two environments whose moments go to and fro."""

    def __init__(self, seed: int, spec: Any) -> None:
        """Makes both, as the seed says."""
        self.rng, self.spec, self.log = np.random.default_rng(seed), spec, [f"seed {seed}"]
        self.envs = [self._made() for _ in range(2)]

    def _made(self) -> VectorEnv:
        mode, first = str(self.rng.choice(["NextStep", "SameStep", "Disabled"])), int(self.rng.choice([0, 5]))
        count = int(self.rng.integers(1, 4))
        env = VectorEnv(self.spec, count, device="cpu", autoreset_mode=mode, first_replica=first)
        env.reset(seed=int(self.rng.integers(100)))
        env.allow_frozen_steps()
        self.log.append(f"{env!r}, first_replica={first}")
        return env

    def take(self) -> None:
        """One call."""
        source, target = (self.envs[self.rng.integers(2)] for _ in range(2))
        [self._step, self._set, self._move, self._move, self._fork][self.rng.integers(5)](source, target)

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

    def _move(self, source: VectorEnv, target: VectorEnv) -> None:
        count, rng = target.num_envs, self.rng
        to = None if rng.random() < 0.5 else np.flatnonzero(rng.random(count) < 0.6)
        to = None if to is None or not len(to) else to
        written = np.arange(count) if to is None else to
        rows = rng.integers(0, source.num_envs, len(written) if rng.random() < 0.5 else 1)
        whole = source.num_envs in (1, len(written)) and rng.random() < 0.5
        kept = source.get_state() if whole else source.get_state(rows)
        kept = pickle.loads(pickle.dumps(kept)) if rng.random() < 0.3 else kept
        rows = np.arange(source.num_envs) if whole else rows
        self.log.append(f"{rows} of {self.envs.index(source)} to {to} of {self.envs.index(target)}, whole={whole}")
        if to is not None and source.distributions != target.distributions:
            assert_refused(target, lambda: target.set_state(kept, to), ValueError, "replicas draw alike")
            return
        expected, wanted = rewards_from_here(target), rewards_from_here(source)[rows]
        expected[written] = wanted
        target.set_state(kept, to)
        assert target.distributions == source.distributions
        assert_same_bits(rewards_from_here(target), expected)

    def _fork(self, source: VectorEnv, _: VectorEnv) -> None:
        self.log.append(f"fork {self.envs.index(source)}")
        assert_same_bits(rewards_from_here(source.fork(2)), np.repeat(rewards_from_here(source), 2, 0))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_moments_go_on_anywhere(part: int, tmp_path: Path) -> None:
    """In environments of another mode, size, place in the batch and other distributions; or they are refused."""
    spec = gains(tmp_path)
    with restored_registry():
        register(spec)  # copies find it by its id
        for seed in range(FIRST + part, FIRST + PARTS * max(1, TOTAL // 4000), PARTS):
            moments = Moments(seed, spec)
            try:
                for _ in range(EACH // 2):
                    moments.take()
            except Exception as error:
                raise AssertionError("\n".join(["these calls came before:", *moments.log])) from error
