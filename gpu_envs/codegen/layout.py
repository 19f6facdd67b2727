"""Interface of the code generators: memory, results and programs of one environment."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_envs.backend.arrays import Array, Arrays
from gpu_envs.backend.program import ArrayShape
from gpu_envs.codegen.metrics import totals
from gpu_envs.specs.base import Spec
from gpu_envs.specs.distributions import Distribution, Kind
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import ParamValue

AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")
PRECISIONS = ("float32", "float64")

RESULTS = (
    *("observations", "rewards", "terminations", "truncations"),
    *("final_obs", "episode_return", "episode_length", "action_mask", "episode_metrics"),
    *("shared_observations", "final_shared"),
)
"""Results of a step; some only exist in certain modes or with certain rules."""


@dataclasses.dataclass(frozen=True)
class SimulationConfig:
    """Configuration of a simulation."""

    spec: Spec
    num_envs: int
    autoreset_mode: str
    precision: str
    limit: int
    """Steps after which an episode is truncated."""
    params: Mapping[str, ParamValue]
    """All parameters and reset options, validated."""
    checked: bool = False
    """Check every index: a slow build that names the line and ends the process if an index is out of range."""
    first_replica: int = 0
    """Number of the first replica, if the simulation is part of a larger batch."""
    active_heads: bool = False
    """Team: masks allow a single choice for elements of actions that are unused in the next step."""
    separate_shared: bool = False
    """Team: elements of observations that all agents of a role share are written once per replica, not into rows."""
    running_metrics: bool = False
    """Write the metrics of the current episode in every step."""
    statistics: bool = True
    """Record returns, lengths and metrics of episodes."""
    drawn: Mapping[str, Distribution] = dataclasses.field(default_factory=dict)
    """Initial distributions of the parameters that each replica draws at the start of an episode."""
    table_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict, compare=False)
    """Shapes of the tables that have been built; ``table_shape`` builds others."""

    def table_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a table."""
        return self.table_shapes.get(name) or self.spec.table(name, self.params).shape

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics that are recorded."""
        return self.spec.metrics if self.statistics else {}

    def replica_name(self, replica: int) -> str:
        """Return a replica's name in messages."""
        local = f" (here {replica})" if self.first_replica else ""
        return f"replica {self.first_replica + replica}{local}"


class Layout(ABC):
    """Memory and kernels of one environment; the generated code depends on nothing else."""

    config: SimulationConfig
    per_replica: frozenset[str]
    """Parameters with one value per replica."""
    baked: Mapping[str, float | int]
    """Parameters whose value is compiled in."""
    drawn: Mapping[str, Kind]
    """Parameters that each replica draws at the start of an episode."""

    @property
    def real(self) -> str:
        """The C++ type of states and parameters."""
        return {"float32": "float", "float64": "double"}[self.config.precision]

    @property
    @abstractmethod
    def modules(self) -> tuple[str, ...]:
        """Names of the drivers, in order of first use; the first is always needed."""

    @abstractmethod
    def buffers(self) -> dict[str, ArrayShape]:
        """Return shape and dtype of the arrays that a simulation allocates; fields of the state are ``state.name``."""

    @abstractmethod
    def add_views(self, buffers: dict[str, Array], arrays: Arrays) -> None:
        """Add views of buffers to ``buffers``, under the names of results and of the snapshot."""

    @abstractmethod
    def results(self) -> dict[str, ArrayShape]:
        """Return shape and dtype of a step's results by name, with a suffix ``.role`` (teams) or ``.key`` (Dicts)."""

    def metric_results(self) -> dict[str, ArrayShape]:
        """Return shape and dtype of the result ``episode_metrics``; an empty dict if no metrics are recorded."""
        count = len(self.config.metrics)
        return {"episode_metrics": ((self.config.num_envs, count), self.config.precision)} if count else {}

    def metric_buffers(self, totals_buffer: str) -> dict[str, str]:
        """Return the buffers of metrics by name in a snapshot: last episodes' metrics, and current episodes' totals."""
        buffers = {"episode_metrics": "episode_metrics"} if self.config.metrics else {}
        return buffers | ({"totals": totals_buffer} if totals(self.config.metrics) else {})

    @property
    @abstractmethod
    def snapshot_buffers(self) -> Mapping[str, str]:
        """Buffers of a snapshot besides the state, by name in the snapshot."""

    @abstractmethod
    def result_structs(self, call: Any) -> list[tuple[str, Any]]:
        """Return the structs in ``call`` that point to actions and results, each after the suffix of its results."""

    @abstractmethod
    def decode_location(self, code: int) -> tuple[int, int, int]:
        """Decode the location of an invalid action: replica, agent, step of the episode."""

    @abstractmethod
    def agent_label(self, agent: int) -> str:
        """Return an agent's name and a comma, for a message; empty for a single agent."""

    @abstractmethod
    def invalid_action(self, host_actions: Sequence[np.ndarray], replica: int, agent: int) -> str:
        """Return an agent's action in parentheses, for a message; empty if the actions were not on the CPU."""

    @abstractmethod
    def allowed_actions(self, agent: int) -> str:
        """Describe the valid actions of an agent."""


def mode_enum(mode: str) -> str:
    """Return the C++ enum of autoreset modes, and the constant ``AUTORESET`` for ``mode``."""
    constant = {"NextStep": "NEXT_STEP", "SameStep": "SAME_STEP", "Disabled": "DISABLED"}[mode]
    return f"enum Autoreset {{ NEXT_STEP, SAME_STEP, DISABLED }};\nconstexpr Autoreset AUTORESET = {constant};"
