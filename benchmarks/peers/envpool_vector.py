"""EnvPool's cart-pole: all replicas in step, or asynchronously, as many at a time as a quarter of them."""

import os
import time

import envpool
import numpy as np

from benchmarks.peers import child
from benchmarks.peers.works import Measured, Work
from benchmarks.timing import seconds_per_call


def measure(work: Work, seconds: float) -> Measured:
    """Seconds in which each replica takes a step, on the mean."""
    threads = 1 if work.cores == "one" else os.cpu_count() or 1
    batch = max(1, work.num_envs // 4) if work.variant == "asynchronous" else work.num_envs
    actions = np.random.default_rng(0).integers(0, 2, (16, batch)).astype(np.int32)
    begin = time.perf_counter()
    env = envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=work.num_envs, batch_size=batch, num_threads=threads
    )
    try:
        if work.variant != "asynchronous":
            env.reset()
            return child.stepped(env, actions, begin, seconds)

        def turn(t: int) -> None:
            infos = env.recv()[-1]
            env.send(actions[t % 16], infos["env_id"])

        env.async_reset()
        turn(0)
        prepare = time.perf_counter() - begin
        return Measured(seconds_per_call(turn, seconds=seconds) * work.num_envs / batch, prepare)
    finally:
        env.close()


if __name__ == "__main__":
    child.serve(("envpool", "gymnasium", "numpy"), measure)
