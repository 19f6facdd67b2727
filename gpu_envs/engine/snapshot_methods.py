"""The methods of environments for snapshots, forks and pickles."""

import abc
import dataclasses
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Self

import gymnasium
import numpy as np

from gpu_envs.engine.attributes import constructor_values
from gpu_envs.engine.locking import synchronized
from gpu_envs.engine.options import MAX_REPLICAS, Options, check_num_envs
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.snapshots import restore, snapshot_of
from gpu_envs.registry.catalog import pickle_key, portable_name, unpickled_spec
from gpu_envs.seeds import derived_seed


class SnapshotMethods(abc.ABC):
    """Snapshots, forks and pickles, for ``VectorEnv`` and ``MultiAgentEnv``."""

    num_envs: int
    output: str
    closed: bool
    render_mode: str | None
    _env_spec: Any
    _options: Options
    _sim: Simulation
    _report_frozen: bool
    _lock: AbstractContextManager[bool]

    @abc.abstractmethod
    def __init__(self, spec: Any, num_envs: int = 1, **kwargs: Any) -> None:
        """Create the replicas."""

    @synchronized
    def get_state(self, replicas: Any = None) -> MutableMapping[str, Any]:
        """Return a snapshot of everything that trajectories depend on: state, episodes, seeds and parameters.

        Args:
            replicas: A mask or indices, in the order of the snapshot; None for all. The host does not wait for indices
                on a GPU: ``check`` raises an error if an index was out of range.
        """
        self._check_open()
        snapshot = snapshot_of(self._sim, replicas)
        return snapshot.on_host() if self.output == "numpy" and self._sim.backend.device != "cpu" else snapshot

    @synchronized
    def set_state(self, state: Mapping[str, Any], replicas: Any = None, randomness: str = "kept") -> None:
        """Restore a snapshot of ``get_state``, from this or another environment of the same kind.

        Observations follow the restored state from the next ``observe`` or step on. A snapshot in the simulation's own
        memory is copied on the device. The host then waits only if all replicas share an array parameter, or if the
        snapshot has all replicas and code has accessed a part of it. A snapshot on the host is checked before anything
        changes if code has accessed a part of it.

        Args:
            state: A snapshot of as many replicas as are written, or of one replica, which all of them then continue.
            replicas: The replicas to write, a mask or indices without repetition (not checked for indices on a GPU);
                None for all.
            randomness: ``kept``: replicas continue with the random numbers of the snapshot, so that several copies of
                one replica see the same. ``fresh``: with random numbers that differ between replicas and calls, and
                depend on the seed of the last reset and the number of such calls since.

        Example:
            >>> env = gpu_envs.make("CartPole-v1", num_envs=2)
            >>> observations, infos = env.reset(seed=0)
            >>> snapshot = env.get_state()
            >>> first = env.rollout(100)
            >>> env.set_state(snapshot)
            >>> second = env.rollout(100)
            >>> bool((first.observations == second.observations).all())
            True
        """
        self._check_open()
        restore(self._sim, state, replicas, randomness)

    @synchronized
    def fork(self, k: int, *, randomness: str = "kept") -> Self:
        """Create an environment with ``k`` copies of each replica: copies 0 to k-1 continue replica 0, and so on.

        Args:
            k: Number of copies of each replica.
            randomness: ``kept`` or ``fresh``, see ``set_state``.
        """
        self._check_ready("fork")
        k = check_num_envs(k, "k")
        first_replica = self._options.first_replica * k % MAX_REPLICAS  # the replicas before these have k copies too
        arguments = dataclasses.asdict(self._options) | {"num_envs": self.num_envs * k, "first_replica": first_replica}
        per_replica = self._sim.layout.per_replica - self._sim.drawn.keys()
        values = constructor_values(self._sim).items()
        params: dict[str, Any] = {n: np.repeat(v, k, 0) if n in per_replica else v for n, v in values}
        twin = type(self)(self._sim.config.spec, **arguments, render_mode=self.render_mode, **params)
        twin._env_spec = self._env_spec
        before = self._sim.randomness
        self._sim.randomness = {**before, "calls": before["calls"] + 1}
        snapshot = snapshot_of(self._sim)
        snapshot.randomness = {"seed": derived_seed(before["seed"], "fork", before["calls"]), "calls": 0}
        twin._sim.randomness = snapshot.randomness
        restore(twin._sim, snapshot, None, randomness, copies=k)
        twin.allow_frozen_steps(not self._report_frozen and self._options.mode == "Disabled")
        return twin

    @synchronized
    def __getstate__(self) -> dict[str, Any]:
        """Return constructor arguments, rules and a snapshot, as text, numbers and NumPy arrays."""
        return {
            "id": self._env_spec.id,
            "place": portable_name(self._env_spec.id),
            "key": pickle_key(self._env_spec),
            "rules_text": self._sim.config.spec.rules_text,
            "arguments": {"num_envs": self.num_envs, **dataclasses.asdict(self._options)},
            "params": constructor_values(self._sim),
            "snapshot": dict(snapshot_of(self._sim).on_host()) if self._sim.ready and not self.closed else None,
            "closed": self.closed,
            "frozen_steps": not self._report_frozen,
            "render_mode": self.render_mode,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create an equal environment on this machine that continues from the pickled snapshot."""
        spec: Any = unpickled_spec(state["id"], state["place"], state["key"])
        arguments = {**state["arguments"], **state["params"], "render_mode": state["render_mode"]}
        type(self).__init__(self, spec.with_rules_text(state["rules_text"]), **arguments)
        self._env_spec = spec.with_observed_params(self._options.observe_params)
        if state["snapshot"] is not None:
            restore(self._sim, state["snapshot"])
        self.closed = state["closed"]
        self.allow_frozen_steps(state["frozen_steps"])

    @synchronized
    def allow_frozen_steps(self, allow: bool = True) -> None:
        """Allow or refuse steps of replicas whose episode is over, in Disabled mode; such steps change nothing."""
        self._report_frozen = self._options.mode == "Disabled" and not allow
        self._sim.set_step_flags(report_frozen=self._report_frozen)

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self._env_spec.id} is closed; make another")

    def _check_ready(self, method: str) -> None:
        """Raise an error if the environment is closed or was never reset."""
        self._check_open()
        if not self._sim.ready:
            raise gymnasium.error.ResetNeeded(f"call reset() before {method}()")
