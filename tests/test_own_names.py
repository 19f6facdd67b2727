"""Names in a spec mean in C++ what they mean there, or are refused with the spec and the name."""

from pathlib import Path

import numpy as np
from small_envs import walk

from gpu_envs import Param, VectorEnv


def test_a_parameter_may_have_any_name_that_the_drivers_use(tmp_path: Path, device: str) -> None:
    names = ("i", "k", "env", "count", "params", "replica", "base", "nothing", "value")
    step = (
        f"s.x = real(0){''.join(f' + p.{n} * real({10**j})' for j, n in enumerate(names[:6]))};\n    return {{p.i, 0}};"
    )
    spec = walk(tmp_path, step=step, more={"params": {n: Param(float(j + 1)) for j, n in enumerate(names)}})
    env = VectorEnv(spec, 3, device=device, i=[0.5, 1.5, 2.5])
    env.reset(seed=0)
    _, rewards, *_ = env.step(np.zeros(3, int))
    assert rewards.tolist() == [0.5, 1.5, 2.5]
    assert np.allclose(env.state["x"], 654320 + np.array([0.5, 1.5, 2.5]))
