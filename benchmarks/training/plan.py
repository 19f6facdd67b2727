"""What the sections of ``benchmarks.training`` share: where to measure, and what a run of several seeds amounts to."""

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
    """What to measure with."""

    device: str
    """cpu or cuda."""
    seeds: int
    """Seeds of what is trained several times, at most."""
    rounds: int
    """Rounds of what is measured in turn."""
    seconds: float
    """Of such a round."""
    jax_python: str
    """A Python that has jax, and jaxmarl where that is to be beside."""
    sb3_python: str
    """A Python that has stable-baselines3."""
    log: Callable[[str], None]
    """Prints a line."""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a CUDA device."""
        return self.device == "cuda"

    @property
    def jax_environment(self) -> dict[str, str]:
        """Variables for JAX, which would take most of a device's memory, or another device where it finds none."""
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": self.device}


def preset(env_id: str, name: str = "default") -> Mapping[str, Any]:
    """The settings of a preset by their flat names, or which presets there are."""
    known = PRESETS.get(env_id, {})
    if name not in known:
        raise ValueError(f"{env_id} has no preset {name!r}; it has {', '.join(known) or 'none'}")
    return known[name]


def trained(
    plan: TrainingPlan, env_id: str, name: str, seed: int, folder: Path | None = None, own: Mapping[str, Any] = {}
) -> tuple[Any, dict[str, Any]]:
    """A preset, with settings of one's own, trained to its end: the trainer, and how long that took.

    With a folder, its log is left there.
    """
    from gpu_envs.training import Run, RunDirectory, Trainer

    here = {"seed": seed, "device": plan.device, "run_dir": "", "checkpoint_interval": 0}
    settings = Run.from_flat({"env": env_id} | dict(preset(env_id, name)) | here | dict(own))
    trainer = Trainer(settings, RunDirectory.create(folder, settings) if folder is not None else None)
    begin = time.perf_counter()
    trainer.prepare()
    ready = time.perf_counter()
    result = trainer.run(progress=False)
    done = time.perf_counter()
    return trainer, {
        "seed": seed,
        "prepare_s": ready - begin,
        "seconds": done - ready,
        "steps": result.steps,
        "reason": result.reason,
    }


def summary(runs: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any]:
    """How many runs reached the target by their own account and by evaluation, and the median of their seconds.

    A run that did not counts as one that takes for ever; where that is the median, it is None.
    """
    solved = [run["last_100"] >= target and run["evaluated"] >= target for run in runs]
    seconds = [run["seconds"] if good else math.inf for run, good in zip(runs, solved, strict=True)]
    median = statistics.median(seconds)
    return {
        "median_s": median if math.isfinite(median) else None,
        "solved": sum(solved),
        "seeds": len(runs),
        "runs": [finite(run) for run in runs],
    }


def finite(run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a run, with None for NaN and infinities, which JSON does not have."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in run.items()}


def told(found: Mapping[str, Any]) -> str:
    """A summary in a few words, or why there is none."""
    if "skipped" in found:
        return f"skipped: {found['skipped']}"
    time = "not solved" if found["median_s"] is None else f"{found['median_s']:.3f} s"
    return f"{time} (median of {found['seeds']} seeds, {found['solved']} of them solved)"
