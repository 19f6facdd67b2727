"""Single-agent environments: their state, what is observed of it, and the memory of their replicas."""

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
from gpu_envs.codegen.observed import Part, is_staged, parts_of
from gpu_envs.codegen.state import StateField
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.single import EnvSpec
from gpu_envs.specs.spaces import mask_entries

MODULES = {"vector_env": ("step", "inspect", "reset"), "rollout": ("rollout",)}
"""The drivers that are compiled, each when first needed, and their kernels."""

_DTYPES = {"int": "int32", "u8": "uint8", "bool": "bool"}


@final
@dataclasses.dataclass(frozen=True)
class SingleLayout(Layout):
    """Memory of a single-agent environment."""

    config: SimulationConfig
    per_replica: frozenset[str]
    baked: Mapping[str, float | int]
    drawn: Mapping[str, Distribution]

    @property
    def spec(self) -> EnvSpec:
        """The environment."""
        assert isinstance(self.config.spec, EnvSpec)
        return self.config.spec

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The boxes of one replica's observation."""
        return parts_of(self.spec.observation_space(self.config.params), self.spec.id)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an observation that is a Dict; none of a single box."""
        return tuple(part.key for part in self.parts if part.key)

    @property
    def staged(self) -> bool:
        """Whether the observation is a short row of floats."""
        return is_staged(self.parts)

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The action space of one replica."""
        return self.spec.action_space(self.config.params)

    @property
    def choices(self) -> int:
        """Entries in an action mask; 0 without one."""
        if not self.spec.masked:
            return 0
        choices = mask_entries(self.action_space)
        if not choices:
            raise ValueError(
                f"{self.spec.id}: action_mask=True, but the action space is {self.action_space}; "
                "masks are for Discrete and MultiDiscrete actions"
            )
        return choices

    @property
    def modules(self) -> tuple[str, ...]:
        """The driver of single steps, and that of many."""
        return tuple(MODULES)

    @property
    def record_head(self) -> int:
        """The words of a ``Record`` before its observation: return, length and metrics of an episode."""
        return (2 + len(self.config.metrics)) * self.real_words if self.config.statistics else 0

    @property
    def real_words(self) -> int:
        """How many words of 32 bits a real has."""
        return 2 if self.config.precision == "float64" else 1

    @property
    def record_final(self) -> int:
        """The words of its observation, which not all modes keep."""
        return self.parts[0].size if self.staged and self.config.autoreset_mode == "SameStep" else 0

    @property
    def record_words(self) -> int:
        """The size of a ``Record`` in words of 32 bits: whole sectors of memory."""
        return -(-(self.record_head + self.record_final) // 8) * 8

    @property
    def state_fields(self) -> list[StateField]:
        """The state's fields, as they are in C++."""
        params, found = self.config.params, []
        for name, field in self.spec.typed_state.items():
            found.append(StateField(name, CPP_TYPES[field.type], self.spec.sizes(name, field, params)))
        return found

    @property
    def indexed(self) -> bool:
        """Whether the rules have something to index besides actions and observations."""
        return bool(self.spec.tables) or any(field.sizes for field in self.state_fields)

    def buffers(self) -> dict[str, ArrayShape]:
        """The arrays of the simulation."""
        n, real = self.config.num_envs, self.config.precision
        fields: dict[str, ArrayShape] = {
            f"state.{f.name}": ((*f.sizes, n), real if f.cpp == "real" else _DTYPES[f.cpp]) for f in self.state_fields
        }
        found = self.results()
        if self.staged:
            found.pop("final_obs", None)  # in the records
        return fields | {
            **({"running_return": ((n,), real)} if self.config.statistics else {}),
            "elapsed": ((n,), "int32"),
            **({"totals": ((count, n), real)} if (count := len(totals(self.config.metrics))) else {}),
            "offset": ((n,), "int32"),  # steps by which the time limit is nearer, until an episode begins
            "staggered": ((1,), "int32"),  # how many of them are not zero
            "ended": ((n,), "uint8"),  # how the episode ended: two flags
            "finished": ((n,), "bool"),
            **({"records": ((n, self.record_words), "int32")} if self.record_words else {}),
            "seeds": ((n,), "int64"),  # the bits of unsigned ones
            "counted": ((1,), "int32"),  # whether seeds count up from the first replica's
            "episodes": ((n,), "int32"),  # the bits of unsigned counters
            "offence": ((2,), "int64"),
            **{name: shape for name, shape in found.items() if not name.startswith("episode_")},
        }

    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Names the columns of the records, ``struct Record``; turns arrays of the state: ``[num_envs, ...]``."""
        for name, _, sizes in self.state_fields:
            for axis in range(len(sizes)):
                buffers[f"state.{name}"] = buffers[f"state.{name}"].swapaxes(axis, -1)
        records: Array = buffers.get("records")
        view = arrays.view
        if self.config.statistics:
            reals = view(records, self.config.precision)
            buffers["episode_return"], buffers["episode_length"] = reals[:, 0], records[:, self.real_words]
            if count := len(self.config.metrics):
                buffers["episode_metrics"] = reals[:, 2 : 2 + count]
        if self.config.autoreset_mode != "SameStep":
            return
        if self.staged:
            head = self.record_head
            buffers["final_obs"] = view(records, "float32")[:, head : head + self.record_final]
        else:
            buffers |= {f"kept_final{part.affix}": buffers[f"final_obs{part.affix}"] for part in self.parts}

    def results(self) -> dict[str, ArrayShape]:
        """What a step writes."""
        n, real = self.config.num_envs, self.config.precision
        seen: dict[str, ArrayShape] = {part.affix: ((n, *part.space.shape), part.dtype) for part in self.parts}
        found: dict[str, ArrayShape] = {f"observations{affix}": shape for affix, shape in seen.items()}
        found |= {"rewards": ((n,), real), "terminations": ((n,), "bool"), "truncations": ((n,), "bool")}
        if self.config.autoreset_mode == "SameStep":
            found |= {f"final_obs{affix}": shape for affix, shape in seen.items()}
        if self.choices:
            found["action_mask"] = ((n, self.choices), "int8")
        if self.config.statistics:
            found |= {"episode_return": ((n,), real), "episode_length": ((n,), "int32")}
        return found | self.metric_results()

    @property
    def episode(self) -> Mapping[str, str]:
        """What a snapshot holds beside the state."""
        names = ["elapsed", "offset", "ended", "finished", "episodes", "seeds"]
        if self.config.statistics:
            names += ["running_return", "episode_return", "episode_length"]
        return {name: name for name in names} | self.metric_buffers("totals")

    def places(self, call: Any) -> list[tuple[str, Any]]:
        """The call itself names actions and results; each box of a Dict has its own place."""
        return [("", call), *((f".{key}", call.part[k]) for k, key in enumerate(self.keys))]

    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks replica and step."""
        replica, step = divmod(place, 2**31)
        return replica, 0, step

    def who(self, agent: int) -> str:
        """No name: there is one agent."""
        del agent
        return ""

    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """The replica's action."""
        del agent
        return f" ({hosts[0][replica]})" if hosts else ""

    def allowed(self, agent: int) -> str:
        """The actions, in words."""
        del agent
        space = self.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return f"{space.start} to {space.start + space.n - 1}"
        return str(space)
