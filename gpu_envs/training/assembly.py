"""Puts a policy together: its module, how that is run, and what it was trained to before."""

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms.base import OffPolicy, QLearning
from gpu_envs.training.engines import Case, choose, torch_engine
from gpu_envs.training.engines.base import DEFAULT_MODULES, Networks
from gpu_envs.training.engines.torch import TorchNetworks
from gpu_envs.training.learners.learner import Learner
from gpu_envs.training.learners.off_policy import OffPolicyLearner
from gpu_envs.training.learners.on_policy import OnPolicyLearner
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policies.modules import check_module, check_settings, default_policy
from gpu_envs.training.policies.normalise import ObservationScale
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.checkpoint import load_run
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import check_finite
from gpu_envs.training.record.structure import check_structure
from gpu_envs.training.rollout.horizon_env import RoleInfo
from gpu_envs.training.rollout.players import Frozen, Player, kept_policy
from gpu_envs.training.rollout.policy_rows import PolicyRows
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.schedule import Schedule

_LEARNING: "weakref.WeakKeyDictionary[Adam, tuple[str, Run]]" = weakref.WeakKeyDictionary()
"""Optimisers at work, each with its policy's name and its run."""


def make_learner(
    policy_rows: PolicyRows, module: nn.Module | None, config: Run, device: str, limit: int | None, group: Group
) -> Learner:
    """A policy that learns: a module of the user's, or the one that the configuration describes."""
    run, config = config, config.of_policy(policy_rows.name)
    own = module is not None
    if module is None:
        module = _drawn(policy_rows, config)
    else:
        check_settings(config, policy_rows.name)
    _check_free(module, policy_rows.name, run)
    module = module.to(device)
    if own:
        check_module(module, policy_rows.features, policy_rows.head, policy_rows.name, device, config)
    for tensor in module.state_dict().values():
        group.take_first(tensor)
    scale = ObservationScale(policy_rows.features, device, group) if config.network.normalise_observations else None
    case = case_of(policy_rows, config, device, default=isinstance(module, DEFAULT_MODULES))
    engine, reason = choose(case)
    networks = engine.make(case, module, scale, group)
    if networks.epsilon is not None and isinstance(config.algorithm, QLearning):
        # for an evaluation before the first horizon
        networks.epsilon.fill_(Schedule.of(config.algorithm.epsilon).at(0.0))
    kind: Any = OffPolicyLearner if isinstance(config.algorithm, OffPolicy) else OnPolicyLearner
    learner: Learner = kind(policy_rows, module, networks, scale, config, device, limit, group)
    learner.fallback_reason = reason if engine.name == "torch" else ""
    for optimiser in learner.optimisers:
        _LEARNING[optimiser] = policy_rows.name, run
    return learner


def case_of(agents: PolicyRows | RoleInfo, config: Run, device: str, *, default: bool = True) -> Case:
    """What the choice of a policy's engine depends on.

    Args:
        agents: Those that the policy acts for.
        config: The run as the policy sees it.
        device: Where.
        default: Whether its module is the one that the settings describe.
    """
    samples = 2**31 if isinstance(agents, RoleInfo) else config.horizon * agents.rows // config.algorithm.passes[1]
    return Case(
        config.algorithm,
        config.network,
        agents.head,
        agents.features,
        device,
        agents.masked,
        agents.split,
        default,
        samples,
        config.cpu_threads,
    )


def _check_free(module: nn.Module, name: str, config: Run) -> None:
    """Refuses parameters that another optimiser keeps: it would go on with a buffer that is no longer read."""
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


def _owners(module: nn.Module) -> list[tuple[str, Run]]:
    """The policies whose optimisers keep some of a module's parameters."""
    made = [parameter for parameter in module.parameters() if not nn.parameter.is_lazy(parameter)]
    return [owner for adam, owner in _LEARNING.items() if any(adam.keeps(parameter) for parameter in made)]


def make_player(
    policy_rows: PolicyRows, config: Run, device: str, kept: Mapping[str, Any] | None = None
) -> tuple[Player, Networks | None]:
    """A policy that only acts: ``random``, or ``frozen:RUN`` or ``frozen:RUN:POLICY``.

    A frozen policy is made of what ``Player.state`` gave, if that is kept: its source need not exist any more. Where
    its random numbers stand is for ``Player.load``.
    """
    policy = policy_rows.name.rpartition(" (")[0]
    found = None
    if policy != "random":
        found = (
            frozen(policy.partition(":")[2], policy_rows, device)
            if kept is None
            else _thawed(policy_rows, device, kept)
        )
    networks = found.networks if found is not None else None
    player = Player(
        policy_rows, networks, Ops(policy_rows.head, device, config.cpu_threads), config.seed, device, found
    )
    return player, networks


def frozen(source: str, policy_rows: PolicyRows, device: str) -> Frozen:
    """A policy that another run has trained, named ``RUN`` or ``RUN:POLICY``."""
    folder, _, policy = source.partition(":")
    path = Path(folder).absolute()
    part = policy_rows.parts[0]
    option = f"--policy {part.role.name if part.whole else part.role.members[part.members[0]]}=frozen:{folder}"
    try:
        run = RunDirectory.open(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{option}: {error}") from None
    config, latest = run.config(), run.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"{option}: the run {path} has no checkpoint yet: nothing to take the policy from")
    learners: dict[str, Any] = load_run(latest)["learners"]
    roles = [part.role.name for part in policy_rows.parts]
    own = [role for role in roles if role in learners] or list(learners)
    if not policy and len(own) > 1 and own[0] not in roles:
        raise CheckpointError(
            f"{option}: the run {path} has several policies, {', '.join(learners)}, and none is called {roles[0]!r}; "
            f"name one, such as {option}:{own[0]}"
        )
    name = policy or own[0]
    if name not in learners:
        raise CheckpointError(f"{option}: the run {path} has no policy {name!r}; it has {', '.join(learners)}")
    config, source = config.of_policy(name), f"{path}:{name}"
    return Frozen(restored(learners[name], policy_rows, config, device, source), config, source)


def _thawed(policy_rows: PolicyRows, device: str, kept: Mapping[str, Any]) -> Frozen:
    """A frozen policy as a checkpoint of the run in which it acts has it."""
    own = kept_policy(kept, policy_rows.name)
    config = Run.from_flat(upgraded(own["config"]))
    return Frozen(restored(own["state"], policy_rows, config, device, own["source"]), config, own["source"])


def restored(
    state: Mapping[str, Any],
    policy_rows: PolicyRows,
    config: Run,
    device: str,
    source: str,
    module: nn.Module | None = None,
) -> TorchNetworks:
    """Networks with weights from a checkpoint: of a module of the user's, or of a configuration's default policy."""
    if module is not None:
        _check_free(module, policy_rows.name, config)
    own = _drawn(policy_rows, config) if module is None else module
    own = own.to(device)
    check_finite(state["module"], source)
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
            f"the policy {source} does not fit the agents it is to act for ({policy_rows.features} features, actions "
            f"{policy_rows.head}), or is a module of your own, which only Python can make again: {error}"
        ) from None
    check_structure(own.state_dict(), state["module"], f"the policy {source}: its weights")
    if module is not None:
        check_module(own, policy_rows.features, policy_rows.head, policy_rows.name, device, config)
    scale = ObservationScale(policy_rows.features, device) if config.network.normalise_observations else None
    example = None if scale is None else scale.state()
    check_structure(example, state.get("observations"), f"the policy {source}: its scale of observations")
    if scale is not None:
        scale.load(state["observations"])
    case = case_of(policy_rows, config, device)
    networks: TorchNetworks = torch_engine(case).make(case, own, scale, None)
    if networks.epsilon is not None:
        check_structure(networks.epsilon, state.get("epsilon"), f"the policy {source}: its epsilon")
        networks.epsilon.copy_(state["epsilon"])
    return networks


def _changed(saved: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> str:
    """What other spaces make of a default policy's first and last layers; empty where it is not they that differ."""
    if {name: tensor.ndim for name, tensor in saved.items()} != {name: tensor.ndim for name, tensor in now.items()}:
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


def _drawn(policy_rows: PolicyRows, config: Run) -> nn.Module:
    """The default policy with its first weights: drawn on the CPU, so that they do not depend on the device."""
    generator = torch.Generator().manual_seed(derived_seed(config.seed, "weights", policy_rows.name))
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made, from the process's own numbers
        return default_policy(policy_rows.features, policy_rows.head, config, generator, policy_rows.split)
