"""The modules of policies: what a configuration describes, and whether one of the user's will do."""

from typing import Any

import torch
from torch import nn

from gpu_envs.training.algorithms import OFF_POLICY, listed
from gpu_envs.training.config import Config
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.policies.actor_critic import PerceptronActorCritic, critics_of, learning_parameters, outputs_of
from gpu_envs.training.policies.parts import Split
from gpu_envs.training.policies.policy import ActionValues, Perceptron, Policy, SharedPerceptron
from gpu_envs.training.process.memory import is_shortage
from gpu_envs.training.process.settings import wake_autograd


def default_policy(
    features: int, head: Head, config: Config, generator: torch.Generator, split: Split | None = None
) -> nn.Module:
    """The policy that a configuration describes; with a split one that takes observations in parts, where it can."""
    if config.algorithm in OFF_POLICY:
        return PerceptronActorCritic(features, head, config, generator)
    kind = ActionValues if config.algorithm == "pqn" else SharedPerceptron if config.shared_trunk else Perceptron
    return kind(features, head, config, generator, split)


NETWORK_SETTINGS = ("hidden", "activation", "layer_norm", "shared_trunk", "initial_std")
"""Settings of default policies, which modules of the user's do not use."""


def check_settings(config: Config, name: str) -> None:
    """Refuses settings that a policy which is a module of the user's does not use; their defaults are no setting."""
    given = [setting for setting in NETWORK_SETTINGS if getattr(config, setting) != getattr(Config, setting)]
    if given:
        raise ValueError(
            f"the policy {name!r} is a module of your own, which does not use {listed(given)}: leave that out, or give "
            "it in policy_settings to the policies that use it"
        )


def check_module(module: nn.Module, features: int, head: Head, name: str, device: str, config: Config) -> None:
    """Refuses a module that cannot learn, or whose outputs do not have the shapes that its agents ask for.

    Args:
        module: What is to be the policy's.
        features: Of its observations.
        head: Of its actions.
        name: The policy's.
        device: Where the module is.
        config: The run as the policy sees it.
    """
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32, for "
                f"observations of {features} features: give module.float() (precision='bf16' computes in bfloat16)"
            )
    if config.algorithm in OFF_POLICY:
        _check_actor_critic(module, features, head, name, device, config)
        return
    for method in ("distribution", "value"):
        if isinstance(module, Policy) and getattr(type(module), method) is getattr(Policy, method):
            raise ValueError(
                f"the policy {name!r} is a training.Policy without {method}(): define distribution() and value(), or "
                "inherit from torch.nn.Module and define forward()"
            )
    _check_learns(module, features, name)
    outputs = _probed(module, features, name, device)
    of_choices = config.algorithm == "pqn"
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


def _check_actor_critic(module: nn.Module, features: int, head: Head, name: str, device: str, config: Config) -> None:
    """The same for an off-policy algorithm's module."""
    algorithm, parts = config.algorithm, [getattr(module, part, None) for part in ("actor", "critics")]
    if not all(isinstance(part, nn.Module) for part in parts):
        raise ValueError(
            f"the policy {name!r} is a {type(module).__name__}; for {algorithm} give a module with an actor and "
            "critics, as training.ActorCritic describes it"
        )
    atoms = () if config.atoms is None else (config.atoms,)
    given = ((), (torch.zeros(2, head.width, device=device),))
    wanted = ((2, outputs_of(head, algorithm)), (critics_of(algorithm), 2, *atoms))
    for part, what, more, shape in zip(parts, ("actor", "critics"), given, wanted, strict=True):
        assert isinstance(part, nn.Module)
        _check_learns(part, features, name)
        outputs = _probed(part, features, name, device, *more)
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        if found != shape:
            actions = f" and actions [2, {head.width}]" if more else ""
            raise ValueError(
                f"the {what} of the policy {name!r} map{'s' * (not more)} observations [2, {features}]{actions} to "
                f"{found}; expected {shape}"
            )
        _check_depends(outputs.requires_grad, features, name)
    _check_shared(module, outputs, name, device)
    actor = parts[0]
    if config.exploration == "state" and not (isinstance(actor, nn.Sequential) and isinstance(actor[-1], nn.Linear)):
        raise ValueError(
            f"exploration is 'state', by the last hidden layer, and the actor of the policy {name!r} is no "
            "torch.nn.Sequential that ends with a Linear; give one, or another exploration"
        )


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


def _probed(module: nn.Module, features: int, name: str, device: str, *more: torch.Tensor) -> Any:
    """The outputs for two observations, and more; the module's modes and buffers stay as they are."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            return module(torch.zeros(2, features, device=device), *more)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RuntimeError) and is_shortage(error):
            raise
        raise ValueError(
            f"the policy {name!r} cannot take float32 observations of {features} features, [2, {features}]: {error}"
        ) from error
    finally:
        for part, mode in modes:
            part.training = mode
