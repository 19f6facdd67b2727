"""Checks of the user's own modules: whether they fit a policy, and can learn."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from gpu_envs.training.algorithms import PQN, OffPolicy
from gpu_envs.training.networks import PolicyModule, learning_parameters, outputs_of
from gpu_envs.training.policies.case import Case
from gpu_envs.training.policy import Network, check_names, listed
from gpu_envs.training.process.memory import is_shortage
from gpu_envs.training.process.settings import wake_autograd


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


def check_settings(network: Network, name: str) -> None:
    """Refuses settings that a policy which is a module of the user's does not use; their defaults are no setting."""
    unused = ("hidden", "activation", "layer_norm", "shared_trunk", "initial_std")
    given = [key for key in unused if getattr(network, key) != getattr(Network(), key)]
    if given:
        raise ValueError(
            f"the policy {name!r} is a module of your own, which does not use {listed(given)}: leave that out, or give "
            f"the other policies a Network of their own"
        )


def check_module(module: nn.Module, case: Case, name: str) -> None:
    """Refuses a policy's module that cannot learn, or whose outputs do not have the shapes that its agents need."""
    features, head, algorithm = case.features, case.head, case.algorithm
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32, for "
                f"observations of {features} features: give module.float() (precision='bf16' computes in bfloat16)"
            )
    if isinstance(algorithm, OffPolicy):
        actor, critics = (getattr(module, part, None) for part in ("actor", "critics"))
        if not isinstance(actor, nn.Module) or not isinstance(critics, nn.Module):
            raise ValueError(
                f"the policy {name!r} is a {type(module).__name__}; for {algorithm.name} give a module with an actor "
                "and critics, as training.ActorCritic describes it"
            )
        _check_outputs(actor, case, name, ((2, outputs_of(head, algorithm)),), "the actor of ")
        actions = torch.zeros(2, head.width, device=case.device)
        values = _check_outputs(critics, case, name, ((algorithm.critics, 2),), "the critics of ", actions)
        _check_shared(module, values, name, case.device)
        return
    for method in ("distribution", "value"):
        if isinstance(module, PolicyModule) and getattr(type(module), method) is getattr(PolicyModule, method):
            raise ValueError(
                f"the policy {name!r} is a training.PolicyModule without {method}(): define distribution() and "
                "value(), or inherit from torch.nn.Module and define forward()"
            )
    parameters = (2, head.parameters)
    _check_outputs(module, case, name, (parameters,) if isinstance(algorithm, PQN) else (parameters, (2,)))


def _check_outputs(
    module: nn.Module,
    case: Case,
    name: str,
    wanted: tuple[tuple[int, ...], ...],
    part: str = "",
    *actions: torch.Tensor,
) -> torch.Tensor:
    """Refuses a module, or a part of one, without outputs of these shapes that it could learn; gives the last one."""
    features = case.features
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"the policy {name!r} has no parameters that require a gradient: nothing to train. Give a float32 module "
            f"of {features} features that has some, or leave the module out"
        )
    found = _probed(module, case, name, *actions)
    outputs = (found,) if len(wanted) == 1 else found
    fits = isinstance(outputs, tuple) and all(isinstance(output, torch.Tensor) for output in outputs)
    shapes = tuple(tuple(output.shape) for output in outputs) if fits else ()
    if shapes != wanted:
        inputs = f"observations [2, {features}]{f' and actions {[*actions[0].shape]}' if actions else ''}"
        expected = " and the values ".join(map(str, wanted))
        if len(wanted) == 2:
            expected = f"a tuple of the distribution's parameters {expected}"
        elif not part:
            expected = f"the values of choices {expected}"
        raise ValueError(
            f"{part}the policy {name!r} {'map' if actions else 'maps'} {inputs} to "
            f"{' and '.join(map(str, shapes)) or type(found).__name__}; expected {expected}"
        )
    if not any(output.requires_grad for output in outputs):
        raise ValueError(
            f"the outputs of the policy {name!r} depend on none of the parameters that it could learn, given float32 "
            f"observations of {features} features; does its forward turn gradients off?"
        )
    last: torch.Tensor = outputs[-1]
    return last


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
