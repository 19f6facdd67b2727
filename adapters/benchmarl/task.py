"""A BenchMARL task for any team environment of this package."""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from benchmarl.environments import TaskClass
from gymnasium.spaces import Box, Discrete
from torchrl.data import Composite
from torchrl.envs import EnvBase

import gpu_envs
from gpu_envs.adapters.torchrl import Env
from gpu_envs.adapters.torchrl.specs import MASK
from gpu_envs.specs.team import TeamSpec

_KINDS: Final = {"continuous_actions": (False, True), "actions": ("discrete", "continuous")}
"""Values, for discrete and for continuous actions, of parameters that choose between them."""


@final
class Task(TaskClass):
    """A task whose environment is ``gpu_envs.adapters.torchrl.Env``, with a group of agents for each role.

    Its name is the environment's id. Agents act and learn until their replica ends, also if they are inactive:
    BenchMARL's losses have no mask for agents. Policies observe what the environment's agents observe.

    Example::

        Experiment(Task("SimpleSpread-v3", N=5), MappoConfig.get_from_yaml(), model, seed=0, config=config).run()
    """

    def __init__(self, env: str, **options: Any) -> None:
        """Describe the environment, which BenchMARL makes.

        Args:
            env: The id of a team environment, or a path such as ``my_env.py:MY_ENV``.
            **options: Parameters of the environment, and arguments of ``gpu_envs.make`` other than the number of
                replicas, the seed and the device, which BenchMARL's experiment has.
        """
        spec = gpu_envs.spec(env)
        for name in ("num_envs", "seed", "device"):
            if name in options:
                raise ValueError(f"{name} is {options[name]!r}: leave it out, BenchMARL's experiment sets it")
        super().__init__(name=spec.id, config=options)
        self.env: Final = env
        if not isinstance(spec, TeamSpec):
            teams = ", ".join(name for name in gpu_envs.ids() if isinstance(gpu_envs.spec(name), TeamSpec))
            raise ValueError(
                f"{spec.id} has a single agent, but BenchMARL trains teams: give the id of a team environment: {teams}"
            )
        if not (self.supports_continuous_actions() or self.supports_discrete_actions()):
            kinds = ", ".join(f"{role}: {space}" for role, space in self._spaces.items())
            given = [f"; leave {name} out, so that BenchMARL chooses it" for name in _KINDS if name in options]
            raise ValueError(
                f"{spec.id} has the action spaces {kinds}, but BenchMARL's algorithms need Box for all agents, or "
                f"Discrete for all{''.join(given)}"
            )

    @property
    def _choice(self) -> str | None:
        """The parameter that chooses between kinds of actions, unless the task's configuration sets it."""
        return next((n for n in _KINDS if n not in self.config and self._accepts(n)), None)

    def _accepts(self, name: str) -> bool:
        param, values = gpu_envs.spec(self.env).params.get(name), _KINDS[name]
        if param is None:
            return False
        return isinstance(param.default, bool) if False in values else {*values} <= {*param.choices}

    def _options(self, *, continuous: bool) -> dict[str, Any]:
        chosen = {} if self._choice is None else {self._choice: _KINDS[self._choice][continuous]}
        return {**self.config, **chosen}

    @property
    def _spaces(self) -> Mapping[str, Any]:
        """The action space of an agent of each role, with discrete actions if there is a choice."""
        env: Any = gpu_envs.make(self.env, device="cpu", **self._options(continuous=False))
        env.close()
        return dict(env.single_action_spaces)

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Return a function that makes the environment: arguments as BenchMARL passes them."""
        options = self._options(continuous=continuous_actions)
        return lambda: Env(self.env, num_envs, seed=seed, device=str(device), **options)

    def supports_continuous_actions(self) -> bool:
        """Whether all agents can have Box actions."""
        return self._choice is not None or all(isinstance(space, Box) for space in self._spaces.values())

    def supports_discrete_actions(self) -> bool:
        """Whether all agents have Discrete actions, if there is a choice."""
        return all(isinstance(space, Discrete) for space in self._spaces.values())

    def max_steps(self, env: EnvBase) -> int:
        """Return the step at which episodes are truncated."""
        made: Any = env
        while not isinstance(made, Env):
            made = made.base_env
        limit = made.env.max_episode_steps
        if limit is None:
            raise ValueError(
                f"episodes of {self.name} have no limit, which BenchMARL's evaluation needs: give max_episode_steps"
            )
        return int(limit)

    def has_render(self, env: EnvBase) -> bool:
        """BenchMARL draws no videos of these environments: ``gpu_envs.rendering`` and replays do."""
        del env
        return False

    def group_map(self, env: EnvBase) -> dict[str, list[str]]:
        """Return the agents of each role."""
        agents: dict[str, list[str]] = env.group_map
        return agents

    def observation_spec(self, env: EnvBase) -> Composite:
        """Return the spec of each role's observations, without masks of agents and actions."""
        return _selected(env.full_observation_spec_unbatched, lambda key: key not in ("mask", MASK))

    def action_mask_spec(self, env: EnvBase) -> Composite | None:
        """Return the spec of each role's action masks, if the environment has any."""
        masks = _selected(env.full_observation_spec_unbatched, lambda key: key == MASK)
        return masks if masks.keys(True, True) else None

    def action_spec(self, env: EnvBase) -> Composite:
        """Return the spec of each role's actions."""
        spec: Composite = env.full_action_spec_unbatched
        return spec

    def info_spec(self, env: EnvBase) -> Composite | None:
        """Return None: there is no information besides observations."""
        del env
        return None

    def state_spec(self, env: EnvBase) -> Composite | None:
        """Return None: central critics get the observations of all agents of a group."""
        del env
        return None

    @staticmethod
    def env_name() -> str:
        """Return the name that tables and files of BenchMARL have for these tasks."""
        return "gpu_envs"


def _selected(spec: Composite, keep: Callable[[str], bool]) -> Composite:
    """Return a copy of a spec of groups without the entries of other keys."""
    copied = spec.clone()
    for group, entries in spec.items():
        for key in entries:
            if not keep(key):
                del copied[group, key]
    return copied
