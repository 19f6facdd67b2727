"""The Gymnasium ``VectorEnv`` of every environment with a single agent."""

from collections.abc import Callable, Mapping
from typing import Any, Self, final

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from gpu_envs.backend.arrays import Array
from gpu_envs.codegen import RESULTS, SingleLayout
from gpu_envs.engine.actions import ActionReader, Actions
from gpu_envs.engine.batch import Batch
from gpu_envs.engine.locking import synchronized
from gpu_envs.engine.program import OPTIONAL_OUTPUTS
from gpu_envs.engine.results import OutReader, Rollout, Step, array_for_key
from gpu_envs.engine.rollouts import allocate_rollout, check_num_steps
from gpu_envs.engine.simulation import NOT_A_NUMBER, OUT_OF_RANGE
from gpu_envs.seeds import Seeds
from gpu_envs.specs.single import EnvSpec

_DICT_RESULTS = ("observations", "final_obs")
"""Results that are dicts if the observation space is a Dict."""


@final
class VectorEnv(Batch[EnvSpec, Array], gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Replicas of an environment with a single agent, all stepped by one launch.

    With ``output="numpy"`` (the default) a step returns fresh arrays. With ``"torch"`` and ``"cupy"``, and with
    ``copy=False``, it returns views of the simulation's memory, which the next step overwrites.

    Attributes:
        single_observation_space: Observation space of one replica.
        single_action_space: Action space of one replica.
        observation_space: Observation space of all replicas.
        action_space: Action space of all replicas.
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
        self._all_replicas = sim.arrays.from_numpy(np.ones(self.num_envs, bool)) if self._masked else None
        self._cached_infos = {} if self._keys else self._view_infos()

    # --- Gymnasium's interface ---

    @synchronized
    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start new episodes in all replicas, or in the replicas of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``, so that batches seeded 0 and 1 have all seeds but one in common, while
                the seeds of two ``numpy.random.SeedSequence`` differ. Or a list with a seed, or None, for each replica.
                A seed restarts a replica's sequence of episodes; without one the next episode of the sequence starts.
            options: ``reset_mask`` (bools, ``[num_envs]``, NumPy, torch or CuPy), and the environment's reset options,
                which apply to this reset only. The mapping is not modified.

        Returns:
            The observations of all replicas, and infos: ``action_mask`` for environments with action masks.

        Example:
            >>> env = gpu_envs.make("CartPole-v1", num_envs=4096)
            >>> observations, infos = env.reset(seed=0)
            >>> observations.shape
            (4096, 4)
        """
        seeds = self._reset(seed, options).seeds
        if isinstance(seeds, int) and (seed is not None or self._np_random is None):
            super().reset(seed=seeds)
        return self._result("observations"), self._mask_infos(None)

    @synchronized
    def step(self, actions: Any, *, out: Step | None = None) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step every replica once.

        Args:
            actions: An action for each replica: an array of any library with the right shape.
            out: Your arrays to write results into; they are returned instead of the simulation's.

        Returns:
            Observations, rewards, terminations, truncations and infos. For a Dict space, observations are a dict.

        Raises:
            ActionError: An action on the host is out of range or NaN; nothing has changed. For actions on the device,
                ``check`` raises the error later.

        Example:
            >>> env = gpu_envs.make("CartPole-v1", num_envs=4096)
            >>> observations, infos = env.reset(seed=0)
            >>> observations, rewards, terminations, truncations, infos = env.step(env.action_space.sample())
            >>> rewards.shape
            (4096,)
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._check_ready("step")
        read = self._reader.read(actions)
        if read.host is not None:
            self._check_actions(read)
        sim.step((read[:2],), self._out.read(out, (read,)) if out is not None else ())
        if self._has_post_step:
            self._post_step(stepped=True, out=out)
        if self._returns_views and not self._keys:
            b, infos = self._buffers, dict(self._cached_infos)
            if out is None:
                return b["observations"], b["rewards"], b["terminations"], b["truncations"], infos
            if all(getattr(out, name) is None for name in OPTIONAL_OUTPUTS):
                arrays = ((n, getattr(out, n)) for n in RESULTS[:4])
                observations, rewards, terminations, truncations = (b[n] if a is None else a for n, a in arrays)
                if out.action_mask is not None:
                    infos["action_mask"] = out.action_mask
                return observations, rewards, terminations, truncations, infos
        if self.output == "numpy" and read.host is None:
            sim.check()
        observations, rewards, terminations, truncations = (self._result(n, out) for n in RESULTS[:4])
        return observations, rewards, terminations, truncations, self._infos(out)

    @synchronized
    def rollout(self, steps: int, actions: Any = None, *, per_step: bool = False) -> Rollout:
        """Take many steps in one launch. When an episode ends, the next starts in the same step, as in SameStep.

        In Disabled mode a replica stays in its last state instead, gets no more reward, and keeps its flags.

        Args:
            steps: Number of steps.
            actions: ``[steps, num_envs, ...]``; None to draw them uniformly in the kernel, from seed, episode and step.
            per_step: Return every step's results instead of their sums.

        Returns:
            The results. Resets take no step: episodes that ended earlier are restarted before the first step.

        Example:
            >>> env = gpu_envs.make("CartPole-v1", num_envs=4096)
            >>> observations, infos = env.reset(seed=0)
            >>> result = env.rollout(1000)
            >>> print(f"{result.episode_returns.sum() / result.episodes.sum():.1f} steps per episode")
            22.1 steps per episode
        """
        sim = self._sim
        self._check_ready("rollout")
        steps, address, kind, read = check_num_steps(steps), None, 0, None
        if actions is not None:
            read = self._reader.read(actions, steps)
            self._check_action_block(read)
            address, kind = read.address, read.kind
        results = self._rollout_arrays(steps, per_step, drawn=actions is None)
        finite_check = self._finite_check
        before = finite_check.elapsed() if finite_check is not None else None
        sim.rollout(steps, address, kind, per_step, results)
        if finite_check is not None and before is not None:
            finite_check.check_rollout(results, before)
        if self.output == "numpy" and read is not None and read.host is None:
            sim.check()
        step_results = RESULTS[1:4] if per_step else ("reward_sum", "terminated", "truncated")
        names = ("observations", *step_results, "random_actions", "episodes", "return_sum", "length_sum")
        arrays = {n: self._to_output(array) for n, array in results.items()}
        if self._keys:
            arrays["observations"] = {key: arrays.pop(f"observations.{key}") for key in self._keys}
        return Rollout(*(arrays.get(name) for name in names))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the window, if there is one; the garbage collector frees memory and kernels."""
        del kwargs
        self._renderer.close()

    @property
    def np_random_seed(self) -> tuple[int, ...] | None:  # type: ignore[override]  # a tuple, as SyncVectorEnv gives
        """The seed of each replica, or None before the first reset."""
        if not self._sim.ready:
            return None
        return tuple(int(s) for s in self._sim.arrays.read(self._buffers["seeds"]).view(np.uint64))

    # --- beyond Gymnasium's interface ---

    def direct_step(self) -> tuple[Callable[[int, int], None], tuple[Any, Array, Array, Array]]:
        """Return a function that steps without checking actions, and the arrays of its results, for the CPU.

        The results are observations, rewards, terminations and truncations; ``locate_action`` returns the arguments.
        """
        b, step, finite_check = self._buffers, self._sim.direct_step(), self._finite_check
        observations = {key: b[f"observations.{key}"] for key in self._keys} if self._keys else b["observations"]
        results = observations, b["rewards"], b["terminations"], b["truncations"]
        if finite_check is None:
            return step, results

        def checked_step(actions: int, kind: int) -> None:
            step(actions, kind)
            finite_check.check(stepped=True)

        return checked_step, results

    def locate_action(self, actions: Array) -> tuple[int, int]:
        """Return the address and element type of actions, which are the arguments of a direct step."""
        return self._reader.read(actions)[:2]

    def fork(self, k: int, *, randomness: str = "kept") -> Self:
        """Create an environment with ``k`` copies of each replica; see ``SnapshotMethods.fork``."""
        twin = super().fork(k, randomness=randomness)
        twin.spec = self.spec
        return twin

    # --- pickling ---

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of ``Batch``, and Gymnasium's attributes."""
        return {**super().__getstate__(), "gymnasium": (self.spec, self._np_random, self._np_random_seed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create an equal environment on this machine that continues from the pickled snapshot."""
        super().__setstate__(state)
        self.spec, self._np_random, self._np_random_seed = state["gymnasium"]

    # --- helpers ---

    def _check_actions(self, read: Actions) -> None:
        """Raise an ActionError for invalid actions on the host, before anything changes."""
        assert read.host is not None
        if self._on_cpu or self._report_frozen or self._reader.first_invalid(read.host):
            self._sim.inspect((read[:2],), (read.host,))

    def _check_action_block(self, read: Actions) -> None:
        """Raise an ActionError for an invalid action of a rollout; actions on a GPU are not checked here."""
        if read.host is None:
            return
        index = self._reader.first_invalid(read.host)  # of all replicas, since ended episodes restart in the rollout
        if index is not None:
            step, replica = index[:2]
            kind = OUT_OF_RANGE if self._reader.discrete else NOT_A_NUMBER
            where = f"step {step} of the block, {self._sim.config.replica_name(replica)}"
            raise self._sim.action_error(kind, where, (read.host[step],), replica)

    def _result(self, name: str, out: Step | None = None) -> Any:
        user_arrays = getattr(out, name) if out is not None else None
        if self._keys and name in _DICT_RESULTS:
            by_key = {key: array_for_key(user_arrays, key) for key in self._keys}
            return {k: self._returned(self._buffers[f"{name}.{k}"]) if a is None else a for k, a in by_key.items()}
        return self._returned(self._buffers[name]) if user_arrays is None else user_arrays

    def _latest(self, name: str) -> Any:
        if self._keys and name in _DICT_RESULTS:
            return {key: self._to_output(self._buffers[f"{name}.{key}"]) for key in self._keys}
        return self._to_output(self._buffers[name])

    def _mask_infos(self, out: Step | None) -> dict[str, Any]:
        """Return the infos of action masks, which every replica has; empty for environments without masks."""
        if not self._masked:
            return {}
        return {
            "action_mask": self._result("action_mask", out),
            "_action_mask": np.ones(self.num_envs, bool) if self.output == "numpy" else self._all_replicas,
        }

    def _view_infos(self) -> dict[str, Any]:
        """Return the infos of steps that return views of the simulation's memory: the same arrays in every step."""
        b = self._buffers
        masks = {"action_mask": b["action_mask"], "_action_mask": self._all_replicas} if self._masked else {}
        episode: dict[str, Any] = {}
        if self._statistics:
            episode = {"r": b["episode_return"], "l": b["episode_length"], **self.episode_metrics}
        return masks | self._end_infos(b["finished"], episode, b.get("final_obs"))

    def _end_infos(self, finished: Array, episode: Mapping[str, Array], final_obs: Any) -> dict[str, Any]:
        """Return the infos about ended episodes: statistics and, in SameStep mode, final observations."""
        statistics = {"episode": episode, "_episode": finished} if self._statistics else {}
        if not self._same_step:
            return statistics
        final = {"final_obs": final_obs, "_final_obs": finished, "final_info": statistics, "_final_info": finished}
        return statistics | final

    def _infos(self, out: Step | None) -> dict[str, Any]:
        """Return a step's infos: action masks and ended episodes; arrays in ``out`` replace the environment's."""
        infos = self._mask_infos(out)
        if not (self._statistics or self._same_step):
            return infos
        finished = self._returned(self._buffers["finished"])
        if self.output == "numpy" and not finished.any():
            return infos
        ended = np.flatnonzero(finished) if self.output == "numpy" else None
        episode = self._episode(ended, out) if self._statistics else {}
        final_obs = (
            self._of_ended("final_obs", ended if self.returns_copies else None, out) if self._same_step else None
        )
        return infos | self._end_infos(finished, episode, final_obs)

    def _rollout_arrays(self, steps: int, per_step: bool, *, drawn: bool) -> dict[str, Array]:
        """Allocate the results of a rollout, by name; ``drawn``: whether the kernel draws the actions."""
        n, real = self.num_envs, self.precision
        rows = (steps, n) if per_step else (n,)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            **{f"observations{part.suffix}": ((*rows, *part.space.shape), part.dtype) for part in self._parts},
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
        return allocate_rollout(self._sim, steps, shapes)
