"""Helpers for tests of exports: runs whose weights are not trivial, and ONNX models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from trainers import last_checkpoint, run_of

from gpu_envs.training.policy import algorithms_with

FEW = {
    "num_envs": 4,
    "horizon": 8,
    "total_steps": 32,
    "threads": 1,
    "device": "cpu",
    "target_return": None,
    "minibatches": 1,
    "learning_starts": 0,
    "batch_size": 8,
    "buffer_size": 64,
}
"""Settings of a run of one update."""


def perturbed_run(folder: Path, modules: Mapping[str, Any] | None = None, **settings: Any) -> Path:
    """Trains a run for one update in float32, and adds random numbers to its weights; returns its folder."""
    import torch

    from gpu_envs.training import RunDirectory, train
    from gpu_envs.training.record.checkpoint import save

    few = {**settings, **FEW}
    few |= {
        name: FEW.get(name.rpartition(".")[2], value) for name, value in settings.items()
    }  # of single policies, too
    algorithm = few.get("algorithm", "ppo")
    few = {name: few[name] for name in few if "." in name or algorithm in (algorithms_with(name) or (algorithm,))}
    train(run_of(**{**few, "precision": "float32"}, run_dir=str(folder)), progress=False, modules=modules)
    state, generator = last_checkpoint(folder), torch.Generator().manual_seed(1)
    for learner in state["learners"].values():
        if learner.get("epsilon") is not None:
            learner["epsilon"].fill_(0.3)
        for weight in learner["module"].values():
            fan = weight.shape[-1] if weight.ndim > 1 else 4
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.5 * fan**-0.5)
    latest = RunDirectory.open(folder).checkpoints.latest()
    assert latest is not None
    save(latest, state)
    return folder


def set_precision(folder: Path, precision: str) -> None:
    """Changes a run's precision, which the CPU cannot train with, in its folder."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content["config"]["precision"] = precision
    path.write_text(json.dumps(content))


def session_of(path: Path) -> Any:
    """Returns an ONNX model's session."""
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run_model(path: Path, **inputs: Any) -> dict[str, np.ndarray]:
    """Returns a model's outputs by name."""
    session = session_of(path)
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, arrays), strict=True))
