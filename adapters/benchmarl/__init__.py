"""BenchMARL: a task for every team environment, for BenchMARL's algorithms."""

from gpu_envs.extras import MissingExtraError

try:
    from gpu_envs.adapters.benchmarl.task import Task
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("benchmarl", "torchrl", "tensordict", "torch"):
        raise
    raise MissingExtraError(
        f"{error.name!r} is not installed: pip install benchmarl, best in a virtual environment of its own, as "
        "BenchMARL 1.5 needs an older TorchRL than gpu_envs[torchrl] installs",
        name=error.name,
    ) from error

__all__ = ["Task"]
