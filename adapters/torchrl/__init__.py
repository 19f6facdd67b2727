"""TorchRL: a batched ``EnvBase`` for the environments, with the agents of a team grouped by role."""

from gpu_envs.extras import extra

with extra("torchrl", "torchrl", "tensordict", "torch"):
    from gpu_envs.adapters.torchrl.env import Env

__all__ = ["Env"]
