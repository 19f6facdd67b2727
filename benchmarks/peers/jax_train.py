"""PPO in JAX, in the style of PureJaxRL: ``jax_ppo`` as a workload of ``benchmarks.peers``."""

import jax

from benchmarks.peers import child, jax_ppo
from benchmarks.peers.jax_learner import Settings
from benchmarks.peers.workloads import HORIZON, Measurement, Workload


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds of training per step of each replica."""
    settings = Settings(
        num_envs=work.num_envs, horizon=HORIZON, epochs=1, minibatches=4, learning_rate=3e-4, precision="float32"
    )
    updates = max(1, round(seconds * 4)) if work.device == "cpu" else 10
    with jax.default_device(jax.devices(work.device)[0]):
        result = jax_ppo.throughput(settings, updates, repeats=3)
    return Measurement(work.num_envs / result["steps_per_s"], result["compile_s"])


if __name__ == "__main__":
    child.serve(("jax",), measure)
