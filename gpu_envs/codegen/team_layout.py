"""Memory layout of environments with a team of agents: roles, ``World``, buffers and results."""

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
from gpu_envs.codegen.shared import check_mask_entries
from gpu_envs.codegen.world import WorldField
from gpu_envs.specs.distributions import Kind
from gpu_envs.specs.fields import Field
from gpu_envs.specs.spaces import space_of
from gpu_envs.specs.team import TeamSpec


@final
@dataclasses.dataclass(frozen=True)
class TeamLayout(Layout):
    """Memory layout of an environment with a team of agents."""

    config: SimulationConfig
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]
    drawn: Mapping[str, Kind]
    device: Device

    @property
    def spec(self) -> TeamSpec:
        assert isinstance(self.config.spec, TeamSpec)
        return self.config.spec

    @functools.cached_property
    def roles(self) -> tuple[RoleRows, ...]:
        """The roles, with their agents and spaces."""
        spec, params = self.spec, self.config.params
        roles, first = [], 0
        for role in spec.roles:
            label = f"{spec.id}: the role {role.name!r}:"
            action = space_of(role.action, params, f"{label} action")
            if spec.masked:
                check_mask_entries(action, spec.id, f" of the role {role.name!r}")
            observation, separate_shared = spec.role_observation(role, params), self.config.separate_shared
            roles.append(RoleRows(role.name, first, role.size(params), observation, action, separate_shared))
            first += roles[-1].size
        return tuple(roles)

    @property
    def agents(self) -> int:
        return self.roles[-1].first + self.roles[-1].size

    @property
    def elements(self) -> int:
        """Elements of the largest array."""
        return max(int(np.prod(shape, dtype=np.float64)) for shape, _ in self.buffers().values())

    @property
    def modules(self) -> tuple[str, ...]:
        return ("multi_agent",)

    # --- memory ---

    def _dtype(self, field: Field) -> str:
        variable_dtypes = {"real": self.config.precision, "agent": self.agent_dtype}
        return (variable_dtypes | {"int": "int32", "byte": "uint8", "bool": "bool"})[field.type]

    @property
    def agent_dtype(self) -> str:
        """Smallest dtype of an agent's number."""
        return "int8" if self.agents < 2**7 else "int16" if self.agents < 2**15 else "int32"

    @functools.cached_property
    def world(self) -> dict[str, WorldField]:
        """Fields of ``World`` by name, of the spec and of the driver."""
        spec, params = self.spec, self.config.params
        real, boolean, integer = Field(), Field("bool"), Field("int")
        running_return = {"_running_return": real} if self.config.statistics else {}
        step = {"present": boolean, "reward": real, **running_return, "action": self._action_field()}
        groups = (  # fields, whether each agent has one, whether they persist between steps
            ({**spec.state, "in_game": boolean}, True, True),
            *((role.state, False, True) for role in spec.roles),
            ({**spec.shared, "elapsed": integer}, False, True),
            ({**step, **spec.scratch}, True, False),
            ({"terminated": boolean, "pending": boolean, "finished": boolean, **spec.shared_scratch}, False, False),
            (self._metric_fields("_totals", len(totals(self.config.metrics))), False, True),
            (self._metric_fields("_metrics", len(self.config.metrics)), False, False),
        )
        rows = {name: (role.size(params),) for role in spec.roles for name in role.state}
        world: dict[str, WorldField] = {}
        for fields, per_agent, persistent in groups:
            for name, field in fields.items():
                sizes = (*rows.get(name, ()), *spec.sizes(name, field, params))
                world[name] = WorldField(name, field.type, self._dtype(field), sizes, per_agent, persistent)
        return world

    def _metric_fields(self, name: str, count: int) -> dict[str, Field]:
        """Return a field ``name`` with ``count`` reals; an empty dict if ``count`` is 0."""
        return {name: Field("real", lambda _: count)} if count else {}

    def _action_field(self) -> Field:
        """Return the field that stores an agent's action during a step."""
        spaces = [role.action for role in self.roles]
        size = max(int(np.prod(space.shape or (1,))) for space in spaces)
        if all(isinstance(space, gymnasium.spaces.Box) for space in spaces):
            return Field("real", size)
        fits_byte = all(int(np.max(getattr(space, "nvec", getattr(space, "n", 0)))) <= 256 for space in spaces)
        starts_at_zero = all(int(np.min(getattr(space, "start", 0))) == 0 for space in spaces)
        return Field("byte" if fits_byte and starts_at_zero else "int", size)

    def buffers(self) -> dict[str, ArrayShape]:
        n, team, real = self.config.num_envs, self.agents, self.config.precision
        shapes: dict[str, ArrayShape] = {}
        for field in self.world.values():
            if field.persistent or self.schedule.kind == "SPREAD":
                group = "state" if field.persistent else "scratch"
                shapes[f"{group}.{field.name}"] = ((n, *field.shape(team)), field.dtype)
        shapes |= {
            "just_left": ((n, team), "bool"),
            "offset": ((n,), "int32"),  # steps subtracted from the time limit, until an episode starts
            "staggered": ((1,), "int32"),  # number of nonzero offsets
            "ended": ((n,), "uint8"),
            "finished": ((n,), "bool"),
            "seeds": ((n,), "int64"),
            "episodes": ((n,), "int32"),
            "shared_seed": ((2,), "int64"),  # the seed of streams that all episodes share, and 0 as its episode
            "offence": ((2,), "int64"),
        }
        if self.config.statistics:
            shapes |= dict.fromkeys(("running_return", "episode_return"), ((n, team), real))
            shapes |= dict.fromkeys(("left_at", "episode_length"), ((n, team), "int32"))
        for shape in self.metric_results().values():
            shapes["last_metrics"] = shape
        return shapes | {name: shape for name, shape in self.results().items() if not name.startswith("episode_")}

    def results(self) -> dict[str, ArrayShape]:
        """Return shape and dtype of each result of a step: ``name.role``, and ``episode_metrics``."""
        n, real = self.config.num_envs, self.config.precision
        shapes: dict[str, ArrayShape] = {}
        for role in self.roles:
            role_results: dict[str, ArrayShape] = {
                "observations": ((n, role.size, role.features), "float32"),
                "rewards": ((n, role.size), real),
                "terminations": ((n, role.size), "bool"),
                "truncations": ((n, role.size), "bool"),
            }
            if self.config.autoreset_mode == "SameStep":
                role_results["final_obs"] = role_results["observations"]
            if self.spec.masked:
                role_results["action_mask"] = ((n, role.size, role.choices), "int8")
            if self.config.statistics:
                role_results |= {"episode_return": ((n, role.size), real), "episode_length": ((n, role.size), "int32")}
            if role.separate_shared and role.observation_parts.shared_size:
                role_results["shared_observations"] = ((n, role.observation_parts.shared_size), "float32")
                if self.config.autoreset_mode == "SameStep":
                    role_results["final_shared"] = role_results["shared_observations"]
            shapes |= {f"{name}.{role.name}": shape for name, shape in role_results.items()}
        return shapes | self.metric_results()

    def add_views(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Add each role's slices of episode_return, episode_length and alive, and aliases of elapsed and metrics."""
        del arrays
        buffers["elapsed"] = buffers["state.elapsed"]
        if self.config.metrics:
            buffers["episode_metrics"] = buffers["last_metrics"]
        for role in self.roles:
            agents = slice(role.first, role.first + role.size)
            for name in ("episode_return", "episode_length") if self.config.statistics else ():
                buffers[f"{name}.{role.name}"] = buffers[name][:, agents]
            buffers[f"alive.{role.name}"] = buffers["state.in_game"][:, agents]

    @property
    def snapshot_buffers(self) -> Mapping[str, str]:
        same = ("just_left", "offset", "finished", "seeds", "episodes")
        buffers = {name: name for name in same} | {"over": "ended", "layout_seed": "shared_seed"}
        if self.config.statistics:
            buffers |= {"running_return": "running_return", "left_at": "left_at"}
            buffers |= {"last_return": "episode_return", "last_length": "episode_length"}
        return buffers | self.metric_buffers("state._totals")

    # --- the launch ---

    @functools.cached_property
    def schedule(self) -> TeamSchedule:
        columns = self.spec.columns and functools.partial(self.spec.columns, self.config.params)
        return schedule_of(TeamSize(self.roles, tuple(self.world.values()), columns), self.config.num_envs, self.device)

    # --- messages ---

    def result_structs(self, call: Any) -> list[tuple[str, Any]]:
        """Return each role's struct, with the suffix ``.role``, and the arguments themselves, for team results."""
        return [*((f".{role.name}", call.role[r]) for r, role in enumerate(self.roles)), ("", call)]

    def decode_location(self, code: int) -> tuple[int, int, int]:
        """Return an invalid action's replica, agent and step; the last two are capped at 65535 and 1048575."""
        return code >> 36, code >> 20 & 0xFFFF, code & 0xFFFFF

    def agent_label(self, agent: int) -> str:
        return f"{self.spec.agents(self.config.params)[agent]}, "

    def invalid_action(self, host_actions: Sequence[np.ndarray], replica: int, agent: int) -> str:
        role = self._role_of(agent)
        return f" ({host_actions[self.roles.index(role)][replica, agent - role.first]})" if host_actions else ""

    def allowed_actions(self, agent: int) -> str:
        return str(self._role_of(agent).action)

    def _role_of(self, agent: int) -> RoleRows:
        return [role for role in self.roles if role.first <= agent][-1]
