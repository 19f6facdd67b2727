"""The modules of policies: what a configuration describes, and whether one of the user's will do."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gpu_envs.errors import did_you_mean
from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.algorithms.base import QLearning
from gpu_envs.training.policies.actor_critic import PerceptronActorCritic, learning_parameters, outputs_of
from gpu_envs.training.policies.case import Case
from gpu_envs.training.policies.policy import ActionValues, Perceptron, PolicyModule, SharedPerceptron
from gpu_envs.training.policy import Network, learns, listed
from gpu_envs.training.process.memory import is_shortage
from gpu_envs.training.process.settings import wake_autograd


def check_names(what: str, names: Iterable[str], policies: Iterable[str]) -> None:
    """Refuses what is given under names that no policy of a run has which learns."""
    known = [policy for policy in policies if learns(policy)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} names {name!r}, which is no policy that learns{did_you_mean(name, known)} Those that learn "
                f"are: {', '.join(known)}"
            )


def check_modules(modules: Any, known: Iterable[str]) -> None:
    """Refuses what are no modules by the names of policies that learn."""
    if not isinstance(modules, Mapping):
        raise TypeError(f"modules is a {type(modules).__name__}; give a dict of policies' names and torch.nn.Modules")
    check_names("modules", modules, known)
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise TypeError(f"modules gives the policy {name!r} {module!r}; give a torch.nn.Module, made")
        lazy = [key for key, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise ValueError(
                f"the policy {name!r} has the parameter {lazy[0]}, whose shape is not known yet: call the module once "
                "with observations first, or use a layer that is not lazy"
            )


def default_policy(case: Case, generator: torch.Generator) -> nn.Module:
    """The module that settings describe; with a split one that takes observations in parts, where it can."""
    if isinstance(case.algorithm, OffPolicy):
        return PerceptronActorCritic(case, generator)
    trunk = SharedPerceptron if case.network.shared_trunk else Perceptron
    return (ActionValues if isinstance(case.algorithm, QLearning) else trunk)(case, generator)


NETWORK_SETTINGS = ("hidden", "activation", "layer_norm", "shared_trunk", "initial_std")
"""Settings of default policies, which modules of the user's do not use."""


def check_settings(network: Network, name: str) -> None:
    """Refuses settings that a policy which is a module of the user's does not use; their defaults are no setting."""
    default = Network()
    given = [key for key in NETWORK_SETTINGS if getattr(network, key) != getattr(default, key)]
    if given:
        raise ValueError(
            f"the policy {name!r} is a module of your own, which does not use {listed(given)}: leave that out, or give "
            f"the other policies a Network of their own"
        )


def check_module(module: nn.Module, case: Case, name: str) -> None:
    """Refuses a policy's module that cannot learn, or whose outputs do not have the shapes that its agents need."""
    features, head = case.features, case.head
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32, for "
                f"observations of {features} features: give module.float() (precision='bf16' computes in bfloat16)"
            )
    if isinstance(case.algorithm, OffPolicy):
        _check_actor_critic(module, case, case.algorithm, name)
        return
    for method in ("distribution", "value"):
        if isinstance(module, PolicyModule) and getattr(type(module), method) is getattr(PolicyModule, method):
            raise ValueError(
                f"the policy {name!r} is a training.PolicyModule without {method}(): define distribution() and "
                "value(), or inherit from torch.nn.Module and define forward()"
            )
    _check_learns(module, features, name)
    outputs = _probed(module, case, name)
    of_choices = isinstance(case.algorithm, QLearning)
    wanted = ((2, head.parameters),) if of_choices else ((2, head.parameters), (2,))
    if of_choices and isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    shapes = tuple(tuple(part.shape) for part in outputs) if isinstance(outputs, tuple) else ()
    if shapes != wanted:
        parameters = f"a tuple of the distribution's parameters {wanted[0]} and the values {wanted[-1]}"
        raise ValueError(
            f"the policy {name!r} maps observations [2, {features}] to "
            f"{' and '.join(map(str, shapes)) or type(outputs).__name__}; expected "
            f"{f'the values of choices {wanted[0]}' if of_choices else parameters}"
        )
    _check_depends(any(part.requires_grad for part in outputs), features, name)


def _check_actor_critic(module: nn.Module, case: Case, algorithm: OffPolicy, name: str) -> None:
    """The same for an off-policy algorithm's module."""
    features, head = case.features, case.head
    parts = [getattr(module, part, None) for part in ("actor", "critics")]
    if not all(isinstance(part, nn.Module) for part in parts):
        raise ValueError(
            f"the policy {name!r} is a {type(module).__name__}; for {algorithm.name} give a module with an actor and "
            "critics, as training.ActorCritic describes it"
        )
    given = ((), (torch.zeros(2, head.width, device=case.device),))
    wanted = ((2, outputs_of(head, algorithm)), (algorithm.critics, 2))
    for part, what, more, shape in zip(parts, ("actor", "critics"), given, wanted, strict=True):
        assert isinstance(part, nn.Module)
        _check_learns(part, features, name)
        outputs = _probed(part, case, name, *more)
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        if found != shape:
            actions = f" and actions [2, {head.width}]" if more else ""
            raise ValueError(
                f"the {what} of the policy {name!r} map{'s' * (not more)} observations [2, {features}]{actions} to "
                f"{found}; expected {shape}"
            )
        _check_depends(outputs.requires_grad, features, name)
    _check_shared(module, outputs, name, case.device)


def _check_shared(module: Any, values: torch.Tensor, name: str, device: str) -> None:
    """Refuses parameters of an actor and critics that the loss by which they learn does not reach."""
    _, acting = learning_parameters(module)
    if not acting:
        raise ValueError(
            f"the actor of the policy {name!r} has no parameters but those of the critics, which learn by the critics' "
            "loss: give it a layer of its own"
        )
    of_actor, of_critics = {*acting}, {*module.critics.parameters()}
    named = [(key, p) for key, p in module.named_parameters() if p.requires_grad and p not in of_critics]
    if device != "cpu":
        wake_autograd(device)
    gradients = torch.autograd.grad(values.sum(), [p for _, p in named], allow_unused=True)
    for (key, parameter), gradient in zip(named, gradients, strict=True):
        if parameter in of_actor and gradient is not None:
            raise ValueError(
                f"the critics of the policy {name!r} use its parameter {key}, which is registered in the actor alone, "
                "and would learn by the actor's loss alone: register its module in the critics, too"
            )
        if parameter not in of_actor and gradient is None:
            raise ValueError(
                f"the critics of the policy {name!r} do not use its parameter {key}, which is registered outside of "
                "the actor, and would learn by the critics' loss: register its module in the actor, or give "
                "requires_grad_(False)"
            )


def _check_learns(module: nn.Module, features: int, name: str) -> None:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"the policy {name!r} has no parameters that require a gradient: nothing to train. Give a float32 module "
            f"of {features} features that has some, or leave the module out"
        )


def _check_depends(depends: bool, features: int, name: str) -> None:
    if not depends:
        raise ValueError(
            f"the outputs of the policy {name!r} depend on none of the parameters that it could learn, given float32 "
            f"observations of {features} features; does its forward turn gradients off?"
        )


def _probed(module: nn.Module, case: Case, name: str, *more: torch.Tensor) -> Any:
    """The outputs for two observations, and more; the module's modes and buffers stay as they are."""
    features = case.features
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            return module(torch.zeros(2, features, device=case.device), *more)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RuntimeError) and is_shortage(error):
            raise
        raise ValueError(
            f"the policy {name!r} cannot take float32 observations of {features} features, [2, {features}]: {error}"
        ) from error
    finally:
        for part, mode in modes:
            part.training = mode
