"""PPO in JAX, in the manner of PureJaxRL, end to end: ``jax_ppo`` as the comparison of simulators runs it."""

import jax

from benchmarks.peers import child, jax_ppo
from benchmarks.peers.jax_learner import Settings
from benchmarks.peers.works import HORIZON, Measured, Work


def measure(work: Work, seconds: float) -> Measured:
    """Seconds of training divided by the steps of each replica in them."""
    settings = Settings(
        num_envs=work.num_envs, horizon=HORIZON, epochs=1, minibatches=4, learning_rate=3e-4, precision="float32"
    )
    updates = max(1, round(seconds * 4)) if work.device == "cpu" else 10
    with jax.default_device(jax.devices(work.device)[0]):
        found = jax_ppo.throughput(settings, updates, repeats=3)
    return Measured(work.num_envs / found["steps_per_s"], found["compile_s"])


if __name__ == "__main__":
    child.serve(("jax",), measure)
