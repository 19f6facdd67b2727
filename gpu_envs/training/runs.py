"""Training, going on with a run, and evaluating one: what the command line calls, and what users do."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.resets import derived_seed
from gpu_envs.training.arena import Arena
from gpu_envs.training.checkpoint import CheckpointError, iteration_of, load
from gpu_envs.training.config import Config
from gpu_envs.training.evaluation import Evaluation, play, replicated
from gpu_envs.training.memory import explain_shortage
from gpu_envs.training.networks import Networks, matmul_precision
from gpu_envs.training.process import torch_threads
from gpu_envs.training.run_directory import RunDirectory
from gpu_envs.training.seats import Seats, assign, learns
from gpu_envs.training.setup import make_player, restored
from gpu_envs.training.trainer import Result, Trainer


def train(config: Config, *, progress: bool | None = None, modules: Mapping[str, nn.Module] | None = None) -> Result:
    """Trains, and keeps the run in its folder.

    Args:
        config: The run.
        progress: Draw a progress bar; None: where standard error is a terminal.
        modules: Policies of your own, by the names that ``config.policies`` gives them (or their roles').
    """
    trainer = Trainer(config, modules=modules)  # what is wrong with the run shows before it has a folder
    if config.run_dir == "":
        return trainer.run(progress)
    folder = RunDirectory.create(config.run_dir, config)
    with folder.lock():
        trainer.keep_in(folder)
        return trainer.run(progress)


def resume(
    run: str | Path | RunDirectory, *, total_steps: int | None = None, progress: bool | None = None,
    modules: Mapping[str, nn.Module] | None = None,
) -> Result:  # fmt: skip
    """Goes on with a run from its last checkpoint, bit for bit as if it had never stopped.

    Args:
        run: Its folder.
        total_steps: Train for so many steps in all; None: as many as were asked for. Schedules follow.
        progress: Draw a progress bar; None: where standard error is a terminal.
        modules: Policies of your own, as the run had them.

    Raises:
        BlockingIOError: Another process trains the run at this moment.
    """
    folder = RunDirectory.open(run)
    with folder.lock():
        config = folder.config()
        latest = folder.checkpoints.latest()
        if total_steps is not None:
            config = dataclasses.replace(config, total_steps=total_steps)
            done = iteration_of(latest) if latest is not None else 0
            if done > config.iterations:
                raise ValueError(
                    f"total_steps is {total_steps:,}, and the run {folder.path} has done "
                    f"{done * config.num_envs * config.horizon:,} already: give more, or leave it out"
                )
        with explain_shortage(config, resolve_device(config.device)):
            state = load(latest) if latest is not None else None
            # frozen policies are of the checkpoint, so that their own runs need not exist any more
            trainer = Trainer(config, modules=modules, kept=state["players"] if state is not None else None)
            if state is not None:
                trainer.load(state)
        folder.amend(config)
        trainer.keep_in(folder)
        return trainer.run(progress)


def evaluate(
    run: str | Path | RunDirectory, *, episodes: int = 1000, greedy: bool = True, device: str = "auto",
    seed: int | None = None, num_envs: int | None = None, policies: Mapping[str, str] | None = None,
    modules: Mapping[str, nn.Module] | None = None,
) -> dict[str, Evaluation]:  # fmt: skip
    """Plays full episodes with the policies of a run's last checkpoint.

    Args:
        run: Its folder.
        episodes: How many at least: each replica plays equally many.
        greedy: Take the likeliest actions, where otherwise they are sampled.
        device: Where.
        seed: Of environments and actions; None: derived from the run's.
        num_envs: Replicas side by side, at most as many as episodes; None: as many, up to 4,096.
        policies: Others for some roles, such as ``{"runner": "random"}``.
        modules: Policies of your own, as the run had them; they receive the weights of the checkpoint.

    Returns:
        By role.

    Raises:
        MemoryError: The device has too little; the message says which setting to lower, and to what.
    """
    folder = RunDirectory.open(run)
    trained = folder.config()
    config = dataclasses.replace(trained, device=device, policies={**trained.policies, **(policies or {})})
    latest = folder.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"the run {folder.path} has no checkpoint yet: there is nothing to evaluate")
    place = resolve_device(device)
    with explain_shortage(dataclasses.replace(config, num_envs=1, horizon=1), place):
        roles = Arena(replicated(config, 1), place, 1, 1).roles  # whether the device is there, too
        state: dict[str, Any] = load(latest)
        parts = assign(roles, config.policies)
        own_modules = dict(modules or {})
        unknown = [name for name in own_modules if name not in parts]
        if unknown:
            raise ValueError(f"modules names {unknown[0]!r}; the policies are {', '.join(parts)}")
        networks: dict[str, Networks | None] = {}
        for name, own in parts.items():
            seats = Seats(name, own, 1, place)
            source = f"{folder.path}:{name}"
            if not learns(name):
                asked_for = name.rpartition(" (")[0] in (policies or {}).values()
                kept = None if asked_for else state["players"].get(name)  # its source need not exist any more
                networks[name] = make_player(seats, config, place, kept)[1]
            elif name not in state["learners"]:
                raise CheckpointError(f"{folder.path} has no policy {name!r}; it has {', '.join(state['learners'])}")
            else:
                learnt, module = state["learners"][name], own_modules.get(name)
                networks[name] = restored(learnt, seats, trained, place, source, module)
        own_seed = derived_seed(trained.seed, "evaluation") if seed is None else seed
        with matmul_precision(config.precision), torch_threads(place, config.cpu_threads):
            return play(
                config, parts, networks, place,
                episodes=episodes, greedy=greedy, seed=own_seed, num_envs=num_envs,
            )  # fmt: skip
