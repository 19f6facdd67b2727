"""What off-policy algorithms learn from a batch, in kernels of our own."""

from abc import abstractmethod
from typing import final

import torch

from gpu_envs.backend import open_backend
from gpu_envs.backend.launcher import load_kernels
from gpu_envs.training.algorithms import TD3, OffPolicy
from gpu_envs.training.operations import actor_critic, small_batch
from gpu_envs.training.operations.heads import Head
from gpu_envs.training.operations.ops import SUMS
from gpu_envs.training.operations.perceptrons import ACTIVATIONS, Form
from gpu_envs.training.operations.replay import Transitions
from gpu_envs.training.policies.actor_critic import Critics, PerceptronActorCritic
from gpu_envs.training.policies.actor_critic_update import ActorCriticUpdate, TorchUpdate
from gpu_envs.training.policies.actors import TorchActor
from gpu_envs.training.policies.functions import Functions, actor_form, critics_form, functions_of
from gpu_envs.training.process.group import Group
from gpu_envs.training.run import Run

_ALIVE = SUMS.index("alive")

MOST_ROWS = 1024
"""Of a batch from which a launch learns; beyond them functions are as quick."""


class KernelUpdate(ActorCriticUpdate):
    """The default module's, run by kernels."""

    def __init__(
        self, actor: TorchActor, config: Run, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        super().__init__(actor, config, rate, device, group, target_entropy)
        module, rows, width = self._module, self._algorithm.batch_size, actor.head.width
        assert isinstance(module, PerceptronActorCritic)
        assert isinstance(module.critics, Critics)
        self._of_critics = critics_form(module.critics, config.network.activation, width)
        self._of_actor = actor_form(module.actor, config.network.activation)
        self._rows, self._features, self._width = rows, self._of_actor.sizes[0], width
        smoothed = self._algorithm if isinstance(self._algorithm, TD3) else None
        self._noise = smoothed.target_noise if smoothed else 0.0
        self._most_noise = smoothed.target_noise_clip if smoothed else 0.0
        self._sums = torch.zeros((2, len(SUMS), rows), device=device)  # of critics and of the actor
        self._by_temperature = torch.zeros(rows, device=device)
        self._steps_too = False

    @abstractmethod
    def _learn_critics(
        self, batch: Transitions, seen: torch.Tensor, then: torch.Tensor, normal: torch.Tensor, *, follow: bool
    ) -> None:
        """Leaves the gradient of the critics' loss, and its sums, with their optimiser.

        Where ``_steps_too``, it takes the step, and if asked lets targets follow, as ``_learn_actor`` always does.
        """

    @abstractmethod
    def _learn_actor(self, batch: Transitions, seen: torch.Tensor, normal: torch.Tensor) -> None:
        """The same of the actor's, and of the temperature's where there is one."""

    @torch.no_grad()
    def learn(self, batch: Transitions, normal: torch.Tensor, *, actor: bool) -> None:
        seen, then = (self._actor.scaled(rows) for rows in (batch.observations, batch.next_observations))
        self._learn_critics(batch, seen, then, normal[: self._rows], follow=actor)
        if not self._steps_too:
            self.optimisers[0].step(self._steps[0])
        if not actor:
            return
        self._learn_actor(batch, seen, normal[-self._rows :])
        if not self._steps_too:
            for optimiser, step in zip(self.optimisers[1:], self._steps[1:], strict=True):
                optimiser.step(step)
            self._follow()


@final
class FunctionsUpdate(KernelUpdate):
    """Networks as functions forth and back, and losses row by row."""

    def __init__(
        self, actor: TorchActor, config: Run, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        super().__init__(actor, config, rate, device, group, target_entropy)
        rows, features, width, nets = self._rows, self._features, self._width, len(self._of_critics.nets)
        threads = config.cpu_threads

        def functions(form: Form, weights: torch.Tensor, gradient: torch.Tensor | None = None) -> Functions:
            return functions_of(form, weights, gradient, rows, config, device)

        self._critics, self._actors = (
            functions(form, adam.flat, adam.gradient)
            for form, adam in zip((self._of_critics, self._of_actor), self.optimisers, strict=False)
        )
        self._target_critics = functions(self._of_critics, self._follows[0][0])
        self._next_actor = self._actors if actor.stochastic else functions(self._of_actor, self._follows[1][0])

        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=device)

        self._inputs, self._acting = made(rows, features + width), made(rows, features + width)
        self._said, self._targeted, self._by_said, self._curvatures = (made(rows, nets, 1) for _ in range(4))
        self._ones = made(rows, nets, 1).fill_(1.0)
        self._outputs, self._by_outputs = (made(rows, 1, self._of_actor.sizes[-1]) for _ in range(2))
        self._log_probs, self._by_actions = made(rows), made(rows, nets, width)
        program = actor_critic.program(features, width, nets, stochastic=actor.stochastic)
        choose, aim, judge, steer = load_kernels(open_backend(device, threads), program)
        log_temperature = self.log_temperature.detach()
        choose.fill(rows=rows, outputs=self._outputs, log_probs=self._log_probs, most=self._most_noise)
        aim.fill(
            rows=rows, targets=self._targeted, log_probs=self._log_probs, log_temperature=log_temperature,
            by_said=self._by_said, curvatures=self._curvatures,
        )  # fmt: skip
        judge.fill(rows=rows, said=self._said, by_said=self._by_said, sums=self._sums[0])
        steer.fill(
            rows=rows, inputs=self._acting, outputs=self._outputs, log_probs=self._log_probs, said=self._said,
            by_actions=self._by_actions, log_temperature=log_temperature, target_entropy=target_entropy,
            by_outputs=self._by_outputs, by_temperature=self._by_temperature, sums=self._sums[1],
        )  # fmt: skip
        self._choose = choose.fill(inputs=self._acting).bind(rows)  # what is left is of the learner's own batch
        self._aim, self._judge, self._steer = (kernel.bind(rows) for kernel in (aim, judge, steer))

    def _learn_critics(
        self, batch: Transitions, seen: torch.Tensor, then: torch.Tensor, normal: torch.Tensor, *, follow: bool
    ) -> None:
        del follow  # later
        critics = self.optimisers[0]
        self._next_actor.outputs(then, self._outputs)
        self._choose(then.data_ptr(), normal.data_ptr(), self._noise)
        self._target_critics.outputs(self._acting, self._targeted)
        torch.cat((seen, batch.actions), 1, out=self._inputs)
        self._aim(batch.returns.data_ptr(), batch.discounts.data_ptr(), batch.found.data_ptr())
        self._critics.forth_and_back(self._inputs, self._said, self._by_said, self._curvatures)
        self._judge(batch.found.data_ptr())
        torch.sum(self._sums[0], 1, out=critics.totals)

    def _learn_actor(self, batch: Transitions, seen: torch.Tensor, normal: torch.Tensor) -> None:
        self._actors.outputs(seen, self._outputs)
        self._choose(seen.data_ptr(), normal.data_ptr(), 0.0)
        self._critics.forth_and_back(self._acting, self._said, self._ones, by_inputs=self._by_actions, weights=False)
        self._steer(normal.data_ptr(), batch.found.data_ptr())
        self._actors.back(self._by_outputs)
        _, acting, *temperature = self.optimisers
        torch.sum(self._sums[1], 1, out=acting.totals)
        for adam in temperature:
            torch.sum(self._by_temperature, 0, keepdim=True, out=adam.gradient)
            adam.totals[_ALIVE].copy_(acting.totals[_ALIVE])


@final
class SmallBatchUpdate(KernelUpdate):
    """On a GPU critics learn in one launch and the actor in another, where a batch has few rows."""

    def __init__(
        self, actor: TorchActor, config: Run, rate: torch.Tensor, device: str, group: Group, target_entropy: float
    ) -> None:
        super().__init__(actor, config, rate, device, group, target_entropy)
        rows, width, nets = self._rows, self._width, len(self._of_critics.nets)
        backend, hidden = open_backend(device), len(self._of_actor.sizes) - 2
        critics, acting = self.optimisers[:2]

        def made(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, device=device)

        processes, alone = critics.processes, critics.processes == 1 and not critics.sums_apart
        kernels = load_kernels(
            backend,
            small_batch.program(self._of_actor, self._of_critics, processes, stochastic=actor.stochastic),
        )
        self._for_critics, self._for_actor = kernels
        self._blocks, self._steps_too = small_batch.blocks_of(self._of_actor, self._of_critics), alone
        for kernel, sums, adam in zip(kernels, self._sums, (critics, acting), strict=True):
            kernel.fill(
                **adam.members, rows=rows, critics=critics.flat, log_temperature=self.log_temperature.detach(),
                sums=sums, alone=int(alone), squares_of_blocks=made(self._blocks),
            )  # fmt: skip
        targets = [target for target, _ in self._follows]
        self._for_critics.fill(
            targets=targets[0], next_actor=targets[1] if targets[1:] else acting.flat, noise=self._noise,
            most=self._most_noise, inputs=made(rows, self._features + width), by_said=made(nets, rows),
            kept=made(nets * hidden, rows, small_batch.MOST), slopes=made(nets * hidden, rows, small_batch.MOST),
        )  # fmt: skip
        self._for_actor.fill(
            actor=acting.flat, target_entropy=target_entropy, by_outputs=made(rows, self._of_actor.sizes[-1]),
            by_temperature=self._by_temperature, target=targets[1] if targets[1:] else None,
            tau=self._algorithm.tau if targets[1:] else 0.0,
            kept=made(hidden, rows, small_batch.MOST), slopes=made(hidden, rows, small_batch.MOST),
        )  # fmt: skip
        own = self.optimisers[2].members if actor.stochastic else {}
        self._for_actor.fill(
            **{f"temperature_{name}": own.get(name) for name in ("message", "means", "squares", "steps")},
            temperature_norm=self._steps[2].norm if actor.stochastic else None,
        )

    def _learn_critics(
        self, batch: Transitions, seen: torch.Tensor, then: torch.Tensor, normal: torch.Tensor, *, follow: bool
    ) -> None:
        self._for_critics.launch(
            self._blocks, observations=seen, found=batch.found, normal=normal, actions=batch.actions,
            returns=batch.returns, discounts=batch.discounts, next_observations=then,
            tau=self._algorithm.tau if follow else 0.0, **self._steps[0].members,
        )  # fmt: skip

    def _learn_actor(self, batch: Transitions, seen: torch.Tensor, normal: torch.Tensor) -> None:
        self._for_actor.launch(
            self._blocks, observations=seen, found=batch.found, normal=normal, **self._steps[1].members
        )


def update_of(config: Run, why_torch: str, features: int, head: Head, device: str) -> type[ActorCriticUpdate]:
    """What runs an update."""
    if why_torch:
        return TorchUpdate
    algorithm, network = config.algorithm, config.network
    assert isinstance(algorithm, OffPolicy)
    small = algorithm.batch_size <= MOST_ROWS and small_batch.fits(features, head.width)
    known = network.precision == "tf32" and network.activation in ACTIVATIONS and not network.layer_norm
    return SmallBatchUpdate if device != "cpu" and small and known else FunctionsUpdate
