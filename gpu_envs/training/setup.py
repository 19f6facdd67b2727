"""Puts a policy together: its module, how that is run, and what it was trained to before."""

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_envs.resets import derived_seed
from gpu_envs.training.checkpoint import CheckpointError, load
from gpu_envs.training.config import Config
from gpu_envs.training.fused_networks import FusedPerceptron, why_unfused
from gpu_envs.training.learner import Learner
from gpu_envs.training.networks import Networks, TorchNetworks, check_module
from gpu_envs.training.normalise import ObservationScale
from gpu_envs.training.ops import Ops
from gpu_envs.training.optimiser import Adam
from gpu_envs.training.players import Frozen, Player, kept_policy
from gpu_envs.training.policy import default_policy
from gpu_envs.training.run_directory import RunDirectory
from gpu_envs.training.seats import Seats

_LEARNING: "weakref.WeakKeyDictionary[Adam, tuple[str, Config]]" = weakref.WeakKeyDictionary()
"""Optimisers at work, each with its policy's name and its run."""


def make_learner(seats: Seats, module: nn.Module | None, config: Config, device: str, limit: int | None) -> Learner:
    """A policy that learns: a module of the user's, or the one that the configuration describes."""
    if module is None:
        module = _drawn(seats, config)
    _check_free(module, seats.name, config)
    module = module.to(device)
    check_module(module, seats.features, seats.head, seats.name, device)
    optimiser = Adam([p for p in module.parameters() if p.requires_grad], device=device, threads=config.cpu_threads)
    scale = ObservationScale(seats.features, device) if config.normalise_observations else None
    networks = _run(module, seats, optimiser, scale, config, device)
    learner = Learner(seats, module, networks, optimiser, scale, config, device, limit)
    _LEARNING[optimiser] = seats.name, config
    return learner


def _check_free(module: nn.Module, name: str, config: Config) -> None:
    """Refuses parameters that another optimiser keeps: it would go on with a buffer that nobody reads any more."""
    if not _owners(module):
        return
    gc.collect()  # a Trainer that is done with goes when cycles are looked for, and not before
    for other, run in _owners(module):
        if run is config and other != name:
            raise ValueError(f"the policies {other!r} and {name!r} share parameters; give both roles one policy name")
        raise ValueError(
            f"the module of the policy {name!r}: this module is being trained by another Trainer; give a copy "
            f"(copy.deepcopy), or del that Trainer first"
        )


def _owners(module: nn.Module) -> list[tuple[str, Config]]:
    """The policies whose optimisers keep some of a module's parameters."""
    made = [parameter for parameter in module.parameters() if not nn.parameter.is_lazy(parameter)]
    return [owner for adam, owner in _LEARNING.items() if any(adam.keeps(parameter) for parameter in made)]


def make_player(
    seats: Seats, config: Config, device: str, kept: Mapping[str, Any] | None = None
) -> tuple[Player, Networks | None]:
    """A policy that only acts: ``random``, or ``frozen:RUN`` or ``frozen:RUN:POLICY``.

    Args:
        seats: The agents it acts for; their name is the policy's.
        config: The run.
        device: Where.
        kept: What ``Player.state`` gave: a frozen policy is made of that, and its source need not exist any more.
            Where its random numbers stand is for ``Player.load``.
    """
    policy = seats.name.rpartition(" (")[0]
    found = None
    if policy != "random":
        found = frozen(policy.partition(":")[2], seats, device) if kept is None else _thawed(seats, device, kept)
    networks = found.networks if found is not None else None
    player = Player(seats, networks, Ops(seats.head, device, config.cpu_threads), config.seed, device, found)
    return player, networks


def frozen(source: str, seats: Seats, device: str) -> Frozen:
    """A policy that another run has trained, named ``RUN`` or ``RUN:POLICY``."""
    folder, _, policy = source.partition(":")
    path = Path(folder).absolute()
    part = seats.parts[0]
    option = f"--policy {part.role.name if part.whole else part.role.members[part.members[0]]}=frozen:{folder}"
    try:
        run = RunDirectory.open(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{option}: {error}") from None
    config, latest = run.config(), run.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"{option}: the run {path} has no checkpoint yet: nothing to take the policy from")
    learners: dict[str, Any] = load(latest)["learners"]
    roles = [part.role.name for part in seats.parts]
    own = [role for role in roles if role in learners] or list(learners)
    if not policy and len(own) > 1 and own[0] not in roles:
        raise CheckpointError(
            f"{option}: the run {path} has several policies, {', '.join(learners)}, and none is called {roles[0]!r}; "
            f"name one, such as {option}:{own[0]}"
        )
    name = policy or own[0]
    if name not in learners:
        raise CheckpointError(f"{option}: the run {path} has no policy {name!r}; it has {', '.join(learners)}")
    source = f"{path}:{name}"
    return Frozen(restored(learners[name], seats, config, device, source), config, source)


def _thawed(seats: Seats, device: str, kept: Mapping[str, Any]) -> Frozen:
    """A frozen policy as a checkpoint of the run in which it acts has it."""
    own = kept_policy(kept, seats.name)
    config = Config.from_json(own["config"])
    return Frozen(restored(own["state"], seats, config, device, own["source"]), config, own["source"])


def restored(
    state: Mapping[str, Any], seats: Seats, config: Config, device: str, source: str, module: nn.Module | None = None
) -> TorchNetworks:
    """Networks with weights from a checkpoint: of a module of the user's, or of a configuration's default policy."""
    if module is not None:
        _check_free(module, seats.name, config)
    own = _drawn(seats, config) if module is None else module
    own = own.to(device)
    try:
        own.load_state_dict(state["module"])
    except RuntimeError as error:
        if module is not None:
            raise CheckpointError(f"the module given for the policy {source} is not the one it had: {error}") from None
        changed = _changed(state["module"], own.state_dict())
        if changed:
            raise CheckpointError(
                f"the policy {source} does not fit the agents it is to act for: {changed}; give the environment its "
                "spaces of then, or train anew"
            ) from None
        raise CheckpointError(
            f"the policy {source} does not fit the agents it is to act for ({seats.features} features, actions "
            f"{seats.head}), or is a module of your own, which only Python can make again: {error}"
        ) from None
    if module is not None:
        check_module(own, seats.features, seats.head, seats.name, device)
    scale = None
    if state["observations"] is not None:
        scale = ObservationScale(seats.features, device)
        scale.load(state["observations"])
    return _run_by_torch(own, seats, None, scale, config, device)


def _changed(saved: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> str:
    """What other spaces make of a default policy's first and last layers; empty where it is not they that differ."""
    if saved.keys() != now.keys():
        return ""
    layers = [name for name, tensor in now.items() if tensor.ndim == 2 and name.startswith(("actor", "trunk", "heads"))]
    if not layers:
        return ""
    found = []
    for what, name, axis in (("features", layers[0], 1), ("actions", layers[-1], 0)):
        before, after = saved[name].shape[axis], now[name].shape[axis]
        if before != after:
            found.append(f"its {what} were {before} and are {after} now")
    return ", ".join(found)


def _drawn(seats: Seats, config: Config) -> nn.Module:
    """The default policy with its first weights: drawn on the CPU, so that they do not depend on the device."""
    generator = torch.Generator().manual_seed(derived_seed(config.seed, "weights", seats.name))
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made, from the process's own numbers
        return default_policy(seats.features, seats.head, config, generator)


def _run(
    module: nn.Module, seats: Seats, optimiser: Adam, scale: ObservationScale | None, config: Config, device: str
) -> Networks:
    """Runs a module by kernels of our own where that can be, otherwise by torch."""
    if not why_unfused(module, seats.features, seats.head, config, device, masked=seats.masked):
        return FusedPerceptron(module, seats.features, seats.head, optimiser, scale, config, device)
    return _run_by_torch(module, seats, optimiser, scale, config, device)


def _run_by_torch(
    module: nn.Module, seats: Seats, optimiser: Adam | None, scale: ObservationScale | None, config: Config, device: str
) -> TorchNetworks:
    ops = Ops(seats.head, device, config.cpu_threads)
    return TorchNetworks(module, seats.head, ops, optimiser, scale, config.precision, device)
