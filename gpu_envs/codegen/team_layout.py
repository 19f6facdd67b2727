"""Environments with a team of agents: their roles, their ``World``, and the memory of their replicas."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.program import ArrayShape, Device
from gpu_envs.codegen.layout import Layout, SimulationConfig
from gpu_envs.codegen.metrics import totals
from gpu_envs.codegen.schedule import RoleRows, TeamSchedule, TeamSize, schedule_of
from gpu_envs.codegen.world import WorldField
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.fields import Field
from gpu_envs.specs.spaces import mask_entries, space_of
from gpu_envs.specs.team import TeamSpec


@final
@dataclasses.dataclass(frozen=True)
class TeamLayout(Layout):
    """Memory of an environment with a team of agents."""

    config: SimulationConfig
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]
    drawn: Mapping[str, Distribution]
    device: Device

    @property
    def spec(self) -> TeamSpec:
        """The environment."""
        assert isinstance(self.config.spec, TeamSpec)
        return self.config.spec

    @functools.cached_property
    def roles(self) -> tuple[RoleRows, ...]:
        """The roles, with their agents and spaces."""
        spec, params = self.spec, self.config.params
        found, first = [], 0
        for role in spec.roles:
            what = f"{self.spec.id}: the role {role.name!r}:"
            action = space_of(role.action, params, f"{what} action")
            if spec.masked and not mask_entries(action):
                raise ValueError(
                    f"{spec.id}: action_mask=True, but the action space of the role {role.name!r} is {action}; masks "
                    "are for Discrete and MultiDiscrete actions"
                )
            count = role.size(params)
            found.append(
                RoleRows(role.name, first, count, spec.role_observation(role, params), action, self.config.apart)
            )
            first += count
        return tuple(found)

    @property
    def agents(self) -> int:
        """How many agents a replica has."""
        return self.roles[-1].first + self.roles[-1].size

    @property
    def elements(self) -> int:
        """How many elements the largest array has."""
        return max(int(np.prod(shape, dtype=np.float64)) for shape, _ in self.buffers().values())

    @property
    def modules(self) -> tuple[str, ...]:
        """There is one driver."""
        return ("multi_agent",)

    # --- memory ---

    def _dtype(self, field: Field) -> str:
        return {"real": self.config.precision, "int": "int32", "agent": self.number, "byte": "uint8", "bool": "bool"}[
            field.type
        ]

    @property
    def number(self) -> str:
        """The type of an agent's number."""
        return "int8" if self.agents < 2**7 else "int16" if self.agents < 2**15 else "int32"

    @functools.cached_property
    def world(self) -> dict[str, WorldField]:
        """Every field of ``World``: the spec's, and those that the driver keeps in every world."""
        spec, params = self.spec, self.config.params
        real, yes, whole = Field(), Field("bool"), Field("int")
        groups = (
            ({**spec.state, "in_game": yes}, True, True),
            *((role.state, False, True) for role in spec.roles),
            ({**spec.shared, "elapsed": whole}, False, True),
            (
                {
                    "present": yes,
                    "reward": real,
                    **({"_running_return": real} if self.config.statistics else {}),
                    "action": self._action_field(),
                    **spec.scratch,
                },
                True,
                False,
            ),
            ({"terminated": yes, "pending": yes, "finished": yes, **spec.shared_scratch}, False, False),
            (self._metric_fields("_totals", len(totals(self.config.metrics))), False, True),
            (self._metric_fields("_metrics", len(self.config.metrics)), False, False),
        )
        rows = {name: (role.size(params),) for role in spec.roles for name in role.state}
        return {
            name: WorldField(
                name,
                field.type,
                self._dtype(field),
                (*rows.get(name, ()), *spec.sizes(name, field, params)),
                team,
                kept,
            )
            for fields, team, kept in groups
            for name, field in fields.items()
        }

    def _metric_fields(self, name: str, count: int) -> dict[str, Field]:
        """An array for so many metrics, if there are any."""
        return {name: Field("real", lambda _: count)} if count else {}

    def _action_field(self) -> Field:
        """What holds an agent's action from the first phase of a step on."""
        spaces = [role.action for role in self.roles]
        size = max(int(np.prod(space.shape or (1,))) for space in spaces)
        if all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
            return Field("real", size)
        few = all(int(np.max(getattr(space, "nvec", getattr(space, "n", 0)))) <= 256 for space in spaces)
        starts = all(int(np.min(getattr(space, "start", 0))) == 0 for space in spaces)
        return Field("byte" if few and starts else "int", size)

    def buffers(self) -> dict[str, ArrayShape]:
        """The arrays of the simulation."""
        n, team, real = self.config.num_envs, self.agents, self.config.precision
        found: dict[str, ArrayShape] = {}
        for field in self.world.values():
            if field.kept:
                found[f"state.{field.name}"] = ((n, *field.shape(team)), field.dtype)
            elif self.schedule.kind == "SPREAD":
                found[f"scratch.{field.name}"] = ((n, *field.shape(team)), field.dtype)
        found |= {
            "just_left": ((n, team), "bool"),
            "offset": ((n,), "int32"),  # steps by which the time limit is nearer, until an episode begins
            "staggered": ((1,), "int32"),  # how many of them are not zero
            "ended": ((n,), "uint8"),
            "finished": ((n,), "bool"),
            "seeds": ((n,), "int64"),
            "episodes": ((n,), "int32"),
            "shared_seed": ((2,), "int64"),  # and a zero, the episode of what all episodes share
            "offence": ((2,), "int64"),
        }
        if self.config.statistics:
            found |= dict.fromkeys(("running_return", "episode_return"), ((n, team), real))
            found |= dict.fromkeys(("left_at", "episode_length"), ((n, team), "int32"))
        for shape in self.metric_results().values():
            found["last_metrics"] = shape
        return found | {name: shape for name, shape in self.results().items() if not name.startswith("episode_")}

    def results(self) -> dict[str, ArrayShape]:
        """What a step writes, role by role."""
        n, real = self.config.num_envs, self.config.precision
        found: dict[str, ArrayShape] = {}
        for role in self.roles:
            of: dict[str, ArrayShape] = {
                "observations": ((n, role.size, role.features), "float32"),
                "rewards": ((n, role.size), real),
                "terminations": ((n, role.size), "bool"),
                "truncations": ((n, role.size), "bool"),
            }
            if self.config.autoreset_mode == "SameStep":
                of["final_obs"] = of["observations"]
            if self.spec.masked:
                of["action_mask"] = ((n, role.size, role.choices), "int8")
            if self.config.statistics:
                of |= {"episode_return": ((n, role.size), real), "episode_length": ((n, role.size), "int32")}
            if role.apart and role.seen.shared_size:
                of["shared_observations"] = ((n, role.seen.shared_size), "float32")
                if self.config.autoreset_mode == "SameStep":
                    of["final_shared"] = of["shared_observations"]
            found |= {f"{name}.{role.name}": shape for name, shape in of.items()}
        return found | self.metric_results()

    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Names what belongs to each role of the arrays that hold all agents."""
        del arrays
        buffers["elapsed"] = buffers["state.elapsed"]
        if self.config.metrics:
            buffers["episode_metrics"] = buffers["last_metrics"]
        for role in self.roles:
            own = slice(role.first, role.first + role.size)
            for name in ("episode_return", "episode_length") if self.config.statistics else ():
                buffers[f"{name}.{role.name}"] = buffers[name][:, own]
            buffers[f"alive.{role.name}"] = buffers["state.in_game"][:, own]

    @property
    def episode(self) -> Mapping[str, str]:
        """What a snapshot holds beside the state, by the names that snapshots have."""
        same = ("just_left", "offset", "finished", "seeds", "episodes")
        found = {name: name for name in same} | {"over": "ended", "layout_seed": "shared_seed"}
        if self.config.statistics:
            found |= {"running_return": "running_return", "left_at": "left_at"}
            found |= {"last_return": "episode_return", "last_length": "episode_length"}
        return found | self.metric_buffers("state._totals")

    # --- the launch ---

    @functools.cached_property
    def schedule(self) -> TeamSchedule:
        """How the phases of a step are run on the device."""
        columns = self.spec.columns
        team = TeamSize(
            self.roles,
            tuple(self.world.values()),
            None if columns is None else functools.partial(columns, self.config.params),
        )
        return schedule_of(team, self.config.num_envs, self.device)

    # --- messages ---

    def places(self, call: Any) -> list[tuple[str, Any]]:
        """Each role's struct; and the call itself, for what is the team's."""
        return [*((f".{role.name}", call.role[r]) for r, role in enumerate(self.roles)), ("", call)]

    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks replica, agent and step, of which the last two are cut to the greatest that fit."""
        return place >> 36, place >> 20 & 0xFFFF, place & 0xFFFFF

    def who(self, agent: int) -> str:
        """The agent's name."""
        return f"{self.spec.agents(self.config.params)[agent]}, "

    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """The agent's action."""
        role = self._role_of(agent)
        return f" ({hosts[self.roles.index(role)][replica, agent - role.first]})" if hosts else ""

    def allowed(self, agent: int) -> str:
        """The actions of an agent, in words."""
        return str(self._role_of(agent).action)

    def _role_of(self, agent: int) -> RoleRows:
        return [role for role in self.roles if role.first <= agent][-1]
