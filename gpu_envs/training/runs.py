"""The public functions for runs: train, resume, evaluate, and load policies. The command line calls them, too."""

import contextlib
import dataclasses
import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.errors import CheckpointError
from gpu_envs.evaluating import Evaluations
from gpu_envs.registry.catalog import check_trusted
from gpu_envs.seeds import derived_seed
from gpu_envs.training.assembly import make_player, restore_networks
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.modules import check_modules
from gpu_envs.training.policy import learns
from gpu_envs.training.process.device import exclusive, explain_out_of_memory, torch_threads
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.checkpoint import iteration_of
from gpu_envs.training.record.reports import EpisodeWindow, Result
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import attach_buffers, load_run
from gpu_envs.training.record.summary import no_step_notice
from gpu_envs.training.rollout.evaluation import TrainedPolicies, play
from gpu_envs.training.rollout.plan import Plan, PolicyRows, assign, with_replicas
from gpu_envs.training.run import AUTO, Run
from gpu_envs.training.trainer import Trainer
from gpu_envs.training.tuning import choose_num_envs


def train(
    config: Run,
    *,
    callbacks: Iterable[Any] = (),
    progress: bool | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    group: Any = None,
) -> Result:
    """Train a run, and save settings, logs and checkpoints in its run directory.

    Args:
        config: Settings of the run. For ``num_envs="auto"`` the number is measured first, and saved with the settings.
        callbacks: Objects whose methods the run calls, see ``Callback``; or texts as in ``Run.callbacks``, which are
            saved with the settings.
        progress: Whether to draw a progress bar; None: draw one in a terminal or a notebook, and otherwise write a line
            every 30 s.
        modules: Your torch modules by policy name (by default the name of the role).
        group: A process group of ``torch.distributed``, all of whose processes call this function and train together;
            the first process writes the run directory.

    Example:
        >>> from gpu_envs.training import Run, train
        >>> result = train(Run(env="CartPole-v1", num_envs=64, total_steps=8192, run_dir="runs/cartpole"))
        >>> result.steps
        8192
    """
    config, callbacks = _split_callbacks(config, callbacks)
    if config.num_envs == AUTO:
        config = dataclasses.replace(config, num_envs=choose_num_envs(config, modules=modules, group=group)[0])
    # first, so that a mistake does not leave a run directory
    trainer = Trainer(config, modules=modules, callbacks=callbacks, group=group)
    if config.run_dir == "" or Group(group).rank > 0:
        return trainer.run(progress)
    folder = RunDirectory.create(config.run_dir, trainer.config)
    with folder.lock():
        trainer.save_to(folder)
        return trainer.run(progress)


def resume(
    run: str | Path | RunDirectory,
    *,
    callbacks: Iterable[Any] = (),
    progress: bool | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
    group: Any = None,
    **changes: Any,
) -> Result:
    """Resume a run from its last checkpoint; the results are bit-for-bit the same as without the interruption.

    If the number of processes changes, policies, optimisers, normalisers and counters continue, but episodes restart.
    A run that has done all its steps, or reached its target return, takes no step: a warning says how to continue it.

    Args:
        run: Run directory.
        callbacks: New objects for the objects of the interrupted run, in the same order; the run makes the callbacks
            of its settings itself. Texts are added to these; the text ``none`` removes those before it.
        progress: As in ``train``.
        modules: As in ``train``.
        trust: Whether to import files of the environment and of callbacks that were not used on this machine.
        group: As in ``train``.
        **changes: Changed settings by flat name, such as ``total_steps`` (schedules adapt to it); ``gpu-envs train
            --help`` lists the settings that may change.
    """
    processes = Group(group)
    folder, first = RunDirectory.open(run), processes.rank == 0
    with folder.lock() if first else contextlib.nullcontext():
        folder.spec(trust=trust)
        config = folder.config().changed(changes)
        stored = config.callbacks
        config, callbacks = _split_callbacks(config, callbacks)
        for place in {*stored} & {*config.callbacks}:
            check_trusted(place, f"the run {folder.path}", trust=trust)
        latest = folder.checkpoints.latest()
        done = iteration_of(latest) if latest is not None else 0
        if "total_steps" in changes and done > config.iterations:
            raise ValueError(
                f"total_steps is {config.total_steps:,}, but the run {folder.path} has already done "
                f"{config.steps_at(done):,}: give more, or leave it out"
            )
        with explain_out_of_memory(config, resolve_device(config.device)):
            state = load_run(latest) if latest is not None else None
            before, steps = (config.gpus, 0) if state is None else (state["describes"]["gpus"], state["steps"])
            if first and done > 0 and before != processes.size:
                warnings.warn(
                    f"the run was trained by {before} process{'es' * (before > 1)} and is resumed by {processes.size}: "
                    "policies and counters continue, but episodes restart",
                    stacklevel=2,
                )
            if config.gpus != processes.size or config.steps_at(done) != steps:
                config = dataclasses.replace(config, gpus=processes.size, since=(done, steps))
            # frozen policies come from the checkpoint, so that their runs need not exist any more
            players = state["players"] if state is not None else None
            trainer = Trainer(config, modules=modules, callbacks=callbacks, saved_players=players, group=group)
            if state is not None and latest is not None:
                trainer.load(attach_buffers(state, latest, processes.rank) if before == processes.size else state)
        if first:
            folder.amend(config, done)
            trainer.save_to(folder)
        result = trainer.run(progress)
        if first and result.iterations == done and result.reason != "interrupted":
            warnings.warn(no_step_notice(result), stacklevel=2)
        return result


def _split_callbacks(config: Run, callbacks: Iterable[Any]) -> tuple[Run, list[Any]]:
    """Return the run with the callbacks that are texts added to its settings, and the other callbacks."""
    callbacks = list(callbacks)
    texts = [callback for callback in callbacks if isinstance(callback, str)]
    config = dataclasses.replace(config, callbacks=(*config.callbacks, *texts))
    return config, [callback for callback in callbacks if not isinstance(callback, str)]


@exclusive()
def evaluate(
    run: str | Path | RunDirectory,
    *,
    episodes: int = 1000,
    num_envs: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    progress: bool | None = None,
    greedy: bool = True,
    policies: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    modules: Mapping[str, nn.Module] | None = None,
    trust: bool = False,
) -> Evaluations:
    """Play full episodes with the policies of a run's last checkpoint; return the results by role.

    The environment is the run's, with the parameters of training unless ``params`` replaces them.
    ``gpu_envs.evaluate`` evaluates any function of observations, in any environment.

    Args:
        run: Run directory.
        episodes: Minimum number of episodes; each replica plays equally many, of at most 1,000,000 steps each.
        num_envs: Number of replicas, at most the number of episodes; None: one per episode, up to 4,096.
        seed: Seed of environments and actions; None: derived from the run's seed.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        progress: As in ``train``.
        greedy: Take the most likely actions instead of sampling.
        policies: As in ``load_policies``.
        params: As in ``load_policies``.
        modules: As in ``load_policies``.
        trust: As in ``load_policies``.

    Example:
        >>> from gpu_envs.training import Run, evaluate, train
        >>> result = train(Run(env="CartPole-v1", num_envs=64, total_steps=8192))
        >>> evaluate(result.run_dir, episodes=100)["agent"].episodes
        100
    """
    loaded = load_policies(run, device=device, policies=policies, params=params, modules=modules, trust=trust)
    options: dict[str, Any] = {"episodes": episodes, "greedy": greedy, "num_envs": num_envs, "progress": progress}
    with torch_threads(loaded.device, loaded.config.torch_threads):
        return play(loaded, seed=loaded.seed if seed is None else seed, **options)


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
    """Load the policies of a run's last checkpoint, to act in environments that you make.

    Args:
        run: Run directory.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        policies: Policies that replace the run's, by role, such as ``{"runner": "random"}``.
        params: Environment parameters that replace the parameters of training.
        modules: The torch modules that you gave for training, by policy name; the weights are loaded into them.
        purpose: A verb for error messages: "there is nothing to ...".
        trust: Whether to import the file of an environment that is not registered in this process.

    Example:
        >>> from gpu_envs.training import Run, load_policies, train
        >>> result = train(Run(env="CartPole-v1", num_envs=64, total_steps=8192))
        >>> policies = load_policies(result.run_dir)
        >>> env = policies.make(num_envs=8)
        >>> act = policies.acting_in(env)
        >>> observations, infos = env.reset(seed=0)
        >>> observations, rewards, terminations, truncations, infos = env.step(act(observations))
    """
    folder = RunDirectory.open(run)
    folder.spec(trust=trust)
    trained = folder.config()
    policies, modules, params = policies or {}, modules or {}, {**trained.params, **(params or {})}
    config = dataclasses.replace(trained, device=device, policies={**trained.policies, **policies}, params=params)
    latest = folder.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"the run {folder.path} has no checkpoint yet: there is nothing to {purpose}")
    return policies_at(latest, folder, config, modules, policies.values())


def policies_at(
    checkpoint: Path,
    folder: RunDirectory,
    config: Run,
    modules: Mapping[str, nn.Module] = {},
    replaced: Collection[str] = (),
) -> TrainedPolicies:
    """Return the policies of a run's checkpoint.

    Args:
        checkpoint: The checkpoint.
        folder: Its run.
        config: The run's settings, or others for policies, parameters and device.
        modules: The user's modules, by policy name; the weights are loaded into them.
        replaced: Policies of ``config`` that do not come from the checkpoint.
    """
    device, trained = resolve_device(config.device), folder.config()
    networks: dict[str, Networks | None] = {}
    with explain_out_of_memory(dataclasses.replace(config, num_envs=1, horizon=1), device):
        parts = Plan(with_replicas(config, 1), device, 1).policies
        state = load_run(checkpoint)
        check_modules(modules, parts)
        for name, members in parts.items():
            policy_rows = PolicyRows(name, members, 1, device)
            if not learns(name):
                is_new = name.rpartition(" (")[0] in replaced
                saved = None if is_new else state["players"].get(name)  # its run may not exist any more
                networks[name] = make_player(policy_rows, config, saved).networks
            elif name not in state["learners"]:
                raise CheckpointError(f"{folder.path} has no policy {name!r}; it has {', '.join(state['learners'])}")
            else:
                learner, source = state["learners"][name], f"{folder.path}:{name}"
                policy_run = trained.for_policy(name)
                networks[name] = restore_networks(learner, policy_rows, policy_run, source, modules.get(name))
    returns = {name: EpisodeWindow(state=steps).means()[0] for name, steps in state["windows"].items()}
    seed, steps = derived_seed(trained.seed, "evaluation"), state["steps"]
    return TrainedPolicies(config, device, parts, networks, seed, steps, returns)


@exclusive()
def load_frozen_policies(
    env: str, policies: Mapping[str, str], *, device: str = "auto", params: Mapping[str, Any] | None = None
) -> TrainedPolicies:
    """Load frozen policies of runs, by role, for an environment; roles without a policy act at random."""
    config = Run(env=env, device=device, params=dict(params or {}))
    device = resolve_device(device)
    sources = [name.split(":")[1] for name in policies.values() if name.startswith("frozen:")]
    stacks = {RunDirectory.open(source).config().frame_stack for source in sources}
    if len(stacks) > 1:
        raise ValueError(f"the runs of the policies stack different numbers of frames: {stacks}")
    config = dataclasses.replace(config, frame_stack=max(stacks, default=1))
    roles = Plan(with_replicas(config, 1), device, 1).roles
    config = dataclasses.replace(config, policies={role.name: "random" for role in roles} | dict(policies))
    parts = assign(roles, config.policies)
    for name in filter(learns, parts):
        raise ValueError(
            f"{name!r} is not a policy: {env} is an environment, not a run, so give random, frozen:RUN (a run "
            "directory) or frozen:RUN:POLICY"
        )
    rows = {name: PolicyRows(name, members, 1, device) for name, members in parts.items()}
    networks = {name: make_player(policy_rows, config).networks for name, policy_rows in rows.items()}
    return TrainedPolicies(config, device, parts, networks, 0, 0, {})
