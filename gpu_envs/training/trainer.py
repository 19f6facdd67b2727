"""The loop: roll out a horizon, update every policy that learns, report; again until the steps are done."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import nn

import gpu_envs
from gpu_envs.backend import resolve_device
from gpu_envs.errors import ActionError, did_you_mean
from gpu_envs.registry import id_of
from gpu_envs.resets import derived_seed
from gpu_envs.training.arena import Arena
from gpu_envs.training.checkpoint import CheckpointError, check_fits
from gpu_envs.training.config import Config
from gpu_envs.training.device_schedule import DeviceSchedule
from gpu_envs.training.divergence import check_figures, check_weights
from gpu_envs.training.evaluation import Evaluation, acting_buffers, play
from gpu_envs.training.graphs import Work, record, why_eager
from gpu_envs.training.learner import FIGURES, Learner
from gpu_envs.training.log import RunLog
from gpu_envs.training.memory import explain_shortage, is_shortage
from gpu_envs.training.networks import Networks, matmul_precision
from gpu_envs.training.players import Player
from gpu_envs.training.process import RandomState, interruption, torch_threads, wake_autograd
from gpu_envs.training.progress import Progress
from gpu_envs.training.reports import Mailbox, Report, Window, entry_of
from gpu_envs.training.run_directory import RunDirectory
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.seats import Seats, assign, learns
from gpu_envs.training.setup import make_learner, make_player

UNDER_WAY = 2
"""Iterations that a GPU is given before the host waits for the first one's figures."""


@final
@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended."""

    run_dir: str | None
    """Its folder, if it has one."""
    reason: str
    """``total_steps``, ``target_return`` or ``interrupted``."""
    iterations: int
    """Updates, those of earlier parts of a resumed run among them."""
    steps: int
    """Steps of the environment, all replicas together."""
    seconds: float
    """Of training, without the time to get ready."""
    returns: Mapping[str, float]
    """The mean return of each role's last 100 episodes."""


@final
class Trainer:
    """Trains the policies of one environment.

    Attributes:
        config: The run.
        device: ``cpu`` or ``cuda:N``.
        iteration: Updates done.
        eager_because: Why nothing is captured in CUDA graphs; empty where it is.
    """

    def __init__(
        self, config: Config, run: RunDirectory | None = None, modules: Mapping[str, nn.Module] | None = None,
        *, kept: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Makes environment, policies and storage.

        Args:
            config: The run.
            run: Where configuration, logs and checkpoints go; None: nowhere.
            modules: Policies of your own, by the names that ``config.policies`` gives them (or their roles').
            kept: What a checkpoint holds of ``players``: frozen policies then come from there, and not from their runs.

        Raises:
            MemoryError: The device has too little; the message says which setting to lower, and to what.
        """
        self.config, self._run = config, run
        self.device = resolve_device(config.device)
        self.iteration = 0
        self.seconds = 0.0
        self._threads = config.cpu_threads or torch.get_num_threads()
        with explain_shortage(config, self.device):
            if self.device != "cpu":
                wake_autograd(self.device)
            self._random = RandomState(derived_seed(config.seed, "modules"), self.device)
            self._build(dict(modules or {}), kept or {})
        self._recent: list[Report] = []  # what the log has no row of yet
        self._target_role = self._known_role(config.target_role)
        self.eager_because = why_eager(self.device, config.graphs)
        self._works: list[Work] = []
        self._windows = {role.name: Window() for role in self._arena.roles}
        self._reset()

    def _build(self, modules: dict[str, nn.Module], kept: Mapping[str, Any]) -> None:
        config, device = self.config, self.device
        self._arena = arena = Arena(config, device, config.num_envs, config.horizon)
        self._parts = assign(arena.roles, config.policies)
        unknown = [name for name in modules if name not in self._parts]
        if unknown:
            raise ValueError(f"modules names {unknown[0]!r}; the policies are {', '.join(self._parts)}")
        self.learners: dict[str, Learner] = {}
        self._players: dict[str, Player] = {}
        self._networks: dict[str, Networks | None] = {}
        for name, parts in self._parts.items():
            seats = Seats(name, parts, config.num_envs, device)
            if learns(name):
                learner = make_learner(seats, modules.get(name), config, device, arena.limit)
                self.learners[name], self._networks[name] = learner, learner.networks
            else:
                player, networks = make_player(seats, config, device, kept.get(name))
                self._players[name], self._networks[name] = player, networks
        if not self.learners:
            raise ValueError(f"no policy learns: policies is {config.policies}; let one role have a name of its own")
        seats_of_all = [a.seats for a in self.learners.values()] + [p.seats for p in self._players.values()]
        self._actions = acting_buffers(arena.roles, arena.num_envs, arena.device, seats_of_all)
        self._mailbox = Mailbox(
            [role.name for role in arena.roles], list(self.learners), FIGURES, config.horizon, device,
            UNDER_WAY if self._lags else 1,
        )  # fmt: skip
        self._figures = torch.zeros(self._mailbox.size, device=device)
        scheduled = (config.learning_rate, config.entropy_weight)
        self._schedules = [DeviceSchedule(Schedule.of(given), device) for given in scheduled]
        self._clock = torch.zeros(1, dtype=torch.int64, device=device)

    def _reset(self) -> None:
        seed = self.config.seed
        stagger = derived_seed(seed, "stagger") if self.config.stagger else None
        self._arena.reset(derived_seed(seed, "environments"), stagger=stagger)

    @property
    def _lags(self) -> bool:
        """Whether the host sees the figures of an iteration while the next one runs."""
        return self.device != "cpu"

    def keep_in(self, run: RunDirectory) -> None:
        """From now on logs and checkpoints go there."""
        self._run = run

    # --- one iteration, all on the device ---

    def _roll_out(self) -> None:
        """Acts and steps for a horizon."""
        arena = self._arena
        for storage in arena.storage.values():
            storage.carry_over()
        for t in range(self.config.horizon):
            for learner in self.learners.values():
                learner.seats.give(learner.act(t, arena.storage), self._actions)
            observations, masks = arena.observations(t), arena.action_masks(t)
            for player in self._players.values():
                player.seats.give(player.act(t, observations, masks), self._actions)
            arena.step(t, self._actions)
        for player in self._players.values():
            player.advance(self.config.horizon)

    def _learn(self) -> None:
        """Advantages and updates of every policy that learns, and the figures of the iteration."""
        last = self.config.iterations - 1  # who goes on beyond the end keeps its settings
        done = self._clock.clamp(max=last).double() / self.config.iterations
        learning_rate, entropy_weight = (schedule.at(done) for schedule in self._schedules)
        for learner in self.learners.values():
            learner.set_scalars(learning_rate, entropy_weight)
            learner.conclude(self._arena.storage)
            learner.update()
        self._clock.add_(1)
        self._arena.forget_cut_episodes()
        parts = [storage.episodes().flatten() for storage in self._arena.storage.values()]
        torch.cat([*parts, *(learner.figures for learner in self.learners.values())], out=self._figures)

    def prepare(self) -> None:
        """Compiles, warms up and captures; afterwards everything is as it was before, and nothing has been learnt."""
        if self._works:
            return
        self._works = [self._roll_out, self._learn]
        if self.eager_because:
            return
        start = self.state()
        with self._settings():
            stream: Any = torch.cuda.Stream  # untyped in some versions
            side = stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for work in self._works:
                    work()
            torch.cuda.current_stream(self.device).wait_stream(side)
            try:
                self._works = record(self._works)
            except RuntimeError as error:
                if is_shortage(error):
                    raise
                if self.config.graphs:
                    raise RuntimeError(f"graphs=True, and the run cannot be captured: {error}") from error
                torch.cuda.synchronize(self.device)
                self.eager_because = f"it cannot be captured ({str(error).splitlines()[0]})"
                warnings.warn(f"training without CUDA graphs: {self.eager_because}", stacklevel=2)
        self.load(start)

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """The process's settings under which this run computes, put back afterwards."""
        threads = torch_threads(self.device, self._threads)
        with explain_shortage(self.config, self.device), matmul_precision(self.config.precision), threads, self._random:
            if self.device == "cpu":
                yield
            else:
                with torch.cuda.device(self.device):
                    yield

    def _advance(self) -> None:
        marks = self._mailbox.begin()
        marks.set(0)
        try:
            self._works[0]()
        except ActionError:
            check_weights(
                self.learners, self.iteration + 1, self._run
            )  # an action that is no number comes of weights that are none
            raise
        marks.set(1)
        self._works[1]()
        self.iteration += 1
        self._mailbox.send(self.iteration, self._figures)

    def iterate(self, count: int) -> None:
        """Runs iterations without logging, stopping or saving."""
        self.prepare()
        with self._settings():
            for _ in range(count):
                self._advance()
                for report in self._mailbox.receive():
                    self._take_in(report)
            for report in self._mailbox.receive(all_of_them=True):
                self._take_in(report)

    # --- the run ---

    @property
    def steps(self) -> int:
        """Steps of the environment so far."""
        return self.iteration * self.config.num_envs * self.config.horizon

    @property
    def returns(self) -> dict[str, float]:
        """The mean return of each role's last 100 episodes, as far as the host knows."""
        return {name: window.mean_return for name, window in self._windows.items()}

    def run(self, progress: bool | None = None) -> Result:
        """Trains until the steps are done, the target is reached, or Ctrl-C or SIGTERM comes; saves at the end.

        Args:
            progress: Draw a progress bar; None: where standard error is a terminal.

        Raises:
            DivergedError: A loss or an observation is no number any more.
        """
        config = self.config
        if not self._works:
            self.prepare()
        bar = Progress(config.iterations * config.num_envs * config.horizon, None if progress is None else not progress)
        log = self._open_log()
        self._synchronise()
        began, before, first = time.perf_counter(), self.seconds, self.steps
        reason = "total_steps" if self.iteration >= config.iterations else ""
        reason = "target_return" if self._target_reached() else reason
        recent = self._recent
        try:
            with self._settings(), interruption() as interrupted:
                while not reason:
                    self._advance()
                    last = self.iteration >= config.iterations
                    due = config.checkpoint_interval > 0 and self.iteration % config.checkpoint_interval == 0
                    reports = self._mailbox.receive(all_of_them=last or due)
                    stopped = interrupted.is_set()
                    if stopped:
                        reports += self._mailbox.receive(all_of_them=True)
                    for report in reports:
                        self._take_in(report)
                        recent.append(report)
                        self.seconds = before + time.perf_counter() - began
                        speed = (self._steps_at(report.iteration) - first) / max(self.seconds - before, 1e-9)
                        bar.update(self._steps_at(report.iteration), speed, self.returns)
                        if self._target_reached():
                            reason = "target_return"
                            if stopped and report.iteration == self.iteration and self._lags and not (due or last):
                                self._advance()  # as it would have been under way, had nobody pressed Ctrl-C
                            break  # those after it change neither the figure nor the decision
                        if report.iteration % config.log_interval == 0:
                            self._write_log(log, recent, report.iteration, speed)
                            recent.clear()
                    if not reason:
                        reason = "interrupted" if stopped else "total_steps" if last else ""
                    if due and not reason:
                        self.save()
                self._mailbox.receive(all_of_them=True)
                if recent and reason != "interrupted":  # then the row is written where the run goes on
                    speed = (self.steps - first) / max(self.seconds - before, 1e-9)
                    self._write_log(log, recent, self.iteration, speed)
                    recent.clear()
                self.save()
        finally:
            self._mailbox.receive(all_of_them=True)
            bar.close()
            if log is not None:
                log.close()
        run_dir = str(self._run.path) if self._run is not None else None
        return Result(run_dir, reason, self.iteration, self.steps, self.seconds, self.returns)

    def _steps_at(self, iteration: int) -> int:
        return iteration * self.config.num_envs * self.config.horizon

    def _synchronise(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def _target_reached(self) -> bool:
        target = self.config.target_return
        window = self._windows[self._target_role]
        return target is not None and window.full and window.mean_return >= target

    def _known_role(self, name: str | None) -> str:
        """The role of that name; None: the first that learns."""
        roles = [role.name for role in self._arena.roles]
        if name is None:
            return next(part.role.name for learner in self.learners.values() for part in learner.seats.parts)
        if name not in roles:
            raise ValueError(f"target_role is {name!r}{did_you_mean(name, roles)} The roles are: {', '.join(roles)}")
        return name

    def _take_in(self, report: Report) -> None:
        for role, episodes in report.episodes.items():
            self._windows[role].add(episodes)
        check_figures(report, self.learners, self._run)

    # --- logs ---

    def _open_log(self) -> RunLog | None:
        if self._run is None:
            return None
        log = RunLog(self._run.log_path)
        log.resume(self.iteration)  # rows of a part that was lost go; a new log has none
        return log

    def _write_log(self, log: RunLog | None, reports: list[Report], iteration: int, speed: float) -> None:
        if log is None:
            return
        entry = entry_of(reports, self._windows) | {"steps_per_second": speed}
        log.write(iteration, self._steps_at(iteration), entry, self.seconds)

    # --- checkpoints ---

    def describe(self) -> dict[str, Any]:
        """What a checkpoint must agree in with the run that takes it over."""
        found: dict[str, Any] = {
            "gpu_envs": gpu_envs.__version__,
            "env": id_of(self.config.env),
            "params": dict(self.config.params),
            "num_envs": self.config.num_envs,
            "horizon": self.config.horizon,
            "stagger": self.config.stagger,
            "activation": self.config.activation,
            "normalise_observations": self.config.normalise_observations,
            "normalise_rewards": self.config.normalise_rewards,
        }
        if any(role.masked for role in self._arena.roles):
            found["action_mask"] = True
        for name, learner in self.learners.items():
            for key, tensor in learner.module.state_dict().items():
                found[f"{name}: {key}"] = list(tensor.shape)
        return found

    def state(self) -> dict[str, Any]:
        """Copies of everything that the next iterations depend on."""
        arena = self._arena
        return {
            "describes": self.describe(),
            "iteration": self.iteration,
            "seconds": self.seconds,
            "clock": self._clock.clone(),
            "windows": {name: window.state() for name, window in self._windows.items()},
            "recent": [[r.iteration, r.figures, r.rollout_seconds, r.update_seconds] for r in self._recent],
            "environment": arena.env.get_state(),
            "observations": {name: s.observations[-1].clone() for name, s in arena.storage.items()},
            "alive": {name: s.alive[-1].clone() for name, s in arena.storage.items() if s.alive is not None},
            "action_masks": {name: mask.clone() for name, mask in arena.action_masks(-1).items()},
            "learners": {name: learner.state() for name, learner in self.learners.items()},
            "players": {name: player.state() for name, player in self._players.items()},
            "begun_midway": None if arena.begun_midway is None else arena.begun_midway.clone(),
            "random": self._random.state(),
            "threads": self._threads,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave, or says what does not fit."""
        check_fits(self.describe(), state["describes"])
        if set(state["players"]) != set(self._players):
            raise CheckpointError(
                f"the checkpoint's policies that do not learn are {sorted(state['players'])}; this run's are "
                f"{sorted(self._players)}"
            )
        arena = self._arena
        arena.env.set_state(state["environment"])
        for name, storage in arena.storage.items():
            storage.observations[-1].copy_(state["observations"][name])
            if storage.alive is not None:
                storage.alive[-1].copy_(state["alive"][name])
            if storage.action_mask is not None:
                storage.action_mask[-1].copy_(state["action_masks"][name])
        for name, learner in self.learners.items():
            learner.load(state["learners"][name])
        for name, player in self._players.items():
            player.load(state["players"][name])
        for name, window in self._windows.items():
            window.load(state["windows"][name])
        self._recent[:] = [Report(number, {}, *others) for number, *others in state["recent"]]
        if arena.begun_midway is not None:  # in place, for graphs know its address
            arena.begun_midway.copy_(state["begun_midway"])
        self._random.load(state["random"])
        self._threads = int(state["threads"])
        self._clock.copy_(state["clock"])
        self.iteration, self.seconds = int(state["iteration"]), float(state["seconds"])

    def save(self) -> None:
        """Writes a checkpoint of this moment, where there is a folder for it."""
        if self._run is not None:
            check_weights(self.learners, self.iteration, self._run)
            self._arena.env.check()
            self._run.checkpoints.save(self.iteration, self.state())

    def evaluate(
        self, episodes: int = 1000, *, greedy: bool = True, seed: int | None = None, num_envs: int | None = None
    ) -> dict[str, Evaluation]:
        """Plays full episodes with the policies as they are now, in environments of their own.

        Args:
            episodes: How many at least.
            greedy: Take the likeliest actions, where otherwise they are sampled.
            seed: Of environments and actions; None: derived from the run's.
            num_envs: Replicas side by side; None: as many as episodes, up to 4,096.

        Returns:
            By role.
        """
        own = derived_seed(self.config.seed, "evaluation") if seed is None else seed
        with self._settings():
            return play(
                self.config, self._parts, self._networks, self.device,
                episodes=episodes, greedy=greedy, seed=own, num_envs=num_envs,
            )  # fmt: skip
