"""The settings of a training run: a tree of dataclasses that defines command-line options and settings files, too.

Every setting also has a flat name, such as ``tau``, or ``runner.tau`` for a single policy. Flat names are used on the
command line, in TOML, in the run directory and when a run is resumed.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, final

from gpu_envs.backend.background import available_threads
from gpu_envs.backend.host import MAX_THREADS
from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.registry.catalog import portable_name
from gpu_envs.registry.sources import parse_spec_path
from gpu_envs.specs.distributions import stored
from gpu_envs.training.algorithms import ALGORITHMS, PPO, Algorithm, OffPolicy
from gpu_envs.training.policy import Network, Policy, check_algorithm_and_network, check_supported, settings_for
from gpu_envs.training.recurrent_settings import Memory
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import MAX_COUNT, MAX_STEPS, Setting, Settings, as_int, setting, settings_of

AUTO: Final = "auto"


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """Settings of a training run."""

    env: str
    """Environment ID, such as CartPole-v1, or the location of a spec, such as path/to/my_env.py:MY_ENV."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Environment parameters by name; a distribution is written as text, such as uniform:0.05:0.4."""
    algorithm: Algorithm = PPO()
    """Algorithm of the learning policies; a Policy may override it."""
    network: Network = Network()
    """Network of the learning policies; a Policy may override it."""
    policies: Mapping[str, "str | Policy"] = dataclasses.field(default_factory=dict)
    """Policy of each role or agent (tagger, runner_0): a name, which several may share; random; or frozen:RUN or
    frozen:RUN:POLICY for a policy of another run. By default each role learns a policy of the same name. In Python a
    Policy, keyed by the name of a role or of a shared policy, overrides the algorithm or the network."""
    callbacks: tuple[str, ...] = setting((), resume=True)
    """Callbacks that the run makes, such as my_callbacks.py:Stopper or package.module:NAME: an object, or a class or
    function that makes one when called without arguments."""
    seed: int = setting(0, minimum=0)
    """Seed of weights, actions, minibatches and environments."""
    device: str = setting("auto", resume=True)
    """Device: auto (CUDA if available, else the CPU), cpu, cuda or cuda:N."""

    total_steps: int = setting(10_000_000, minimum=1, maximum=MAX_STEPS, resume=True)
    """Environment steps of the run, summed over all replicas."""
    num_envs: int | Literal["auto"] = setting(1024, minimum=1, maximum=MAX_COUNT)
    """Replicas of the environment per GPU; auto: as many as train fastest, measured before the run starts."""
    gpus: int = setting(1, minimum=1, maximum=2**16)
    """GPUs that train together, one process each; on the CPU the number of processes."""
    since: tuple[int, int] = (0, 0)
    """Updates and steps done when ``gpus`` or the steps per update last changed."""
    horizon: int = setting(32, minimum=1, maximum=MAX_COUNT)
    """Steps of each replica between two updates."""
    frame_stack: int = setting(1, minimum=1, maximum=2**16)
    """Number of an episode's last observations that policies see; before there are as many, the first is repeated."""
    stagger: bool = setting(False)
    """Whether each replica's first episode is cut at a random step, so that replicas do not reset simultaneously."""

    target_return: float | None = setting(None, minimum=-1e30, maximum=1e30, resume=True)
    """Mean return of the last 100 episodes at which the run stops; None: no target."""
    target_role: str | None = setting(None, automatic=True, resume=True)
    """Role that target_return refers to; None: the first that learns."""
    run_dir: str | None = setting(None, automatic=True)
    """Run directory for settings, logs and checkpoints; None: a new folder in runs/; empty: nothing is saved."""
    log_interval: int = setting(10, minimum=1, maximum=MAX_STEPS, resume=True)
    """Updates between two rows of the log."""
    checkpoint_interval: int = setting(200, minimum=0, maximum=MAX_STEPS, resume=True)
    """Updates between two checkpoints; 0: only one at the end."""
    keep_checkpoints: int = setting(3, minimum=1, maximum=MAX_STEPS, resume=True)
    """Number of checkpoints to keep; older ones are deleted."""
    keep_buffer: bool = setting(True, resume=True)
    """Whether checkpoints include replay buffers; without them a resumed run refills its buffer before it learns."""
    graphs: bool | None = setting(None, automatic=True, resume=True)
    """Whether rollout and update are captured in CUDA graphs; None: where possible."""
    threads: int | None = setting(None, automatic=True, minimum=1, maximum=MAX_THREADS, resume=True)
    """Maximum number of CPU threads; None: one per core, and in torch a single one if kernels compute all networks, or
    if minibatches are small."""

    def __new__(cls, **settings: Any) -> "Run":
        """Raise a TypeError that names the owner of a setting that belongs to the algorithm or the network."""
        for name, value in settings.items():
            owners = [owner.__name__ for owner in (*ALGORITHMS.values(), Network) if name in settings_of(owner)]
            if owners:
                part = "network" if owners == ["Network"] else "algorithm"
                which = "" if part == "network" else f" ({', '.join(owners)})"
                raise TypeError(f"{name} is a setting of the {part}{which}: give {part}={owners[0]}({name}={value!r})")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Validate and convert every setting."""
        try:
            object.__setattr__(self, "run_dir", None if self.run_dir is None else os.fsdecode(self.run_dir))
        except TypeError:
            raise ValueError(f"run_dir is {self.run_dir!r}; give a path, '' for none, or None") from None
        super().__post_init__()
        if not isinstance(self.env, str):
            raise ValueError(f"env is {self.env!r}; give an environment ID, or the location of a spec")
        for name, example in (("params", "{'gravity': 9.8}"), ("policies", "{'runner': 'random'}")):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name} is {value!r}; give a mapping by name, such as {example}")
        check_algorithm_and_network(self)
        for role, policy in self.policies.items():
            if not isinstance(policy, Policy) and not (isinstance(policy, str) and policy.isprintable()):
                raise ValueError(f"policies gives {role!r} {policy!r}; give a Policy, or a printable policy name")
            if isinstance(policy, Policy) and role in NAMES:
                raise ValueError(
                    f"policies names a policy {role!r}, which is the name of a setting; give the policy another name, "
                    "as in policies={'runner': 'main', 'main': Policy(...)}"
                )
        paths = {str(parse_spec_path(place) or place): None for place in self.callbacks}  # absolute, once each
        object.__setattr__(self, "callbacks", tuple(paths))
        since = tuple(map(as_int, self.since)) if isinstance(self.since, list | tuple) else ()
        if len(since) != 2 or None in since:
            raise ValueError(f"since is {self.since!r}; give two integers, of updates and of steps")
        object.__setattr__(self, "params", {name: stored(value) for name, value in self.params.items()})
        object.__setattr__(self, "policies", dict(self.policies))
        object.__setattr__(self, "since", since)
        self._check_params()
        for name, value in vars(self.network).items():
            if value != getattr(Network, name):
                check_supported(self.algorithm.name, name)
        self._check_buffer()
        for name in self.policy_overrides:
            try:
                self.for_policy(name)
            except ValueError as error:
                raise ValueError(f"policy {name!r}: {error}") from None

    def _check_params(self) -> None:
        """Raise a ValueError for environment options in ``params`` that the trainer sets or does not support."""
        for name in _TRAINER_OPTIONS:
            if name in self.params:
                instead = f"give the run's setting {name}" if name in SETTINGS else "leave it out"
                raise ValueError(f"params names {name}, which the trainer sets; {instead}")
        if self.params.get("precision", "float32") != "float32":
            precision = self.params["precision"]
            raise ValueError(f"params names precision={precision!r}; training is in float32: leave it out")
        if self.params.get("statistics", True) is False:
            raise ValueError("params names statistics=False, but the trainer needs episode statistics; leave it out")

    def _check_buffer(self) -> None:
        """Raise a ValueError if a replay buffer cannot hold a horizon and an n-step return."""
        algorithm = self.algorithm
        if isinstance(algorithm, OffPolicy) and algorithm.buffer_size <= max(self.horizon, algorithm.n_step):
            raise ValueError(
                f"buffer_size is {algorithm.buffer_size}, horizon is {self.horizon} and n_step is {algorithm.n_step}: "
                "give a buffer_size above both, since one slot of the buffer is always free"
            )

    @property
    def policy_overrides(self) -> dict[str, Policy]:
        """The policies that override the run's algorithm or network, by name."""
        return {name: policy for name, policy in self.policies.items() if isinstance(policy, Policy)}

    def for_policy(self, name: str) -> "Run":
        """Return the run with the policy ``name``'s algorithm and network in place of the run's, and no overrides."""
        policy = self.policy_overrides.get(name, Policy())
        algorithm = policy.algorithm or self.algorithm
        network = policy.network or Network(**settings_for(algorithm.name, vars(self.network)))
        policies = dict(self.policies) | {role: role for role in self.policy_overrides}
        return dataclasses.replace(self, algorithm=algorithm, network=network, policies=policies)

    @property
    def variants(self) -> tuple["Run", ...]:
        """The run itself, and the run with the algorithm and network of each ``Policy``."""
        return (self, *map(self.for_policy, self.policy_overrides))

    def fixed_policy_settings(self) -> dict[str, Any]:
        """Return the algorithm and network settings that a resumed run cannot change, by flat name."""
        return {name: value for name, value in _flat_policy(self).items() if name not in CHANGEABLE}

    @property
    def replicas(self) -> int:
        """``num_envs`` as an integer; raises a ValueError if it is still "auto"."""
        if self.num_envs == AUTO:
            raise ValueError(
                f"num_envs is {AUTO!r}: call gpu_envs.training.train, or choose_num_envs to turn it into a number"
            )
        return self.num_envs

    @property
    def iterations(self) -> int:
        """Total number of updates, at least one."""
        updates, steps = self.since
        return max(1, updates + -(-(self.total_steps - steps) // self.steps_per_update))

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates, summed over the replicas of all GPUs."""
        return self.gpus * self.replicas * self.horizon

    def steps_at(self, iteration: Any) -> Any:
        """Return the environment steps of all replicas after ``iteration`` updates, a number or a tensor."""
        updates, steps = self.since
        return steps + (iteration - updates) * self.steps_per_update

    @property
    def minibatch_size(self) -> int:
        """Approximate number of samples in a minibatch."""
        if isinstance(self.algorithm, OffPolicy):
            return self.algorithm.batch_size
        return self.replicas * self.horizon // self.algorithm.passes[1]

    @property
    def kernel_threads(self) -> int | None:
        """Maximum number of CPU threads of a process's kernels: ``threads``, or its share of the cores; None: all."""
        shared = self.threads is None and self.gpus > 1
        return max(1, available_threads() // self.gpus) if shared else self.threads

    @property
    def torch_threads(self) -> int | None:
        """Maximum number of torch's CPU threads: ``threads``, or 1 if minibatches are small; None: one per core."""
        # Several help with large minibatches only, and are ten times slower than one if other processes compete for
        # their cores. The threads of kernels notice that, and then use a single one.
        work = max(run.minibatch_size * max(run.network.hidden) for run in self.variants)
        return 1 if self.threads is None and work <= _SINGLE_THREAD_WORK else self.threads

    def flat(self) -> dict[str, Any]:
        """Return all settings by flat name, as JSON values; a ``Policy`` adds settings that differ from the run's."""
        policies = {role: policy for role, policy in self.policies.items() if isinstance(policy, str)}
        shared: dict[str, Any] = {"env": portable_name(self.env), "params": dict(self.params), "policies": policies}
        shared |= _flat_policy(self) | _flat(self) | {"since": list(self.since)}
        overrides: dict[str, Any] = {}
        for name, policy in self.policy_overrides.items():
            run = self.for_policy(name)
            inherited = _flat(type(run.algorithm)(), Network()) | shared
            for key, value in _flat_policy(run).items():
                if value != inherited[key] or (policy.explicit(key) and key in CHANGEABLE):
                    overrides[f"{name}.{key}"] = value
        return shared | overrides

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> "Run":
        """Make a run from settings by flat name; raises a ValueError for unknown and inapplicable settings."""
        if "env" not in flat:
            raise ValueError("a training run needs an environment: give env, such as CartPole-v1")
        shared, overrides = split_flat(flat)
        for name in shared:
            if name not in NAMES:
                raise ValueError(unknown_setting_message(name))
        algorithm, network = _algorithm_and_network(shared, {})
        rest = {name: value for name, value in shared.items() if name not in POLICY_SETTINGS}
        policies = rest.get("policies", {})
        if isinstance(policies, Mapping):  # the constructor raises for other types
            rest["policies"] = dict(policies) | {
                name: _policy(name, shared, settings, policies.get(name, name)) for name, settings in overrides.items()
            }
        return cls(**rest, algorithm=algorithm, network=network)

    def changed(self, changes: Mapping[str, Any]) -> "Run":
        """Return the run with changes by flat name; raises a ValueError for settings that a resumed run must keep."""
        for name in changes:
            if not changeable(name):
                raise ValueError(
                    f"a resumed run cannot change {name}{did_you_mean(name, CHANGEABLE)} It can change: "
                    f"{', '.join(CHANGEABLE)}"
                )
        return self.from_flat(self.flat() | dict(changes))


def _policy(name: str, shared: Mapping[str, Any], settings: Mapping[str, Any], assigned: Any) -> Policy:
    """Make a Policy of the settings ``NAME.key``; ValueError if the role ``name`` has another policy, ``assigned``."""
    if assigned != name:
        raise ValueError(
            f"{name}.{next(iter(settings))}: the policy of {name!r} is {assigned!r}; give the setting to that policy, "
            "if it learns, or leave either out"
        )
    for key in settings:
        if key not in POLICY_SETTINGS:
            unknown, allowed = f"does not exist{did_you_mean(key, POLICY_SETTINGS)}", ", ".join(POLICY_SETTINGS)
            problem = "applies to the whole run." if key in NAMES else unknown
            raise ValueError(f"{name}.{key}: the setting {key!r} {problem} A policy can set: {allowed}")
    try:
        algorithm, network = _algorithm_and_network(settings, shared)
    except ValueError as error:
        raise ValueError(f"policy {name!r}: {error}") from None
    of_network = settings.keys() & settings_of(Network)
    overrides = algorithm if settings.keys() - of_network else None, network if of_network else None
    return Policy(*overrides, frozenset(settings))


def unknown_setting_message(name: str) -> str:
    """Return the error message for an unknown flat name."""
    return f"a training run has no setting {name!r}{did_you_mean(name, NAMES)} The settings are: {', '.join(NAMES)}"


def changeable(name: str) -> bool:
    """Return whether a resumed run may change the setting with a flat name."""
    policy, _, key = name.rpartition(".")
    return key in CHANGEABLE and (not policy or key in POLICY_SETTINGS)


_TRAINER_OPTIONS = (
    *("shared_observations", "active_heads", "output", "autoreset_mode"),
    *("first_replica", "num_envs", "device", "threads"),
)
"""Environment options that the trainer sets."""


def upgraded(flat: Mapping[str, Any], version: int = 1) -> dict[str, Any]:
    """Convert settings of a run directory of an older format, by flat name, to the current names.

    Runs of format 1 hold the settings of all algorithms; settings of algorithms that are not in use are dropped.
    """
    if version > 1:
        return dict(flat)
    overrides = flat.get("policy_settings", {})
    if not isinstance(overrides, Mapping) or not all(isinstance(values, Mapping) for values in overrides.values()):
        raise ValueError(f"policy_settings is {overrides!r}; expected a mapping of policy names to settings")
    shared = _rename_old({name: value for name, value in flat.items() if name != "policy_settings"})
    settings = settings_for(shared.get("algorithm", PPO.name), shared)
    unused = {name: value for name, value in shared.items() if name not in settings}
    for policy, values in overrides.items():
        algorithm = values.get("algorithm", settings.get("algorithm", PPO.name))
        for name, value in settings_for(algorithm, unused | _rename_old(values)).items():
            settings[f"{policy}.{name}"] = value
    return settings


def _rename_old(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of format 1 with current names and limits, without removed ones; ValueError for C51's."""
    if flat.get("atoms") is not None:
        raise ValueError("atoms is a setting of C51, which was removed: use the version of gpu_envs that wrote the run")
    settings = {_RENAMED.get(name, name): value for name, value in flat.items() if name not in _REMOVED}
    if isinstance(settings.get("initial_std"), int | float):
        std = SETTINGS["initial_std"]
        settings["initial_std"] = min(max(settings["initial_std"], std.minimum), std.maximum)
    return settings


_RENAMED = {"slots": "buffer_size", "warm_up": "learning_starts", "batch": "batch_size", "updates": "gradient_steps"}
"""Settings of format 1 with new names."""

_REMOVED = ("atoms", "least_return", "most_return")
"""Settings of format 1 that were removed."""


def split_flat(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split flat settings into settings of the run, and settings of single policies by policy name."""
    shared = {name: value for name, value in flat.items() if "." not in name}
    overrides: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        policy, dot, key = name.rpartition(".")
        if dot:
            overrides.setdefault(policy, {})[key] = value
    return shared, overrides


def _algorithm_and_network(settings: Mapping[str, Any], inherited: Mapping[str, Any]) -> tuple[Algorithm, Network]:
    """Make algorithm and network; ValueError for ``settings`` that do not apply, while ``inherited`` are dropped."""
    flat = {**inherited, **settings}
    name = flat.get("algorithm", PPO.name)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ValueError(f"algorithm is {name!r}{did_you_mean(str(name), ALGORITHMS)} Allowed: {', '.join(ALGORITHMS)}")
    for key in settings:
        check_supported(name, key)
    usable = settings_for(name, flat)
    algorithm = ALGORITHMS[name](**{key: usable[key] for key in settings_of(ALGORITHMS[name]) if key in usable})
    return algorithm, Network(**{key: usable[key] for key in settings_of(Network) if key in usable})


def _flat_policy(run: Run) -> dict[str, Any]:
    algorithm = run.algorithm.name
    return settings_for(algorithm, {"algorithm": algorithm} | _flat(run.algorithm, run.network))


def _flat(*parts: Settings) -> dict[str, Any]:
    return {name: _plain(getattr(part, name)) for part in parts for name in settings_of(type(part))}


def _plain(value: Any) -> Any:
    """Convert a value to a JSON value."""
    return str(value) if isinstance(value, Schedule | Memory) else list(value) if isinstance(value, tuple) else value


SETTINGS: Mapping[str, Setting] = {
    **settings_of(Run),
    **{name: field for cls in ALGORITHMS.values() for name, field in settings_of(cls).items()},
    **settings_of(Network),
}
"""All settings by flat name, except ``env``, ``algorithm``, ``params``, ``policies`` and ``since``."""

MAPPINGS = ("params", "policies")
"""Settings whose values are mappings."""

NAMES = ("env", "algorithm", *MAPPINGS, *SETTINGS, "since")
"""All flat names."""

POLICY_SETTINGS: tuple[str, ...] = ("algorithm", *(name for name in SETTINGS if name not in settings_of(Run)))
"""Settings that a ``Policy`` can override."""

CHANGEABLE = tuple(name for name, field in SETTINGS.items() if field.resume)
"""Settings that a resumed run may change."""

_SINGLE_THREAD_WORK = 2**20
"""Maximum product of minibatch size and width of the widest hidden layer for a single thread of torch to be fastest."""
