"""Training, going on with a run, and evaluating one: what the command line calls, and what users do."""

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.assembly import make_player, restore_networks
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.networks import check_modules
from gpu_envs.training.policy import learns
from gpu_envs.training.process.device import exclusive, explain_out_of_memory, torch_threads
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.checkpoint import iteration_of
from gpu_envs.training.record.reports import EpisodeWindow, Result
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import attach_buffers, load_run
from gpu_envs.training.rollout.evaluation import Evaluations, TrainedPolicies, play
from gpu_envs.training.rollout.plan import Plan, PolicyRows, assign, with_replicas
from gpu_envs.training.run import AUTO, Run
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.tuning import choose_num_envs


def train(
    config: Run, *, progress: bool | None = None, modules: Mapping[str, nn.Module] | None = None, group: Any = None
) -> Result:
    """Trains, and keeps the run in its folder.

    Args:
        config: The run. For ``num_envs="auto"`` the number is measured first, and kept in the folder.
        progress: Draw a progress bar; None: in a terminal or a notebook, and elsewhere write a line every 30 s.
        modules: Policies of your own, by the names that ``config.policies`` gives them (or their roles').
        group: A process group of ``torch.distributed`` whose processes all call this, and train as one; the first keeps
            the folder.
    """
    if config.num_envs == AUTO:
        config = dataclasses.replace(config, num_envs=choose_num_envs(config, modules=modules, group=group)[0])
    trainer = Trainer(config, modules=modules, group=group)  # what is wrong with the run shows before it has a folder
    if config.run_dir == "" or Group(group).rank > 0:
        return trainer.run(progress)
    folder = RunDirectory.create(config.run_dir, trainer.config)
    with folder.lock():
        trainer.keep_in(folder)
        return trainer.run(progress)


def resume(
    run: str | Path | RunDirectory,
    *,
    progress: bool | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
    group: Any = None,
    **changes: Any,
) -> Result:
    """Goes on with a run from its last checkpoint, bit for bit as if it had never stopped.

    With another number of processes than it had, policies, optimisers, normalisers and counters go on, and episodes
    begin anew.

    Args:
        run: Its folder.
        progress: As of ``train``.
        modules: As of ``train``.
        trust: Import the environment's file, where the folder names one that this process was not given.
        group: As of ``train``.
        **changes: Settings that are others from now on, by their flat names, such as ``total_steps``, which schedules
            follow; ``gpu-envs train --help`` names those that may change.
    """
    processes = Group(group)
    folder, first = RunDirectory.open(run), processes.rank == 0
    with folder.lock() if first else contextlib.nullcontext():
        folder.spec(trust=trust)
        config = folder.config().changed(changes)
        latest = folder.checkpoints.latest()
        done = iteration_of(latest) if latest is not None else 0
        if "total_steps" in changes and done > config.iterations:
            raise ValueError(
                f"total_steps is {config.total_steps:,}, and the run {folder.path} has done "
                f"{config.steps_at(done):,} already: give more, or leave it out"
            )
        with explain_out_of_memory(config, resolve_device(config.device)):
            state = load_run(latest) if latest is not None else None
            then, steps = (config.gpus, 0) if state is None else (state["describes"]["gpus"], state["steps"])
            if first and done > 0 and then != processes.size:
                warnings.warn(
                    f"the run was trained by {then} process{'es' * (then > 1)}, and goes on with {processes.size}: "
                    "what it has learnt and counted stays, and episodes begin anew",
                    stacklevel=2,
                )
            if config.gpus != processes.size or config.steps_at(done) != steps:
                config = dataclasses.replace(config, gpus=processes.size, since=(done, steps))
            # frozen policies are of the checkpoint, so that their own runs need not exist any more
            players = state["players"] if state is not None else None
            trainer = Trainer(config, modules=modules, kept=players, group=group)
            if state is not None and latest is not None:
                trainer.load(attach_buffers(state, latest, processes.rank) if then == processes.size else state)
        if first:
            folder.amend(config, done)
            trainer.keep_in(folder)
        return trainer.run(progress)


@exclusive()
def evaluate(
    run: str | Path | RunDirectory,
    *,
    episodes: int = 1000,
    greedy: bool = True,
    device: str = "auto",
    seed: int | None = None,
    num_envs: int | None = None,
    policies: Mapping[str, str] | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
    progress: bool | None = None,
) -> Evaluations:
    """Plays full episodes with the policies of a run's last checkpoint; by role, how they did.

    Args:
        run: Its folder.
        episodes: How many at least: each replica plays equally many, none of more than 1,000,000 steps.
        greedy: Take the likeliest actions, where otherwise they are sampled.
        device: Where.
        seed: Of environments and actions; None: derived from the run's.
        num_envs: Replicas side by side, at most as many as episodes; None: as many, up to 4,096.
        policies: As of ``load_policies``.
        modules: As of ``load_policies``.
        trust: As of ``load_policies``.
        progress: As of ``train``.
    """
    loaded = load_policies(run, device=device, policies=policies, modules=modules, trust=trust)
    own_seed = loaded.seed if seed is None else seed
    how: dict[str, Any] = {"episodes": episodes, "greedy": greedy, "num_envs": num_envs, "progress": progress}
    with torch_threads(loaded.device, loaded.config.cpu_threads):
        return play(loaded, seed=own_seed, **how)


@exclusive()
def load_policies(
    run: str | Path | RunDirectory,
    *,
    device: str = "auto",
    policies: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    purpose: str = "evaluate",
    trust: bool = False,
) -> TrainedPolicies:
    """Reads the policies of a run's last checkpoint, to act in an environment of yours.

    Args:
        run: Its folder.
        device: Where.
        policies: Others for some roles, such as ``{"runner": "random"}``.
        params: Parameters of the environment that are to be others than in training.
        modules: Policies of your own, as the run had them; they receive the weights of the checkpoint.
        purpose: What they are wanted for, in a word, for messages.
        trust: Import the environment's file, where the folder names one that this process was not given.
    """
    folder = RunDirectory.open(run)
    folder.spec(trust=trust)
    trained = folder.config()
    policies, modules = policies or {}, modules or {}
    others: dict[str, Any] = {
        "policies": {**trained.policies, **policies},
        "params": {**trained.params, **(params or {})},
    }
    config = dataclasses.replace(trained, device=device, **others)
    latest = folder.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"the run {folder.path} has no checkpoint yet: there is nothing to {purpose}")
    place = resolve_device(device)
    networks: dict[str, Networks | None] = {}
    with explain_out_of_memory(dataclasses.replace(config, num_envs=1, horizon=1), place):
        parts = Plan(with_replicas(config, 1), place, 1).policies
        state = load_run(latest)
        check_modules(modules, parts)
        for name, own in parts.items():
            policy_rows = PolicyRows(name, own, 1, place)
            if not learns(name):
                asked_for = name.rpartition(" (")[0] in policies.values()
                saved = None if asked_for else state["players"].get(name)  # its source may be gone
                networks[name] = make_player(policy_rows, config, saved).networks
            elif name not in state["learners"]:
                raise CheckpointError(f"{folder.path} has no policy {name!r}; it has {', '.join(state['learners'])}")
            else:
                learnt, source = state["learners"][name], f"{folder.path}:{name}"
                own_run = trained.for_policy(name)
                networks[name] = restore_networks(learnt, policy_rows, own_run, source, modules.get(name))
    return TrainedPolicies(
        config,
        place,
        parts,
        networks,
        derived_seed(trained.seed, "evaluation"),
        trained.steps_at(iteration_of(latest)),
        {name: EpisodeWindow(state=steps).means()[0] for name, steps in state["windows"].items()},
    )


@exclusive()
def load_frozen_policies(
    env: str, policies: Mapping[str, str], *, device: str = "auto", params: Mapping[str, Any] | None = None
) -> TrainedPolicies:
    """Policies of other runs in an environment that no run of its own is about; who is not named acts at random."""
    place = resolve_device(device)
    config = Run(env=env, device=device, params=dict(params or {}))
    roles = Plan(with_replicas(config, 1), place, 1).roles
    config = dataclasses.replace(config, policies={role.name: "random" for role in roles} | dict(policies))
    parts = assign(roles, config.policies)
    for name in filter(learns, parts):
        raise ValueError(
            f"{env} is not a run, so it has no policy {name!r}: give random, frozen:RUN or frozen:RUN:POLICY"
        )
    rows = [PolicyRows(name, own, 1, place) for name, own in parts.items()]
    networks = {each.name: make_player(each, config).networks for each in rows}
    return TrainedPolicies(config, place, parts, networks, 0, 0, {})
