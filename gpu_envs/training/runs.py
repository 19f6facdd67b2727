"""Training, going on with a run, and evaluating one: what the command line calls, and what users do."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.training.arena import Arena, derived_seed
from gpu_envs.training.checkpoint import CheckpointError, load
from gpu_envs.training.config import Config
from gpu_envs.training.evaluation import Evaluation, play
from gpu_envs.training.networks import Networks, matmul_precision
from gpu_envs.training.run_directory import RunDirectory
from gpu_envs.training.seats import Seats, assign, learns
from gpu_envs.training.setup import make_player, restored
from gpu_envs.training.trainer import Result, Trainer, torch_threads


def train(config: Config, *, progress: bool | None = None, modules: Mapping[str, nn.Module] | None = None) -> Result:
    """Trains, and keeps the run in its folder.

    Args:
        config: The run.
        progress: Draw a progress bar; None: where standard error is a terminal.
        modules: Policies of your own, by the names that ``config.policies`` gives them (or their roles').
    """
    trainer = Trainer(config, modules=modules)  # what is wrong with the run shows before it has a folder
    if config.run_dir != "":
        trainer.keep_in(RunDirectory.create(config.run_dir, config))
    return trainer.run(progress)


def resume(
    run: str | RunDirectory, *, total_steps: int | None = None, progress: bool | None = None,
    modules: Mapping[str, nn.Module] | None = None,
) -> Result:  # fmt: skip
    """Goes on with a run from its last checkpoint, bit for bit as if it had never stopped.

    Args:
        run: Its folder.
        total_steps: Train for so many steps in all; None: as many as were asked for. Schedules follow.
        progress: Draw a progress bar; None: where standard error is a terminal.
        modules: Policies of your own, as the run had them.
    """
    folder = RunDirectory.open(run)
    config = folder.config()
    if total_steps is not None:
        config = dataclasses.replace(config, total_steps=total_steps)
    trainer = Trainer(config, modules=modules)
    latest = folder.checkpoints.latest()
    if latest is not None:
        trainer.load(load(latest, trainer.device))
    folder.amend(config)
    trainer.keep_in(folder)
    return trainer.run(progress)


def evaluate(
    run: str | RunDirectory, *, episodes: int = 1000, greedy: bool = True, device: str = "auto",
    seed: int | None = None, num_envs: int | None = None, policies: Mapping[str, str] | None = None,
) -> dict[str, Evaluation]:  # fmt: skip
    """Plays full episodes with the policies of a run's last checkpoint.

    Args:
        run: Its folder.
        episodes: How many.
        greedy: Take the likeliest actions, where otherwise they are sampled.
        device: Where.
        seed: Of environments and actions; None: derived from the run's.
        num_envs: Replicas side by side; None: as many as episodes, up to 4,096.
        policies: Others for some roles, such as ``{"runner": "random"}``.

    Returns:
        By role.
    """
    folder = RunDirectory.open(run)
    trained = folder.config()
    config = dataclasses.replace(trained, device=device, policies={**trained.policies, **(policies or {})})
    latest = folder.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"the run {folder.path} has no checkpoint yet: there is nothing to evaluate")
    place = resolve_device(device)
    state: dict[str, Any] = load(latest, place)
    parts = assign(Arena(config, place, 1, 1).roles, config.policies)
    networks: dict[str, Networks | None] = {}
    for name, own in parts.items():
        seats = Seats(name, own, 1, place)
        if not learns(name):
            networks[name] = make_player(seats, config, place)[1]
        elif name in state["learners"]:
            networks[name] = restored(state["learners"][name], seats, trained, place, f"{folder.path}:{name}")
        else:
            raise CheckpointError(f"{folder.path} has no policy {name!r}; it has {', '.join(state['learners'])}")
    own_seed = derived_seed(trained.seed, "evaluation") if seed is None else seed
    with matmul_precision(config.precision), torch_threads(place, config.cpu_threads):
        return play(config, parts, networks, place, episodes=episodes, greedy=greedy, seed=own_seed, num_envs=num_envs)
