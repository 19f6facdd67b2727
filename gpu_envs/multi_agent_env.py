"""The vectorised environment of every environment with several agents, with arrays by role."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from gpu_envs.backend.arrays import Array
from gpu_envs.codegen import RESULTS, TeamLayout
from gpu_envs.engine.actions import ActionReader, Actions
from gpu_envs.engine.batch import Batch
from gpu_envs.engine.locking import synchronized
from gpu_envs.engine.results import OutReader, Rollout, Step
from gpu_envs.engine.rollouts import TeamRollout, check_num_steps
from gpu_envs.engine.simulation import NOT_A_NUMBER, OUT_OF_RANGE
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.specs.team import TeamSpec

RoleArrays: TypeAlias = dict[str, Array]
"""An array for each role, ``[num_envs, agents of the role, ...]``."""

StepResult: TypeAlias = tuple[RoleArrays, RoleArrays, RoleArrays, RoleArrays, dict[str, Any]]


@final
class MultiAgentEnv(Batch[TeamSpec, RoleArrays]):
    """Replicas of an environment with several agents, all stepped by one launch.

    Observations, actions, rewards, terminations and truncations are mappings from roles to arrays of all replicas and
    all agents of the role. With ``output="numpy"`` (the default) a step returns fresh arrays; with ``"torch"`` and
    ``"cupy"``, and with ``copy=False``, it returns views of the simulation's memory, which the next step overwrites.

    An agent that becomes inactive is terminated in that step and observes its outcome. From then on it observes zeros,
    gets no reward, and its actions are ignored. A replica's episode ends when all agents are terminated or truncated.

    Attributes:
        roles: Names of the roles, in order.
        counts: Number of agents of each role.
        possible_agents: Names of a replica's agents, role after role: ``tagger_0``, ...
        single_observation_spaces: Observation space of one agent, by role.
        single_action_spaces: Action space of one agent, by role.
        single_shared_spaces: Space of the shared observations, by role; empty without ``shared_observations=True``.
        observation_spaces: Observation space of all replicas and agents of a role, by role.
        action_spaces: Action space of all replicas and agents of a role, by role.
    """

    def _prepare(self) -> None:
        sim, layout = self._sim, self._sim.layout
        assert isinstance(layout, TeamLayout)
        self.metadata["name"] = self._env_spec.id
        self.roles = tuple(role.name for role in layout.roles)
        self.counts = {role.name: role.size for role in layout.roles}
        self.num_agents = layout.agents
        self.possible_agents = self._env_spec.agents(sim.config.params)
        self._observation_parts = {r.name: r.observation_parts for r in layout.roles}
        self.single_observation_spaces: dict[str, gymnasium.Space[Any]] = {r.name: r.observation for r in layout.roles}
        self.single_shared_spaces: dict[str, gymnasium.Space[Any]] = {
            r.name: r.observation_parts.shared
            for r in layout.roles
            if r.separate_shared and r.observation_parts.shared is not None
        }
        self.single_action_spaces: dict[str, gymnasium.Space[Any]] = {r.name: r.action for r in layout.roles}
        self._readers = [
            ActionReader(r.action, (self.num_envs, r.size), self.device, sim.arrays, self.precision)
            for r in layout.roles
        ]
        self._out = OutReader(sim.shapes, [*(f".{role}" for role in self.roles), ""], self.device, memory=sim.memory)
        self._buffers = {
            name: {role: sim.buffers[f"{name}.{role}"] for role in self.roles if f"{name}.{role}" in sim.buffers}
            for name in (*RESULTS, "alive")
        }

    @functools.cached_property
    def observation_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """Observation spaces of all replicas and agents, by role; created on access, since bounds are large arrays."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_observation_spaces.items()}

    @functools.cached_property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """Action spaces of all replicas and agents, by role."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_action_spaces.items()}

    # --- stepping ---

    @synchronized
    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[RoleArrays, dict[str, Any]]:
        """Start new episodes in all replicas, or in the replicas of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``, so that batches seeded 0 and 1 have all seeds but one in common, while
                the seeds of two ``numpy.random.SeedSequence`` differ. Or a list with a seed, or None, for each replica.
                A seed restarts a replica's sequence of episodes; without one the next episode of the sequence starts.
            options: ``reset_mask`` (bools, ``[num_envs]``); initial values of fields of the state, such as ``x``
                (``[num_agents]`` or ``[num_envs, num_agents]``); and the environment's reset options. All apply to this
                reset only.

        Returns:
            The observations of all replicas by role, and infos: ``alive`` by role, ``action_mask`` by role for
            environments with action masks, and with ``shared_observations=True`` ``shared_observations`` by role,
            ``[num_envs, features]``.
        """
        self._reset(seed, options)
        return self._result("observations"), self._state_infos(None)

    @property
    def shared_observations(self) -> RoleArrays:
        """Observations that all agents of a role share, ``[num_envs, features]`` by role.

        Empty without ``shared_observations=True``.
        """
        return self._latest("shared_observations")

    @synchronized
    def step(self, actions: Mapping[str, Any], *, out: Step | None = None) -> StepResult:
        """Step every replica once.

        Args:
            actions: By role, an action for each replica and agent: arrays of any library with the right shape.
            out: Your arrays to write results into, by role; they are returned instead of the simulation's.

        Returns:
            Observations, rewards, terminations and truncations by role, and infos: ``alive`` by role; with action masks
            ``action_mask`` by role, for the observed state; in SameStep ``final_obs`` by role with the mask
            ``_final_obs``; with statistics ``episode`` (``r`` and ``l`` by role) with the mask ``_episode``. The masks
            are ``[num_envs]``. With ``shared_observations=True`` also ``shared_observations`` by role, and in SameStep
            ``final_shared``.

        Raises:
            ActionError: An active agent's action on the host is an integer out of range or NaN; nothing has changed.
                For actions on the device, ``check`` raises the error later.

        Example:
            >>> env = gpu_envs.make("SimpleTag-v3", num_envs=1000)
            >>> observations, infos = env.reset(seed=0)
            >>> actions = {role: space.sample() for role, space in env.action_spaces.items()}
            >>> observations, rewards, terminations, truncations, infos = env.step(actions)
            >>> {role: values.shape for role, values in rewards.items()}
            {'adversary': (1000, 3), 'agent': (1000, 1)}
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._check_ready("step")
        read = self._read(actions)
        addresses = [(part.address, part.kind) for part in read]
        hosts = [part.host for part in read if part.host is not None]
        if hosts:  # if some actions are on the device, the message contains no values
            sim.inspect(addresses, hosts if len(hosts) == len(read) else ())
        sim.step(addresses, self._out.read(out, read) if out is not None else ())
        if self._has_post_step:
            self._post_step(stepped=True, out=out)
        if self.output == "numpy" and not hosts:
            sim.check()
        observations, rewards, terminations, truncations = (self._result(name, out) for name in RESULTS[:4])
        return observations, rewards, terminations, truncations, self._infos(out)

    @synchronized
    def rollout(self, steps: int, actions: Mapping[str, Any] | None = None, *, per_step: bool = False) -> Rollout:
        """Take many steps without waiting for the device. A step that ends an episode also starts the next one.

        In Disabled mode a replica stays in its last state instead, gets no more reward, and keeps its flags.

        Args:
            steps: Number of steps.
            actions: By role ``[steps, num_envs, agents, ...]``; None to draw them on the device, from seed, episode and
                step, uniformly among the choices that masks allow.
            per_step: Return every step's results instead of their sums.

        Returns:
            The results by role, except for ``episodes``. Resets take no step: episodes that ended earlier are restarted
            before the first step. ``env.shared_observations`` has the shared observations of the last step.

        Raises:
            ActionError: An action on the host is an integer out of range or NaN, also of an inactive agent; nothing has
                changed. For actions of active agents on the device, ``check`` raises the error later.
        """
        sim = self._sim
        self._check_ready("rollout")
        steps, read = check_num_steps(steps), None
        if actions is not None:
            read = self._read(actions, steps)
            self._check_action_block(read)
        sim.set_step_flags(report_frozen=False)
        try:
            results = self._rollout.run(steps, read, per_step=per_step, finite_check=self._finite_check)
        finally:
            sim.set_step_flags(report_frozen=self._report_frozen)
        if self.output == "numpy" and read is not None and any(part.host is None for part in read):
            sim.check()
        step_results = RESULTS[1:4] if per_step else ("reward_sum", "terminated", "truncated")
        names = ("observations", *step_results, "random_actions", "episodes", "return_sum", "length_sum")
        by_role: dict[str, Any] = {
            name: {role: self._to_output(results[f"{name}.{role}"]) for role in self.roles}
            for name in names
            if f"{name}.{self.roles[0]}" in results and (per_step or name != "random_actions")
        }
        arrays = by_role | {"episodes": self._to_output(results["episodes"])}
        return Rollout(*(arrays.get(name) for name in names))

    @functools.cached_property
    def _rollout(self) -> TeamRollout:
        return TeamRollout(self._sim)

    def _check_action_block(self, read: Sequence[Actions]) -> None:
        """Raise an ActionError for an invalid action of a rollout on the host, of any agent: all may become active."""
        sim, layout = self._sim, self._sim.layout
        hosts = [part.host for part in read if part.host is not None]
        first = 0
        for count, reader, part in zip(self.counts.values(), self._readers, read, strict=True):
            index = None if part.host is None else reader.first_invalid(part.host)
            if index is not None:
                step, replica, agent = index[0], index[1], first + index[2]
                kind = OUT_OF_RANGE if reader.discrete else NOT_A_NUMBER
                who = layout.agent_label(agent).removesuffix(", ")
                where = f"step {step} of the block, {sim.config.replica_name(replica)}, {who}"
                step_actions = [host[step] for host in hosts] if len(hosts) == len(read) else []
                raise sim.action_error(kind, where, step_actions, replica, agent)
            first += count

    def _read(self, actions: Mapping[str, Any], steps: int | None = None) -> list[Actions]:
        """Return each role's actions, of one step or of ``steps``; raise an error for a wrong role, shape or type."""
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions are {type(actions).__name__}; give a mapping from roles to arrays: {self.roles}")
        read = []
        for role, reader in zip(self.roles, self._readers, strict=True):
            if role not in actions:
                shapes = {
                    r: (self.num_envs, self.counts[r], *(s.shape or ())) for r, s in self.single_action_spaces.items()
                }
                raise ValueError(
                    f"actions of the role {role!r} are missing; got {sorted(map(str, actions))}. Give an array for "
                    f"each role: {', '.join(f'{r!r} {list(shape)}' for r, shape in shapes.items())}"
                )
            try:
                read.append(reader.read(actions[role], steps))
            except (TypeError, ValueError) as error:
                raise type(error)(f"role {role!r}: {error}") from None
        if len(actions) > len(read):
            unknown = next(role for role in actions if role not in self.roles)
            hint = did_you_mean(str(unknown), self.roles)
            raise ValueError(f"no role is named {unknown!r}{hint} Roles: {', '.join(self.roles)}")
        return read

    def close(self) -> None:
        """Close the environment and its window, if there is one; the garbage collector frees memory and kernels."""
        self.closed = True
        self._renderer.close()

    @property
    def spec(self) -> TeamSpec:
        """The environment's spec."""
        return self._env_spec

    # --- helpers ---

    def _result(self, name: str, out: Step | None = None) -> RoleArrays:
        user_arrays, buffers = getattr(out, name) if out is not None else None, self._buffers[name]
        if user_arrays is None:
            return dict(buffers) if self._returns_views else {r: self._returned(array) for r, array in buffers.items()}
        return {r: self._returned(a) if user_arrays.get(r) is None else user_arrays[r] for r, a in buffers.items()}

    def _latest(self, name: str) -> RoleArrays:
        return {role: self._to_output(array) for role, array in self._buffers[name].items()}

    def _state_infos(self, out: Step | None) -> dict[str, Any]:
        """Return the infos of a reset or step except those about ended episodes."""
        infos: dict[str, Any] = {"alive": self._result("alive")}
        if self._masked:
            infos["action_mask"] = self._result("action_mask", out)
        if self.single_shared_spaces:
            infos["shared_observations"] = self._result("shared_observations", out)
        return infos

    def _infos(self, out: Step | None) -> dict[str, Any]:
        """Return a step's infos by role; arrays in ``out`` replace the environment's."""
        infos = self._state_infos(out)
        if not (self._statistics or self._same_step):
            return infos
        finished = self._returned(self._sim.buffers["finished"])
        if self.output == "numpy" and not finished.any():
            return infos
        ended = np.flatnonzero(finished) if self.output == "numpy" else None
        if self._statistics:
            infos |= {"episode": self._episode(ended, out), "_episode": finished}
        if self._same_step:
            for name in ("final_obs", *(["final_shared"] if self.single_shared_spaces else [])):
                infos[name] = self._of_ended(name, ended if self.returns_copies else None, out)
            infos["_final_obs"] = finished
        return infos


def _batched(space: gymnasium.Space[Any], num_envs: int, count: int) -> gymnasium.Space[Any]:
    """Return the space of all replicas and all ``count`` agents of a role, given the space of one agent."""
    return batch_space(batch_space(space, count), num_envs)
