"""A training run: its loop, its callbacks and its checkpoints."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import nn

from gpu_envs.engine.attributes import set_params_in_place
from gpu_envs.errors import DivergedError, did_you_mean
from gpu_envs.evaluating import Evaluations
from gpu_envs.progress import Progress
from gpu_envs.seeds import derived_seed
from gpu_envs.training.assembly import latest_policy
from gpu_envs.training.callbacks.base import Callbacks
from gpu_envs.training.iterations import Iterations
from gpu_envs.training.process.signals import interruption, peer_monitor
from gpu_envs.training.record.log import LEADING_COLUMNS
from gpu_envs.training.record.reports import IterationReport, Report, Result
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.record.run_state import save_together, state_of_process
from gpu_envs.training.rollout.evaluation import TrainedPolicies, play
from gpu_envs.training.run import Run
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import settings_of


class _Meter(NamedTuple):
    """Measures the speed of ``run``."""

    bar: Progress
    seconds_before: float
    steps_before: int
    started: float

    def speed(self, steps: int) -> float:
        """Return the steps per second since the start of ``run``."""
        return (steps - self.steps_before) / max(time.perf_counter() - self.started, 1e-9)


@final
class Trainer(Iterations):
    """Trains the policies of one environment.

    Attributes:
        config: Settings of the run.
        device: ``cpu`` or ``cuda:N``.
        iteration: Number of updates so far.
        no_graphs_reason: Reason why no CUDA graphs are used; empty if they are.
        learners: The learning policies by name.
        players: The policies that do not learn, by name.
        horizon_env: The environment, and storage with the last horizon.
        phases: The functions of an iteration, ``roll_out`` and ``learn``, or replays of their CUDA graphs.
    """

    def __init__(
        self,
        config: Run,
        run: RunDirectory | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        *,
        callbacks: Iterable[Any] = (),
        saved_players: Mapping[str, Any] | None = None,
        group: Any = None,
    ) -> None:
        """Make environment, policies and storage.

        Args:
            config: Settings of the run.
            run: Directory for configuration, logs and checkpoints; None: nothing is saved.
            modules: Your torch modules by policy name (by default the name of the role).
            callbacks: Objects whose methods ``run`` calls, see ``Callback``, besides those of ``config.callbacks``.
            saved_players: ``players`` of a checkpoint, for restoring frozen policies; None: frozen policies are read
                from their runs.
            group: A process group of ``torch.distributed``, each of whose processes makes a trainer: they train
                together with ``config.num_envs`` replicas each. None: this process trains alone.

        Raises:
            MemoryError: The device has too little memory; the message says which setting to lower, and to what value.
            RuntimeError: Another thread of this process makes, trains or evaluates policies at the same time.
        """
        self._callbacks = Callbacks([*config.callbacks, *callbacks])
        self._changed_schedules: dict[str, list[str]] = {}
        self._save_requested = False
        self._received: dict[str, bool] = {}
        self._meter: _Meter | None = None
        self._wish = ""
        self._failure: Exception | None = None
        parameters = self._callbacks.parameters
        super().__init__(config, modules, run=run, per_replica=parameters, saved_players=saved_players, group=group)
        self.history.wait = self._newest_report

    def save_to(self, run: RunDirectory) -> None:
        """Write logs and checkpoints to a run directory from now on."""
        self._run = run

    def run(self, progress: bool | None = None) -> Result:
        """Train until all steps are done, the target return is reached, or a signal arrives; save a checkpoint.

        Ctrl-C, SIGTERM and SIGHUP (a closed terminal) stop the training. A second Ctrl-C raises KeyboardInterrupt.
        A callback may stop it, too: by a reason, or by an exception, which is raised again after the checkpoint.

        Args:
            progress: Whether to draw a progress bar; None: draw one in a terminal or a notebook, and otherwise write a
                line every 30 s.

        Raises:
            DivergedError: A loss or an observation is NaN or infinite.
        """
        self._check_not_in_callback()
        try:
            result = self._train(progress)
        except BaseException as error:
            self._callbacks.call("on_exit", self, error)
            raise
        self._callbacks.call("on_exit", self, None)
        return result

    def _train(self, progress: bool | None) -> Result:
        config, history, callbacks = self.config, self.history, self._callbacks
        callbacks.check_states()
        self.prepare()
        quiet = self.group.rank > 0 or (None if progress is None else not progress)
        bar = Progress(config.steps_at(config.iterations), quiet, target=history.target, header=self._header())
        if self._run is not None:
            history.open_log(self._run.log_path, self.iteration)
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        peers = self.group.local_peers()
        self._meter = _Meter(bar, self.seconds, self.steps, time.perf_counter())
        self._wish, self._failure = "", None
        self._received, sent = ({"stop": False, "save": False} for _ in range(2))
        self._requests.zero_()
        reason = "total_steps" if self.iteration >= config.iterations else ""
        reason = "target_return" if history.target_reached else reason
        try:
            with self._settings(), peer_monitor(peers), interruption() as interrupted:
                callbacks.call("on_start", self)
                while not reason:
                    self._run_iteration()
                    last = self.iteration >= config.iterations
                    due = config.checkpoint_interval > 0 and self.iteration % config.checkpoint_interval == 0
                    self._receive(wait_for_all=last or due)
                    # before the callbacks: in one of several processes, one may wait for the newest report
                    received, reached = dict(self._received), history.target_reached
                    self._received["save"] = False
                    self._deliver()
                    requests = {"stop": interrupted.is_set() or bool(self._wish), "save": self._save_requested}
                    self._save_requested = False
                    if self.group.size > 1:  # all stop or save after the iteration whose report has a request
                        if requests != sent:
                            for k, requested in enumerate(requests.values()):
                                self._requests[k].fill_(float(requested))
                        sent, requests = requests, received
                    stopped, due = requests["stop"], due or requests["save"]
                    if stopped or due:
                        self._receive(wait_for_all=True)
                        reached = history.target_reached
                    if reached:
                        reason, newest = "target_return", history.newest
                        is_newest = newest is not None and newest.iteration == self.iteration
                        if stopped and is_newest and self._on_gpu and not (due or last):
                            self._run_iteration()  # without the interruption, this iteration would have been queued
                    elif stopped:
                        reason = next(filter(None, self.group.all_gather_objects(self._wish)), "interrupted")
                    elif last:
                        reason = "total_steps"
                    elif due:
                        self.save()
                self._reports.receive(wait_for_all=True)
                self._deliver(newest_too=reason != "interrupted")
                # a resumed run completes the row of an interrupted one
                if history.unlogged and reason != "interrupted" and self._failure is None:
                    self._write_row(self.iteration)
                self.save()
        finally:
            self._reports.receive(wait_for_all=True)
            self._meter = None
            bar.close()
        if self._failure is not None:
            raise self._failure
        by_torch = {name: learner for name, learner in self.learners.items() if learner.engine == "torch"}
        reasons = {name: learner.fallback_reason for name, learner in by_torch.items() if self._on_gpu}
        folder, means = self._run and str(self._run.path), (self.returns, history.metrics)
        result = Result(folder, reason, self.iteration, self.steps, self.seconds, *means, reasons)
        callbacks.call("on_end", self, result)
        return result

    def iterate(self, count: int) -> list[IterationReport]:
        """Run iterations without logging, stopping, saving or calling callbacks; return their reports."""
        self._check_not_in_callback()
        return super().iterate(count)

    def _check_not_in_callback(self) -> None:
        """Raise a RuntimeError if a callback is running."""
        if self._callbacks.running:
            raise RuntimeError("a callback cannot call run or iterate: the run that called it continues by itself")

    def _header(self) -> list[str]:
        """Return a line per learning policy with its algorithm, device and engine."""
        lines = []
        for name, learner in self.learners.items():
            reason = f" ({learner.fallback_reason})" if learner.fallback_reason else ""
            lines.append(f"{name}: {learner.algorithm.name} on {self.device}, engine {learner.engine}{reason}")
        return lines

    def _receive(self, *, wait_for_all: bool) -> None:
        """Receive reports of iterations, and record, log and show them."""
        history, meter = self.history, self._meter
        assert meter is not None
        for report in self._reports.receive(wait_for_all=wait_for_all):
            self._received["stop"] |= report.stop
            self._received["save"] |= report.save
            if history.target_reached:
                continue  # later reports do not change the reason or the returns
            self._record_and_check(report)
            history.hold(report)
            self.seconds = meter.seconds_before + time.perf_counter() - meter.started
            steps = self.config.steps_at(report.iteration)
            meter.bar.update(steps, meter.speed(steps), history.returns, history.metrics)

    def _deliver(self, *, newest_too: bool = False) -> None:
        """Give received reports to callbacks, then to the log.

        Callbacks receive a report when the next iteration has been queued, on every device and in a resumed run: the
        report of the newest iteration waits, unless nothing watches it, or it is the last (``newest_too``).
        """
        history, meter = self.history, self._meter
        assert meter is not None
        end = self.iteration + (newest_too or "on_iteration" not in self._callbacks.hooks)
        while history.held and history.held[0].iteration < end and self._failure is None:
            report = history.held.popleft()
            with self._failure_stops():
                wish = self._callbacks.watch(self, report)
                self._wish = self._wish or wish or ""
            history.add_to_row(report)
            is_last = history.target_reached and report is history.newest
            if report.iteration % self.config.log_interval == 0 and not is_last:
                self._write_row(report.iteration)

    def _write_row(self, iteration: int) -> None:
        """Write a row of the log, and give it to callbacks."""
        assert self._meter is not None
        speed = self._meter.speed(self.config.steps_at(iteration))
        row = self.history.write(iteration, self.seconds, speed, always="on_log" in self._callbacks.hooks)
        with self._failure_stops():
            self._callbacks.call("on_log", self, row)

    @contextlib.contextmanager
    def _failure_stops(self) -> Iterator[None]:
        """Let an exception of a callback stop the run, which raises it again after a checkpoint."""
        try:
            yield
        except DivergedError:
            raise  # there is nothing to save
        except Exception as error:  # noqa: BLE001
            self._wish, self._failure = f"{type(error).__name__}: {error}", error

    @property
    def run_dir(self) -> Path | None:
        """The run directory; None if this process does not write one."""
        return self._run and self._run.path

    def add_file(self, path: str | Path) -> None:
        """Give a file of the run, such as a replay, to the method ``on_file`` of callbacks."""
        self._callbacks.call("on_file", self, Path(path))

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run directory: the first of the processes that train together."""
        return self.group.rank == 0

    def log(self, name: str, value: float) -> None:
        """Add a value to the next row of the log, in a column ``name``; a later value replaces it."""
        if not (isinstance(name, str) and name.isascii() and name.isprintable() and name):
            raise ValueError(f"the name of a column is {name!r}; give a text of ASCII characters")
        if name in (*LEADING_COLUMNS, "steps_per_second") or name in (self.history.newest or ()):
            raise ValueError(f"the log already has a column {name!r}; give the value another name")
        self.history.extra[name] = float(value)

    def set_params(self, **params: Any) -> None:
        """Change environment parameters from the next iteration on, without compiling or waiting for the device.

        Args:
            **params: A number, or an array with one per replica, for a parameter that has a value per replica: given so
                in ``Run.params``, or named in ``parameters`` of a callback. Other numbers, such as
                ``Uniform(0.1, 0.5)``, for a parameter that is drawn: replicas draw from them in their next episodes.

        Raises:
            ValueError: A parameter cannot change in this run, or not to this value: nothing has changed.
        """
        set_params_in_place(self.horizon_env.env.simulation, params)

    def set_schedule(self, name: str, schedule: Schedule | str | float) -> None:
        """Change a schedule from the next iteration on, without waiting for the device.

        Args:
            name: ``learning_rate``, ``entropy_weight`` or ``epsilon``, of all policies that have it, or of one:
                ``runner.learning_rate``.
            schedule: A number, or a schedule over the whole run.
        """
        all_of = {f"{n}.{key}": (learner, key) for n, learner in self.learners.items() for key in learner.schedules}
        chosen = {full: found for full, found in all_of.items() if name in (full, found[1])}
        if not chosen:
            names = [*dict.fromkeys(key for _, key in all_of.values()), *all_of]
            raise ValueError(f"there is no schedule {name!r}{did_you_mean(name, names)} There are: {', '.join(names)}")
        parsed = Schedule.of(schedule)
        for learner, key in chosen.values():
            settings_of(type(learner.algorithm))[key].validate(parsed)
        for full, (learner, key) in chosen.items():
            before, target = learner.schedules[key]
            self._schedules.change(target, parsed)
            self._changed_schedules[full] = [str(Schedule.of(before)), str(parsed)]

    def replace_opponent(self, role: str, source: str) -> None:
        """Replace the weights of a frozen policy by the weights of another policy with an equal network.

        Args:
            role: Role or agent for which the frozen policy acts; if several act for a role, all are replaced.
            source: The name of a policy that learns in this run, whose present weights are copied; or ``RUN`` or
                ``RUN:POLICY`` for a policy of another run.
        """
        frozen = [player for player in self.players.values() if role in player.opponents]
        if not frozen:
            names = dict.fromkeys(name for player in self.players.values() for name in player.opponents)
            raise ValueError(
                f"no frozen policy acts for {role!r}{did_you_mean(role, names)} Frozen policies act for: "
                f"{', '.join(names) or 'none'}"
            )
        if source in self.learners:
            state: Mapping[str, Any] = self.learners[source].state(copy_buffers=False)
            found = [(state, self.config.for_policy(source), f"{source} of iteration {self.iteration}")] * len(frozen)
        elif Path(source.partition(":")[0]).is_dir():
            found = [latest_policy(source, player.policy_rows) for player in frozen]
        else:
            raise ValueError(
                f"{source!r} is neither a policy that learns in this run{did_you_mean(source, self.learners)} nor a "
                f"run's folder. The policies that learn: {', '.join(self.learners)}"
            )
        for player, policy in zip(frozen, found, strict=True):
            player.check_replacement(*policy)
        for player, policy in zip(frozen, found, strict=True):
            player.replace(*policy)

    def _newest_report(self) -> Report:
        """Wait for the newest iteration, and return its report; the log has the time."""
        if self._meter is not None:
            start, extra, name = time.perf_counter(), self.history.extra, "callback_wait_seconds"
            self._receive(wait_for_all=True)
            extra[name] = extra.get(name, 0.0) + time.perf_counter() - start
        assert self.history.newest is not None
        return self.history.newest

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state`` or a checkpoint of ``save``; raise a CheckpointError if it does not fit."""
        same_processes = state["describes"]["gpus"] == self.config.gpus
        names = {name: filter(None, learner.metric_names) for name, learner in self.learners.items()}
        metrics = {name: dict.fromkeys(keys, 0.0) for name, keys in names.items()}
        expected = self.state(copy_buffers=False) | {"recent": [(0, metrics, 0.0, 0.0)]}
        state = state_of_process(expected, state, self.group.rank, same_processes=same_processes)
        self._restore(state, same_processes=same_processes)
        for name, (before, schedule) in (state.get("schedules") or {}).items():
            policy, _, key = name.rpartition(".")
            if before == str(Schedule.of(self.learners[policy].schedules[key][0])):  # the run has not changed it since
                self.set_schedule(name, schedule)
        self._callbacks.load(state.get("callbacks") or {})

    def save(self) -> None:
        """Write a checkpoint, if a process of the group has a run directory.

        In a callback, it is written after all callbacks have been called; with several processes, after the same
        iteration in all, also if only one asks for it.

        Raises:
            DivergedError: A weight is not finite.
        """
        if self._callbacks.running and self._meter is not None:
            self._save_requested = True
            return
        path = self._run and str(self._run.path)
        folders = [folder for folder in self.group.all_gather_objects(path) if folder is not None]
        if not folders:
            return
        self._check_weights(self.iteration)
        self.horizon_env.env.check()
        checkpoints, keep = RunDirectory.open(folders[0]).checkpoints, self.config.keep_buffer
        of_callbacks = {"schedules": dict(self._changed_schedules), "callbacks": self._callbacks.state()}
        state = self.state(copy_buffers=False) | of_callbacks
        save_together(checkpoints, self.iteration, state, self.group, keep_buffers=keep)
        self._callbacks.call("on_checkpoint", self, checkpoints.path(self.iteration))

    def policies(self) -> TrainedPolicies:
        """Return the current policies, to act in environments that you make; further training changes them."""
        networks = {name: policy.networks for name, policy in (self.players | self.learners).items()}
        config, parts, seed = self.config, self._plan.policies, derived_seed(self.config.seed, "evaluation")
        return TrainedPolicies(config, self.device, parts, networks, seed, self.steps, self.returns)

    def evaluate(
        self, episodes: int = 1000, *, num_envs: int | None = None, seed: int | None = None, greedy: bool = True
    ) -> Evaluations:
        """Play full episodes with the current policies in separate environments; return the results by role.

        Args:
            episodes: Minimum number of episodes.
            num_envs: Number of replicas; None: one per episode, up to 4,096.
            seed: Seed of environments and actions; None: derived from the run's seed.
            greedy: Take the most likely actions instead of sampling.
        """
        policies, spec = self.policies(), self._plan.world.spec
        options: dict[str, Any] = {"episodes": episodes, "greedy": greedy, "num_envs": num_envs, "spec": spec}
        with self._settings():
            evaluations = play(policies, seed=policies.seed if seed is None else seed, **options)
        self._callbacks.call("on_evaluation", self, evaluations)
        return evaluations
