"""What off-policy algorithms train: an actor, and critics of what it does."""

import dataclasses
import itertools
import math
from typing import final

import torch
from torch import nn

from gpu_envs.training.algorithms import OffPolicy
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.policies.case import Case
from gpu_envs.training.policies.policy import ACTIVATIONS, draw, perceptron
from gpu_envs.training.policy import Network


class ActorCritic(nn.Module):
    """An actor, and critics of what it does, for sac, td3 and ddpg.

    ``Trainer`` takes any that has both: ``actor`` maps observations ``[rows, features]`` to ``[rows, width]``, of which
    the hyperbolic tangent is the action where its bounds are -1 and 1; for sac to ``[rows, 2 * width]``, means and
    logarithms of deviations of what is squashed so. ``critics`` maps observations and such actions to what they are
    worth, ``[critics, rows]``: two critics, of ddpg one.

    Parameters of ``actor`` alone learn by the actor's loss, and all others by the critics': a trunk of both, too.
    """

    actor: nn.Module
    critics: nn.Module


def learning_parameters(module: ActorCritic) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Returns the parameters that learn by the critics' loss, and those that learn by the actor's."""
    of_actor = {*module.actor.parameters()} - {*module.critics.parameters()}
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [p for p in learning if p not in of_actor], [p for p in learning if p in of_actor]


@final
class PerceptronActorCritic(ActorCritic):
    """Actor and critics as multilayer perceptrons of their own."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        """Draws the weights: orthogonal, the actor's last ones small, so that it begins undecided."""
        super().__init__()
        algorithm, head = case.algorithm, case.head
        assert isinstance(algorithm, OffPolicy)
        self.actor = perceptron(dataclasses.replace(case, split=None), outputs_of(head, algorithm), pads=False)
        draw(self.actor, 0.01, generator)
        if algorithm.stochastic:
            last = self.actor[-1].bias
            assert isinstance(last, nn.Parameter)
            nn.init.constant_(last[head.width :], math.log(case.network.initial_std))
        self.critics = Critics(algorithm.critics, case.features + head.width, case.network, generator)


@final
class Critics(nn.Module):
    """Several multilayer perceptrons side by side, which value the same actions."""

    def __init__(self, count: int, inputs: int, network: Network, generator: torch.Generator) -> None:
        super().__init__()
        sizes = (inputs, *network.hidden, 1)
        layers = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(torch.empty(count, outputs, before) for before, outputs in layers)
        self.biases = nn.ParameterList(torch.zeros(count, 1, outputs) for _, outputs in layers)
        widths = network.hidden if network.layer_norm else ()
        self.gains = nn.ParameterList(torch.ones(count, 1, width) for width in widths)
        self.shifts = nn.ParameterList(torch.zeros(count, 1, width) for width in widths)
        self.activation = ACTIVATIONS[network.activation]()
        for weight in self.weights:
            for one in weight:
                nn.init.orthogonal_(one, 1.0 if weight is self.weights[-1] else math.sqrt(2), generator=generator)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """What actions are worth, ``[critics, rows]``."""
        rows = torch.cat((observations, actions), 1).expand(len(self.weights[0]), -1, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer > 0:
                if self.gains:
                    rows = nn.functional.layer_norm(rows, rows.shape[-1:])
                    rows = torch.addcmul(self.shifts[layer - 1], rows, self.gains[layer - 1])
                rows = self.activation(rows)
            rows = torch.baddbmm(bias, rows, weight.transpose(1, 2))
        return rows.squeeze(-1)


def outputs_of(head: Head, algorithm: OffPolicy) -> int:
    """The number of an actor's outputs."""
    return head.width * (1 + algorithm.stochastic)
