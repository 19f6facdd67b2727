"""Puts a policy together: its module, how that is run, and what it was trained to before."""

import dataclasses
import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_envs.backend.program import Device
from gpu_envs.codegen import layout_of
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import PQN, OffPolicy
from gpu_envs.training.engines import Case, choose, torch_engine
from gpu_envs.training.engines.base import DEFAULT_MODULES
from gpu_envs.training.engines.small import SmallEngine
from gpu_envs.training.engines.torch import TorchNetworks
from gpu_envs.training.learner import Learner, LearnerParts, OnPolicyLearner
from gpu_envs.training.networks import default_policy
from gpu_envs.training.observations import ObservationScale
from gpu_envs.training.off_policy_learner import OffPolicyLearner
from gpu_envs.training.operations.act_and_step import steps_where_it_acts
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.operations.optimiser import Adam
from gpu_envs.training.policy import learns
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import check_finite, check_structure, load_run
from gpu_envs.training.rollout.horizon_env import RoleInfo, role_infos, simulated
from gpu_envs.training.rollout.players import Frozen, Player, kept_policy
from gpu_envs.training.rollout.policy_rows import PolicyRows, assign
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.user_modules import check_module, check_settings

_LEARNING: "weakref.WeakKeyDictionary[Adam, tuple[str, Run]]" = weakref.WeakKeyDictionary()
"""Optimisers at work, each with its policy's name and its run."""

_HORIZON = "kernel_act_and_step of small/act_and_step.cuh, a whole horizon with its steps"


def make_learner(
    policy_rows: PolicyRows, module: nn.Module | None, run: Run, device: str, limit: int | None, group: Group
) -> Learner:
    """A policy that learns: a module of the user's, or the one that the settings describe."""
    name, config = policy_rows.name, run.of_policy(policy_rows.name)
    default = module is None or isinstance(module, DEFAULT_MODULES)
    case = dataclasses.replace(
        case_of(policy_rows, config, device),
        default=default,
        samples=config.horizon * policy_rows.rows // config.algorithm.passes[1],
    )
    own = module
    if module is None:
        module = _drawn(case, run.seed, name)
    else:
        check_settings(case.network, name)
    _check_free(module, name, run)
    module = module.to(device)
    if own is not None:
        check_module(module, case, name)
    for tensor in module.state_dict().values():
        group.take_first(tensor)
    scale = ObservationScale(case.features, device, group) if case.network.normalise_observations else None
    engine, reason = choose(case)
    networks = engine.make(case, module, scale, group)
    if networks.epsilon is not None and isinstance(case.algorithm, PQN):
        networks.epsilon.fill_(Schedule.of(case.algorithm.epsilon).at(0.0))  # for an evaluation before training
    kind: Any = OffPolicyLearner if isinstance(case.algorithm, OffPolicy) else OnPolicyLearner
    parts = LearnerParts(policy_rows, module, networks, scale, case, config.horizon, config.seed, limit, group)
    learner: Learner = kind(parts)
    learner.fallback_reason = reason if engine.name == "torch" else ""
    for optimiser in learner.optimisers:
        _LEARNING[optimiser] = name, run
    return learner


def case_of(agents: PolicyRows | RoleInfo, config: Run, device: str) -> Case:
    """What the module of a policy and its engine depend on; ``config`` is the run as the policy sees it."""
    spaces = agents.head, agents.features
    own = config.algorithm, config.network
    return Case(*own, *spaces, device, agents.masked, agents.split, threads=config.cpu_threads)


def who_computes(config: Run, device: str) -> list[str]:
    """Lines for people about each policy of a run that learns.

    Args:
        config: The run.
        device: ``cpu`` or ``cuda:N``, which need not be there.
    """
    world = simulated(config, 1, "cpu")
    lines = []
    for name, parts in assign(role_infos(world), config.policies).items():
        if not learns(name):
            continue
        case = case_of(parts[0].role, config.of_policy(name), device)
        engine, reason = choose(case)
        net, described = case.network, dict(engine.describe(case))
        if isinstance(engine, SmallEngine) and steps_where_it_acts(
            layout_of(world, Device(on_gpu=True)), config.params
        ):
            described["acting"] = _HORIZON
        layers = " x ".join(map(str, net.hidden))
        norm = ", normalised" if net.layer_norm else ""
        trunk = ", one trunk for actor and critic" if net.shared_trunk else ""
        lines.append(
            f"{name}: {case.features} features, {layers} {net.activation}{norm}{trunk}, {net.precision}, {device}"
        )
        lines += [f"  {what:<10}{kernels}" for what, kernels in described.items()]
        lines += [f"  why {engine.name}: {reason}"] if reason else []
    return lines


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


def make_player(policy_rows: PolicyRows, config: Run, device: str, saved: Mapping[str, Any] | None = None) -> Player:
    """A policy that only acts: ``random``, or ``frozen:RUN`` or ``frozen:RUN:POLICY``.

    A frozen policy is made of what ``Player.state`` gave, if that is saved: its source need not exist any more. Where
    its random numbers stand is for ``Player.load``.
    """
    policy = policy_rows.name.rpartition(" (")[0]
    ops = Ops(policy_rows.head, device, config.cpu_threads)
    if policy == "random":
        return Player(policy_rows, None, ops, config.seed, device)
    if saved is None:
        state, of_policy, source = _latest(policy.partition(":")[2], policy_rows)
    else:
        own = kept_policy(saved, policy_rows.name)
        state, of_policy, source = own["state"], Run.from_flat(upgraded(own["config"])), own["source"]
    frozen = Frozen(restored(state, policy_rows, of_policy, device, source), of_policy, source)
    return Player(policy_rows, frozen.networks, ops, config.seed, device, frozen)


def _latest(source: str, policy_rows: PolicyRows) -> tuple[Mapping[str, Any], Run, str]:
    """The state of a policy that another run has trained, ``RUN`` or ``RUN:POLICY``, that run, and its full name."""
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
    return learners[name], config.of_policy(name), f"{path}:{name}"


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
    case = case_of(policy_rows, config, device)
    own = (_drawn(case, config.seed, policy_rows.name) if module is None else module).to(device)
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
        check_module(own, case, policy_rows.name)
    scale = ObservationScale(case.features, device) if config.network.normalise_observations else None
    example = None if scale is None else scale.state()
    check_structure(example, state.get("observations"), f"the policy {source}: its scale of observations")
    if scale is not None:
        scale.load(state["observations"])
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


def _drawn(case: Case, seed: int, name: str) -> nn.Module:
    """The default policy with its first weights: drawn on the CPU, so that they do not depend on the device."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "weights", name))
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made, from the process's own numbers
        return default_policy(case, generator)
