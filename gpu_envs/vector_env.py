"""One Gymnasium ``VectorEnv`` that drives any single-agent spec."""

from collections.abc import Callable, Mapping
from typing import Any, Self, final

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from gpu_envs.backend.arrays import Array
from gpu_envs.codegen import RESULTS, SingleLayout
from gpu_envs.engine.actions import ActionReader, Actions
from gpu_envs.engine.batch import Batch
from gpu_envs.engine.program import OPTIONAL
from gpu_envs.engine.results import OutReader, Rollout, Step, given_for
from gpu_envs.engine.rollouts import checked_steps, rollout_arrays
from gpu_envs.engine.simulation import NOT_A_NUMBER, OUT_OF_RANGE
from gpu_envs.engine.turns import in_turn
from gpu_envs.seeds import Seeds
from gpu_envs.specs.single import EnvSpec

_OBSERVED = ("observations", "final_obs")
"""Results that are dicts where the observation space is a Dict."""


@final
class VectorEnv(Batch[EnvSpec, Array], gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Many replicas of one environment, stepped by one launch.

    With ``output="numpy"`` (the default) a step returns fresh arrays. With ``"torch"`` and ``"cupy"``, and with
    ``copy=False``, it returns the simulator's own memory, which the next step overwrites.

    It has the attributes of ``Batch`` too.

    Attributes:
        single_observation_space: Of one replica.
        single_action_space: Of one replica.
        observation_space: Of all replicas.
        action_space: Of all replicas.
    """

    def _prepare(self) -> None:
        sim, spec = self._sim, self._env_spec
        self._on_cpu, self._buffers = self.device == "cpu", sim.buffers
        self.single_observation_space: gymnasium.Space[Any] = spec.observation_space(sim.config.params)
        self.single_action_space: gymnasium.Space[Any] = spec.action_space(sim.config.params)
        self.observation_space: gymnasium.Space[Any] = batch_space(self.single_observation_space, self.num_envs)
        self.action_space: gymnasium.Space[Any] = batch_space(self.single_action_space, self.num_envs)
        self._reader = ActionReader(self.single_action_space, (self.num_envs,), self.device, sim.arrays, self.precision)
        layout = sim.layout
        assert isinstance(layout, SingleLayout)
        self._parts, self._keys = layout.parts, layout.keys
        affixes = ("", *(f".{key}" for key in self._keys))
        self._out = OutReader(sim.shapes, affixes, self.device, "key", sim.memory)
        self._everywhere = sim.arrays.from_numpy(np.ones(self.num_envs, bool)) if self._masked else None
        self._live_infos = {} if self._keys else self._infos_of_live()

    # --- Gymnasium's interface ---

    @in_turn
    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``, so that batches seeded 0 and 1 share all but one; those of two
                ``numpy.random.SeedSequence`` share none. Or a list with one seed, or None, for each. A seed begins a
                replica's episodes anew; without one the next episode follows.
            options: ``reset_mask`` (bools, ``[num_envs]``, NumPy, torch or CuPy), and the environment's own, which hold
                for this reset alone. It is not changed.

        Returns:
            The observations of all replicas, and infos: ``action_mask`` where the rules say what is possible.
        """
        seeds = self._begin(seed, options).seeds
        if isinstance(seeds, int) and (seed is not None or self._np_random is None):
            super().reset(seed=seeds)
        return self._result("observations"), self._masks(None)

    @in_turn
    def step(self, actions: Any, *, out: Step | None = None) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Steps every replica once.

        Args:
            actions: One for each replica: any array of the right shape, of any library.
            out: Arrays of your own to write into; they are returned in place of the simulator's.

        Returns:
            Observations, rewards, terminations, truncations and infos. Of a Dict the observations are a dict of arrays.

        Raises:
            ActionError: An action is out of range or not a number, and came from the host: nothing has changed.
                Those of the device are kept for ``check``.
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._check_ready("step")
        read = self._reader.read(actions)
        if read.host is not None:
            self._inspect(read)
        sim.step((read[:2],), self._out.read(out, (read,)) if out is not None else ())
        if self._followed:
            self._follow(stepped=True, out=out)
        if self._live and not self._keys:
            b, infos = self._buffers, dict(self._live_infos)
            if out is None:
                return b["observations"], b["rewards"], b["terminations"], b["truncations"], infos
            if all(getattr(out, name) is None for name in OPTIONAL):
                given = ((n, getattr(out, n)) for n in RESULTS[:4])
                observations, rewards, terminations, truncations = (b[n] if a is None else a for n, a in given)
                if out.action_mask is not None:
                    infos["action_mask"] = out.action_mask
                return observations, rewards, terminations, truncations, infos
        if self.output == "numpy" and read.host is None:
            sim.check()
        observations, rewards, terminations, truncations = (self._result(n, out) for n in RESULTS[:4])
        return observations, rewards, terminations, truncations, self._infos(out)

    @in_turn
    def rollout(self, steps: int, actions: Any = None, *, per_step: bool = False) -> Rollout:
        """Takes many steps in one launch. An episode that ends is followed at once by the next, as in SameStep.

        In Disabled mode it is not: a replica stays where its episode ends, gets no more reward, and keeps its flags.

        Args:
            steps: How many.
            actions: ``[steps, num_envs, ...]``; None: drawn uniformly in the kernel, from seed, episode and step.
            per_step: Give every step's results instead of their sums.

        Returns:
            The results. Only steps of the environments are counted: an episode that ended in an earlier step is
            restarted first.
        """
        sim = self._sim
        self._check_ready("rollout")
        steps, address, kind, read = checked_steps(steps), None, 0, None
        if actions is not None:
            read = self._reader.read(actions, steps)
            self._inspect_block(read)
            address, kind = read.address, read.kind
        results = self._rollout_arrays(steps, per_step, drawn=actions is None)
        numbers = self._numbers
        before = numbers.elapsed() if numbers is not None else None
        sim.rollout(steps, address, kind, per_step, results)
        if numbers is not None and before is not None:
            numbers.look_at_rollout(results, before)
        if self.output == "numpy" and read is not None and read.host is None:
            sim.check()
        counted = RESULTS[1:4] if per_step else ("reward_sum", "terminated", "truncated")
        named = ("observations", *counted, "random_actions", "episodes", "return_sum", "length_sum")
        given = {n: self._to_output(array) for n, array in results.items()}
        if self._keys:
            given["observations"] = {key: given.pop(f"observations.{key}") for key in self._keys}
        return Rollout(*(given.get(name) for name in named))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the window, if there is one; the garbage collector frees all else."""
        del kwargs
        self._renderer.close()

    @property
    def np_random_seed(self) -> tuple[int, ...] | None:  # type: ignore[override]  # a tuple, as SyncVectorEnv gives
        """Each replica's seed, or None before the first reset."""
        if not self._sim.ready:
            return None
        return tuple(int(s) for s in self._sim.arrays.read(self._buffers["seeds"]).view(np.uint64))

    # --- beyond Gymnasium's interface ---

    def direct_step(self) -> tuple[Callable[[int, int], None], tuple[Any, Array, Array, Array]]:
        """A step that looks at nothing, and the arrays it writes: observations, rewards, flags. Host only."""
        b, step, numbers = self._buffers, self._sim.direct_step(), self._numbers
        seen = {key: b[f"observations.{key}"] for key in self._keys} if self._keys else b["observations"]
        results = seen, b["rewards"], b["terminations"], b["truncations"]
        if numbers is None:
            return step, results

        def followed(actions: int, kind: int) -> None:
            step(actions, kind)
            numbers.look(stepped=True)

        return followed, results

    def locate_action(self, actions: Array) -> tuple[int, int]:
        """Address and element type of actions, as ``direct_step`` takes them."""
        return self._reader.read(actions)[:2]

    def fork(self, k: int, *, randomness: str = "kept") -> Self:
        """As ``Saving.fork``; Gymnasium's spec goes along."""
        twin = super().fork(k, randomness=randomness)
        twin.spec = self.spec
        return twin

    # --- pickling ---

    def __getstate__(self) -> dict[str, Any]:
        """What ``Batch`` says, and what Gymnasium knows of it."""
        return {**super().__getstate__(), "gymnasium": (self.spec, self._np_random, self._np_random_seed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes an equal environment, on this machine, that goes on where the other was."""
        super().__setstate__(state)
        self.spec, self._np_random, self._np_random_seed = state["gymnasium"]

    # --- helpers ---

    def _inspect(self, read: Actions) -> None:
        """Looks at actions that came from the host, before anything changes."""
        assert read.host is not None
        if self._on_cpu or self._report_frozen or self._reader.first_wrong(read.host):
            self._sim.inspect((read[:2],), (read.host,))

    def _inspect_block(self, read: Actions) -> None:
        if read.host is None:
            return
        wrong = self._reader.first_wrong(read.host)  # of every replica: those whose episode is over begin the next
        if wrong is not None:
            step, replica = wrong[:2]
            kind = OUT_OF_RANGE if self._reader.discrete else NOT_A_NUMBER
            where = f"step {step} of the block, {self._sim.config.name_of(replica)}"
            raise self._sim.action_error(kind, where, (read.host[step],), replica)

    def _result(self, name: str, out: Step | None = None) -> Any:
        given = getattr(out, name) if out is not None else None
        if self._keys and name in _OBSERVED:
            own = {key: given_for(given, key) for key in self._keys}
            return {k: self._given_out(self._buffers[f"{name}.{k}"]) if a is None else a for k, a in own.items()}
        return self._given_out(self._buffers[name]) if given is None else given

    def _last(self, name: str) -> Any:
        if self._keys and name in _OBSERVED:
            return {key: self._to_output(self._buffers[f"{name}.{key}"]) for key in self._keys}
        return self._to_output(self._buffers[name])

    def _masks(self, out: Step | None) -> dict[str, Any]:
        """What is possible, where the rules say so: of every replica."""
        if not self._masked:
            return {}
        return {
            "action_mask": self._result("action_mask", out),
            "_action_mask": np.ones(self.num_envs, bool) if self.output == "numpy" else self._everywhere,
        }

    def _infos_of_live(self) -> dict[str, Any]:
        """The infos of a step that returns the simulator's own memory: the same arrays every time."""
        b = self._buffers
        masks = {"action_mask": b["action_mask"], "_action_mask": self._everywhere} if self._masked else {}
        episode: dict[str, Any] = {}
        if self._statistics:
            episode = {"r": b["episode_return"], "l": b["episode_length"], **self.episode_metrics}
        return masks | self._ending(b["finished"], episode, b.get("final_obs"))

    def _ending(self, finished: Array, episode: Mapping[str, Array], final_obs: Any) -> dict[str, Any]:
        """The infos of the episodes that ended."""
        statistics = {"episode": episode, "_episode": finished} if self._statistics else {}
        if not self._same_step:
            return statistics
        final = {"final_obs": final_obs, "_final_obs": finished, "final_info": statistics, "_final_info": finished}
        return statistics | final

    def _infos(self, out: Step | None) -> dict[str, Any]:
        infos = self._masks(out)
        if not (self._statistics or self._same_step):
            return infos
        finished = self._given_out(self._buffers["finished"])
        if self.output == "numpy" and not finished.any():
            return infos
        ended = np.flatnonzero(finished) if self.output == "numpy" else None
        episode = self._episode(ended, out) if self._statistics else {}
        final_obs = self._ended("final_obs", ended if self.gives_copies else None, out) if self._same_step else None
        return infos | self._ending(finished, episode, final_obs)

    def _rollout_arrays(self, steps: int, per_step: bool, *, drawn: bool) -> dict[str, Array]:
        """Allocates what a rollout writes."""
        n, real = self.num_envs, self.precision
        rows = (steps, n) if per_step else (n,)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            **{f"observations{part.affix}": ((*rows, *part.space.shape), part.dtype) for part in self._parts},
            "reward_sum": ((n,), real),
            **dict.fromkeys(("terminated", "truncated", "episodes"), ((n,), "int32")),
        }
        if self.keeps_statistics:
            shapes |= {"return_sum": ((n,), real), "length_sum": ((n,), "int32")}
        if per_step:
            shapes |= {"rewards": (rows, real), "terminations": (rows, "bool"), "truncations": (rows, "bool")}
            if drawn:
                kind = "int64" if self._reader.discrete else "float32"
                shapes["random_actions"] = ((*rows, *(self.single_action_space.shape or ())), kind)
        return rollout_arrays(self._sim, steps, shapes)
