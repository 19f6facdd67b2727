"""The iterations of a training run, and the state that they depend on."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.engine.attributes import set_params_in_place
from gpu_envs.errors import ActionError, DivergedError
from gpu_envs.registry.catalog import id_of
from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.assembly import Player, make_learner, make_player, observed_params, restart_learner
from gpu_envs.training.horizon import DeviceSchedules, EpisodeSums
from gpu_envs.training.learner import Learner
from gpu_envs.training.memory_estimate import check_memory
from gpu_envs.training.modules import check_modules
from gpu_envs.training.policy import learns
from gpu_envs.training.process.device import (
    Buffers,
    RandomState,
    adopt,
    autocast_disabled,
    buffers_of,
    capture_graphs,
    exclusive,
    explain_out_of_memory,
    keeping,
    no_graphs_reason,
    torch_threads,
)
from gpu_envs.training.process.group import Group
from gpu_envs.training.record.checkpoint import FORMAT
from gpu_envs.training.record.reports import REQUESTS, History, IterationReport, ReportQueue
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.rollout.evaluation import shared_actions
from gpu_envs.training.rollout.fused_rollout import FusedRollout
from gpu_envs.training.rollout.horizon_env import HorizonEnv
from gpu_envs.training.rollout.plan import Plan, PolicyRows
from gpu_envs.training.run import Run

MAX_PENDING = 2
"""Iterations that may be queued on a GPU before the host waits for the metrics of the first."""


class Iterations:
    """The environment and the policies of a run, and its iterations; ``Trainer`` adds the run, and lists attributes."""

    @exclusive()
    def __init__(
        self,
        config: Run,
        modules: Mapping[str, nn.Module] | None = None,
        *,
        run: RunDirectory | None = None,
        per_replica: Collection[str] = (),
        saved_players: Mapping[str, Any] | None = None,
        group: Any = None,
    ) -> None:
        """Make environment, policies and storage: arguments as of ``Trainer``.

        ``per_replica``: parameters that get a value per replica.
        """
        self.group = Group(group)
        if config.gpus not in (1, self.group.size):
            raise ValueError(
                f"gpus is {config.gpus}, but the group has {self.group.size} "
                f"process{'es' * (self.group.size > 1)}: use gpu-envs train --gpus {config.gpus}, or give a group of "
                f"{config.gpus} processes"
            )
        self.config = config = dataclasses.replace(config, gpus=self.group.size)
        self.group.check_same(config.flat() | {"device": "", "run_dir": ""})
        self._run, self._per_replica, self.device = run, per_replica, resolve_device(config.device)
        self._on_gpu = self.device != "cpu"
        self._plan = plan = Plan(config, self.device, config.replicas)
        modules = {} if modules is None else modules
        check_modules(modules, plan.policies)
        shapes = {name: {k: list(v.shape) for k, v in module.state_dict().items()} for name, module in modules.items()}
        self.group.check_same({"code": plan.code, "roles": plan.roles, "modules": sorted(modules)} | shapes)
        check_memory(plan)
        self.no_graphs_reason = no_graphs_reason(self.device, config.graphs)
        self.iteration, self.seconds = 0, 0.0
        with explain_out_of_memory(config, self.device):
            self._random = RandomState(config.seed, self.device, self.group.rank)
            self._build(modules, saved_players or {})
        self._buffers: Buffers = [] if self.no_graphs_reason else self._all_buffers()
        self._threads = self._torch_threads(torch.get_num_threads())
        self.phases: list[Callable[[], None]] = []
        self._reset_envs()

    def _reset_envs(self, *when: str) -> None:
        """Start new episodes, with seeds derived from the run's seed and the strings ``when``."""
        seed = self.config.seed
        stagger = derived_seed(seed, "stagger", *when) if self.config.stagger else None
        self.horizon_env.reset(derived_seed(seed, "environments", *when), stagger=stagger)

    def _build(self, modules: Mapping[str, nn.Module], saved_players: Mapping[str, Any]) -> None:
        """Allocate environment, learners, players, actions, report queue and schedules, and set the attributes."""
        config, device, plan = self.config, self.device, self._plan
        first_replica = self.group.rank * plan.num_envs
        learning = filter(learns, plan.policies)
        observed = dict.fromkeys(name for policy in learning for name in observed_params(config, policy, plan))
        per_replica = {*self._per_replica, *observed}
        # an environment that cannot be made raises before the user's modules are modified
        make_env = functools.partial(HorizonEnv, plan, config.horizon, first_replica, per_replica=per_replica)
        env = make_env() if modules else None
        self.learners: dict[str, Learner] = {}
        self.players: dict[str, Player] = {}
        for name, parts in plan.policies.items():
            policy_rows = PolicyRows(name, parts, plan.num_envs, device, self.group)
            if learns(name):
                self.learners[name] = make_learner(policy_rows, modules.get(name), config, plan.limit, self.group)
            else:
                self.players[name] = make_player(policy_rows, config, saved_players.get(name))
        if not self.learners:
            raise ValueError(f"no policy learns: policies is {config.policies}; leave one role out, or give it a name")
        self._check_sequence_lengths()
        self._episode_sums = EpisodeSums(device, plan.num_envs)
        # made last: the kernels of policies compile in the background in the meantime
        self.horizon_env = horizon_env = env or make_env()
        self.actions = shared_actions(plan.policies.values(), plan.num_envs, device)
        roles, metrics = [role.name for role in plan.roles], horizon_env.metrics
        names = {name: learner.metric_names for name, learner in self.learners.items()}
        depth = MAX_PENDING if self._on_gpu else 1
        self._reports = ReportQueue(roles, names, config.horizon, device, depth, metrics)
        self._metrics, self._requests = (torch.zeros(size, device=device) for size in (self._reports.size, REQUESTS))
        self.history = History(config, roles, plan.policies[next(iter(names))][0].role.name, metrics)
        if self._policies_with_memory():
            horizon_env.track_starts()
        horizon_env.track_params(observed)
        self.fused_rollout = FusedRollout.of(horizon_env, self.learners, self.players, config.params)
        targets = [target for learner in self.learners.values() for target in learner.schedules.values()]
        self._schedules = DeviceSchedules(targets, config, device)

    def _all_buffers(self) -> Buffers:
        """Return the buffers of all modules that learn."""
        return buffers_of(module for learner in self.learners.values() for module in learner.modules)

    def _check_sequence_lengths(self) -> None:
        """Raise a ValueError for a ``sequence_length`` without an effect: no policy has memory, or its own has none."""
        some_have_memory = any(learner.recurrent_state is not None for learner in self.learners.values())
        for name, learner in self.learners.items():
            algorithm, override = learner.algorithm, self.config.policy_overrides.get(name)
            length = algorithm.sequence_length if isinstance(algorithm, PolicyGradient) else None
            explicit = override is not None and override.explicit("sequence_length")
            if length is not None and learner.recurrent_state is None and (explicit or not some_have_memory):
                raise ValueError(
                    f"sequence_length is {length}, but the policy {name!r} has no memory: leave it out, or give a "
                    "memory, such as gru:64"
                )

    def _policies_with_memory(self) -> dict[str, torch.Tensor]:
        """Return the state of each policy with memory."""
        policies: dict[str, Learner | Player] = {**self.learners, **self.players}
        states = {name: policy.recurrent_state for name, policy in policies.items()}
        return {name: state for name, state in states.items() if state is not None}

    def _torch_threads(self, default: int) -> int:
        """Return the number of torch's threads on a CPU, which is 1 if kernels compute all networks.

        More threads of torch's would wait for the cores on which the kernels' threads wait for their next launch.
        """
        by_torch = any(learner.engine == "torch" for learner in self.learners.values())
        by_torch |= any(player.networks is not None for player in self.players.values())
        return self.config.torch_threads or default if by_torch else 1

    def restart(self, run: Run, params: Collection[str], modules: Mapping[str, nn.Module]) -> None:
        """Start again, before the first iteration, as a run that differs in its seed and in numbers.

        Args:
            run: The run: its schedules and clip range, and parameters of the environment, are written to the device.
            params: Names of the parameters that differ.
            modules: The user's modules, with the run's initial weights.
        """
        self.config = run
        for name, learner in self.learners.items():
            restart_learner(learner, run, modules.get(name))
        for player in self.players.values():
            player.restart(run.seed)
        self._schedules.restart(
            schedule for learner in self.learners.values() for schedule, _ in learner.schedules.values()
        )
        set_params_in_place(self.horizon_env.env.simulation, {name: run.params[name] for name in params})
        self._reset_envs()

    def roll_out(self) -> None:
        """Act and step for a horizon with this iteration's values of schedules, which fills the storage."""
        with keeping(self._buffers):
            self._schedules.write()
            horizon_env = self.horizon_env
            horizon_env.carry_over()
            if self.fused_rollout is not None:
                self.fused_rollout()
                return
            for t in range(self.config.horizon):
                for learner in self.learners.values():
                    learner.policy_rows.put_actions(learner.act(t, horizon_env.storage), self.actions)
                inputs = horizon_env.observations(t), horizon_env.action_masks(t), horizon_env.starts(t)
                for player in self.players.values():
                    player.policy_rows.put_actions(player.act(t, *inputs), self.actions)
                horizon_env.step(t, self.actions)
            for player in self.players.values():
                player.advance(self.config.horizon)

    def learn(self) -> None:
        """Update the learning policies from the rollout, and write the iteration's metrics of all processes."""
        with keeping(self._buffers):
            for learner in self.learners.values():
                learner.finish_rollout(self.horizon_env.storage)
                learner.update()
        self.horizon_env.drop_staggered_episodes()
        episodes = [sums.flatten() for sums in self.horizon_env.episodes(self._episode_sums)]
        metrics = [learner.metrics for learner in self.learners.values()]
        torch.cat([*episodes, *metrics, self._requests], out=self._metrics)
        # sums over processes for episodes, maxima for the rest: learners' metrics differ only in largest_observation
        self.group.reduce_metrics(self._metrics, sum(sums.numel() for sums in episodes))

    def prepare(self) -> None:
        """Prepare the first iteration: capture CUDA graphs, if they are used, and set ``phases``.

        Capturing runs iterations, and restores the state after them.
        """
        if self.phases:
            return
        phases: list[Callable[[], None]] = [self.roll_out, self.learn]
        if not self.no_graphs_reason:
            restore = self._remembered()
            try:
                for learner in self.learners.values():
                    learner.warmup_iterations = 0
                with self._settings():
                    required = bool(self.config.graphs)
                    phases, self.no_graphs_reason = capture_graphs(phases, self.device, required=required)
            finally:
                restore()
            if self.no_graphs_reason:
                warnings.warn(f"training without CUDA graphs: {self.no_graphs_reason}", stacklevel=2)
        self.phases = phases

    def _remembered(self) -> Callable[[], None]:
        """Return a function that restores the present state."""
        state = self.state(copy_buffers=False)
        unsaved = [(buffer, buffer.clone()) for *_, buffer in self._buffers if buffer is not None]

        def restore() -> None:
            self._restore(state)
            for buffer, value in unsaved:
                buffer.copy_(value)

        return restore

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """Apply the run's process-wide settings (threads, precision, random state, device), and restore the former."""
        threads, precision = torch_threads(self.device, self._threads), autocast_disabled(self.device)
        on_device: Any = torch.cuda.device(self.device) if self._on_gpu else contextlib.nullcontext()
        with exclusive(), explain_out_of_memory(self.config, self.device), threads, precision, self._random, on_device:
            yield

    def _run_iteration(self) -> None:
        """Roll out a horizon, learn from it, and queue the metrics, which the caller receives from ``_reports``."""
        adopt(self._buffers)  # an evaluation may have assigned others
        warming_up = any(learner.warmup_iterations for learner in self.learners.values())
        roll_out, learn = (self.roll_out, self.learn) if warming_up else self.phases
        started, rolled_out, _ = self._reports.next_events()
        started.record()
        try:
            roll_out()
        except ActionError:
            self._check_weights(self.iteration + 1)  # NaN weights, if any, are the cause of NaN actions
            raise
        rolled_out.record()
        learn()
        for learner in self.learners.values():
            learner.end_iteration()
        self.iteration += 1
        self._reports.send(self.iteration, self._sent_metrics())

    def _sent_metrics(self) -> torch.Tensor:
        """Return the metrics that the host receives."""
        return self._metrics

    def iterate(self, count: int) -> list[IterationReport]:
        """Run iterations without logging, stopping or saving; return their reports."""
        self.prepare()
        reports = []
        with self._settings():
            for number in range(count):
                self._run_iteration()
                for report in self._reports.receive(wait_for_all=number == count - 1):
                    self._record_and_check(report)
                    reports.append(report)
        return reports

    @property
    def steps(self) -> int:
        """Environment steps so far, summed over all replicas."""
        return int(self.config.steps_at(self.iteration))

    @property
    def returns(self) -> dict[str, float]:
        """Mean return of each role's last 100 episodes, as of the last report."""
        return self.history.returns

    def _record_and_check(self, report: IterationReport) -> None:
        """Add a report to the history; warn of updates without a step, raise a DivergedError for NaN or infinity."""
        self.history.add(report)
        for name, metrics in report.learner_metrics.items():
            learner = self.learners[name]
            kl_limit = learner.algorithm.kl_limit if isinstance(learner.algorithm, OnPolicy) else None
            if kl_limit is not None and metrics["samples"] == 0:
                warnings.warn(
                    f"updates of the policy {name!r} stop before their first step and learn nothing: it acts in "
                    "evaluation mode and learns in training mode, and with dropout or batch normalisation the two "
                    f"differ by a KL divergence above target_kl, {kl_limit:g}. Leave target_kl or these layers out, or "
                    "give a larger target_kl",
                    stacklevel=2,
                )
            wrong = [key for key, v in metrics.items() if not math.isfinite(v) and key != "explained_variance"]
            if wrong:
                sources = [key for key, tensor in learner.tensors().items() if not bool(torch.isfinite(tensor).all())]
                if "largest_observation" in wrong:
                    sources.insert(0, "observations")
                raise self._diverged(name, [*sources, *wrong][0], report.iteration)

    def _check_weights(self, iteration: int) -> None:
        """Raise a DivergedError if a learner's weights are NaN or infinite."""
        for name, learner in self.learners.items():
            weights = [tensor.detach().cpu() for tensor in learner.module.parameters()]  # a GPU would load kernels
            if not all(bool(torch.isfinite(tensor).all()) for tensor in weights):
                raise self._diverged(name, "the parameters", iteration) from None

    def _diverged(self, policy: str, source: str, iteration: int) -> DivergedError:
        """Return the error for NaN or infinity in ``source``; it names the last checkpoint and settings to change."""
        saved = self._run.checkpoints.latest() if self._run is not None else None
        return DivergedError(
            f"iteration {iteration}: {source} of the policy {policy!r} contain NaN or infinity; "
            f"{f'the last good checkpoint is {saved}' if saved else 'there is no checkpoint'}; a lower learning_rate, "
            "or normalise_observations, and normalise_rewards or normalise_values, often help"
        )

    def describe(self) -> dict[str, Any]:
        """Return the settings and shapes that must agree between a checkpoint and a run that loads it."""
        config = self.config
        facts = {"env": id_of(config.env), "params": dict(config.params), "gpus": config.gpus, "format": FORMAT}
        facts |= {name: getattr(config, name) for name in ("num_envs", "horizon", "stagger")}
        if any(role.masked for role in self.horizon_env.roles):
            facts["action_mask"] = True
        for name, learner in self.learners.items():
            of_policy = config.for_policy(name).fixed_policy_settings() | learner.describe()
            facts |= {f"{name}: {key}": value for key, value in of_policy.items()}
        return facts

    def state(self, *, copy_buffers: bool = True) -> dict[str, Any]:
        """Return copies of all data that this process needs to continue.

        Args:
            copy_buffers: Whether replay buffers are copied.
        """
        adopt(self._buffers)
        return {
            "describes": self.describe(),
            "iteration": self.iteration,
            "steps": self.steps,
            "seconds": self.seconds,
            "clock": self._schedules.clock.clone(),
            **self.history.state(),
            **self.horizon_env.state(),
            "learners": {name: learner.state(copy_buffers=copy_buffers) for name, learner in self.learners.items()},
            "players": {name: player.state() for name, player in self.players.items()},
            "recurrent_states": {name: state.clone() for name, state in self._policies_with_memory().items()},
            "random": self._random.state(),
            "threads": self._threads,
        }

    def _restore(self, state: Mapping[str, Any], *, same_processes: bool = True) -> None:
        """Restore a process's state; ``same_processes=False`` (their number has changed): with new episodes."""
        for name, learner in self.learners.items():
            learner.load(state["learners"][name])
        for name, player in self.players.items():
            player.load(state["players"][name])
        self.history.load(state)
        if same_processes:
            self.horizon_env.load(state)
            for name, recurrent_state in self._policies_with_memory().items():
                recurrent_state.copy_(state["recurrent_states"][name])
            self._random.load(state["random"])
        else:  # new episodes and random numbers, different from those at the start of the run
            when = str(state["iteration"])
            self.horizon_env.load_params(state)
            self._reset_envs(when)
            self._random.load(RandomState(self.config.seed, self.device, self.group.rank, when).state())
        self._threads = self._torch_threads(int(state["threads"]))
        self._schedules.clock.copy_(state["clock"])
        self.iteration, self.seconds = int(state["iteration"]), float(state["seconds"])
