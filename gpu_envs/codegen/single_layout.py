"""Memory layout of single-agent environments: state, observations and results of the replicas."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.program import CPP_TYPES, ArrayShape
from gpu_envs.codegen.layout import Layout, SimulationConfig
from gpu_envs.codegen.metrics import totals
from gpu_envs.codegen.observations import Part, is_staged, parts_of
from gpu_envs.codegen.shared import check_mask_entries
from gpu_envs.codegen.state import StateField
from gpu_envs.specs.distributions import Kind
from gpu_envs.specs.single import EnvSpec

MODULES = {"vector_env": ("step", "inspect", "reset"), "rollout": ("rollout",)}
"""Kernels of each driver; a driver is compiled at first use."""

_DTYPES = {"int": "int32", "u8": "uint8", "bool": "bool"}


@final
@dataclasses.dataclass(frozen=True)
class SingleLayout(Layout):
    """Memory layout of a single-agent environment."""

    config: SimulationConfig
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]
    drawn: Mapping[str, Kind]

    @property
    def spec(self) -> EnvSpec:
        assert isinstance(self.config.spec, EnvSpec)
        return self.config.spec

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """Boxes of one replica's observation."""
        return parts_of(self.spec.observation_space(self.config.params), self.spec.id)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a Dict observation; empty for a single Box."""
        return tuple(part.key for part in self.parts if part.key)

    @property
    def staged(self) -> bool:
        """Whether the observation is a short row of floats."""
        return is_staged(self.parts)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self.spec.action_space(self.config.params)

    @property
    def choices(self) -> int:
        """Entries in an action mask; 0 without one."""
        return check_mask_entries(self.action_space, self.spec.id) if self.spec.masked else 0

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the drivers: of single steps, then of rollouts."""
        return tuple(MODULES)

    @property
    def record_head(self) -> int:
        """Words of a ``Record`` before the observation: return, length and metrics of an episode."""
        return (2 + len(self.config.metrics)) * self.real_words if self.config.statistics else 0

    @property
    def real_words(self) -> int:
        """32-bit words of a real."""
        return 2 if self.config.precision == "float64" else 1

    @property
    def record_final(self) -> int:
        """Words of the final observation in a ``Record``; 0 if the mode does not record it."""
        return self.parts[0].size if self.staged and self.config.autoreset_mode == "SameStep" else 0

    @property
    def record_words(self) -> int:
        """Size of a ``Record`` in 32-bit words, padded to 32-byte sectors."""
        return -(-(self.record_head + self.record_final) // 8) * 8

    @property
    def state_fields(self) -> list[StateField]:
        """Fields of the state, with their C++ types."""
        spec, params = self.spec, self.config.params
        return [StateField(n, CPP_TYPES[f.type], spec.sizes(n, f, params)) for n, f in spec.typed_state.items()]

    @property
    def indexed(self) -> bool:
        """Whether rules have arrays, besides actions and observations: tables, parameters or fields of the state."""
        sizes = (*(field.sizes for field in self.state_fields), *(p.rank for p in self.spec.settings.values()))
        return bool(self.spec.tables) or any(sizes)

    def buffers(self) -> dict[str, ArrayShape]:
        n, real = self.config.num_envs, self.config.precision
        fields: dict[str, ArrayShape] = {
            f"state.{f.name}": ((*f.sizes, n), real if f.cpp == "real" else _DTYPES[f.cpp]) for f in self.state_fields
        }
        shapes = self.results()
        if self.staged:
            shapes.pop("final_obs", None)  # part of the records
        return fields | {
            **({"running_return": ((n,), real)} if self.config.statistics else {}),
            "elapsed": ((n,), "int32"),
            **({"totals": ((count, n), real)} if (count := len(totals(self.config.metrics))) else {}),
            "offset": ((n,), "int32"),  # steps subtracted from the time limit, until an episode starts
            "staggered": ((1,), "int32"),  # number of nonzero offsets
            "ended": ((n,), "uint8"),  # flags: terminated, truncated
            "finished": ((n,), "bool"),
            **({"records": ((n, self.record_words), "int32")} if self.record_words else {}),
            "seeds": ((n,), "int64"),  # uint64 bits
            "counted": ((1,), "int32"),  # whether seeds are consecutive
            "episodes": ((n,), "int32"),  # uint32 bits
            "offence": ((2,), "int64"),
            **{name: shape for name, shape in shapes.items() if not name.startswith("episode_")},
        }

    def add_views(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Add views of ``records`` (return, length, metrics, final_obs); move state arrays' axis ``num_envs`` first."""
        for name, _, sizes in self.state_fields:
            for axis in range(len(sizes)):
                buffers[f"state.{name}"] = buffers[f"state.{name}"].swapaxes(axis, -1)
        records: Array = buffers.get("records")
        if self.config.statistics:
            reals = arrays.view(records, self.config.precision)
            buffers["episode_return"], buffers["episode_length"] = reals[:, 0], records[:, self.real_words]
            if count := len(self.config.metrics):
                buffers["episode_metrics"] = reals[:, 2 : 2 + count]
        if self.config.autoreset_mode != "SameStep":
            return
        if self.staged:
            head = self.record_head
            buffers["final_obs"] = arrays.view(records, "float32")[:, head : head + self.record_final]
        else:
            buffers |= {f"internal_final_obs{part.suffix}": buffers[f"final_obs{part.suffix}"] for part in self.parts}

    def results(self) -> dict[str, ArrayShape]:
        n, real = self.config.num_envs, self.config.precision
        observations: dict[str, ArrayShape] = {part.suffix: ((n, *part.space.shape), part.dtype) for part in self.parts}
        shapes: dict[str, ArrayShape] = {f"observations{suffix}": shape for suffix, shape in observations.items()}
        shapes |= {"rewards": ((n,), real), "terminations": ((n,), "bool"), "truncations": ((n,), "bool")}
        if self.config.autoreset_mode == "SameStep":
            shapes |= {f"final_obs{suffix}": shape for suffix, shape in observations.items()}
        if self.choices:
            shapes["action_mask"] = ((n, self.choices), "int8")
        if self.config.statistics:
            shapes |= {"episode_return": ((n,), real), "episode_length": ((n,), "int32")}
        return shapes | self.metric_results()

    @property
    def snapshot_buffers(self) -> Mapping[str, str]:
        names = ["elapsed", "offset", "ended", "finished", "episodes", "seeds"]
        if self.config.statistics:
            names += ["running_return", "episode_return", "episode_length"]
        return {name: name for name in names} | self.metric_buffers("totals")

    def result_structs(self, call: Any) -> list[tuple[str, Any]]:
        """Return the arguments themselves, and a struct for each Box of a Dict observation, suffix ``.key``."""
        return [("", call), *((f".{key}", call.part[k]) for k, key in enumerate(self.keys))]

    def decode_location(self, code: int) -> tuple[int, int, int]:
        replica, step = divmod(code, 2**31)
        return replica, 0, step

    def agent_label(self, agent: int) -> str:
        del agent
        return ""

    def invalid_action(self, host_actions: Sequence[np.ndarray], replica: int, agent: int) -> str:
        del agent
        return f" ({host_actions[0][replica]})" if host_actions else ""

    def allowed_actions(self, agent: int) -> str:
        del agent
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return f"{space.start} to {space.start + space.n - 1}"
        return str(space)
