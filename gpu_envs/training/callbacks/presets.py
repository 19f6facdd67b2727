"""Callbacks that presets name."""

from gpu_envs.training.callbacks.curriculum import Curriculum, return_above, stages_between

_STAGES, _RETURN = 3, 200


def pole_masses() -> Curriculum:
    """Return the curriculum of CartPole's pole mass: from about the usual 0.1 to a tenth of it to eight times."""
    stages = stages_between("loguniform:0.08:0.12", "loguniform:0.01:0.8", _STAGES)
    return Curriculum("pole_mass", stages, when=return_above(_RETURN))


def pole_lengths() -> Curriculum:
    """Return the curriculum of CartPole's pole length: from short poles to a tenth of the usual 0.5 to eight times."""
    stages = stages_between("loguniform:0.05:0.1", "loguniform:0.05:4", _STAGES)
    return Curriculum("length", stages, when=return_above(_RETURN))
