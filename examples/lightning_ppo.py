"""PPO as a LightningModule, with Lightning's processes, checkpoints, logs, callbacks and progress bar.

python examples/lightning_ppo.py                                # CartPole until its mean return is 475
python examples/lightning_ppo.py --accelerator gpu --devices 2  # on two GPUs; with cpu: two processes
python examples/lightning_ppo.py --ckpt-path lightning_logs/version_0/checkpoints/last.ckpt

An epoch of Lightning is a rollout of all replicas and the update from it. A checkpoint has weights, optimiser and
progress, but no states of environments: a resumed run starts with new episodes.
"""

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, final

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from gpu_envs import training
from gpu_envs.seeds import derived_seed
from gpu_envs.training.engines.ops import SUMS, Ops, Samples
from gpu_envs.training.horizon import Advantages
from gpu_envs.training.modules import default_policy
from gpu_envs.training.networks import Case
from gpu_envs.training.rollout.horizon_env import HorizonEnv
from gpu_envs.training.rollout.plan import Plan


@dataclasses.dataclass(frozen=True)
class Args:
    """Command-line arguments."""

    env: str = "CartPole-v1"
    """An environment with discrete actions and without action masks."""
    params: str = "{}"
    """The environment's parameters, as JSON."""
    role: str = ""
    """The role of a team to train, by default the first; other roles act at random."""
    seed: int = 0
    accelerator: str = "auto"
    devices: int = 1
    """Number of processes, each with its own device."""
    steps: int = 5_000_000
    """Total steps over all replicas of all processes."""
    num_envs: int = 512
    """Number of replicas per process."""
    horizon: int = 32
    epochs: int = 2
    minibatches: int = 8
    learning_rate: float = 4e-3
    """Initial learning rate; it falls linearly to zero."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    entropy_weight: float = 0.0
    target_return: float = 475.0
    """Mean return of a validation at which training stops."""
    ckpt_path: str = ""
    """A checkpoint to resume from."""


@final
class Replicas:
    """The replicas of a process, numbered across processes, with storage for a rollout."""

    def __init__(self, ppo: "PPO", num_envs: int, horizon: int, purpose: str) -> None:
        device, seed = str(ppo.device), derived_seed(ppo.args.seed, purpose, ppo.current_epoch)
        self.role, self.rank, self.turn = ppo.role.name, ppo.global_rank, 0
        # like gpu_envs.make(..., first_replica=rank * num_envs), with storage for a rollout
        self.world = HorizonEnv(Plan(ppo.run, device, num_envs), horizon, self.rank * num_envs)
        self.world.reset(seed)
        self.role_storage = self.world.storage[self.role]
        self.ops = {role.name: Ops(role.head, device, ppo.run.threads) for role in self.world.roles}
        self.stream = {name: torch.tensor([derived_seed(seed, name), 0], device=device) for name in self.ops}
        self.actions, self.log_probs, self.at_random = {}, {}, {}
        for role in self.world.roles:
            rows, head = num_envs * role.agents, role.head
            self.actions[role.name] = torch.zeros(horizon, rows, head.width, dtype=torch.int32, device=device)
            self.log_probs[role.name] = torch.zeros(horizon, rows, device=device)
            self.at_random[role.name] = torch.zeros(rows, head.parameters, device=device)

    @torch.no_grad()
    def play(self, policy: torch.nn.Module) -> None:
        """Play a rollout. An agent's random numbers depend on its index among the agents of all processes."""
        for storage in self.world.storage.values():
            storage.carry_over()
        for t in range(self.world.horizon):
            parameters = self.at_random | {self.role: policy(self.role_storage.observations[t].flatten(0, 1))[0]}
            for name, ops in self.ops.items():
                ops.sample(
                    parameters[name],
                    self.actions[name][t],
                    self.log_probs[name][t],
                    stream=self.stream[name],
                    turn=self.turn,
                    first_row=self.rank * len(parameters[name]),
                )
            actions_now = {name: actions[t] for name, actions in self.actions.items()}
            self.world.step(t, {name: a.view(self.world.num_envs, -1, a.shape[1]) for name, a in actions_now.items()})
            self.turn += 1


@final
class RolloutBatches:
    """A data loader: plays a rollout, then yields random minibatches of its rows."""

    def __init__(self, ppo: "PPO") -> None:
        self.ppo = ppo

    def __len__(self) -> int:
        return self.ppo.args.epochs * self.ppo.args.minibatches

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows = self.ppo.collect()
        for _ in range(self.ppo.args.epochs):
            order = torch.randperm(rows, device=self.ppo.device, dtype=torch.int32)
            yield from order.tensor_split(self.ppo.args.minibatches)


@final
class PPO(lightning.LightningModule):  # type: ignore[misc]  # Lightning's types are not followed
    """PPO for the agents of one role (Schulman et al. 2017)."""

    def __init__(self, **settings: Any) -> None:
        """Create the policy from fields of ``Args``, which checkpoints save."""
        super().__init__()
        self.save_hyperparameters()
        self.args = args = Args(**settings)
        self.run = training.Run(
            env=args.env,
            params=json.loads(args.params),
            algorithm=training.PPO(minibatches=args.minibatches),
            num_envs=args.num_envs,
            horizon=args.horizon,
        )
        roles = {role.name: role for role in Plan(self.run, "cpu", args.num_envs).roles}
        self.role = roles[args.role or next(iter(roles))]
        weights = torch.Generator().manual_seed(args.seed)
        case = Case(self.run.algorithm, self.run.network, self.role.head, self.role.features, "cpu")
        self.policy = default_policy(case, weights)

    def configure_optimizers(self) -> Any:
        adam = torch.optim.Adam(self.parameters(), lr=self.args.learning_rate, eps=1e-5)
        return [adam], [torch.optim.lr_scheduler.PolynomialLR(adam, self.trainer.max_epochs or 1)]

    def train_dataloader(self) -> RolloutBatches:
        return RolloutBatches(self)

    def val_dataloader(self) -> range:
        return range(1)

    def on_train_start(self) -> None:
        """Make the replicas on Lightning's device."""
        self.replicas = Replicas(self, self.args.num_envs, self.args.horizon, "training")
        self.advantage = Advantages(str(self.device), self.run.threads)

    @torch.no_grad()
    def collect(self) -> int:
        """Play a rollout and compute its advantages; return its number of rows."""
        args, replicas, storage = self.args, self.replicas, self.replicas.role_storage
        replicas.play(self.policy)
        actions, log_probs = replicas.actions[self.role.name], replicas.log_probs[self.role.name]
        advantages, returns = torch.zeros_like(log_probs), torch.zeros_like(log_probs)
        values = self.policy(storage.observations.flatten(0, 2))[1].view(args.horizon + 1, -1)
        final = (
            values[1:]
            if storage.final_obs is None
            else self.policy(storage.final_obs.flatten(0, 2))[1].view_as(log_probs)
        )
        alive = torch.ones_like(storage.terminations) if storage.alive is None else storage.alive[:-1]
        self.advantage.compute(
            storage.rewards.flatten(1),
            final,
            args.gamma,
            args.gae_lambda,
            values=values,
            terminations=storage.terminations.flatten(1),
            truncations=storage.truncations.flatten(1),
            alive=alive.flatten(1),
            advantages=advantages,
            returns=returns,
        )
        self.observations = storage.observations[:-1].flatten(0, 2)
        self.samples = Samples(
            actions.flatten(0, 1),
            log_probs.flatten(),
            advantages.flatten(),
            returns.flatten(),
            values[:-1].flatten(),
            alive.flatten(),
        )

        # The statistics are over the batch of all processes.
        sums = torch.stack([alive.sum(), advantages.sum(), advantages.square().sum()]).double()
        count, total, squares = self.trainer.strategy.reduce(sums, reduce_op="sum")
        self.samples_per_process = (count / self.trainer.world_size / args.minibatches).float()
        mean, variance = total / count, (squares / count - (total / count).square()).clamp(min=0.0)
        weight, clip = mean.new_tensor([args.entropy_weight, 0.2])
        self.scalars = torch.stack([mean, 1 / (variance.sqrt() + 1e-8), weight, clip]).float()
        return len(self.observations)

    def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
        """Return the loss of a minibatch; Lightning averages its gradient over processes and steps Adam."""
        parameters, values = self.policy(self.observations[rows])
        grad_parameters, grad_values = torch.empty_like(parameters), torch.empty_like(values)
        sums = values.new_empty(len(SUMS), len(rows))
        self.replicas.ops[self.role.name].loss(
            parameters.detach(),
            values.detach(),
            self.samples,
            rows,
            self.run.algorithm,
            self.scalars,
            grad_parameters,
            grad_values,
            sums,
        )
        means = zip(SUMS, sums.sum(1) / self.samples_per_process, strict=True)
        self.log_dict(dict(means), on_step=False, on_epoch=True, sync_dist=True, batch_size=1)
        # The kernel has computed the gradient of the policy's outputs; this expression has that gradient.
        loss: torch.Tensor = (
            (parameters * grad_parameters).sum() + (values * grad_values).sum()
        ) / self.samples_per_process
        return loss

    def validation_step(self, *_: int) -> None:
        """Play a complete episode in each of 128 replicas per process."""
        replicas = Replicas(self, 128, 1, "validation")
        active, means = torch.ones(128, 1, device=self.device), defaultdict[str, Any](float)
        while active.any():
            replicas.play(self.policy)
            ended = active * (replicas.role_storage.episode_length[0, :, :1] > 0)
            for name, storage in replicas.world.storage.items():
                means[f"{name}/return"] += (ended * storage.episode_return[0]).mean()
                means[f"{name}/length"] += (ended * storage.episode_length[0]).mean()
            active = active - ended
        self.log_dict(dict(means), sync_dist=True, batch_size=1, prog_bar=True)


def train(args: Args, *callbacks: lightning.Callback) -> tuple[PPO, lightning.Trainer]:
    """Train; return the module and Lightning's trainer."""
    lightning.seed_everything(args.seed)
    ppo, interval = PPO(**vars(args)), 5
    monitored: dict[str, Any] = {"monitor": f"{ppo.role.name}/return", "mode": "max"}
    solved = EarlyStopping(**monitored, stopping_threshold=args.target_return, patience=args.steps)
    best = ModelCheckpoint(**monitored, save_last=True, every_n_epochs=interval, save_on_train_epoch_end=True)
    updates = max(args.steps // (args.devices * args.num_envs * args.horizon), 1)
    trainer = lightning.Trainer(
        accelerator=args.accelerator,
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=updates,
        check_val_every_n_epoch=interval,
        num_sanity_val_steps=0,
        gradient_clip_val=0.5,
        log_every_n_steps=1,
        callbacks=[solved, best, *callbacks],
    )
    trainer.fit(ppo, ckpt_path=args.ckpt_path or None)
    return ppo, trainer


def main() -> None:
    """Train and validate; Lightning prints the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    ppo, trainer = train(Args(**vars(parser.parse_args())))
    trainer.validate(ppo)


if __name__ == "__main__":
    main()
