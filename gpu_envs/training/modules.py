"""The modules of policies: default modules, which settings describe, and checks of users' modules."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from gpu_envs.training.algorithms import PQN, OffPolicy
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.networks import (
    Case,
    CentralInput,
    Perceptron,
    PerceptronActorCritic,
    PolicyModule,
    QNetwork,
    SharedPerceptron,
    actor_outputs,
    learning_parameters,
)
from gpu_envs.training.policy import Network, check_learning_policies, join_names
from gpu_envs.training.process.device import is_out_of_memory, warm_up_autograd
from gpu_envs.training.recurrent import RecurrentModule, RecurrentPolicy

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def default_policy(case: Case, generator: torch.Generator) -> nn.Module:
    """Make the module that settings describe; with ``case.split`` on-policy modules take ``SplitRows``, too."""
    if isinstance(case.algorithm, OffPolicy):
        return PerceptronActorCritic(case, generator)
    if case.network.memory is not None:
        return RecurrentPolicy(case, generator)
    trunk = SharedPerceptron if case.network.shared_trunk else Perceptron
    return (QNetwork if isinstance(case.algorithm, PQN) else trunk)(case, generator)


def is_default(module: nn.Module, case: Case) -> bool:
    """Whether a user's module has the layers that settings describe, and all of its parameters learn."""
    with torch.random.fork_rng(devices=[]):
        default = default_policy(case, torch.Generator())
    learning = all(parameter.requires_grad for parameter in module.parameters())
    return learning and type(module) is type(default) and str(module) == str(default)  # the text has sizes of layers


def check_modules(modules: Any, policies: Iterable[str]) -> None:
    """Raise an error unless ``modules`` maps names of learning policies to torch modules without lazy parameters."""
    if not isinstance(modules, Mapping):
        raise TypeError(f"modules is a {type(modules).__name__}; give a dict of policy names and torch.nn.Modules")
    check_learning_policies("modules", modules, policies)
    for name, module in modules.items():
        if not isinstance(module, nn.Module):
            raise TypeError(f"modules gives the policy {name!r} {module!r}; give an instance of torch.nn.Module")
        lazy = [key for key, parameter in module.named_parameters() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise ValueError(
                f"the policy {name!r} has the lazy parameter {lazy[0]}, which has no shape yet: call the module once "
                "with observations first, or use a layer that is not lazy"
            )


def check_network_settings(network: Network, name: str) -> None:
    """Raise a ValueError for network settings, other than defaults, that have no effect on a user's module."""
    unused = ("hidden", "activation", "layer_norm", "shared_trunk", "memory", "initial_std")
    changed = [key for key in unused if getattr(network, key) != getattr(Network(), key)]
    if changed:
        names = join_names(changed)
        raise ValueError(
            f"{names} cannot be set for the policy {name!r}, whose module you gave: leave out {names}, or set that "
            "only for other policies, by Policy(network=Network(...))"
        )


def check_module(module: nn.Module, case: Case, name: str, *, learns: bool = True) -> None:
    """Raise a ValueError unless a policy's module can learn, and its outputs have the shapes that its agents need.

    ``learns``: whether it will; of a policy that only acts, a central critic is not checked.
    """
    head, algorithm = case.head, case.algorithm
    for key, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise ValueError(
                f"the policy {name!r} has the parameter {key} of {parameter.dtype}; policies are float32: "
                "give module.float() (precision='bf16' computes in bfloat16)"
            )
    if isinstance(algorithm, OffPolicy):
        actor, critics = (getattr(module, part, None) for part in ("actor", "critics"))
        if not isinstance(actor, nn.Module) or not isinstance(critics, nn.Module):
            raise ValueError(
                f"the policy {name!r} is a {type(module).__name__}; for {algorithm.name} give a module with an actor "
                "and critics, such as a training.ActorCritic"
            )
        _check_outputs(actor, case, name, ((2, actor_outputs(head, algorithm)),), "the actor of ")
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
    if case.central is not None and not isinstance(module, PolicyModule):
        more = "critic" if case.network.critic != "own" else "critic_observes"
        raise ValueError(
            f"{more} is set, but the module of the policy {name!r} has no method value(): inherit from "
            f"training.PolicyModule, or leave {more} out"
        )
    if case.network.central and isinstance(module, PolicyModule):
        _check_outputs(module, case, name, ((2, head.parameters),), "the actor of ", function=module.distribution)
        if case.central is not None:
            _check_central_critic(module, case, case.central, name)
        if case.central is not None or not learns:
            return
    if isinstance(module, RecurrentModule):
        _check_recurrent(module, case, name)
        return
    parameters = (2, head.parameters)
    _check_outputs(module, case, name, (parameters,) if isinstance(algorithm, PQN) else (parameters, (2,)))


def _check_central_critic(module: PolicyModule, case: Case, central: CentralInput, name: str) -> None:
    """Raise a ValueError unless a central critic's values are ``[groups, agents]``, or of one agent ``[groups]``."""

    def values(rows: torch.Tensor) -> torch.Tensor:
        found = module.value(rows)
        one_each = central.agents == 1 and isinstance(found, torch.Tensor) and found.dim() == 1
        return found.unsqueeze(1) if one_each else found

    seen = dataclasses.replace(case, features=central.features)
    _check_outputs(module, seen, name, ((2, central.agents),), "the critic of ", function=values)


def _check_recurrent(module: RecurrentModule, case: Case, name: str) -> None:
    """Raise a ValueError unless a module with memory fits the algorithm, its agents and its own state."""
    if not isinstance(case.algorithm, PolicyGradient):
        raise ValueError(
            f"the policy {name!r} is a training.RecurrentModule, which {case.algorithm.name} cannot train: give the "
            "algorithm ppo or a2c, or a module without memory"
        )
    for method in ("initial_state", "forward"):
        if getattr(type(module), method) is getattr(RecurrentModule, method):
            raise ValueError(f"the policy {name!r} is a training.RecurrentModule without {method}(): define it")
    for rows in (1, 3):
        state: Any = module.initial_state(rows)
        is_tensor = isinstance(state, torch.Tensor)
        if not is_tensor or state.ndim != 2 or len(state) != rows or not state.numel() or state.dtype != torch.float32:
            actual = f"{state.dtype} {[*state.shape]}" if is_tensor else type(state).__name__
            raise ValueError(
                f"initial_state({rows}) of the policy {name!r} is {actual}; return a float32 tensor [rows, n], "
                f"[{rows}, n], with n above 0"
            )
    if state.device != torch.device(case.device):
        raise ValueError(
            f"initial_state of the policy {name!r} is on {state.device}, but the policy is on {case.device}: make it "
            "on the device of the module's parameters"
        )
    shapes = ((2, 3, case.head.parameters), (2, 3), tuple(state.shape))
    starts = torch.ones(2, 3, dtype=torch.bool, device=case.device)
    _check_outputs(module, case, name, shapes, "", state, starts)


def _check_outputs(
    module: nn.Module,
    case: Case,
    name: str,
    expected_shapes: Shapes,
    part: str = "",
    *inputs: torch.Tensor,
    function: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Return a module's last output for rows of zeros; a ValueError unless outputs learn and have these shapes.

    ``inputs`` are the actions of critics, or the state and the starts of a module with memory. ``function``: what to
    call in place of the module.
    """
    features = case.features
    shape = (2, 3, features) if isinstance(module, RecurrentModule) else (2, features)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            f"{part}the policy {name!r} has no parameters that require a gradient: nothing to train. Give a float32 "
            f"module of {features} features that has some, or leave the module out"
        )
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        with torch.enable_grad():
            result = (function or module)(torch.zeros(shape, device=case.device), *inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise ValueError(
            f"{part}the policy {name!r} cannot take float32 observations of {features} features, "
            f"[{'steps, ' * (len(shape) - 2)}rows, {features}]: {error}"
        ) from error
    finally:
        for submodule, mode in modes:
            submodule.training = mode
    outputs = (result,) if len(expected_shapes) == 1 else result
    fits = isinstance(outputs, tuple) and all(isinstance(output, torch.Tensor) for output in outputs)
    shapes = tuple(tuple(output.shape) for output in outputs) if fits else ()
    if shapes != expected_shapes:
        names = ("actions",) if len(inputs) == 1 else ("state", "starts")
        arguments = [f"observations {[*shape]}", *(f"{n} {[*t.shape]}" for n, t in zip(names, inputs, strict=False))]
        expected = str(expected_shapes[0])
        if len(expected_shapes) > 1:
            results = zip(("the distribution's parameters", "the values", "the state"), expected_shapes, strict=False)
            expected = f"a tuple of {join_names([f'{result} {shape}' for result, shape in results])}"
        elif not part:
            expected = f"the Q values of choices {expected}"
        verb = "map" if part.startswith("the critics") else "maps"
        raise ValueError(
            f"{part}the policy {name!r} {verb} {join_names(arguments)} to "
            f"{' and '.join(map(str, shapes)) or type(result).__name__}; expected {expected}"
        )
    if not any(output.requires_grad for output in outputs):
        raise ValueError(
            f"the outputs of {part}the policy {name!r} depend on none of its learnable parameters: give a module whose "
            "forward does not turn gradients off, as torch.no_grad() and detach() do"
        )
    last: torch.Tensor = outputs[-1]
    return last


def _check_shared(module: Any, values: torch.Tensor, name: str, device: str) -> None:
    """Raise a ValueError unless some parameters are only in the actor, and the critics' values depend on all others."""
    _, trained_by_actor = learning_parameters(module)
    if not trained_by_actor:
        raise ValueError(
            f"the actor of the policy {name!r} shares all its parameters with the critics, and the critic loss trains "
            "these: give the actor a separate layer"
        )
    actor_only, in_critics = {*trained_by_actor}, {*module.critics.parameters()}
    named = [(key, p) for key, p in module.named_parameters() if p.requires_grad and p not in in_critics]
    if device != "cpu":
        warm_up_autograd(device)
    gradients = torch.autograd.grad(values.sum(), [p for _, p in named], allow_unused=True)
    for (key, parameter), gradient in zip(named, gradients, strict=True):
        if parameter in actor_only and gradient is not None:
            raise ValueError(
                f"the critics of the policy {name!r} use its parameter {key}, which is registered only in the actor, "
                "so that only the actor loss would train it: register its module in the critics, too"
            )
        if parameter not in actor_only and gradient is None:
            raise ValueError(
                f"the critics of the policy {name!r} do not use its parameter {key}, which the critic loss trains, as "
                "it is not in the actor: if the actor uses it, register its module in the actor; otherwise call "
                "requires_grad_(False) on it"
            )
