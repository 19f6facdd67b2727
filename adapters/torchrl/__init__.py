"""The environments as TorchRL's own: an ``EnvBase``, not a wrapped Gymnasium environment; teams grouped by role."""

from gpu_envs.extras import extra

with extra("torchrl", "torchrl", "tensordict", "torch"):
    from gpu_envs.adapters.torchrl.env import Env

__all__ = ["Env"]
