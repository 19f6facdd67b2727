"""One class that drives any environment with a team of agents, many replicas at a time, role by role."""

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
from gpu_envs.engine.results import OutReader, Rollout, Step
from gpu_envs.engine.rollouts import TeamRollout, checked_steps
from gpu_envs.engine.simulation import NOT_A_NUMBER, OUT_OF_RANGE
from gpu_envs.engine.turns import in_turn
from gpu_envs.errors import did_you_mean
from gpu_envs.seeds import Seeds
from gpu_envs.specs.team import TeamSpec

RoleArrays: TypeAlias = dict[str, Array]
"""An array for each role, ``[num_envs, agents of the role, ...]``."""

StepResult: TypeAlias = tuple[RoleArrays, RoleArrays, RoleArrays, RoleArrays, dict[str, Any]]


@final
class MultiAgentEnv(Batch[TeamSpec, RoleArrays]):
    """Many replicas of an environment with a team of agents, stepped by one launch.

    Observations, actions, rewards and ends of episodes are mappings from roles to arrays of all replicas and all agents
    of the role. With ``output="numpy"`` (the default) a step returns fresh arrays; with ``"torch"`` and ``"cupy"``, and
    with ``copy=False``, the simulator's own memory, which the next step overwrites.

    An agent that goes out is terminated in that step and sees that step's outcome; from then on it observes zeros, gets
    no reward, and what it does is ignored. A replica's episode is over when all its agents are terminated or truncated.

    It has the attributes of ``Batch`` too.

    Attributes:
        roles: The kinds of agents, in order.
        counts: How many agents each role has.
        possible_agents: The names of a replica's agents, role after role: ``tagger_0``, ...
        single_observation_spaces: By role, the observation space of one agent.
        single_action_spaces: By role, the action space of one agent.
        single_shared_spaces: By role, the space of what its agents see alike, where that is given once a replica.
        observation_spaces: By role, that of all replicas and agents of the role.
        action_spaces: By role, that of all replicas and agents of the role.
    """

    def _prepare(self) -> None:
        sim, layout = self._sim, self._sim.layout
        assert isinstance(layout, TeamLayout)
        self.metadata["name"] = self._env_spec.id
        self.roles = tuple(role.name for role in layout.roles)
        self.counts = {role.name: role.size for role in layout.roles}
        self.num_agents = layout.agents
        self.possible_agents = self._env_spec.agents(sim.config.params)
        self._seen = {r.name: r.seen for r in layout.roles}
        self.single_observation_spaces: dict[str, gymnasium.Space[Any]] = {r.name: r.observation for r in layout.roles}
        self.single_shared_spaces: dict[str, gymnasium.Space[Any]] = {
            r.name: r.seen.shared for r in layout.roles if r.apart and r.seen.shared is not None
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
        """By role, the space of all replicas and agents: made when asked for, being as large as what it bounds."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_observation_spaces.items()}

    @functools.cached_property
    def action_spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """By role, the space of the actions of all replicas and agents."""
        return {r: _batched(s, self.num_envs, self.counts[r]) for r, s in self.single_action_spaces.items()}

    # --- stepping ---

    @in_turn
    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[RoleArrays, dict[str, Any]]:
        """Begins new episodes in all replicas, or in those of a mask.

        Args:
            seed: Replica *i* gets ``seed + i``, so that batches seeded 0 and 1 share all but one; those of two
                ``numpy.random.SeedSequence`` share none. Or a list with one seed, or None, for each. A seed begins a
                replica's episodes anew; without one the next episode follows.
            options: ``reset_mask`` (bools, ``[num_envs]``); fields of the state to begin with, such as ``x``
                (``[num_agents]`` or ``[num_envs, num_agents]``); and the environment's own options. They hold for this
                reset alone.

        Returns:
            The observations of all replicas by role, and infos: ``alive`` by role, ``action_mask`` by role where the
            rules say what is possible, and with ``shared_observations=True`` those by role, ``[num_envs, numbers]``.
        """
        self._begin(seed, options)
        infos: dict[str, Any] = {"alive": self._result("alive")}
        if self._masked:
            infos["action_mask"] = self._result("action_mask")
        if self.single_shared_spaces:
            infos["shared_observations"] = self._result("shared_observations")
        return self._result("observations"), infos

    @property
    def shared_observations(self) -> RoleArrays:
        """What all agents of a role see alike, ``[num_envs, numbers]``; empty without ``shared_observations=True``."""
        return self._last("shared_observations")

    @in_turn
    def step(self, actions: Mapping[str, Any], *, out: Step | None = None) -> StepResult:
        """Steps every replica once.

        Args:
            actions: By role, one for each replica and agent: any array of the right shape, of any library.
            out: Arrays of your own to write into, by role; they are returned in place of the simulator's.

        Returns:
            Observations, rewards, terminations and truncations by role, and infos: ``alive`` by role; where the rules
            say what is possible, ``action_mask`` by role, of the state that is observed; in SameStep ``final_obs`` by
            role with the mask ``_final_obs``; with statistics ``episode`` (``r`` and ``l`` by role) with the mask
            ``_episode``. Masks of ends are of replicas. With ``shared_observations=True`` those by role, and
            in SameStep ``final_shared``.

        Raises:
            ActionError: The action of an agent in the game is a whole number out of range, or not a number, and came
                from the host: nothing has changed. Those of the device are kept for ``check``.
        """
        sim = self._sim
        if self.closed or not sim.ready:
            self._check_ready("step")
        read = self._read(actions)
        places = [(part.address, part.kind) for part in read]
        hosts = [part.host for part in read if part.host is not None]
        if hosts:  # some may be the device's: then the message leaves out what was given
            sim.inspect(places, hosts if len(hosts) == len(read) else ())
        sim.step(places, self._out.read(out, read) if out is not None else ())
        if self._followed:
            self._follow(stepped=True, out=out)
        if self.output == "numpy" and not hosts:
            sim.check()
        observations, rewards, terminations, truncations = (self._result(name, out) for name in RESULTS[:4])
        return observations, rewards, terminations, truncations, self._infos(out)

    @in_turn
    def rollout(self, steps: int, actions: Mapping[str, Any] | None = None, *, per_step: bool = False) -> Rollout:
        """Takes many steps, for which the host waits nowhere. An episode that ends is followed at once by the next.

        In Disabled mode it is not: a replica stays where its episode ends, gets no more reward, and keeps its flags.

        Args:
            steps: How many.
            actions: By role ``[steps, num_envs, agents, ...]``; None: drawn uniformly on the device, from seed, episode
                and step, among what masks allow.
            per_step: Give every step's results instead of their sums.

        Returns:
            The results, by role, but for ``episodes``. Only steps of the environments are counted: an episode that
            ended in an earlier step is restarted first. What all agents of a role see alike is the last step's, in
            ``shared_observations``.

        Raises:
            ActionError: An action is a whole number out of range, or not a number, and came from the host, of whatever
                agent: nothing has changed. Those that came from the device count of agents in the game, for ``check``.
        """
        sim = self._sim
        self._check_ready("rollout")
        steps, read = checked_steps(steps), None
        if actions is not None:
            read = self._read(actions, steps)
            self._inspect_block(read)
        sim.set_step_flags(report_frozen=False)
        try:
            results = self._rollout.run(steps, read, per_step=per_step, numbers=self._numbers)
        finally:
            sim.set_step_flags(report_frozen=self._report_frozen)
        if self.output == "numpy" and read is not None and any(part.host is None for part in read):
            sim.check()
        counted = RESULTS[1:4] if per_step else ("reward_sum", "terminated", "truncated")
        named = ("observations", *counted, "random_actions", "episodes", "return_sum", "length_sum")
        by_role: dict[str, Any] = {
            name: {role: self._to_output(results[f"{name}.{role}"]) for role in self.roles}
            for name in named
            if f"{name}.{self.roles[0]}" in results and (per_step or name != "random_actions")
        }
        given = by_role | {"episodes": self._to_output(results["episodes"])}
        return Rollout(*(given.get(name) for name in named))

    @functools.cached_property
    def _rollout(self) -> TeamRollout:
        return TeamRollout(self._sim)

    def _inspect_block(self, read: Sequence[Actions]) -> None:
        """Looks at actions of many steps that came from the host: nobody knows yet who will be in the game."""
        sim, layout = self._sim, self._sim.layout
        hosts = [part.host for part in read if part.host is not None]
        first = 0
        for count, reader, part in zip(self.counts.values(), self._readers, read, strict=True):
            wrong = None if part.host is None else reader.first_wrong(part.host)
            if wrong is not None:
                step, replica, agent = wrong[0], wrong[1], first + wrong[2]
                kind = OUT_OF_RANGE if reader.discrete else NOT_A_NUMBER
                who = layout.who(agent).removesuffix(", ")
                where = f"step {step} of the block, {sim.config.name_of(replica)}, {who}"
                known = [host[step] for host in hosts] if len(hosts) == len(read) else []
                raise sim.action_error(kind, where, known, replica, agent)
            first += count

    def _read(self, actions: Mapping[str, Any], steps: int | None = None) -> list[Actions]:
        if not isinstance(actions, Mapping):
            raise TypeError(f"actions are {type(actions).__name__}; give a mapping from roles to arrays: {self.roles}")
        found = []
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
                found.append(reader.read(actions[role], steps))
            except (TypeError, ValueError) as error:
                raise type(error)(f"role {role!r}: {error}") from None
        if len(actions) > len(found):
            unknown = next(role for role in actions if role not in self.roles)
            hint = did_you_mean(str(unknown), self.roles)
            raise ValueError(f"there is no role {unknown!r}{hint} There are: {', '.join(self.roles)}")
        return found

    def close(self) -> None:
        """Ends its use: closes the window, if there is one; the garbage collector frees all else."""
        self.closed = True
        self._renderer.close()

    @property
    def spec(self) -> TeamSpec:
        """What the environment is."""
        return self._env_spec

    # --- helpers ---

    def _result(self, name: str, out: Step | None = None) -> RoleArrays:
        given, own = getattr(out, name) if out is not None else None, self._buffers[name]
        if given is None:
            return dict(own) if self._live else {role: self._given_out(array) for role, array in own.items()}
        return {r: self._given_out(array) if given.get(r) is None else given[r] for r, array in own.items()}

    def _last(self, name: str) -> RoleArrays:
        return {role: self._to_output(array) for role, array in self._buffers[name].items()}

    def _infos(self, out: Step | None) -> dict[str, Any]:
        infos: dict[str, Any] = {"alive": self._result("alive")}
        if self._masked:
            infos["action_mask"] = self._result("action_mask", out)
        if self.single_shared_spaces:
            infos["shared_observations"] = self._result("shared_observations", out)
        if not (self._statistics or self._same_step):
            return infos
        finished = self._given_out(self._sim.buffers["finished"])
        if self.output == "numpy" and not finished.any():
            return infos
        ended = np.flatnonzero(finished) if self.output == "numpy" else None
        if self._statistics:
            infos |= {"episode": self._episode(ended, out), "_episode": finished}
        if self._same_step:
            for name in ("final_obs", *(["final_shared"] if self.single_shared_spaces else [])):
                infos[name] = self._ended(name, ended if self.gives_copies else None, out)
            infos["_final_obs"] = finished
        return infos


def _batched(space: gymnasium.Space[Any], num_envs: int, count: int) -> gymnasium.Space[Any]:
    """The space of all replicas and all agents of a role."""
    return batch_space(batch_space(space, count), num_envs)
