"""Assembly of policies: modules, engines, and weights from checkpoints."""

import dataclasses
import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from gpu_envs.backend.program import Device
from gpu_envs.codegen import layout_of
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import PQN, OffPolicy
from gpu_envs.training.engines import Case, choose, torch_engine
from gpu_envs.training.engines.base import ActRequest, Networks
from gpu_envs.training.engines.ops import Ops
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.small_programs import supports_act_and_step
from gpu_envs.training.engines.torch import TorchNetworks
from gpu_envs.training.learner import Learner, LearnerArgs, OnPolicyLearner
from gpu_envs.training.modules import check_module, check_network_settings, default_policy, is_default
from gpu_envs.training.networks import CentralInput
from gpu_envs.training.observations import ObservationScale, Rows
from gpu_envs.training.off_policy_learner import OffPolicyLearner
from gpu_envs.training.policy import Network, learns
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import check_finite, check_structure, load_run
from gpu_envs.training.recurrent import Recurrence
from gpu_envs.training.rollout.plan import Plan, PolicyRole, PolicyRows
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.schedule import Schedule

_LEARNING: "weakref.WeakKeyDictionary[Adam, tuple[str, Run]]" = weakref.WeakKeyDictionary()
"""Live optimisers, each with its policy's name and its run."""

_MODULE_SETTINGS = (
    "activation",
    "hidden",
    "layer_norm",
    "normalise_observations",
    "precision",
    "shared_trunk",
    "memory",
)
"""Settings that a frozen policy's weights depend on."""


def make_learner(
    policy_rows: PolicyRows, user_module: nn.Module | None, run: Run, limit: int | None, group: Group
) -> Learner:
    """Make a policy's learner, with the user's module or a default one; all processes get the first one's weights."""
    name, config = policy_rows.name, run.for_policy(policy_rows.name)
    case = dataclasses.replace(
        case_of(policy_rows, config, policy_rows.device),
        samples=config.horizon * policy_rows.rows // config.algorithm.passes[1],
    )
    if user_module is not None:
        check_network_settings(case.network, name)
        case = dataclasses.replace(case, default=is_default(user_module, case))
    module = _make_module(case, user_module, name, run)
    if user_module is not None:
        check_module(module, case, name)
    for tensor in module.state_dict().values():
        group.broadcast_first(tensor)
    scale = ObservationScale(case.features, case.device, group) if case.network.normalise_observations else None
    engine, reason = choose(case)
    networks = engine.make(case, module, scale, group)
    if networks.epsilon is not None and isinstance(case.algorithm, PQN):
        networks.epsilon.fill_(Schedule.of(case.algorithm.epsilon).at(0.0))  # for an evaluation before training
    kind: Any = OffPolicyLearner if isinstance(case.algorithm, OffPolicy) else OnPolicyLearner
    parts = LearnerArgs(policy_rows, module, networks, scale, case, config.horizon, config.seed, limit, group)
    learner: Learner = kind(parts)
    learner.engine, learner.fallback_reason = engine.name, reason
    for optimiser in learner.optimisers:
        _LEARNING[optimiser] = name, run
    return learner


def restart_learner(learner: Learner, run: Run, user_module: nn.Module | None) -> None:
    """Let a learner start again, before the first iteration, with a run's seed, numbers and initial weights."""
    name, config = learner.policy_rows.name, run.for_policy(learner.policy_rows.name)
    case = case_of(learner.policy_rows, config, "cpu")
    module = _make_module(case, user_module, name, run)
    learner.module.load_state_dict(module.state_dict())
    for mine, other in zip(learner.module.buffers(), module.buffers(), strict=True):  # a checkpoint lacks some
        mine.copy_(other)
    learner.restart(config.algorithm, run.seed)


def case_of(agents: PolicyRows | PolicyRole, config: Run, device: str, *, learns: bool = True) -> Case:
    """Return settings, spaces and device of a policy, for engines.

    Args:
        agents: The policy's agents.
        config: A result of ``Run.for_policy``.
        device: ``cpu`` or ``cuda:N``.
        learns: Whether the policy learns; one that only acts needs no central critic.
    """
    settings, spaces = (config.algorithm, config.network), (agents.head, agents.features)
    central = central_input(agents, config.network) if learns else None
    return Case(*settings, *spaces, device, agents.masked, agents.split, central, threads=config.kernel_threads)


def central_input(agents: PolicyRows | PolicyRole, network: Network) -> CentralInput | None:
    """Return the input of a policy's critic that sees more than the actor, otherwise None."""
    if not network.central:
        return None
    critic, params = network.critic, network.critic_observes
    parts = agents.parts if isinstance(agents, PolicyRows) else ()
    if len(parts) > 1:
        roles = " and ".join(part.role.name for part in parts)
        raise ValueError(
            f"the critic of one policy for {roles} cannot see more than its actors (critic, critic_observes); give "
            "each role a separate policy"
        )
    role = parts[0].role if parts else agents
    assert isinstance(role, PolicyRole)
    if critic == "own" and role.agents > 1:
        raise ValueError(
            f"critic_observes is {','.join(params)} for the {role.agents} agents of the role {role.name!r}; give "
            "critic team or all, too"
        )
    features = len(params) + (role.features_of_all if critic == "all" else role.features_of_team)
    if role.agents == 1 and features == role.features:
        return None
    return CentralInput(features, len(parts[0].members) if parts else role.agents)


def observed_params(config: Run, policy: str, plan: Plan) -> tuple[str, ...]:
    """Return the parameters that a policy's critic observes; ValueError if one has no value for each replica."""
    names, spec = config.for_policy(policy).network.critic_observes, plan.world.spec
    for name in names:
        if name not in spec.settings:
            raise ValueError(f"critic_observes: {spec.id} has no {spec.unknown(name)}")
        param = spec.params.get(name)
        if param is None or param.fixed or param.rank or param.kind not in ("int", "real"):
            kind = "follows from others" if param is None else "is fixed" if param.fixed else "is not a number"
            raise ValueError(f"critic_observes names {name!r}, which {kind}: name numbers that replicas may differ in")
    return names


def describe_engines(config: Run, device: str) -> list[str]:
    """Return lines of text: each learning policy's network, the engine and kernels that would compute it, and why.

    Args:
        config: The run.
        device: ``cpu`` or ``cuda:N``; the device need not exist.
    """
    plan, lines = Plan(config, "cpu", 1), []
    for name, parts in plan.policies.items():
        if not learns(name):
            continue
        case = case_of(parts[0].role, config.for_policy(name), device)
        engine, reason = choose(case)
        net, described = case.network, dict(engine.describe(case))
        layout = layout_of(plan.world, Device(on_gpu=True))
        fuses = engine.horizon_kernel and config.frame_stack == 1 and not net.critic_observes
        if fuses and supports_act_and_step(layout, config.params):
            described["acting"] = f"{engine.horizon_kernel}, a full horizon of acting and stepping"
        layers = " x ".join(map(str, net.hidden)) + f" {net.activation}"
        norm = ", layer norm" if net.layer_norm else ""
        trunk = ", shared trunk" if net.shared_trunk else ""
        memory = f", {net.memory}" if net.memory is not None else ""
        seen = "" if case.central is None else f", the critic sees {case.central.features}"
        text = f"{case.features} features{seen}, {layers}{norm}{memory}{trunk}, {net.precision}, {device}"
        lines.append(f"{name}: {text}")
        lines += [f"  {part:<10}{kernels}" for part, kernels in described.items()]
        lines += [f"  why {engine.name}: {reason}"] if reason else []
    return lines


def _make_module(case: Case, user_module: nn.Module | None, name: str, run: Run) -> nn.Module:
    """Return the user's module on the device (ValueError: a Trainer already trains it), or a new default module."""
    if user_module is not None:
        _check_not_trained(user_module, name, run)
        return user_module.to(case.device)
    # drawn on the CPU, so that the weights do not depend on the device
    generator = torch.Generator().manual_seed(derived_seed(run.seed, "weights", name))
    with torch.random.fork_rng(devices=[]):  # torch's layers also draw initial weights from the global generator
        return default_policy(case, generator).to(case.device)


def _check_not_trained(module: nn.Module, name: str, config: Run) -> None:
    """Raise a ValueError if a Trainer's optimiser owns parameters: a second one would take them out of its buffer."""
    if not _owners(module):
        return
    gc.collect()  # Trainers are part of reference cycles, so that unused ones may still be there
    for other, run in _owners(module):
        if run is config and other != name:
            raise ValueError(f"the policies {other!r} and {name!r} share parameters; give both roles one policy name")
        raise ValueError(
            f"the module of the policy {name!r} is being trained by another Trainer; give a copy (copy.deepcopy), or "
            "del that Trainer first"
        )


def _owners(module: nn.Module) -> list[tuple[str, Run]]:
    """Return the policy name and run of each optimiser that owns some of a module's parameters."""
    parameters = [parameter for parameter in module.parameters() if not nn.parameter.is_lazy(parameter)]
    return [owner for adam, owner in _LEARNING.items() if any(adam.owns(parameter) for parameter in parameters)]


@final
class Player:
    """A policy that acts and does not learn. Without networks its actions are uniformly random, as a space's samples.

    A frozen policy has the networks of a policy of another run; checkpoints of the run it acts in include its weights.
    """

    def __init__(
        self,
        policy_rows: PolicyRows,
        networks: Networks | None,
        threads: int | None,
        seed: int,
        frozen: tuple[Run, str] | None = None,
    ) -> None:
        """Allocate; ``frozen`` is the other run and its policy's full name, ``seed`` the seed of the actions."""
        self.policy_rows, self.networks, self._frozen = policy_rows, networks, frozen
        rows, head, device = policy_rows.rows, policy_rows.head, policy_rows.device
        box = head.kind == "box"
        self._actions = torch.zeros((rows, head.width), dtype=torch.float32 if box else torch.int32, device=device)
        self._log_probs = torch.zeros(rows, device=device)
        self._acted = torch.zeros((rows, head.width), device=device) if box else None
        self.stream = torch.zeros(2, dtype=torch.int64, device=device)
        size = 0 if networks is None else networks.state_size
        self.recurrent_state = torch.zeros((rows, size), device=device) if size else None
        self.restart(seed)
        if networks is None:
            self._ops = Ops(head, device, threads)
            self._uniform = torch.zeros((rows, head.parameters), device=device)
            self._low = torch.tensor(head.low, device=device)
            self._width = torch.tensor(head.high, device=device) - self._low

    def restart(self, seed: int) -> None:
        """Start again with another seed."""
        self.stream.copy_(torch.tensor([derived_seed(seed, "player", self.policy_rows.name), 0]))

    def act(
        self,
        turn: int,
        observations: Mapping[str, Rows],
        action_masks: Mapping[str, torch.Tensor] | None = None,
        starts: Mapping[str, torch.Tensor] | None = None,
        *,
        greedy: bool = False,
    ) -> torch.Tensor:
        """Choose environment actions ``[rows, width]``, at random without networks; the next call overwrites them.

        Args:
            turn: Number of the step since ``advance``, on which the random numbers depend.
            observations: By role, ``[num_envs, agents, features]``.
            action_masks: By role, ``[num_envs, agents, choices]``; None or empty: all choices are allowed.
            starts: By role, ``[num_envs, agents]``: where a policy with memory restarts.
            greedy: Take the most likely actions instead of sampling.
        """
        action_mask = self.policy_rows.take(action_masks, 0) if action_masks else None
        if self.networks is None:
            for rows, first in self.policy_rows.spans:
                mask = None if action_mask is None else action_mask[rows]
                arrays = self._uniform[rows], self._actions[rows], self._log_probs[rows]
                self._ops.sample(*arrays, stream=self.stream, turn=turn, first_row=first, action_mask=mask)
            if self._acted is None:
                return self._actions
            # the normal distribution function maps normal samples to uniform ones
            uniform = (torch.erf(self._actions / 2**0.5) + 1.0) / 2.0
            return self._acted.copy_(self._low + uniform * self._width)
        tensors = self.policy_rows.observed(observations, 0), self._actions, self._log_probs, self.stream
        request = ActRequest(*tensors, turn, acted=self._acted, greedy=greedy, action_mask=action_mask)
        if self.recurrent_state is not None:
            assert starts
            request.recurrence = Recurrence(self.recurrent_state, self.policy_rows.take(starts, 0))
        self.policy_rows.act(self.networks, request)
        return self._actions if self._acted is None else self._acted

    def advance(self, steps: int) -> None:
        """Advance the counter of the random numbers."""
        self.stream[1].add_(steps)

    def state(self) -> dict[str, Any]:
        """Return copies of everything that the next actions depend on, and of a frozen policy's weights and run."""
        if self._frozen is None:
            return {"stream": self.stream.clone(), "frozen": None}
        run, source = self._frozen
        frozen = {"state": weights_of(self.networks), "config": run.flat(), "source": source}
        return {"stream": self.stream.clone(), "frozen": frozen}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state`` in place; a frozen policy's weights come from there, not from its run."""
        self.stream.copy_(state["stream"])
        if self._frozen is None:
            return
        assert isinstance(self.networks, TorchNetworks)
        frozen, (run, source) = _frozen_state(state, self.policy_rows.name), self._frozen
        saved = Run.from_flat(upgraded(frozen["config"]))
        if (difference := _network_difference(run, saved)) is not None:
            name, now, before = difference
            raise CheckpointError(
                f"the policy {source} has changed since the checkpoint was written: {name} is {now!r} and was "
                f"{before!r}; resume the run, which uses the policy in its checkpoint"
            )
        try:
            self._load_weights(frozen["state"])
        except RuntimeError as error:
            raise CheckpointError(f"the policy {source} does not fit its weights in the checkpoint: {error}") from None
        self._frozen = saved, frozen["source"]

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        """Copy weights, observation statistics and epsilon, as in ``state``; RuntimeError if they do not fit."""
        assert isinstance(self.networks, TorchNetworks)
        self.networks.module.load_state_dict(self._acting_weights(state))
        if self.networks.scale is not None:
            self.networks.scale.load(state["observations"])
        if self.networks.epsilon is not None:
            self.networks.epsilon.copy_(state["epsilon"])

    def _acting_weights(self, state: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """Return the weights in a state that the module has: without a central critic's."""
        assert self._frozen is not None
        weights: Mapping[str, torch.Tensor] = state["module"]
        return _without_critic(weights) if self._frozen[0].network.central else weights

    @property
    def opponents(self) -> list[str]:
        """The roles and agents that a frozen policy acts for; empty for a random one."""
        parts = self.policy_rows.parts if self._frozen is not None else ()
        return [name for part in parts for name in (part.role.name, *(part.role.members[k] for k in part.members))]

    def replace(self, state: Mapping[str, Any], run: Run, source: str) -> None:
        """Replace a frozen policy in place by a policy of ``run`` that ``check_replacement`` accepts."""
        self._load_weights(state)
        if self.recurrent_state is not None:
            self.recurrent_state.zero_()
        self._frozen = run, source

    def check_replacement(self, state: Mapping[str, Any], run: Run, source: str) -> None:
        """Raise a ValueError or a CheckpointError unless ``replace`` accepts these arguments."""
        assert self._frozen is not None
        assert isinstance(self.networks, TorchNetworks)
        if (difference := _network_difference(self._frozen[0], run)) is not None:
            name, now, other = difference
            raise ValueError(
                f"the policy {source} cannot replace {self._frozen[1]}: its {name} is {other!r}, not {now!r}; give a "
                "policy with an equal network"
            )
        scale, epsilon = self.networks.scale, self.networks.epsilon
        example = {
            "module": self.networks.module.state_dict(),
            "observations": None if scale is None else scale.state(),
            "epsilon": epsilon,
        }
        given = {name: state.get(name) for name in example} | {"module": self._acting_weights(state)}
        check_structure(example, given, f"the policy {source}: its state")
        check_finite(state["module"], source)


def _network_difference(run: Run, other: Run) -> tuple[str, Any, Any] | None:
    """Return the first setting that differs between the networks of two policies, and both values; None: all agree."""
    ours, theirs = vars(run.network), vars(other.network)
    if run.network.central != other.network.central:
        name = "critic" if run.network.critic != other.network.critic else "critic_observes"
        return name, ours[name], theirs[name]
    names = _MODULE_SETTINGS
    return next(((name, ours[name], theirs[name]) for name in names if ours[name] != theirs[name]), None)


def make_player(policy_rows: PolicyRows, config: Run, saved: Mapping[str, Any] | None = None) -> Player:
    """Make a policy that does not learn: ``random``, ``frozen:RUN`` or ``frozen:RUN:POLICY``.

    A frozen policy is restored from ``saved``, a result of ``Player.state``, if given; its run need not exist then.
    ``Player.load`` restores the random numbers.
    """
    policy = policy_rows.name.rpartition(" (")[0]
    if policy == "random":
        return Player(policy_rows, None, config.kernel_threads, config.seed)
    if saved is None:
        state, run, source = latest_policy(policy.partition(":")[2], policy_rows)
    else:
        frozen = _frozen_state(saved, policy_rows.name)
        state, run, source = frozen["state"], Run.from_flat(upgraded(frozen["config"])), frozen["source"]
    networks = restore_networks(state, policy_rows, run, source)
    return Player(policy_rows, networks, config.kernel_threads, config.seed, (run, source))


def _frozen_state(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the frozen policy (state, config, source) in a player's state; CheckpointError if it has none."""
    frozen: Mapping[str, Any] | None = state.get("frozen")
    if frozen is None:
        raise CheckpointError(f"the checkpoint has no weights for {name!r}, which was not a frozen policy")
    return frozen


def latest_policy(source: str, policy_rows: PolicyRows) -> tuple[Mapping[str, Any], Run, str]:
    """Read ``RUN:POLICY``, or the policy of ``RUN`` for these roles; return its state, settings and full name."""
    folder, _, policy = source.partition(":")
    path, part = Path(folder).absolute(), policy_rows.parts[0]
    option = f"--policy {part.role.name if part.all_members else part.role.members[part.members[0]]}=frozen:{folder}"
    try:
        run = RunDirectory.open(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{option}: {error}") from None
    config, latest = run.config(), run.checkpoints.latest()
    if latest is None:
        raise CheckpointError(f"{option}: the run {path} has no checkpoint yet; use a run that has saved one")
    learners: dict[str, Any] = load_run(latest)["learners"]
    roles = [part.role.name for part in policy_rows.parts]
    candidates = [role for role in roles if role in learners] or list(learners)
    if not policy and len(candidates) > 1 and candidates[0] not in roles:
        raise CheckpointError(
            f"{option}: the run {path} has several policies, {', '.join(learners)}, and none is called {roles[0]!r}; "
            f"name one, such as {option}:{candidates[0]}"
        )
    name = policy or candidates[0]
    if name not in learners:
        raise CheckpointError(f"{option}: the run {path} has no policy {name!r}; it has {', '.join(learners)}")
    return learners[name], config.for_policy(name), f"{path}:{name}"


def restore_networks(
    state: Mapping[str, Any], policy_rows: PolicyRows, config: Run, source: str, user_module: nn.Module | None = None
) -> TorchNetworks:
    """Return networks with saved weights, in the user's module or a default one; CheckpointError if they do not fit."""
    case = case_of(policy_rows, config, policy_rows.device, learns=False)
    module, weights = _make_module(case, user_module, policy_rows.name, config), state["module"]
    if user_module is None and config.network.central:  # it may act where its critic would see something else
        del module.critic
        weights = _without_critic(weights)
    check_finite(weights, source)
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        if user_module is not None:
            raise CheckpointError(f"the module given for the policy {source} has other parameters: {error}") from None
        unfit = f"the policy {source} does not fit the agents that it should act for"
        changed = _changed_spaces(weights, module.state_dict())
        if changed:
            raise CheckpointError(
                f"{unfit}: {changed}; restore the former spaces and frame_stack, or train a new policy"
            ) from None
        raise CheckpointError(
            f"{unfit} ({policy_rows.features} features, actions {policy_rows.head}), or it was trained with a module "
            f"that you gave, which must be given again as modules=: {error}"
        ) from None
    check_structure(module.state_dict(), weights, f"the policy {source}: its weights")
    if user_module is not None:
        check_module(module, case, policy_rows.name, learns=False)
    scale = (
        ObservationScale(case.features, case.device, learns=False) if config.network.normalise_observations else None
    )
    example = None if scale is None else scale.state()
    check_structure(example, state.get("observations"), f"the policy {source}: its observation statistics")
    if scale is not None:
        scale.load(state["observations"])
    networks: TorchNetworks = torch_engine(case).make(case, module, scale, None)
    if networks.epsilon is not None:
        check_structure(networks.epsilon, state.get("epsilon"), f"the policy {source}: its epsilon")
        networks.epsilon.copy_(state["epsilon"])
    return networks


def _without_critic(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights of a default module without those of its critic."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("critic.")}


def weights_of(networks: Networks | None) -> dict[str, Any]:
    """Return copies of the weights, observation statistics and epsilon that ``restore_networks`` takes."""
    assert isinstance(networks, TorchNetworks)
    module, scale, epsilon = networks.module, networks.scale, networks.epsilon
    return {
        "module": {name: tensor.detach().clone() for name, tensor in module.state_dict().items()},
        "observations": None if scale is None else scale.state(),
        "epsilon": None if epsilon is None else epsilon.clone(),
    }


def _changed_spaces(saved: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor]) -> str:
    """Describe how the sizes of a default module's first and last layers differ; empty if they do not."""
    weights = [name for name, tensor in current.items() if tensor.ndim == 2]
    layers = [name for name in weights if name.startswith(("actor", "trunk", "heads"))]
    saved_dims, dims = ({name: tensor.ndim for name, tensor in tensors.items()} for tensors in (saved, current))
    if saved_dims != dims or not layers:
        return ""
    ends = (("features", layers[0], 1), ("actions", layers[-1], 0))
    sizes = [(kind, saved[name].shape[axis], current[name].shape[axis]) for kind, name, axis in ends]
    return ", ".join(f"its {kind} were {before} and are {now} now" for kind, before, now in sizes if before != now)
