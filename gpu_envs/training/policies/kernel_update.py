"""What off-policy algorithms learn from a batch, in kernels of our own: perceptrons on a CPU."""

import itertools
from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.training.config import Config
from gpu_envs.training.operations import actor_critic
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, WIDEST, Form, Perceptrons
from gpu_envs.training.operations.replay import Transitions
from gpu_envs.training.policies.actor_critic import Critics, PerceptronActorCritic
from gpu_envs.training.policies.actor_critic_update import ActorCriticUpdate
from gpu_envs.training.policies.actors import TorchActor
from gpu_envs.training.policies.parts import FEW_FEATURES
from gpu_envs.training.process.group import Group


def why_torch(config: Config, features: int, device: str, *, default: bool) -> str:
    """Why no kernels of our own run an update; empty where they do.

    Args:
        config: The run as the policy sees it.
        features: Of an observation.
        device: Where.
        default: Whether actor and critics are the default ones.
    """
    if config.fused is False:
        return "they are turned off"
    if not default:
        return "only the default actor and critics have kernels of their own"
    if device != "cpu":
        return f"the device is {device}, and kernels of critics are for CPUs"
    if config.activation not in ACTIVATIONS:
        return f"the activation is {config.activation}, not {', '.join(ACTIVATIONS)}"
    if config.layer_norm:
        return "hidden layers are normalised"
    if config.atoms is not None:
        return "critics give probabilities of returns"
    if config.precision == "bf16":
        return "the precision is bf16"
    if max(config.hidden) > WIDEST or features > FEW_FEATURES:
        return f"there are more than {WIDEST} units in a layer, or more than {FEW_FEATURES} features"
    return ""


@final
class KernelUpdate(ActorCriticUpdate):
    """The default module's, run by kernels."""

    def __init__(
        self, actor: TorchActor, config: Config, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        super().__init__(actor, config, rate, device, group, target_entropy)
        module, rows, width = self._module, config.batch, actor.head.width
        assert isinstance(module, PerceptronActorCritic)
        assert isinstance(module.critics, Critics)
        of_critics, of_actor = _critics_form(module.critics, config.activation, width), _form(module.actor, config)
        features = of_actor.sizes[0]
        nets, threads = of_critics.nets, config.cpu_threads

        def functions(form: Form, weights: torch.Tensor) -> Perceptrons:
            return Perceptrons(form, weights, rows, threads)

        self._critics, self._actors = (
            functions(form, adam.flat) for form, adam in zip((of_critics, of_actor), self.optimisers, strict=False)
        )
        self._target_critics = functions(of_critics, self._follows[0][0])
        self._next_actor = self._actors if actor.stochastic else functions(of_actor, self._follows[1][0])

        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=device)

        self._inputs, self._acting = made(rows, features + width), made(rows, features + width)
        self._said, self._targeted, self._by_said = (made(rows, nets, 1) for _ in range(3))
        self._outputs, self._by_outputs = (made(rows, 1, of_actor.sizes[-1]) for _ in range(2))
        self._log_probs, self._by_actions = made(rows), made(rows, nets, width)
        self._of_critics, self._of_actor = made(len(SUMS), rows), made(len(SUMS), rows)
        self._of_temperature = made(1 + len(SUMS), rows)
        program = actor_critic.program(features, width, nets, stochastic=actor.stochastic)
        self._choose, self._judge, self._ask, self._steer = load_kernels(open_backend(device, threads), program)
        log_temperature = self.log_temperature.detach()
        self._choose.fill(rows=rows, outputs=self._outputs, log_probs=self._log_probs, most=config.target_noise_clip)
        self._judge.fill(
            rows=rows, said=self._said, targets=self._targeted, log_probs=self._log_probs,
            log_temperature=log_temperature, by_said=self._by_said, sums=self._of_critics,
        )  # fmt: skip
        self._ask.fill(rows=rows, said=self._said, by_said=self._by_said, sums=self._of_actor)
        self._steer.fill(
            rows=rows, inputs=self._acting, outputs=self._outputs, log_probs=self._log_probs,
            by_actions=self._by_actions, log_temperature=log_temperature, target_entropy=target_entropy,
            by_outputs=self._by_outputs, by_temperature=self._of_temperature[0], sums=self._of_actor,
        )  # fmt: skip
        self._rows = rows
        self._noise = config.target_noise if config.algorithm == "td3" else 0.0

    @torch.no_grad()
    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        seen, then = (self._actor.scaled(rows) for rows in (batch.observations, batch.next_observations))
        rows = self._rows
        critics, acting, *temperature = self.optimisers
        self._next_actor.outputs(then, self._outputs)
        self._choose.launch(rows, observations=then, normal=normal[:rows], noise=self._noise, inputs=self._acting)
        self._target_critics.outputs(self._acting, self._targeted)
        torch.cat((seen, batch.actions), 1, out=self._inputs)
        self._critics.outputs(self._inputs, self._said)
        self._judge.launch(rows, returns=batch.returns, discounts=batch.discounts, found=batch.found)
        self._critics.back(self._by_said, gradient=critics.gradient)
        torch.sum(self._of_critics, 1, out=critics.totals)
        critics.step(self._steps[0])
        if not actor:
            return
        second = normal[-rows:]
        self._actors.outputs(seen, self._outputs)
        self._choose.launch(rows, observations=seen, normal=second, noise=0.0, inputs=self._acting)
        self._critics.outputs(self._acting, self._said)
        self._ask.launch(rows, found=batch.found)
        self._critics.back(self._by_said, by_inputs=self._by_actions)
        self._steer.launch(rows, normal=second, found=batch.found)
        self._actors.back(self._by_outputs, gradient=acting.gradient)
        torch.sum(self._of_actor, 1, out=acting.totals)
        acting.step(self._steps[1])
        if temperature:
            self._of_temperature[-1].copy_(batch.found)
            torch.sum(self._of_temperature, 1, out=temperature[0].message)
            temperature[0].step(self._steps[2])
        self._follow()


def _form(actor: nn.Module, config: Config) -> Form:
    """Of an actor whose parameters lie in their own order."""
    assert isinstance(actor, nn.Sequential)
    layers = [layer for layer in actor if isinstance(layer, nn.Linear)]
    starts = _starts([parameter for layer in layers for parameter in (layer.weight, layer.bias)])
    sizes = (layers[0].in_features, *(layer.out_features for layer in layers))
    return Form(sizes, (tuple(zip(starts[::2], starts[1::2], strict=False)),), starts[-1], config.activation)


def _critics_form(critics: Critics, activation: str, width: int) -> Form:
    """Of critics whose parameters lie in their own order, by whose actions the gradient is wanted."""
    starts = _starts([*critics.weights, *critics.biases])
    layers, nets = len(critics.weights), len(critics.weights[0])
    outputs = [weight.shape[1] for weight in critics.weights]
    inputs = [weight.shape[2] for weight in critics.weights]
    places = tuple(
        tuple(
            (starts[layer] + net * outputs[layer] * inputs[layer], starts[layers + layer] + net * outputs[layer])
            for layer in range(layers)
        )
        for net in range(nets)
    )
    return Form((inputs[0], *outputs), places, starts[-1], activation, by_inputs=range(inputs[0] - width, inputs[0]))


def _starts(parameters: Sequence[torch.Tensor]) -> list[int]:
    """Where each begins in a buffer of them all, and where that ends."""
    return [0, *itertools.accumulate(parameter.numel() for parameter in parameters)]
