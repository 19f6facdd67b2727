"""Puts a policy together: its module, how that is run, and what it was trained to before."""

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
from gpu_envs.training.engines.base import DEFAULT_MODULES, ActRequest, Networks
from gpu_envs.training.engines.ops import Ops
from gpu_envs.training.engines.optimiser import Adam
from gpu_envs.training.engines.small import SmallEngine
from gpu_envs.training.engines.small_programs import steps_where_it_acts
from gpu_envs.training.engines.torch import TorchNetworks
from gpu_envs.training.learner import Learner, LearnerParts, OnPolicyLearner
from gpu_envs.training.networks import check_module, check_settings, default_policy
from gpu_envs.training.observations import ObservationScale, Rows
from gpu_envs.training.off_policy_learner import OffPolicyLearner
from gpu_envs.training.policy import learns
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import check_finite, check_structure, load_run
from gpu_envs.training.rollout.plan import Plan, PolicyRows, RoleInfo
from gpu_envs.training.run import Run, upgraded
from gpu_envs.training.schedule import Schedule

_LEARNING: "weakref.WeakKeyDictionary[Adam, tuple[str, Run]]" = weakref.WeakKeyDictionary()
"""Optimisers at work, each with its policy's name and its run."""

_OF_THE_MODULE = ("activation", "hidden", "layer_norm", "normalise_observations", "precision", "shared_trunk")
"""Settings of a source's run that say what its weights mean."""

_HORIZON = "kernel_act_and_step of small/act_and_step.cuh, a whole horizon with its steps"


def make_learner(policy_rows: PolicyRows, own: nn.Module | None, run: Run, limit: int | None, group: Group) -> Learner:
    """A policy that learns: a module of the user's, or the one that the settings describe."""
    name, config = policy_rows.name, run.for_policy(policy_rows.name)
    case = dataclasses.replace(
        case_of(policy_rows, config, policy_rows.device),
        default=own is None or isinstance(own, DEFAULT_MODULES),
        samples=config.horizon * policy_rows.rows // config.algorithm.passes[1],
    )
    if own is not None:
        check_settings(case.network, name)
    module = _module(case, own, name, run)
    if own is not None:
        check_module(module, case, name)
    for tensor in module.state_dict().values():
        group.take_first(tensor)
    scale = ObservationScale(case.features, case.device, group) if case.network.normalise_observations else None
    engine, reason = choose(case)
    networks = engine.make(case, module, scale, group)
    if networks.epsilon is not None and isinstance(case.algorithm, PQN):
        networks.epsilon.fill_(Schedule.of(case.algorithm.epsilon).at(0.0))  # for an evaluation before training
    kind: Any = OffPolicyLearner if isinstance(case.algorithm, OffPolicy) else OnPolicyLearner
    parts = LearnerParts(policy_rows, module, networks, scale, case, config.horizon, config.seed, limit, group)
    learner: Learner = kind(parts)
    learner.engine, learner.fallback_reason = engine.name, reason
    for optimiser in learner.optimisers:
        _LEARNING[optimiser] = name, run
    return learner


def case_of(agents: PolicyRows | RoleInfo, config: Run, device: str) -> Case:
    """What the module of a policy and its engine depend on; ``config`` is the run as the policy sees it."""
    settings, spaces = (config.algorithm, config.network), (agents.head, agents.features)
    return Case(*settings, *spaces, device, agents.masked, agents.split, threads=config.cpu_threads)


def who_computes(config: Run, device: str) -> list[str]:
    """Lines for people about each policy of a run that learns.

    Args:
        config: The run.
        device: ``cpu`` or ``cuda:N``, which need not be there.
    """
    plan, lines = Plan(config, "cpu", 1), []
    for name, parts in plan.policies.items():
        if not learns(name):
            continue
        case = case_of(parts[0].role, config.for_policy(name), device)
        engine, reason = choose(case)
        net, described = case.network, dict(engine.describe(case))
        layout = layout_of(plan.world, Device(on_gpu=True))
        if isinstance(engine, SmallEngine) and steps_where_it_acts(layout, config.params):
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


def _module(case: Case, own: nn.Module | None, name: str, run: Run) -> nn.Module:
    """A policy's module on its device: the user's, or the default one with its first weights."""
    if own is not None:
        _check_free(own, name, run)
        return own.to(case.device)
    # drawn on the CPU, so that they do not depend on the device
    generator = torch.Generator().manual_seed(derived_seed(run.seed, "weights", name))
    with torch.random.fork_rng(devices=[]):  # layers draw weights when they are made, from the process's own numbers
        return default_policy(case, generator).to(case.device)


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


@final
class Player:
    """A policy that acts. Without networks it is random: uniform over the possible actions, as a space's samples.

    A frozen one has the networks of a policy that another run has trained, and becomes part of the run it acts in.
    """

    def __init__(
        self,
        policy_rows: PolicyRows,
        networks: Networks | None,
        threads: int | None,
        seed: int,
        frozen: tuple[Run, str] | None = None,
    ) -> None:
        """Allocates; ``frozen`` is the other run and its policy's full name, ``seed`` that of the actions."""
        self.policy_rows, self.networks, self._frozen = policy_rows, networks, frozen
        rows, head, device = policy_rows.rows, policy_rows.head, policy_rows.device
        box = head.kind == "box"
        self._actions = torch.zeros((rows, head.width), dtype=torch.float32 if box else torch.int32, device=device)
        self._log_probs = torch.zeros(rows, device=device)
        self._acted = torch.zeros((rows, head.width), device=device) if box else None
        self.stream = torch.tensor([derived_seed(seed, "player", policy_rows.name), 0], device=device)
        if networks is None:
            self._ops = Ops(head, device, threads)
            self._level = torch.zeros((rows, head.parameters), device=device)
            self._low = torch.tensor(head.low, device=device)
            self._width = torch.tensor(head.high, device=device) - self._low

    def act(
        self,
        turn: int,
        observations: Mapping[str, Rows],
        action_masks: Mapping[str, torch.Tensor] | None = None,
        *,
        greedy: bool = False,
    ) -> torch.Tensor:
        """The environment's actions in the step ``turn`` since ``advance``, ``[rows, width]``, overwritten by the next.

        Observations are by role, ``[num_envs, agents, features]``, and so are masks, ``[num_envs, agents, choices]``;
        without any everything is possible. With ``greedy`` the likeliest actions are taken.
        """
        action_mask = self.policy_rows.take(action_masks, 0) if action_masks else None
        if self.networks is None:
            for some, first in self.policy_rows.spans:
                self._ops.sample(
                    self._level[some],
                    self._actions[some],
                    self._log_probs[some],
                    stream=self.stream,
                    turn=turn,
                    first_row=first,
                    action_mask=None if action_mask is None else action_mask[some],
                )
            if self._acted is None:
                return self._actions
            # a normal number's place in its distribution is uniform
            share = (torch.erf(self._actions / 2**0.5) + 1.0) / 2.0
            return self._acted.copy_(self._low + share * self._width)
        request = ActRequest(
            self.policy_rows.observed(observations, 0),
            self._actions,
            self._log_probs,
            self.stream,
            turn,
            acted=self._acted,
            greedy=greedy,
            action_mask=action_mask,
        )
        self.policy_rows.act(self.networks, request)
        return self._actions if self._acted is None else self._acted

    def advance(self, steps: int) -> None:
        """Goes on in its random numbers."""
        self.stream[1].add_(steps)

    def state(self) -> dict[str, Any]:
        """Copies of everything that its next actions depend on; of a frozen one all it takes to make it again."""
        if self._frozen is None:
            return {"stream": self.stream.clone(), "frozen": None}
        assert isinstance(self.networks, TorchNetworks)
        module, scale, epsilon = self.networks.module, self.networks.scale, self.networks.epsilon
        state = {
            "module": {name: tensor.detach().clone() for name, tensor in module.state_dict().items()},
            "observations": None if scale is None else scale.state(),
            "epsilon": None if epsilon is None else epsilon.clone(),
        }
        run, source = self._frozen
        return {"stream": self.stream.clone(), "frozen": {"state": state, "config": run.flat(), "source": source}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave, whatever a source holds by now; memory stays where it is."""
        self.stream.copy_(state["stream"])
        if self._frozen is None:
            return
        assert isinstance(self.networks, TorchNetworks)
        kept, (run, source) = _kept(state, self.policy_rows.name), self._frozen
        here, there = vars(run.network), vars(Run.from_flat(upgraded(kept["config"])).network)
        name = next((name for name in _OF_THE_MODULE if here[name] != there[name]), None)
        if name is not None:
            raise CheckpointError(
                f"the policy {source} is another one than when the checkpoint was written: {name} is "
                f"{here[name]!r} and was {there[name]!r}; resume the run, which needs no source"
            )
        try:
            self.networks.module.load_state_dict(kept["state"]["module"])
        except RuntimeError as error:
            raise CheckpointError(f"the policy {source} does not fit the one of the checkpoint: {error}") from None
        if self.networks.scale is not None:
            self.networks.scale.load(kept["state"]["observations"])


def make_player(policy_rows: PolicyRows, config: Run, saved: Mapping[str, Any] | None = None) -> Player:
    """A policy that only acts: ``random``, or ``frozen:RUN`` or ``frozen:RUN:POLICY``.

    A frozen policy is made of what ``Player.state`` gave, if that is saved: its source need not exist any more. Where
    its random numbers stand is for ``Player.load``.
    """
    policy = policy_rows.name.rpartition(" (")[0]
    if policy == "random":
        return Player(policy_rows, None, config.cpu_threads, config.seed)
    if saved is None:
        state, of_policy, source = _latest(policy.partition(":")[2], policy_rows)
    else:
        own = _kept(saved, policy_rows.name)
        state, of_policy, source = own["state"], Run.from_flat(upgraded(own["config"])), own["source"]
    networks = restored(state, policy_rows, of_policy, source)
    return Player(policy_rows, networks, config.cpu_threads, config.seed, (of_policy, source))


def _kept(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The frozen policy in a player's state."""
    kept: Mapping[str, Any] | None = state.get("frozen")
    if kept is None:
        raise CheckpointError(f"the checkpoint holds no weights for {name!r}; its player was no frozen policy")
    return kept


def _latest(source: str, policy_rows: PolicyRows) -> tuple[Mapping[str, Any], Run, str]:
    """The state of a policy that another run has trained, ``RUN`` or ``RUN:POLICY``, that run, and its full name."""
    folder, _, policy = source.partition(":")
    path, part = Path(folder).absolute(), policy_rows.parts[0]
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
    return learners[name], config.for_policy(name), f"{path}:{name}"


def restored(
    state: Mapping[str, Any], policy_rows: PolicyRows, config: Run, source: str, own: nn.Module | None = None
) -> TorchNetworks:
    """Networks with weights from a checkpoint: of a module of the user's, or of a configuration's default policy."""
    case = case_of(policy_rows, config, policy_rows.device)
    module = _module(case, own, policy_rows.name, config)
    check_finite(state["module"], source)
    try:
        module.load_state_dict(state["module"])
    except RuntimeError as error:
        if own is not None:
            raise CheckpointError(f"the module given for the policy {source} is not the one it had: {error}") from None
        unfit = f"the policy {source} does not fit the agents it is to act for"
        changed = _changed(state["module"], module.state_dict())
        if changed:
            raise CheckpointError(
                f"{unfit}: {changed}; give the environment its spaces of then, or train anew"
            ) from None
        raise CheckpointError(
            f"{unfit} ({policy_rows.features} features, actions {policy_rows.head}), or is a module of your own, which "
            f"only Python can make again: {error}"
        ) from None
    check_structure(module.state_dict(), state["module"], f"the policy {source}: its weights")
    if own is not None:
        check_module(module, case, policy_rows.name)
    scale = ObservationScale(case.features, case.device) if config.network.normalise_observations else None
    example = None if scale is None else scale.state()
    check_structure(example, state.get("observations"), f"the policy {source}: its scale of observations")
    if scale is not None:
        scale.load(state["observations"])
    networks: TorchNetworks = torch_engine(case).make(case, module, scale, None)
    if networks.epsilon is not None:
        check_structure(networks.epsilon, state.get("epsilon"), f"the policy {source}: its epsilon")
        networks.epsilon.copy_(state["epsilon"])
    return networks


def _changed(saved: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> str:
    """What other spaces make of a default policy's first and last layers; empty where it is not they that differ."""
    layers = [name for name, tensor in now.items() if tensor.ndim == 2 and name.startswith(("actor", "trunk", "heads"))]
    saved_dims, dims = ({name: tensor.ndim for name, tensor in side.items()} for side in (saved, now))
    if saved_dims != dims or not layers:
        return ""
    sides = (("features", layers[0], 1), ("actions", layers[-1], 0))
    sizes = [(what, saved[name].shape[axis], now[name].shape[axis]) for what, name, axis in sides]
    return ", ".join(f"its {what} were {then} and are {size} now" for what, then, size in sizes if then != size)
