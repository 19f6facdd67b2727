"""Rules written in Python, and the C++ header that they are translated to."""

from gpu_envs.translation.rules import Rules

__all__ = ["Rules"]
