"""EnvPool's CartPole: all replicas together, or asynchronously, a quarter of them per call."""

import time

import envpool
import numpy as np

from benchmarks.peers import child
from benchmarks.peers.workloads import Measurement, Workload
from benchmarks.timing import seconds_per_call
from gpu_envs.backend.background import available_threads


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step of each replica, on average."""
    threads = 1 if work.cores == "one" else available_threads()
    batch = max(1, work.num_envs // 4) if work.variant == "asynchronous" else work.num_envs
    actions = np.random.default_rng(0).integers(0, 2, (16, batch)).astype(np.int32)
    start = time.perf_counter()
    env = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=work.num_envs, batch_size=batch, num_threads=threads
    )
    try:
        if work.variant != "asynchronous":
            env.reset()
            return child.time_steps(env, actions, start, seconds)

        def call(t: int) -> None:
            infos = env.recv()[-1]
            env.send(actions[t % 16], infos["env_id"])

        env.async_reset()
        call(0)
        prepare = time.perf_counter() - start
        return Measurement(seconds_per_call(call, seconds=seconds) * work.num_envs / batch, prepare)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("envpool", "gymnasium", "numpy"), measure)
