"""The loop: roll out a horizon, update every policy that learns, report; again until the steps are done."""

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch
from torch import nn

from gpu_envs.backend import resolve_device
from gpu_envs.errors import ActionError, DivergedError
from gpu_envs.registry.catalog import id_of
from gpu_envs.seeds import derived_seed
from gpu_envs.training.algorithms import OnPolicy
from gpu_envs.training.assembly import Player, make_learner, make_player
from gpu_envs.training.engines.base import Networks
from gpu_envs.training.horizon import DeviceSchedules, EpisodeSums
from gpu_envs.training.learner import Learner
from gpu_envs.training.memory_estimate import check_memory
from gpu_envs.training.networks import check_modules
from gpu_envs.training.policy import learns
from gpu_envs.training.process.device import (
    RandomState,
    autocast_disabled,
    capture_graphs,
    exclusive,
    explain_out_of_memory,
    no_graphs_reason,
    torch_threads,
)
from gpu_envs.training.process.group import Group
from gpu_envs.training.process.watch import interruption, peer_monitor
from gpu_envs.training.record.checkpoint import FORMAT
from gpu_envs.training.record.reports import History, IterationReport, ReportQueue, Result
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import fitting, save_together
from gpu_envs.training.record.summary import Progress
from gpu_envs.training.rollout.evaluation import Evaluations, TrainedPolicies, play, shared_actions
from gpu_envs.training.rollout.fused_rollout import FusedRollout
from gpu_envs.training.rollout.horizon_env import HorizonEnv
from gpu_envs.training.rollout.plan import Plan, PolicyRows
from gpu_envs.training.run import Run

MAX_PENDING = 2
"""Iterations that a GPU is given before the host waits for the first one's figures."""


@final
class Trainer:
    """Trains the policies of one environment.

    Attributes:
        config: The run.
        device: ``cpu`` or ``cuda:N``.
        iteration: Updates done.
        eager_because: Why nothing is captured in CUDA graphs; empty where it is.
        learners: The policies that learn, and ``players``, those that do not, by name.
        horizon_env: The environment, with what the last horizon left.
        phases: What an iteration runs, ``roll_out`` and ``learn``: as CUDA graphs where they are captured.
    """

    @exclusive()
    def __init__(
        self,
        config: Run,
        run: RunDirectory | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        *,
        kept: Mapping[str, Any] | None = None,
        group: Any = None,
    ) -> None:
        """Makes environment, policies and storage.

        Args:
            config: The run.
            run: Where configuration, logs and checkpoints go; None: nowhere.
            modules: Policies of your own, by the names that ``config.policies`` gives them (or their roles').
            kept: What a checkpoint holds of ``players``: frozen policies then come from there, and not from their runs.
            group: A process group of ``torch.distributed``, of which every process makes such a trainer: they train as
                one with ``config.num_envs`` replicas each. None: this process trains alone.

        Raises:
            MemoryError: The device has too little; the message says which setting to lower, and to what.
            RuntimeError: Another thread of this process makes, trains or evaluates policies at this moment.
        """
        self.group = Group(group)
        if config.gpus not in (1, self.group.size):
            raise ValueError(
                f"gpus is {config.gpus}, and as many processes must train together; here it is {self.group.size}. "
                f"Start them by gpu-envs train --gpus {config.gpus}, or give a group of so many"
            )
        self.config = config = dataclasses.replace(config, gpus=self.group.size)
        self.group.check_same(config.flat() | {"device": "", "run_dir": ""})
        self._run, self.device = run, resolve_device(config.device)
        self._on_gpu = self.device != "cpu"
        self._plan = plan = Plan(config, self.device, config.replicas)
        modules = {} if modules is None else modules
        check_modules(modules, plan.policies)
        shapes = {name: {k: list(v.shape) for k, v in module.state_dict().items()} for name, module in modules.items()}
        self.group.check_same({"code": plan.code, "roles": plan.roles, "modules": sorted(modules)} | shapes)
        check_memory(plan)
        self.no_graphs_reason = no_graphs_reason(self.device, config.graphs)
        self.iteration, self.seconds = 0, 0.0
        self._threads = config.cpu_threads or torch.get_num_threads()
        with explain_out_of_memory(config, self.device):
            self._random = RandomState(config.seed, self.device, self.group.rank)
            self._build(modules, kept or {})
        self.phases: list[Callable[[], None]] = []
        self._begin_episodes()

    def _begin_episodes(self, *when: str) -> None:
        seed = self.config.seed
        stagger = derived_seed(seed, "stagger", *when) if self.config.stagger else None
        self.horizon_env.reset(derived_seed(seed, "environments", *when), stagger=stagger)

    def _build(self, modules: Mapping[str, nn.Module], kept: Mapping[str, Any]) -> None:
        config, device, plan = self.config, self.device, self._plan
        first_replica = self.group.rank * plan.num_envs
        # a user's modules are taken over when nothing can be wrong any more
        env = HorizonEnv(plan, config.horizon, first_replica) if modules else None
        self.learners: dict[str, Learner] = {}
        self.players: dict[str, Player] = {}
        for name, parts in plan.policies.items():
            policy_rows = PolicyRows(name, parts, plan.num_envs, device, self.group)
            if learns(name):
                self.learners[name] = make_learner(policy_rows, modules.get(name), config, plan.limit, self.group)
            else:
                self.players[name] = make_player(policy_rows, config, kept.get(name))
        if not self.learners:
            raise ValueError(f"no policy learns: policies is {config.policies}; let one role have a name of its own")
        self._episode_sums = EpisodeSums(device)  # they are compiled while the environment is
        # what policies need is being compiled meanwhile
        self.horizon_env = horizon_env = env or HorizonEnv(plan, config.horizon, first_replica)
        self.actions = shared_actions(plan.policies.values(), plan.num_envs, device)
        roles, metrics = [role.name for role in plan.roles], horizon_env.metrics
        names = {name: learner.metric_names for name, learner in self.learners.items()}
        depth = MAX_PENDING if self._on_gpu else 1
        self._mailbox = ReportQueue(roles, names, config.horizon, device, depth, metrics)
        self._figures, self._asked = (torch.zeros(size, device=device) for size in (self._mailbox.size, 1))
        self.history = History(config, roles, plan.policies[next(iter(names))][0].role.name, metrics)
        self.fused_rollout = FusedRollout.of(horizon_env, self.learners, self.players, config.params)
        targets = [target for learner in self.learners.values() for target in learner.schedules]
        self._schedules = DeviceSchedules(targets, config, device)

    def keep_in(self, run: RunDirectory) -> None:
        """From now on logs and checkpoints go there."""
        self._run = run

    # --- one iteration, all on the device ---

    def roll_out(self) -> None:
        """Acts and steps for a horizon, by what schedules say of this iteration."""
        self._schedules.write()
        horizon_env = self.horizon_env
        horizon_env.carry_over()
        if self.fused_rollout is not None:
            self.fused_rollout()
            return
        for t in range(self.config.horizon):
            for learner in self.learners.values():
                learner.policy_rows.give(learner.act(t, horizon_env.storage), self.actions)
            observations, masks = horizon_env.observations(t), horizon_env.action_masks(t)
            for player in self.players.values():
                player.policy_rows.give(player.act(t, observations, masks), self.actions)
            horizon_env.step(t, self.actions)
        for player in self.players.values():
            player.advance(self.config.horizon)

    def learn(self) -> None:
        """Advantages and updates of every policy that learns, and the figures of the iteration."""
        for learner in self.learners.values():
            learner.finish_rollout(self.horizon_env.storage)
            learner.update()
        self.horizon_env.drop_staggered_episodes()
        parts = [part.flatten() for part in self.horizon_env.episodes(self._episode_sums)]
        torch.cat([*parts, *(learner.metrics for learner in self.learners.values()), self._asked], out=self._figures)
        self.group.reduce_metrics(
            self._figures, sum(part.numel() for part in parts)
        )  # learners' differ in the largest alone

    def prepare(self) -> None:
        """Compiles, warms up and captures; afterwards everything is as it was before, and nothing has been learnt."""
        if self.phases:
            return
        works: list[Callable[[], None]] = [self.roll_out, self.learn]
        if not self.no_graphs_reason:
            start = self.state(copy_buffers=False)
            try:
                for learner in self.learners.values():
                    learner.warmup_iterations = 0
                with self._settings():
                    works, self.no_graphs_reason = capture_graphs(works, self.device, required=bool(self.config.graphs))
            finally:
                self._take_over(start)
            if self.no_graphs_reason:
                warnings.warn(f"training without CUDA graphs: {self.no_graphs_reason}", stacklevel=2)
        self.phases = works

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """The process's settings under which this run computes, put back afterwards."""
        threads, precision = torch_threads(self.device, self._threads), autocast_disabled(self.device)
        on_device: Any = torch.cuda.device(self.device) if self._on_gpu else contextlib.nullcontext()
        with exclusive(), explain_out_of_memory(self.config, self.device), threads, precision, self._random, on_device:
            yield

    def _advance(self) -> None:
        waiting = any(learner.warmup_iterations for learner in self.learners.values())
        roll_out, learn = (self.roll_out, self.learn) if waiting else self.phases
        started, rolled_out, _ = self._mailbox.begin()
        started.record()
        try:
            roll_out()
        except ActionError:
            self._check_weights(self.iteration + 1)  # weights that are NaN give actions that are
            raise
        rolled_out.record()
        learn()
        for learner in self.learners.values():
            learner.end_iteration()
        self.iteration += 1
        self._mailbox.send(self.iteration, self._figures)

    def iterate(self, count: int) -> list[IterationReport]:
        """Runs iterations without logging, stopping or saving; returns what each was like."""
        self.prepare()
        reports = []
        with self._settings():
            for number in range(count):
                self._advance()
                for report in self._mailbox.receive(all_of_them=number == count - 1):
                    self._take_in(report)
                    reports.append(report)
        return reports

    # --- the run ---

    @property
    def steps(self) -> int:
        """Steps of the environment so far."""
        return int(self.config.steps_at(self.iteration))

    @property
    def returns(self) -> dict[str, float]:
        """The mean return of each role's last 100 episodes, as far as the host knows."""
        return self.history.returns

    def run(self, progress: bool | None = None) -> Result:
        """Trains until the steps are done, the target is reached, or it is interrupted; saves at the end.

        Ctrl-C, SIGTERM and SIGHUP (a closed terminal) interrupt it. A second Ctrl-C raises KeyboardInterrupt at once.

        Args:
            progress: Draw a progress bar; None: in a terminal or a notebook, and elsewhere write a line every 30 s.

        Raises:
            DivergedError: A loss or an observation is NaN or infinite.
        """
        config = self.config
        self.prepare()
        history, quiet = self.history, self.group.rank > 0 or (None if progress is None else not progress)
        bar = Progress(config.steps_at(config.iterations), quiet, target=history.target, header=self._header())
        if self._run is not None:
            history.keep_in(self._run.log_path, self.iteration)
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        neighbours = self.group.local_peers()
        began, before, first = time.perf_counter(), self.seconds, self.steps
        reason = "total_steps" if self.iteration >= config.iterations else ""
        reason = "target_return" if history.target_reached else reason
        try:
            with self._settings(), peer_monitor(neighbours), interruption() as interrupted:
                while not reason:
                    self._advance()
                    last = self.iteration >= config.iterations
                    due = config.checkpoint_interval > 0 and self.iteration % config.checkpoint_interval == 0
                    reports = self._mailbox.receive(all_of_them=last or due)
                    stopped = interrupted.is_set()
                    if self.group.size > 1:  # all stop after the same iteration: the one that brings word of it
                        self._asked.fill_(float(stopped))
                        stopped = any(report.stop for report in reports)
                    if stopped:
                        reports += self._mailbox.receive(all_of_them=True)
                    for report in reports:
                        self._take_in(report)
                        history.unlogged.append(report)
                        self.seconds = before + time.perf_counter() - began
                        speed = (config.steps_at(report.iteration) - first) / max(self.seconds - before, 1e-9)
                        bar.update(config.steps_at(report.iteration), speed, history.returns, history.metrics)
                        if history.target_reached:
                            reason = "target_return"
                            if stopped and report.iteration == self.iteration and self._on_gpu and not (due or last):
                                self._advance()  # as it would have been under way, had nobody pressed Ctrl-C
                            break  # those after it change neither the figure nor the decision
                        if report.iteration % config.log_interval == 0:
                            history.write(report.iteration, self.seconds, speed)
                    if not reason:
                        reason = "interrupted" if stopped else "total_steps" if last else ""
                    if due and not reason:
                        self.save()
                self._mailbox.receive(all_of_them=True)
                if history.unlogged and reason != "interrupted":  # then the row is written where the run goes on
                    speed = (self.steps - first) / max(self.seconds - before, 1e-9)
                    history.write(self.iteration, self.seconds, speed)
                self.save()
        finally:
            self._mailbox.receive(all_of_them=True)
            bar.close()
        by_torch = {name: learner for name, learner in self.learners.items() if learner.engine == "torch"}
        why = {name: learner.fallback_reason for name, learner in by_torch.items() if self._on_gpu}
        run_dir = self._run and str(self._run.path)
        return Result(run_dir, reason, self.iteration, self.steps, self.seconds, self.returns, history.metrics, why)

    def _header(self) -> list[str]:
        """A line for each policy that learns: what computes it."""
        lines = []
        for name, learner in self.learners.items():
            why = f" ({learner.fallback_reason})" if learner.fallback_reason else ""
            lines.append(f"{name}: {learner.algorithm.name} on {self.device}, engine {learner.engine}{why}")
        return lines

    def _take_in(self, report: IterationReport) -> None:
        self.history.add(report)
        for name, figures in report.learner_metrics.items():
            learner = self.learners[name]
            kl_limit = learner.algorithm.kl_limit if isinstance(learner.algorithm, OnPolicy) else None
            if kl_limit is not None and figures["samples"] == 0:
                warnings.warn(
                    f"updates of the policy {name!r} stop before their first step and learn nothing: it acts in "
                    "evaluation mode and learns in training mode, between which dropout or batch normalisation change "
                    f"its actions by more than target_kl, {kl_limit:g}. Leave target_kl or these layers out, or give "
                    "a larger target_kl",
                    stacklevel=2,
                )
            wrong = [key for key, v in figures.items() if not math.isfinite(v) and key != "explained_variance"]
            if not wrong:
                continue
            found = [key for key, tensor in learner.tensors().items() if not bool(torch.isfinite(tensor).all())]
            if "largest_observation" in wrong:
                found.insert(0, "observations")
            raise self._diverged(name, [*found, *wrong][0], report.iteration)

    def _check_weights(self, iteration: int) -> None:
        for name, learner in self.learners.items():
            weights = [parameter.detach().cpu() for parameter in learner.module.parameters()]
            if not all(bool(torch.isfinite(tensor).all()) for tensor in weights):  # a GPU would load kernels to ask
                raise self._diverged(name, "the parameters", iteration) from None

    def _diverged(self, policy: str, what: str, iteration: int) -> DivergedError:
        saved = self._run.checkpoints.latest() if self._run is not None else None
        return DivergedError(
            f"iteration {iteration}: {what} of the policy {policy!r} hold a NaN or an infinity; "
            f"{f'the last good checkpoint is {saved}' if saved else 'there is no checkpoint'}; a lower learning_rate, "
            "or normalise_observations and normalise_rewards, often help"
        )

    # --- checkpoints ---

    def describe(self) -> dict[str, Any]:
        """What a checkpoint must agree in with the run that takes it over."""
        config = self.config
        found = {"env": id_of(config.env), "params": dict(config.params), "gpus": config.gpus, "format": FORMAT}
        found |= {name: getattr(config, name) for name in ("num_envs", "horizon", "stagger")}
        if any(role.masked for role in self.horizon_env.roles):
            found["action_mask"] = True
        for name, learner in self.learners.items():
            own = config.for_policy(name).fixed_policy_settings() | learner.describe()
            found |= {f"{name}: {key}": value for key, value in own.items()}
        return found

    def state(self, *, copy_buffers: bool = True) -> dict[str, Any]:
        """Copies of everything that the next iterations of this process depend on.

        Args:
            whole: With copies of replay buffers, instead of the buffers themselves.
        """
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
            "random": self._random.state(),
            "threads": self._threads,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave, or what ``save`` wrote; or says what does not fit."""
        same = state["describes"]["gpus"] == self.config.gpus
        figures = {
            name: {n: 0.0 for n in learner.metric_names if n is not None} for name, learner in self.learners.items()
        }
        expected = self.state(copy_buffers=False) | {"recent": [(0, figures, 0.0, 0.0)]}
        self._take_over(fitting(expected, state, self.group.rank, same=same), same=same)

    def _take_over(self, state: Mapping[str, Any], *, same: bool = True) -> None:
        for name, learner in self.learners.items():
            learner.load(state["learners"][name])
        for name, player in self.players.items():
            player.load(state["players"][name])
        self.history.load(state)
        if same:
            self.horizon_env.load(state)
            self._random.load(state["random"])
        else:  # other episodes and random numbers than those with which the run began
            when = str(state["iteration"])
            self._begin_episodes(when)
            self._random.load(RandomState(self.config.seed, self.device, self.group.rank, when).state())
        self._threads = self.config.cpu_threads or int(state["threads"])
        self._schedules.clock.copy_(state["clock"])
        self.iteration, self.seconds = int(state["iteration"]), float(state["seconds"])

    def save(self) -> None:
        """Writes a checkpoint of this moment, where there is a folder for it."""
        folders = [
            folder for folder in self.group.all_gather_objects(self._run and str(self._run.path)) if folder is not None
        ]
        if not folders:
            return
        self._check_weights(self.iteration)
        self.horizon_env.env.check()
        checkpoints, keep = RunDirectory.open(folders[0]).checkpoints, self.config.keep_buffer
        save_together(checkpoints, self.iteration, self.state(copy_buffers=False), self.group, keep_buffers=keep)

    def evaluate(
        self, episodes: int = 1000, *, greedy: bool = True, seed: int | None = None, num_envs: int | None = None
    ) -> Evaluations:
        """Plays full episodes with the policies as they are now, in environments of their own; by role.

        Args:
            episodes: How many at least.
            greedy: Take the likeliest actions, where otherwise they are sampled.
            seed: Of environments and actions; None: derived from the run's.
            num_envs: Replicas side by side; None: as many as episodes, up to 4,096.
        """
        networks: dict[str, Networks | None] = {name: player.networks for name, player in self.players.items()}
        networks |= {name: learner.networks for name, learner in self.learners.items()}
        own, spec = derived_seed(self.config.seed, "evaluation"), self._plan.world.spec
        known = (self.config, self.device, self._plan.policies, networks, own, self.steps, self.returns)
        how: dict[str, Any] = {"episodes": episodes, "greedy": greedy, "num_envs": num_envs, "spec": spec}
        with self._settings():
            return play(TrainedPolicies(*known), seed=own if seed is None else seed, **how)
