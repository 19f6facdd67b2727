"""Snapshots, forks and pickles of a batch of replicas."""

import abc
import dataclasses
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Self

import gymnasium
import numpy as np

from gpu_envs.engine.attributes import given_params
from gpu_envs.engine.options import MOST_REPLICAS, Options, check_num_envs
from gpu_envs.engine.simulation import Simulation
from gpu_envs.engine.snapshots import restore, snapshot_of
from gpu_envs.engine.turns import in_turn
from gpu_envs.registry.catalog import pickle_key, portable_name, unpickled_spec
from gpu_envs.seeds import derived_seed


class Saving(abc.ABC):
    """What of ``VectorEnv`` and ``MultiAgentEnv`` copies replicas out, in, and on."""

    num_envs: int
    output: str
    closed: bool
    render_mode: str | None
    _env_spec: Any
    _options: Options
    _sim: Simulation
    _report_frozen: bool
    _turn: AbstractContextManager[bool]

    @abc.abstractmethod
    def __init__(self, spec: Any, num_envs: int = 1, **kwargs: Any) -> None:
        """Makes the replicas."""

    @in_turn
    def get_state(self, replicas: Any = None) -> MutableMapping[str, Any]:
        """Copies out everything a trajectory depends on: state, episodes, seeds and parameters.

        Args:
            replicas: A mask, or numbers; the snapshot has them in this order. None: all. With arrays of numbers on a
                GPU nothing waits, and numbers that are no replica's are told of by ``check``.
        """
        self._check_open()
        kept = snapshot_of(self._sim, replicas)
        return kept.on_host() if self.output == "numpy" and self._sim.backend.device != "cpu" else kept

    @in_turn
    def set_state(self, state: Mapping[str, Any], replicas: Any = None, randomness: str = "kept") -> None:
        """Copies in what ``get_state`` gave, here or in another environment of the same kind.

        The observations are those of the written state from ``observe`` or the next step on. A snapshot that lies in
        the simulation's own memory is copied there, without waiting for the device unless replicas have an array
        parameter in common, or it is of all replicas and a part of it was read. One on the host of which a part was
        read is checked before anything changes.

        Args:
            state: Of as many replicas as are written, or of one, which all of them then continue.
            replicas: Which to write, a mask or numbers, each once (which nobody checks of numbers on a GPU); None: all.
            randomness: ``kept``: replicas go on with the random numbers of the snapshot, so that several of one moment
                see the same; ``fresh``: with numbers that differ from replica to replica and from call to call, and
                follow from the seed of the last reset and from how many such calls there were.
        """
        self._check_open()
        restore(self._sim, state, replicas, randomness)

    @in_turn
    def fork(self, k: int, *, randomness: str = "kept") -> Self:
        """Makes an environment in which ``k`` replicas continue each of these: 0 to k-1 replica 0, and so on.

        Args:
            k: How many.
            randomness: ``kept`` or ``fresh``, as of ``set_state``.
        """
        self._check_ready("fork")
        k = check_num_envs(k, "k")
        arguments = {**dataclasses.asdict(self._options), "num_envs": self.num_envs * k}
        arguments["first_replica"] = arguments["first_replica"] * k % MOST_REPLICAS  # those before these have forks too
        own = self._sim.layout.per_replica - self._sim.drawn.keys()
        given = given_params(self._sim).items()
        params: dict[str, Any] = {n: np.repeat(v, k, 0) if n in own else v for n, v in given}
        twin = type(self)(self._sim.config.spec, **arguments, render_mode=self.render_mode, **params)
        twin._env_spec = self._env_spec
        before = self._sim.randomness
        self._sim.randomness = {**before, "calls": before["calls"] + 1}
        kept = snapshot_of(self._sim)
        kept.randomness = {"seed": derived_seed(before["seed"], "fork", before["calls"]), "calls": 0}
        twin._sim.randomness = kept.randomness
        restore(twin._sim, kept, None, randomness, each=k)
        twin.allow_frozen_steps(not self._report_frozen and self._options.mode == "Disabled")
        return twin

    @in_turn
    def __getstate__(self) -> dict[str, Any]:
        """The arguments that made it, its rules, and where its trajectories are: text, numbers and NumPy's arrays."""
        return {
            "id": self._env_spec.id,
            "place": portable_name(self._env_spec.id),
            "key": pickle_key(self._env_spec),
            "rules_text": self._sim.config.spec.rules_text,
            "arguments": {"num_envs": self.num_envs, **dataclasses.asdict(self._options)},
            "params": given_params(self._sim),
            "snapshot": dict(snapshot_of(self._sim).on_host()) if self._sim.ready and not self.closed else None,
            "closed": self.closed,
            "frozen_steps": not self._report_frozen,
            "render_mode": self.render_mode,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes an equal environment, on this machine, that goes on where the other was."""
        spec: Any = unpickled_spec(state["id"], state["place"], state["key"])
        kept = spec.with_rules_text(state["rules_text"])
        type(self).__init__(self, kept, **state["arguments"], render_mode=state["render_mode"], **state["params"])
        self._env_spec = spec.with_observed_params(self._options.observe_params)
        if state["snapshot"] is not None:
            restore(self._sim, state["snapshot"])
        self.closed = state["closed"]
        self.allow_frozen_steps(state["frozen_steps"])

    @in_turn
    def allow_frozen_steps(self, allow: bool = True) -> None:
        """Whether in Disabled mode a replica may be stepped whose episode is over, which then changes nothing."""
        self._report_frozen = self._options.mode == "Disabled" and not allow
        self._sim.set_step_flags(report_frozen=self._report_frozen)

    def _check_open(self) -> None:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"this {self._env_spec.id} is closed; make another")

    def _check_ready(self, method: str) -> None:
        """Raises an error if the environment is closed, or was never reset."""
        self._check_open()
        if not self._sim.ready:
            raise gymnasium.error.ResetNeeded(f"call reset() before {method}()")
