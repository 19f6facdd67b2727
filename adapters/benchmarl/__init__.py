"""BenchMARL: a task for every team environment, for BenchMARL's algorithms."""

from gpu_envs.extras import extra

_INSTALL = (
    "pip install benchmarl, in a new virtual environment: BenchMARL 1.5 needs a TorchRL older than gpu_envs[torchrl]"
)

with extra("benchmarl", "benchmarl", "torchrl", "tensordict", "torch", install=_INSTALL):
    from gpu_envs.adapters.benchmarl.task import Task

__all__ = ["Task"]
