"""Puts a policy together: its module, how that is run, and what it was trained to before."""

from typing import Any

import torch
from torch import nn

from gpu_envs.training.arena import derived_seed
from gpu_envs.training.checkpoint import CheckpointError, load
from gpu_envs.training.config import Config
from gpu_envs.training.fused_networks import FusedPerceptron, why_unfused
from gpu_envs.training.learner import Learner
from gpu_envs.training.networks import Networks, TorchNetworks, check_module
from gpu_envs.training.normalise import ObservationScale
from gpu_envs.training.ops import Ops
from gpu_envs.training.optimiser import Adam
from gpu_envs.training.players import Player
from gpu_envs.training.policy import default_policy
from gpu_envs.training.run_directory import RunDirectory
from gpu_envs.training.seats import Seats


def make_learner(seats: Seats, module: nn.Module | None, config: Config, device: str, limit: int | None) -> Learner:
    """A policy that learns: a module of the user's, or the one that the configuration describes."""
    if module is None:
        module = _drawn(seats, config)
    module = module.to(device)
    check_module(module, seats.features, seats.head, seats.name, device)
    optimiser = Adam([p for p in module.parameters() if p.requires_grad], device=device, threads=config.cpu_threads)
    scale = ObservationScale(seats.features, device) if config.normalise_observations else None
    networks = _run(module, seats, optimiser, scale, config, device)
    return Learner(seats, module, networks, optimiser, scale, config, device, limit)


def make_player(seats: Seats, config: Config, device: str) -> tuple[Player, Networks | None]:
    """A policy that only acts: ``random``, or ``frozen:RUN`` or ``frozen:RUN:POLICY``."""
    policy = seats.name.rpartition(" (")[0]
    networks = None if policy == "random" else frozen(policy.partition(":")[2], seats, device)
    player = Player(seats, networks, Ops(seats.head, device, config.cpu_threads), config.seed, device)
    return player, networks


def frozen(source: str, seats: Seats, device: str) -> Networks:
    """The networks of a policy that another run has trained, named ``RUN`` or ``RUN:POLICY``."""
    folder, _, policy = source.partition(":")
    run = RunDirectory.open(folder)
    config, latest = run.config(), run.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"the run {folder} has no checkpoint yet: nothing to take the policy {seats.name!r} from")
    learners: dict[str, Any] = load(latest, device)["learners"]
    roles = [part.role.name for part in seats.parts]
    name = policy or next((role for role in roles if role in learners), next(iter(learners)))
    if name not in learners:
        raise CheckpointError(f"the run {folder} has no policy {name!r}; it has {', '.join(learners)}")
    return restored(learners[name], seats, config, device, f"{folder}:{name}")


def restored(state: dict[str, Any], seats: Seats, config: Config, device: str, source: str) -> Networks:
    """The networks of a configuration's default policy, with weights from a checkpoint."""
    module = _drawn(seats, config).to(device)
    try:
        module.load_state_dict(state["module"])
    except RuntimeError as error:
        raise CheckpointError(
            f"the policy {source} does not fit the agents it is to act for ({seats.features} features, actions "
            f"{seats.head}), or is a module of your own, which only Python can make again: {error}"
        ) from None
    scale = None
    if state["observations"] is not None:
        scale = ObservationScale(seats.features, device)
        scale.load(state["observations"])
    return _run(module, seats, None, scale, config, device)


def _drawn(seats: Seats, config: Config) -> nn.Module:
    """The default policy with its first weights: drawn on the CPU, so that they do not depend on the device."""
    generator = torch.Generator().manual_seed(derived_seed(config.seed, "weights", seats.name))
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made, from the process's own numbers
        return default_policy(seats.features, seats.head, config, generator)


def _run(
    module: nn.Module, seats: Seats, optimiser: Adam | None, scale: ObservationScale | None, config: Config, device: str
) -> Networks:
    """Runs a module by kernels of our own where that can be, otherwise by torch."""
    if optimiser is not None and not why_unfused(module, seats.features, seats.head, config, device):
        return FusedPerceptron(module, seats.features, seats.head, optimiser, scale, config, device)
    ops = Ops(seats.head, device, config.cpu_threads)
    return TorchNetworks(module, seats.head, ops, optimiser, scale, config.precision, device)
