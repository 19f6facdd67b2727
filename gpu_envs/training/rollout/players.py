"""Policies that act and do not learn: random ones, frozen ones, and trained ones under evaluation."""

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import torch

from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.engines.base import ActRequest, Networks
from gpu_envs.training.engines.torch import TorchNetworks
from gpu_envs.training.observations import Rows
from gpu_envs.training.operations.ops import Ops
from gpu_envs.training.rollout.policy_rows import PolicyRows
from gpu_envs.training.run import Run, upgraded

_OF_THE_MODULE = ("activation", "hidden", "layer_norm", "normalise_observations", "precision", "shared_trunk")
"""Settings of a source's run that say what its weights mean."""


@final
@dataclasses.dataclass(frozen=True)
class Frozen:
    """A policy that another run has trained; it becomes part of the run that it acts in."""

    networks: TorchNetworks
    config: Run
    """That other run."""
    source: str
    """Where it was taken from: folder (absolute) and policy."""

    def state(self) -> dict[str, Any]:
        """Copies of all that is needed to make it again without its source."""
        module, scale = self.networks.module, self.networks.scale
        return {
            "state": {
                "module": {name: tensor.detach().clone() for name, tensor in module.state_dict().items()},
                "observations": scale.state() if scale is not None else None,
                "epsilon": None if self.networks.epsilon is None else self.networks.epsilon.clone(),
            },
            "config": self.config.flat(),
            "source": self.source,
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """Takes over weights, whatever the source holds by now."""
        then = Run.from_flat(upgraded(kept["config"]))
        here, there = (vars(config.network) for config in (self.config, then))
        name = next((name for name in _OF_THE_MODULE if here[name] != there[name]), None)
        if name is not None:
            raise CheckpointError(
                f"the policy {self.source} is another one than when the checkpoint was written: {name} is "
                f"{here[name]!r} and was {there[name]!r}; resume the run, which needs no source"
            )
        try:
            self.networks.module.load_state_dict(kept["state"]["module"])
        except RuntimeError as error:
            raise CheckpointError(f"the policy {self.source} does not fit the one of the checkpoint: {error}") from None
        if self.networks.scale is not None:
            self.networks.scale.load(kept["state"]["observations"])


@final
class Player:
    """A policy that acts. Without networks it is random: uniform over the possible actions, as a space's samples."""

    def __init__(
        self,
        policy_rows: PolicyRows,
        networks: Networks | None,
        ops: Ops,
        seed: int,
        device: str,
        frozen: Frozen | None = None,
    ) -> None:
        """Allocates.

        Args:
            policy_rows: The agents it acts for.
            networks: Its module; None: random actions.
            ops: Kernels for its head.
            seed: Of its actions.
            device: Where.
            frozen: The other run's policy that its networks are of; None: they are of this run.
        """
        self.policy_rows, self.networks, self._ops, self._frozen = policy_rows, networks, ops, frozen
        rows, head = policy_rows.rows, policy_rows.head
        box = head.kind == "box"
        self._actions = torch.zeros((rows, head.width), dtype=torch.float32 if box else torch.int32, device=device)
        self._log_probs = torch.zeros(rows, device=device)
        self._acted = torch.zeros((rows, head.width), device=device) if box else None
        self.stream = torch.tensor([derived_seed(seed, "player", policy_rows.name), 0], device=device)
        if networks is None:
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
        """The environment's actions, ``[rows, width]``, overwritten by the next.

        Args:
            turn: Which step since ``advance``.
            observations: By role, ``[num_envs, agents, features]``.
            action_masks: By role, ``[num_envs, agents, choices]``; empty or None: everything is possible.
            greedy: Take the likeliest.
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
        """Copies of everything that its next actions depend on."""
        return {
            "stream": self.stream.clone(),
            "frozen": self._frozen.state() if self._frozen is not None else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave; memory stays where it is."""
        if self._frozen is not None:
            self._frozen.load(kept_policy(state, self.policy_rows.name))
        self.stream.copy_(state["stream"])


def kept_policy(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The frozen policy in a player's state."""
    kept: Mapping[str, Any] | None = state.get("frozen")
    if kept is None:
        raise CheckpointError(f"the checkpoint holds no weights for {name!r}; its player was no frozen policy")
    return kept
