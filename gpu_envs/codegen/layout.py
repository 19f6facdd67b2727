"""What a simulation asks of the code generators: memory, results and programs of one environment."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.program import ArrayShape
from gpu_envs.codegen.metrics import totals
from gpu_envs.specs.base import Spec
from gpu_envs.specs.distributions import Distribution
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import ParamValue

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PRECISIONS = ("float32", "float64")

RESULTS = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length", "action_mask", "episode_metrics"),
    *("shared_observations", "final_shared"),
)
"""What a step writes: of environments whose modes and rules have it."""


@dataclasses.dataclass(frozen=True)
class SimulationConfig:
    """What a simulation is made of."""

    spec: Spec
    num_envs: int
    autoreset_mode: str
    precision: str
    limit: int
    """The step at which an episode is truncated."""
    params: Mapping[str, ParamValue]
    """Every parameter and reset option, checked."""
    checked: bool = False
    """Look at every index: a slow build that ends the process where one is outside its array, and says where."""
    first_replica: int = 0
    """The number of the first one, in the batch that these are part of."""
    active_heads: bool = False
    """Of a team: masks leave elements of actions that mean nothing in the step to come one choice."""
    apart: bool = False
    """Of a team: what all agents of a role see alike is written once a replica, and not into their rows."""
    measured: bool = False
    """Each step writes what the metrics come to so far."""
    statistics: bool = True
    """Keep returns, lengths and metrics of episodes."""
    drawn: Mapping[str, Distribution] = dataclasses.field(default_factory=dict)
    """Parameters that each replica draws when an episode begins, at first."""
    table_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict, compare=False)
    """The shapes of tables that have been built; of others ``table_shape`` builds them."""

    def table_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a table."""
        return self.table_shapes.get(name) or self.spec.table(name, self.params).shape

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Those that are kept."""
        return self.spec.metrics if self.statistics else {}

    def name_of(self, replica: int) -> str:
        """How messages name a replica."""
        here = f" (here {replica})" if self.first_replica else ""
        return f"replica {self.first_replica + replica}{here}"


class Layout(ABC):
    """What the generated code depends on, and what follows from it."""

    config: SimulationConfig
    per_replica: frozenset[str]
    """Parameters that have one value a replica."""
    baked: Mapping[str, float | int]
    """Parameters whose value is compiled in."""
    drawn: Mapping[str, Distribution]
    """Parameters that each replica draws when an episode begins."""

    @property
    def real(self) -> str:
        """The C++ type of states and parameters."""
        return {"float32": "float", "float64": "double"}[self.config.precision]

    @property
    @abstractmethod
    def modules(self) -> tuple[str, ...]:
        """The drivers, in the order in which they are needed: the first at once."""

    @abstractmethod
    def buffers(self) -> dict[str, ArrayShape]:
        """The arrays that a simulation allocates, by name; ``state.`` begins the state's fields."""

    @abstractmethod
    def view(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Adds the arrays that are views of others."""

    @abstractmethod
    def results(self) -> dict[str, ArrayShape]:
        """What a step writes and a user may have written elsewhere; ``name`` or ``name.role``."""

    def metric_results(self) -> dict[str, ArrayShape]:
        """The metrics of episodes, where there are any."""
        count = len(self.config.metrics)
        return {"episode_metrics": ((self.config.num_envs, count), self.config.precision)} if count else {}

    def metric_buffers(self, of_totals: str) -> dict[str, str]:
        """What a snapshot holds of metrics: of the last episodes, and the totals of those under way."""
        found = {"episode_metrics": "episode_metrics"} if self.config.metrics else {}
        return found | ({"totals": of_totals} if totals(self.config.metrics) else {})

    @property
    @abstractmethod
    def episode(self) -> Mapping[str, str]:
        """The buffers that a snapshot holds beside the state, by their names in it."""

    @abstractmethod
    def places(self, call: Any) -> list[tuple[str, Any]]:
        """The structs of a call that name actions or results: suffix of the results' names, and struct."""

    @abstractmethod
    def where(self, place: int) -> tuple[int, int, int]:
        """Unpacks where an invalid action was: replica, agent, step of its episode."""

    @abstractmethod
    def who(self, agent: int) -> str:
        """An agent's name, followed by a comma, for a message; empty for a single agent."""

    @abstractmethod
    def given(self, hosts: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """An agent's action among those that came from the host, for a message; empty where none did."""

    @abstractmethod
    def allowed(self, agent: int) -> str:
        """The actions of an agent, in words."""


def mode_enum(mode: str) -> str:
    """The auto-reset mode in C++."""
    constant = {"NextStep": "NEXT_STEP", "SameStep": "SAME_STEP", "Disabled": "DISABLED"}[mode]
    return f"enum Autoreset {{ NEXT_STEP, SAME_STEP, DISABLED }};\nconstexpr Autoreset AUTORESET = {constant};"
