"""The environment as training sees it: by role, with storage for a horizon of steps."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, final

import torch

import gpu_envs
from gpu_envs.backend import open_backend, resolve_device
from gpu_envs.codegen import SimulationConfig
from gpu_envs.engine.by_role import ALONE, ByRole, RoleView, roles_of
from gpu_envs.engine.options import Options, config_of
from gpu_envs.engine.results import Step, check_replica
from gpu_envs.engine.simulation import NO_LIMIT
from gpu_envs.specs.base import Spec
from gpu_envs.specs.team import TeamSpec
from gpu_envs.training.heads import Head
from gpu_envs.training.horizon import EpisodeSums
from gpu_envs.training.observations import Parts, Rows, Split, splits_of
from gpu_envs.training.rollout.features import Flattening
from gpu_envs.training.run import Run


@final
@dataclasses.dataclass(frozen=True)
class RoleInfo:
    """The agents of one role."""

    name: str
    agents: int
    features: int
    """Of an agent's observation, flat."""
    head: Head
    members: tuple[str, ...]
    """The agents' names."""
    flattening: Flattening | None = None
    """How observations become rows of features; None: they are such rows."""
    masked: bool = False
    """Whether there are action masks."""
    split: Split | None = None
    """How a row is made of what an agent sees and of what all see alike; None: it is one."""


def role_infos(world: SimulationConfig) -> tuple[RoleInfo, ...]:
    """What training has to know of the roles of an environment, which need not have been made."""
    return _infos(roles_of(world.spec, world.params), masked=world.spec.masked)


def limit_of(world: SimulationConfig) -> int | None:
    """The step at which an environment truncates episodes; None: never."""
    return None if world.limit == NO_LIMIT else world.limit


def _infos(roles: Iterable[RoleView], *, masked: bool) -> tuple[RoleInfo, ...]:
    views, infos = tuple(roles), []
    for view, split in zip(views, splits_of(view.seen for view in views), strict=True):
        features, flattening = (split.own + split.shared, None) if split else Flattening.unless_plain(view.observation)
        head, agents = Head.of(view.action), view.agents
        infos.append(RoleInfo(view.name, len(agents), features, head, agents, flattening, masked, split))
    return tuple(infos)


@final
class RoleTensors:
    """What an environment of either kind gives and takes, as policies have it: by role, ``[num_envs, agents, ...]``."""

    def __init__(self, env: Any) -> None:
        """Looks at an environment with torch tensors."""
        self.by_role = ByRole(env)
        self.roles = _infos(self.by_role.roles.values(), masked=env.action_mask is not None)
        self._taken = {
            role.name: (*self.by_role.rows(role.name), *(() if role.head.scalar else (role.head.width,)))
            for role in self.roles
        }

    def observations(self, observations: Any) -> dict[str, Rows]:
        """What the environment gave, as rows of features."""
        rows, by_role = dict[str, Rows](), self.by_role.split(observations)
        shared = {} if self.by_role.alone else self.by_role.env.shared_observations
        for role in self.roles:
            if role.split is not None and role.name in shared:
                rows[role.name] = Parts(by_role[role.name], shared[role.name], role.agents, role.split)
                continue
            own, lead = by_role[role.name], self.by_role.rows(role.name)
            flat = own if role.flattening is None else role.flattening.rows(own, len(lead))
            rows[role.name] = flat = flat.reshape(lead[0], role.agents, role.features)
            if role.split is not None:
                rows[role.name] = Parts.of(flat, role.split)
        return rows

    def action_masks(self) -> dict[str, torch.Tensor]:
        """What is possible now; empty where there are no action masks."""
        masks = self.by_role.action_masks
        return {ALONE: masks[ALONE].unsqueeze(1)} if self.by_role.alone and masks else masks

    def taken(self, actions: Mapping[str, torch.Tensor]) -> Any:
        """Actions ``[num_envs, agents, width]`` as the environment takes them."""
        return self.by_role.join({name: actions[name].view(shape) for name, shape in self._taken.items()})


@final
class RoleStorage:
    """What a horizon leaves of one role: the environment writes straight into it."""

    def __init__(self, role: RoleInfo, horizon: int, num_envs: int, device: str, *, alone: bool, limited: bool) -> None:
        """Allocates on a device; a single-agent environment (``alone``) may truncate episodes (``limited``) or not.

        Its arrays have no dimension of agents.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        n, a, split = num_envs, role.agents, role.split
        f, all_see = (split.own, split.shared) if split is not None else (role.features, 0)
        self.role = role
        self.alone = alone
        self.observations = zeros(horizon + 1, n, a, f)
        self.rewards = zeros(horizon, n, a)
        self.terminations = zeros(horizon, n, a, dtype=torch.bool)
        self.truncations = zeros(horizon, n, a, dtype=torch.bool)
        self.alive = None if alone else zeros(horizon + 1, n, a, dtype=torch.bool)
        self.final_obs = zeros(horizon, n, a, f) if limited else None
        self.shared_observations = zeros(horizon + 1, n, all_see) if all_see else None
        self.final_shared = zeros(horizon, n, all_see) if all_see and limited else None
        self.action_mask = zeros(horizon + 1, n, a, role.head.parameters, dtype=torch.int8) if role.masked else None
        self.episode_return = zeros(horizon, n, a)
        self.episode_length = zeros(horizon, n, a, dtype=torch.int32)

    def row(self, name: str, t: int) -> torch.Tensor | None:
        """What the environment writes in step ``t``, in its own shape; None: nothing."""
        array: torch.Tensor | None = getattr(self, name)
        if array is None:
            return None
        row = array[t + (name in _KNOWN.values())]
        row = row.squeeze(1) if self.alone else row
        flattening = self.role.flattening
        if flattening is None or name not in ("observations", "final_obs"):
            return row
        return None if flattening.pieces else row.view(*row.shape[:-1], *flattening.shape)

    @property
    def rows(self) -> Rows:
        """What is seen before each step and after the last, ``[horizon + 1, num_envs, agents, features]``."""
        return self._rows(self.observations, self.shared_observations)

    @property
    def last_rows(self) -> Rows:
        """What is seen at ends of episodes, ``[horizon, num_envs, agents, features]``."""
        assert self.final_obs is not None
        return self._rows(self.final_obs, self.final_shared)

    def rows_at(self, t: int) -> Rows:
        """What is seen before step ``t``, ``[num_envs, agents, features]``."""
        shared = self.shared_observations
        return self._rows(self.observations[t], None if shared is None else shared[t])

    def _rows(self, own: torch.Tensor, shared: torch.Tensor | None) -> Rows:
        split = self.role.split
        return own if split is None or shared is None else Parts(own, shared, self.role.agents, split)

    def put_last(self, rows: Rows) -> None:
        """Takes over what the next horizon begins with."""
        if isinstance(rows, Parts):
            assert self.shared_observations is not None
            self.shared_observations[-1].copy_(rows.shared)
        self.observations[-1].copy_(rows.own if isinstance(rows, Parts) else rows)

    def flatten(self, t: int, observations: Any, final_obs: Any) -> None:
        """Takes over from step ``t`` what the environment has not written here, being of another form."""
        flattening = self.role.flattening
        if flattening is None or not flattening.pieces:
            return
        flattening.write(observations, self.observations[t + 1].flatten(0, 1))
        if self.final_obs is not None:
            flattening.write(final_obs, self.final_obs[t].flatten(0, 1))

    def carry_over(self) -> None:
        """Begins a horizon where the last one ended."""
        for array in self.known().values():
            array[0].copy_(array[-1])
        self.episode_length.zero_()

    def known(self) -> dict[str, torch.Tensor]:
        """What is known before a step, ``[horizon + 1, num_envs, agents, ...]`` each, by its name in checkpoints."""
        arrays = {name: getattr(self, attribute) for name, attribute in _KNOWN.items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def episodes(self, sums: EpisodeSums) -> torch.Tensor:
        """Of each step: how many agents' episodes ended, and the sums of their returns and lengths, ``[3, T]``."""
        lengths, returns = (array.view(len(array), -1, 1) for array in (self.episode_length, self.episode_return))
        return sums.of(lengths, returns, add_lengths=True)


_KNOWN = {
    "observations": "observations",
    "shared_observations": "shared_observations",
    "alive": "alive",
    "action_masks": "action_mask",
}
"""Arrays of which row ``t`` is what is known before step ``t``, by their names in checkpoints."""

_WRITTEN = tuple(field.name for field in dataclasses.fields(Step) if field.name != "episode_metrics")


def make_env(spec: str | Spec, config: Run, num_envs: int, device: str, autoreset_mode: str, **options: Any) -> Any:
    """The environment of a run, with torch tensors."""
    threads = config.cpu_threads if device == "cpu" else None
    kinds: dict[str, Any] = {"device": device, "threads": threads, "output": "torch", "autoreset_mode": autoreset_mode}
    return gpu_envs.make(spec, num_envs, **kinds, **options, **config.params)


def simulated(config: Run, num_envs: int, device: str, spec: Spec | None = None) -> SimulationConfig:
    """What the environment of a run simulates: where policies learn from observations in parts, it gives them so."""
    spec = spec or gpu_envs.spec(config.env)
    known = {field.name for field in dataclasses.fields(Options)}
    of_options = {name: value for name, value in config.params.items() if name in known}
    options = Options(**{"device": device, "output": "torch", "autoreset_mode": "SameStep"} | of_options)
    own = {name: value for name, value in config.params.items() if name not in (*known, "render_mode")}
    world = config_of(spec, num_envs, options, own)
    check_replica(world, open_backend(resolve_device(device)))  # before roles_of names each agent
    apart = any(splits_of(role.seen for role in roles_of(world.spec, world.params)))
    return dataclasses.replace(world, apart=apart, active_heads=isinstance(spec, TeamSpec) and spec.active_heads)


@final
class HorizonEnv:
    """An environment with torch tensors, and storage for a horizon of it, by role.

    Attributes:
        episode_metrics: Those of the episodes that end, ``[horizon, num_envs, metrics]``; None: there are none.
        begun_midway: Whether each replica's episode is the first, staggered one; None: none was.
    """

    def __init__(self, config: Run, world: SimulationConfig, device: str, horizon: int, first_replica: int = 0) -> None:
        """Makes the environment of ``simulated``, and the storage; the first replica has this number."""
        num_envs = world.num_envs
        options = {"shared_observations": world.apart, "active_heads": world.active_heads}
        self.env = make_env(world.spec, config, num_envs, device, "SameStep", first_replica=first_replica, **options)
        self.num_envs, self.horizon, self.device = num_envs, horizon, device
        self._tensors = RoleTensors(self.env)
        self._alone, self.roles = self._tensors.by_role.alone, self._tensors.roles
        self.limit: int | None = self.env.max_episode_steps
        self.storage = {
            role.name: RoleStorage(role, horizon, num_envs, device, alone=self._alone, limited=self.limit is not None)
            for role in self.roles
        }
        self.metrics: tuple[str, ...] = tuple(self.env.env_spec.metrics)
        shape = (horizon, num_envs, len(self.metrics))
        self.episode_metrics = torch.zeros(shape, device=device) if self.metrics else None
        self._outs = [self._out(t) for t in range(horizon)]
        self.begun_midway: torch.Tensor | None = None

    def _out(self, t: int) -> Step:
        rows = {name: {r: s.row(name, t) for r, s in self.storage.items()} for name in _WRITTEN}
        present = {name: {r: row for r, row in by_role.items() if row is not None} for name, by_role in rows.items()}
        arrays = {name: self._tensors.by_role.join(by_role) for name, by_role in present.items() if by_role}
        return Step(**arrays, episode_metrics=None if self.episode_metrics is None else self.episode_metrics[t])

    @property
    def ended(self) -> torch.Tensor:
        """Whose episode ended in each step, ``[horizon, num_envs]``."""
        first = next(iter(self.storage.values()))
        return first.episode_length[:, :, 0] > 0  # all of a replica's agents are reported together

    def episodes(self, sums: EpisodeSums) -> list[torch.Tensor]:
        """As of ``RoleStorage`` for each role, and ``[1 + metrics, horizon]`` of replicas where there are metrics."""
        parts = [storage.episodes(sums) for storage in self.storage.values()]
        if self.episode_metrics is not None:
            first = next(iter(self.storage.values()))  # all of a replica's agents are reported together
            parts.append(sums.of(first.episode_length, self.episode_metrics, add_lengths=False))
        return parts

    @property
    def code(self) -> str:
        """What its rules are, and what runs them, in short: of processes that train together they are the same."""
        rules = hashlib.sha256(self.env.rules.encode()).hexdigest()
        return f"gpu_envs {gpu_envs.__version__}, torch {torch.__version__}, rules {rules[:12]}"

    def reset(self, seed: int, *, stagger: int | None = None) -> None:
        """Restarts with the first replica's seed; with ``stagger`` as a seed, first episodes are cut short."""
        observations, infos = self.env.reset(seed=seed)
        self.begun_midway = None
        if stagger is not None:
            observations = self.env.stagger(stagger)
            self.begun_midway = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        rows, masks = self._tensors.observations(observations), self._tensors.action_masks()
        for name, storage in self.storage.items():
            storage.put_last(rows[name])
            if storage.alive is not None:
                storage.alive[-1].copy_(infos["alive"][name])
            if storage.action_mask is not None:
                storage.action_mask[-1].copy_(masks[name])

    def state(self) -> dict[str, Any]:
        """Copies of everything that the next horizon depends on."""
        known: dict[str, dict[str, torch.Tensor]] = {name: {} for name in _KNOWN}
        for role, storage in self.storage.items():
            for name, array in storage.known().items():
                known[name][role] = array[-1].clone()
        begun_midway = None if self.begun_midway is None else self.begun_midway.clone()
        return {"environment": self.env.get_state(), **known, "begun_midway": begun_midway}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over what ``state`` gave, in place, because graphs know the addresses."""
        self.env.set_state(state["environment"])
        for role, storage in self.storage.items():
            for name, array in storage.known().items():
                array[-1].copy_(state[name][role])
        if self.begun_midway is not None:
            self.begun_midway.copy_(state["begun_midway"])

    def carry_over(self) -> None:
        """Begins a horizon where the last one ended."""
        for storage in self.storage.values():
            storage.carry_over()

    def step(self, t: int, actions: Mapping[str, torch.Tensor]) -> None:
        """Takes the horizon's step ``t``, with actions by role, ``[num_envs, agents, width]``."""
        observations, *_, infos = self.env.step(self._tensors.taken(actions), out=self._outs[t])
        if self._alone:
            self.storage[ALONE].flatten(t, observations, infos["final_obs"])
            return
        for name, storage in self.storage.items():
            assert storage.alive is not None
            storage.alive[t + 1].copy_(infos["alive"][name])

    def observations(self, t: int) -> dict[str, Rows]:
        """By role, what is seen before step ``t``, ``[num_envs, agents, features]``."""
        return {name: storage.rows_at(t) for name, storage in self.storage.items()}

    def action_masks(self, t: int) -> dict[str, torch.Tensor]:
        """By role, what is possible in step ``t``, ``[num_envs, agents, choices]``; empty where there are no masks."""
        masks = {name: storage.action_mask for name, storage in self.storage.items()}
        return {name: mask[t] for name, mask in masks.items() if mask is not None}

    def forget_cut_episodes(self) -> None:
        """Takes the ends of staggered episodes out of a complete horizon: they were not whole ones."""
        if self.begun_midway is None:
            return
        ended = self.ended
        first = ended & (ended.cumsum(0) == 1) & self.begun_midway
        for storage in self.storage.values():
            storage.episode_length.masked_fill_(first.unsqueeze(-1), 0)
        self.begun_midway.logical_and_(~ended.any(0))
