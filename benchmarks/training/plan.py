"""Functions that the sections of ``benchmarks.training`` share: training of presets, and summaries over seeds."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gpu_envs.training.presets import PRESETS

EPISODES = 1000
"""Episodes of every evaluation."""


@final
@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The device, the sizes and the interpreters of the measurements."""

    device: str
    """cpu or cuda."""
    seeds: int
    """Maximum number of seeds of each training."""
    rounds: int
    """Number of rounds of measurements in turns."""
    seconds: float
    """Duration of a round."""
    jax_python: str
    """A Python interpreter with jax and, for ``ippo``, jaxmarl."""
    sb3_python: str
    """A Python interpreter with stable-baselines3."""
    log: Callable[[str], None]
    """Prints a line."""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    @property
    def jax_environment(self) -> dict[str, str]:
        """Environment variables for JAX: no preallocation of GPU memory, and no fallback to another device."""
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": self.device}


def preset(env_id: str, name: str = "default") -> Mapping[str, Any]:
    """Return a preset's settings by flat name; raise with the names of the presets if there is none."""
    presets = PRESETS.get(env_id, {})
    if name not in presets:
        raise ValueError(f"{env_id} has no preset {name!r}; it has {', '.join(presets) or 'none'}")
    return presets[name]


def train_preset(
    plan: TrainingPlan,
    env_id: str,
    name: str,
    seed: int,
    folder: Path | None = None,
    extra_settings: Mapping[str, Any] = {},
) -> tuple[Any, dict[str, Any]]:
    """Train a preset with extra settings; return the trainer, and steps and seconds.

    ``folder``: the run directory; None: none is written.
    """
    from gpu_envs.training import Run, RunDirectory, Trainer

    run_settings = {"seed": seed, "device": plan.device, "run_dir": "", "checkpoint_interval": 0}
    settings = Run.from_flat({"env": env_id} | dict(preset(env_id, name)) | run_settings | dict(extra_settings))
    trainer = Trainer(settings, RunDirectory.create(folder, settings) if folder is not None else None)
    start = time.perf_counter()
    trainer.prepare()
    ready = time.perf_counter()
    result = trainer.run(progress=False)
    end = time.perf_counter()
    return trainer, {
        "seed": seed,
        "prepare_s": ready - start,
        "seconds": end - ready,
        "steps": result.steps,
        "reason": result.reason,
    }


def summary(runs: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any]:
    """Return the number of runs that reached the target in training and evaluation, and the median of the seconds.

    A run that did not counts as infinite seconds; an infinite median is None.
    """
    solved = [run["last_100"] >= target and run["evaluated"] >= target for run in runs]
    seconds = [run["seconds"] if is_solved else math.inf for run, is_solved in zip(runs, solved, strict=True)]
    median = statistics.median(seconds)
    return {
        "median_s": median if math.isfinite(median) else None,
        "solved": sum(solved),
        "seeds": len(runs),
        "runs": [finite(run) for run in runs],
    }


def finite(run: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities in a run's results by None, for JSON."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in run.items()}


def format_summary(result: Mapping[str, Any]) -> str:
    """Return a summary as text, or the reason for its absence."""
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    time = "not solved" if result["median_s"] is None else f"{result['median_s']:.3f} s"
    return f"{time} (median of {result['seeds']} seeds, {result['solved']} of them solved)"
