"""The environment of a run: arrays by role, with storage for a horizon of steps."""

import dataclasses
import warnings
from collections.abc import Collection, Mapping
from typing import Any, final

import numpy as np
import torch

import gpu_envs
from gpu_envs.engine.attributes import set_params_in_place
from gpu_envs.engine.results import Step
from gpu_envs.engine.roles import SINGLE_ROLE, RoleInterface
from gpu_envs.specs.base import Spec
from gpu_envs.training.horizon import EpisodeSums
from gpu_envs.training.observations import Rows, SplitRows, stack_frames
from gpu_envs.training.rollout.plan import Plan, PolicyRole
from gpu_envs.training.run import Run


@final
class RoleTensors:
    """Conversion between a single-agent or team environment and tensors by role, ``[num_envs, agents, ...]``."""

    def __init__(self, env: Any, roles: tuple[PolicyRole, ...] | None = None, *, frames: int = 1) -> None:
        """Wrap an environment with torch tensors; unless given, its roles are derived, with ``frames`` in each row."""
        self.by_role = RoleInterface(env)
        masked = env.action_mask is not None
        self.roles = roles or PolicyRole.of(self.by_role.roles.values(), masked=masked, frames=frames)
        self._stacks: dict[str, torch.Tensor] = {}
        self._action_shapes = {
            role.name: (*self.by_role.batch_shape(role.name), *(() if role.head.scalar else (role.head.width,)))
            for role in self.roles
        }

    def observations(self, observations: Any, *, restart: bool = False) -> dict[str, Rows]:
        """Convert the environment's observations to rows of features by role, after those of the last call.

        ``restart``: all stacks of frames start with these observations.
        """
        self._stacks = {} if restart else self._stacks
        rows, by_role = dict[str, Rows](), self.by_role.split(observations)
        shared = {} if self.by_role.single_agent else self.by_role.env.shared_observations
        for role in self.roles:
            if role.split is not None and role.name in shared:
                rows[role.name] = SplitRows(by_role[role.name], shared[role.name], role.agents, role.split)
                continue
            own, lead = by_role[role.name], self.by_role.batch_shape(role.name)
            flat = own if role.flattening is None else role.flattening.rows(own, len(lead))
            rows[role.name] = flat = flat.reshape(lead[0], role.agents, -1)
            if role.frames > 1:
                restarted = (self.by_role.env.elapsed == 0).view(-1, 1, 1)
                stack = stack_frames(flat, self._stacks.get(role.name), restarted, role.frames)
                rows[role.name] = self._stacks[role.name] = stack
            if role.split is not None:
                rows[role.name] = SplitRows.of(flat, role.split)
        return rows

    def starts(self) -> dict[str, torch.Tensor]:
        """Return whether the last observations are the first of their episodes, by role, ``[num_envs, agents]``."""
        first = (self.by_role.env.elapsed == 0).unsqueeze(1)
        return {role.name: first.expand(-1, role.agents) for role in self.roles}

    def action_masks(self) -> dict[str, torch.Tensor]:
        """Return the current action masks by role; empty if the environment has none."""
        masks = self.by_role.action_masks
        return {SINGLE_ROLE: masks[SINGLE_ROLE].unsqueeze(1)} if self.by_role.single_agent and masks else masks

    def env_actions(self, actions: Mapping[str, torch.Tensor]) -> Any:
        """Convert actions by role, ``[num_envs, agents, width]``, to the environment's format."""
        return self.by_role.join({name: actions[name].view(shape) for name, shape in self._action_shapes.items()})


@final
class RoleStorage:
    """Storage for a horizon of one role, into which the environment writes directly."""

    def __init__(
        self, role: PolicyRole, horizon: int, num_envs: int, device: str, *, single_agent: bool, may_truncate: bool
    ) -> None:
        """Allocate the arrays of one role for a horizon.

        Args:
            role: The role.
            horizon: Number of steps.
            num_envs: Number of replicas.
            device: ``cpu``, ``cuda:N``, or ``meta`` for sizes without data.
            single_agent: Whether the environment has a single agent; its arrays have no dimension of agents.
            may_truncate: Whether episodes may be truncated, so that final observations are needed.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        n, a, split = num_envs, role.agents, role.split
        f, all_see = (split.individual, split.shared) if split is not None else (role.features, 0)
        self.role = role
        self.single_agent = single_agent
        self.observations = zeros(horizon + 1, n, a, f)
        stacks = role.frames > 1
        self.latest = zeros(1, n, a, f // role.frames) if stacks else None
        self.latest_final = zeros(1, n, a, f // role.frames) if stacks and may_truncate else None
        self.rewards = zeros(horizon, n, a)
        self.terminations = zeros(horizon, n, a, dtype=torch.bool)
        self.truncations = zeros(horizon, n, a, dtype=torch.bool)
        self.alive = None if single_agent else zeros(horizon + 1, n, a, dtype=torch.bool)
        self.final_obs = zeros(horizon, n, a, f) if may_truncate else None
        self.shared_observations = zeros(horizon + 1, n, all_see) if all_see else None
        self.final_shared = zeros(horizon, n, all_see) if all_see and may_truncate else None
        self.action_mask = zeros(horizon + 1, n, a, role.head.parameters, dtype=torch.int8) if role.masked else None
        self.episode_return = zeros(horizon, n, a)
        self.episode_length = zeros(horizon, n, a, dtype=torch.int32)
        self.starts: torch.Tensor | None = None
        self.params: torch.Tensor | None = None
        self.param_names: tuple[str, ...] = ()

    def track_starts(self) -> None:
        """Record before which steps policies with memory restart: new episodes, and inactive agents.

        Observations of inactive agents may be NaN, which must not enter states.
        """
        if self.starts is None:
            steps, n, a, _ = self.observations.shape
            self.starts = torch.ones(steps, n, a, dtype=torch.bool, device=self.observations.device)

    def record_starts(self, t: int) -> None:
        """Write the starts after step ``t``, if they are recorded."""
        if self.starts is None:
            return
        torch.gt(self.episode_length[t], 0, out=self.starts[t + 1])
        if self.alive is not None:
            self.starts[t + 1].logical_or_(self.alive[t].logical_and(self.alive[t + 1]).logical_not())

    def row(self, name: str, t: int) -> torch.Tensor | None:
        """Return the array into which the environment writes in step ``t``, in the environment's shape, or None."""
        row = self._written(name, t)
        if row is None:
            return None
        row = row.squeeze(1) if self.single_agent else row
        flattening = self.role.flattening
        if flattening is None or name not in ("observations", "final_obs"):
            return row
        return None if flattening.pieces else row.view(*row.shape[:-1], *flattening.shape)

    def _written(self, name: str, t: int) -> torch.Tensor | None:
        """Return the part of an array that step ``t`` writes; of observations that are stacked, the latest ones."""
        latest = {"observations": self.latest, "final_obs": self.latest_final}.get(name)
        if latest is not None:
            return latest[0]
        array: torch.Tensor | None = getattr(self, name)
        return None if array is None else array[t + (name in _BEFORE_STEP.values())]

    def stack(self, t: int) -> None:
        """Stack the observations that step ``t`` has written on those before, if policies see several."""
        if self.latest is None:
            return
        before, restarted = self.observations[t], self.episode_length[t].unsqueeze(-1) > 0
        self.observations[t + 1].copy_(stack_frames(self.latest[0], before, restarted, self.role.frames))
        if self.final_obs is not None and self.latest_final is not None:
            self.final_obs[t].copy_(stack_frames(self.latest_final[0], before, None, self.role.frames))

    def rows(self, t: int | slice = slice(None)) -> Rows:
        """Return observations before steps ``t``, by default all horizon + 1: ``[..., num_envs, agents, features]``."""
        shared = self.shared_observations
        return self._rows(self.observations[t], None if shared is None else shared[t])

    @property
    def final_rows(self) -> Rows:
        """The final observations of episodes, ``[horizon, num_envs, agents, features]``."""
        assert self.final_obs is not None
        return self._rows(self.final_obs, self.final_shared)

    def _rows(self, own: torch.Tensor, shared: torch.Tensor | None) -> Rows:
        split = self.role.split
        return own if split is None or shared is None else SplitRows(own, shared, self.role.agents, split)

    def set_initial(self, rows: Rows) -> None:
        """Copy observations into the last row; ``carry_over`` starts the next horizon with it."""
        if isinstance(rows, SplitRows):
            assert self.shared_observations is not None
            self.shared_observations[-1].copy_(rows.shared)
        self.observations[-1].copy_(rows.individual if isinstance(rows, SplitRows) else rows)
        if self.starts is not None:
            self.starts[-1].fill_(True)

    def flatten(self, t: int, observations: Any, final_obs: Any) -> None:
        """Store flat observations of step ``t`` in row t + 1, final ones in row t, where the environment could not."""
        flattening = self.role.flattening
        if flattening is None or not flattening.pieces:
            return
        for name, array in (("observations", observations), ("final_obs", final_obs)):
            if (row := self._written(name, t)) is not None:
                flattening.write(array, row.flatten(0, 1))

    def carry_over(self) -> None:
        """Start a horizon: copy the last row of the arrays of ``before_step`` into the first, and clear lengths."""
        for array in self.before_step().values():
            array[0].copy_(array[-1])
        self.episode_length.zero_()

    def before_step(self) -> dict[str, torch.Tensor]:
        """Return the arrays of inputs to each step, ``[horizon + 1, num_envs, agents, ...]``, by checkpoint key."""
        arrays = {name: getattr(self, attribute) for name, attribute in _BEFORE_STEP.items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def episodes(self, sums: EpisodeSums) -> torch.Tensor:
        """Return for each step the number of episodes that ended, and sums of returns and lengths, ``[3, T]``."""
        lengths, returns = (array.view(len(array), -1, 1) for array in (self.episode_length, self.episode_return))
        return sums.of(lengths, returns, add_lengths=True)


_BEFORE_STEP = {
    "observations": "observations",
    "shared_observations": "shared_observations",
    "alive": "alive",
    "action_masks": "action_mask",
    "starts": "starts",
}
"""Attributes of ``RoleStorage`` whose row ``t`` is an input of step ``t``, by their keys in checkpoints."""

_WRITTEN = tuple(field.name for field in dataclasses.fields(Step) if field.name != "episode_metrics")


def make_env(spec: str | Spec, config: Run, num_envs: int, device: str, autoreset_mode: str, **options: Any) -> Any:
    """Make the environment of a run, with torch tensors."""
    threads = config.kernel_threads if device == "cpu" else None
    fixed: dict[str, Any] = {"device": device, "threads": threads, "output": "torch", "autoreset_mode": autoreset_mode}
    return gpu_envs.make(spec, num_envs, **fixed, **options, **config.params)


def _with_values_per_replica(config: Run, spec: Spec, names: Collection[str], num_envs: int) -> Run:
    """Return the settings of a run whose parameters ``names`` have a value for each replica, unless they are drawn."""
    if not names:
        return config
    for name in names:
        if name not in spec.params:
            raise ValueError(f"a callback's parameters: {spec.id} has no {spec.unknown(name)}")
    checked = spec.check_params({n: v for n, v in config.params.items() if n in spec.settings}, num_envs)
    drawn = spec.drawn({name: config.params.get(name, spec.params[name].default) for name in names})
    shared = {n: checked[n] for n in names if n not in drawn and not spec.params[n].is_per_replica(checked[n])}
    return dataclasses.replace(
        config, params={**config.params, **{n: [value] * num_envs for n, value in shared.items()}}
    )


@final
class HorizonEnv:
    """An environment with torch tensors, and storage for a horizon by role.

    Attributes:
        episode_metrics: Metrics of ended episodes, ``[horizon, num_envs, metrics]``; None: the environment has none.
        staggered: Whether each replica is in its first, staggered episode; None: episodes were not staggered.
    """

    def __init__(self, plan: Plan, horizon: int, first_replica: int = 0, *, per_replica: Collection[str] = ()) -> None:
        """Make the environment and the storage.

        Args:
            plan: The plan of the run.
            horizon: Number of steps.
            first_replica: Index of the first replica in the run.
            per_replica: Parameters that get a value per replica, unless they are drawn.
        """
        world, num_envs, device = plan.world, plan.num_envs, plan.device
        flags = {"shared_observations": world.separate_shared, "active_heads": world.active_heads}
        config = _with_values_per_replica(plan.config, world.spec, per_replica, num_envs)
        self.env = make_env(world.spec, config, num_envs, device, "SameStep", first_replica=first_replica, **flags)
        self.num_envs, self.horizon, self.device = num_envs, horizon, device
        self._tensors, self.roles = RoleTensors(self.env, plan.roles), plan.roles
        self._single_agent = not world.spec.has_team
        kinds = {"single_agent": self._single_agent, "may_truncate": plan.limit is not None}
        self.storage = {role.name: RoleStorage(role, horizon, num_envs, device, **kinds) for role in self.roles}
        self.metrics = tuple(world.spec.metrics)
        shape = (horizon, num_envs, len(self.metrics))
        self.episode_metrics = torch.zeros(shape, device=device) if self.metrics else None
        self._outs = [self._out(t) for t in range(horizon)]
        self.staggered: torch.Tensor | None = None

    def _out(self, t: int) -> Step:
        """Return the rows of the storage into which the environment writes in step ``t``."""
        rows = {name: {r: s.row(name, t) for r, s in self.storage.items()} for name in _WRITTEN}
        written = {name: {r: row for r, row in by_role.items() if row is not None} for name, by_role in rows.items()}
        arrays = {name: self._tensors.by_role.join(by_role) for name, by_role in written.items() if by_role}
        return Step(**arrays, episode_metrics=None if self.episode_metrics is None else self.episode_metrics[t])

    @property
    def ended(self) -> torch.Tensor:
        """Whether a replica's episode ended in each step, ``[horizon, num_envs]``."""
        first = next(iter(self.storage.values()))
        return first.episode_length[:, :, 0] > 0  # the lengths of all agents of a replica are reported together

    def episodes(self, sums: EpisodeSums) -> list[torch.Tensor]:
        """Return sums over the episodes that ended in each step: count, returns, lengths by role; count and metrics."""
        results = [storage.episodes(sums) for storage in self.storage.values()]
        if self.episode_metrics is not None:
            first = next(iter(self.storage.values()))  # the lengths of all agents of a replica are reported together
            results.append(sums.of(first.episode_length, self.episode_metrics, add_lengths=False))
        return results

    def reset(self, seed: int, *, stagger: int | None = None) -> None:
        """Reset all replicas and store their observations; a seed ``stagger`` cuts first episodes at random steps."""
        observations, infos = self.env.reset(seed=seed)
        if stagger is None:
            self.staggered = None
        else:
            observations = self.env.stagger(stagger)
            if self.staggered is None:
                self.staggered = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
            self.staggered.fill_(True)
        rows, masks = self._tensors.observations(observations, restart=True), self._tensors.action_masks()
        for name, storage in self.storage.items():
            storage.set_initial(rows[name])
            if storage.alive is not None:
                storage.alive[-1].copy_(infos["alive"][name])
            if storage.action_mask is not None:
                storage.action_mask[-1].copy_(masks[name])

    def state(self) -> dict[str, Any]:
        """Return copies of everything that the next horizon depends on."""
        inputs: dict[str, dict[str, torch.Tensor]] = {name: {} for name in _BEFORE_STEP}
        for role, storage in self.storage.items():
            for name, array in storage.before_step().items():
                inputs[name][role] = array[-1].clone()
        staggered = None if self.staggered is None else self.staggered.clone()
        return {"environment": self.env.get_state(), **inputs, "begun_midway": staggered}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore everything that ``state()`` returned, in place: CUDA graphs contain the tensors' addresses."""
        self.env.set_state(state["environment"])
        self.env.simulation.known_params = self.env.simulation.host_params()
        for role, storage in self.storage.items():
            for name, array in storage.before_step().items():
                array[-1].copy_(state[name][role])
        if self.staggered is not None:
            self.staggered.copy_(state["begun_midway"])

    def load_params(self, state: Mapping[str, Any]) -> None:
        """Restore the parameters that a callback changed in ``state``, as far as they are equal in all replicas."""
        sim, saved = self.env.simulation, state["environment"]
        drawn = sim.config.spec.drawn(saved["drawn"], sim.config.precision)
        params: dict[str, Any] = {name: distribution for name, distribution in drawn.items() if name in sim.drawn}
        for name in sorted(sim.layout.per_replica - sim.drawn.keys()):
            values = np.asarray(saved["params"].get(name, ()))
            if len(values) and (values == values[:1]).all():
                params[name] = values[0]
            elif len(values):
                warnings.warn(f"{name} had different values per replica: the run's first ones are used", stacklevel=2)
        set_params_in_place(sim, params)

    def carry_over(self) -> None:
        """Start a horizon in the storage of each role, with the last observations and masks."""
        for storage in self.storage.values():
            storage.carry_over()
        self._record_params(0)

    def step(self, t: int, actions: Mapping[str, torch.Tensor]) -> None:
        """Take step ``t``, with actions ``[num_envs, agents, width]`` by role; the storage receives its results."""
        observations, *_, infos = self.env.step(self._tensors.env_actions(actions), out=self._outs[t])
        if self._single_agent:
            self.storage[SINGLE_ROLE].flatten(t, observations, infos["final_obs"])
        for name, storage in self.storage.items():
            storage.stack(t)
            if storage.alive is not None:
                storage.alive[t + 1].copy_(infos["alive"][name])
            storage.record_starts(t)
        self._record_params(t + 1)

    def track_starts(self) -> None:
        """Record starts for policies with memory, from now on; the next step is one."""
        for storage in self.storage.values():
            storage.track_starts()

    def track_params(self, names: Collection[str]) -> None:
        """Record the values of parameters in each replica before each step, for critics, from now on."""
        if names:
            values = torch.zeros(self.horizon + 1, self.num_envs, len(names), device=self.device)
            for storage in self.storage.values():
                storage.params, storage.param_names = values, tuple(names)

    def _record_params(self, t: int) -> None:
        """Record the values of parameters before step ``t``, if critics observe some."""
        storage = next(iter(self.storage.values()))
        if storage.params is not None:
            torch.stack([self.env.params[name] for name in storage.param_names], 1, out=storage.params[t])

    def starts(self, t: int) -> dict[str, torch.Tensor]:
        """Return whether step ``t`` is a start, by role, ``[num_envs, agents]``; empty if starts are not recorded."""
        return {name: s.starts[t] for name, s in self.storage.items() if s.starts is not None}

    def observations(self, t: int) -> dict[str, Rows]:
        """Return the observations before step ``t`` by role, ``[num_envs, agents, features]``."""
        return {name: storage.rows(t) for name, storage in self.storage.items()}

    def action_masks(self, t: int) -> dict[str, torch.Tensor]:
        """Return the action masks of step ``t`` by role, ``[num_envs, agents, choices]``; empty if there are none."""
        masks = {name: storage.action_mask for name, storage in self.storage.items()}
        return {name: mask[t] for name, mask in masks.items() if mask is not None}

    def drop_staggered_episodes(self) -> None:
        """Remove staggered first episodes from the statistics of a complete horizon: they were cut short."""
        if self.staggered is None:
            return
        ended = self.ended
        first = ended & (ended.cumsum(0) == 1) & self.staggered
        for storage in self.storage.values():
            storage.episode_length.masked_fill_(first.unsqueeze(-1), 0)
        self.staggered.logical_and_(~ended.any(0))
