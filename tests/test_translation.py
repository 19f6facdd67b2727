"""Rules in Python compute what Python computes, and the same bits as the rules of a C++ author."""

import math
from pathlib import Path

import numpy as np
import pytest
from translation_cases import computing_spec, functions, samples

import gpu_envs


def test_arithmetic_is_pythons(tmp_path: Path) -> None:
    spec, python = computing_spec(tmp_path)
    given = samples()
    replicas = len(given["x"])
    env = gpu_envs.VectorEnv(spec, replicas, device="cpu", precision="float64")
    try:
        env.reset(seed=0)
        for name, values in given.items():
            env.state[name][:] = values
        env.step(np.zeros(replicas, np.int64))
        wrong = []
        for name in functions():
            made = env.state[f"r_{name}"]
            for k in range(replicas):
                x, y, i, j = given["x"][k], given["y"][k], int(given["m"][k]), int(given["n"][k])
                expected = getattr(python, name)(x, y, i, j)
                if made[k] != expected:
                    wrong.append(f"{name}({x}, {y}, {i}, {j}) is {made[k]!r} and not {expected!r}")
                    break
    finally:
        env.close()
    assert wrong == []
