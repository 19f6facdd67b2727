"""What the settings of a training run may be."""

import math
from collections.abc import Mapping
from typing import Any

from gpu_envs.backend.host import MOST_THREADS
from gpu_envs.errors import did_you_mean
from gpu_envs.training.algorithms import ALGORITHMS
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.values import real_number, whole_number

WORDS: Mapping[str, tuple[str, ...]] = {
    "algorithm": ALGORITHMS,
    "activation": ("tanh", "relu", "elu", "silu", "gelu"),
    "precision": ("float32", "tf32", "bf16"),
    "exploration": ("white", "ou", "state"),
}
"""Settings that are one of some words."""

MOST = 2**31 - 1
_MOST_LAYERS = 100

_OF_THE_RUN = ("num_envs", "device", "threads")
_CHOSEN = (
    *("shared_observations", "active_heads", "output", "autoreset_mode", "first_replica"),
    *_OF_THE_RUN,
)
"""Options of an environment that are the trainer's to choose; some of them are settings of the run."""

_LONGEST = 10**15
"""Steps and updates are counted in doubles, too, which are exact so far."""

MAPPINGS = {
    "params": "{'gravity': 9.8}",
    "policies": "{'runner': 'random'}",
    "policy_settings": "{'runner': {'gamma': 0.95}}",
}
"""Settings that are mappings by name, and an example of each."""

WHOLE = {
    "seed": (0, math.inf),
    "total_steps": (1, _LONGEST),
    "num_envs": (1, MOST),
    "gpus": (1, 2**16),
    "horizon": (1, MOST),
    "epochs": (1, MOST),
    "minibatches": (1, MOST),
    "slots": (2, MOST),
    "warm_up": (0, _LONGEST),
    "batch": (1, MOST),
    "updates": (1, MOST),
    "n_step": (1, MOST),
    "policy_delay": (1, MOST),
    "atoms": (2, 1001),
    "log_interval": (1, _LONGEST),
    "checkpoint_interval": (0, _LONGEST),
    "keep_checkpoints": (1, _LONGEST),
    "threads": (1, MOST_THREADS),
}
"""Settings that are whole numbers, and the least and the most that each may be."""

RANGES = {
    "gamma": (0.0, 1.0, False),
    "gae_lambda": (0.0, 1.0, False),
    "clip": (0.0, 10.0, True),
    "value_clip": (0.0, 1e9, True),
    "value_weight": (0.0, 1e6, False),
    "max_grad_norm": (0.0, 1e9, True),
    "target_kl": (0.0, 1e3, True),
    "initial_std": (0.0068, 7.38, False),  # within LOG_STD_RANGE of training/operations/heads.py
    "tau": (0.0, 1.0, True),
    "temperature": (0.0, 1e6, True),
    "target_entropy": (-1e6, 1e6, False),
    "noise": (0.0, 10.0, False),
    "target_noise": (0.0, 10.0, False),
    "target_noise_clip": (0.0, 10.0, False),
    "least_return": (-1e30, 1e30, False),
    "most_return": (-1e30, 1e30, False),
    "target_return": (-1e30, 1e30, False),
}
"""Settings that are numbers: the least, the most, and whether the least itself is out."""

SCHEDULES = {"learning_rate": (0.0, math.inf), "entropy_weight": (-math.inf, math.inf), "epsilon": (0.0, 1.0)}
"""Settings that are schedules: the least and the most."""


def checked(name: str, value: Any, others: str = "") -> Schedule | str | int | float:
    """A setting of those above in the form that is kept, or what is wrong; ``others`` says what else it may be."""
    if name in SCHEDULES:
        return _schedule(name, value)
    if name in WORDS:
        if value not in WORDS[name]:
            allowed = WORDS[name]
            raise ValueError(f"{name} is {value!r}{did_you_mean(str(value), allowed)} Allowed: {', '.join(allowed)}")
        return str(value)
    return _whole(name, value, others) if name in WHOLE else _real(name, value)


def check_params(params: Mapping[str, Any]) -> None:
    """Refuses options of an environment that are the trainer's to choose."""
    for name in params:
        if name in _CHOSEN:
            instead = f"give the run's setting {name}" if name in _OF_THE_RUN else "leave it out"
            raise ValueError(f"params names {name}, which the trainer chooses by itself; {instead}")
    if params.get("precision", "float32") != "float32":
        raise ValueError(f"params names precision={params['precision']!r}; training is in float32: leave it out")
    if params.get("statistics", True) is False:
        raise ValueError("params names statistics=False, and the trainer counts episodes by them; leave it out")


def checked_widths(value: Any) -> tuple[int, ...]:
    """Returns the widths of hidden layers, or says what is wrong."""
    try:
        widths = tuple(whole_number(width) or 0 for width in value)
    except TypeError:
        widths = ()
    if len(widths) > _MOST_LAYERS:
        raise ValueError(f"hidden has {len(widths):,} layers; give {_MOST_LAYERS} or fewer")
    if not widths or not 1 <= min(widths) <= max(widths) <= MOST:
        raise ValueError(f"hidden is {value!r}; give the width of each hidden layer, such as (64, 64)")
    return widths


def _schedule(name: str, value: Any) -> Schedule:
    low, high = SCHEDULES[name]
    try:
        schedule = Schedule.of(value if real_number(value) is None else real_number(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not all(low <= at <= high for _, at in schedule.points):
        wrong = "cannot be negative" if math.isinf(high) else f"must lie from {low:g} to {high:g}"
        raise ValueError(f"{name} is {value}; it {wrong}")
    return schedule


def _whole(name: str, value: Any, others: str) -> int:
    least, most = WHOLE[name]
    number = whole_number(value)
    if number is None or number < least:
        raise ValueError(f"{name} is {value!r}; give a whole number from {least} up{others}")
    if number > most:
        raise ValueError(f"{name} is {value!r}; give a whole number from {least} to {most:,}")
    return number


def _real(name: str, value: Any) -> float:
    low, high, open_at_low = RANGES[name]
    real = real_number(value)
    if real is None or not math.isfinite(real):
        raise ValueError(f"{name} is {value!r}; give a number")
    if not low <= real <= high or (open_at_low and real == low):
        above = f"above {low:g}" if open_at_low else f"from {low:g}"
        raise ValueError(f"{name} is {value!r}; it must lie {above} to {high:g}")
    return real
