"""What a training run is: one tree of dataclasses, from which the command line, files and messages follow.

Every setting has one flat name too, ``tau``, or ``runner.tau`` where one policy has a value of its own: on the command
line, in TOML, in the run directory and when a run is resumed.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, final

from gpu_envs.backend.host import MOST_THREADS
from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.registry.catalog import portable_name
from gpu_envs.specs.distributions import stored
from gpu_envs.training.algorithms import ALGORITHMS, PPO, Algorithm, OffPolicy
from gpu_envs.training.policy import Network, Policy, check_owner, check_parts, settings_with
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import MOST, MOST_STEPS, Setting, Settings, setting, settings_of, whole_number

AUTO: Final = "auto"


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(Settings):
    """A training run."""

    env: str
    """ID of the environment, such as CartPole-v1, or the place of its spec, such as path/to/my_env.py:MY_ENV."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Parameters of the environment by name; a distribution, such as uniform:0.05:0.4, is kept as its text."""
    algorithm: Algorithm = PPO()
    """Algorithm of every learning policy that has none of its own."""
    network: Network = Network()
    """Network of every learning policy that has none of its own."""
    policies: Mapping[str, "str | Policy"] = dataclasses.field(default_factory=dict)
    """Who acts, by role or agent (tagger, runner_0): the name of a policy, which several may share; random; or
    frozen:RUN or frozen:RUN:POLICY for a trained one. A role that is not named learns a policy of its own name. In
    Python a Policy, by the name of a role or of a shared policy, has an algorithm or a network of its own."""
    seed: int = setting(0, least=0)
    """Seed of weights, actions, minibatches and environments."""
    device: str = setting("auto", resume=True)
    """auto (CUDA where there is a CUDA device), cpu, cuda or cuda:N."""

    total_steps: int = setting(10_000_000, least=1, most=MOST_STEPS, resume=True)
    """Environment steps of the run, of all replicas together."""
    num_envs: int | Literal["auto"] = setting(1024, least=1, most=MOST)
    """Replicas on each GPU; auto: as many as suit the device, measured before the run starts."""
    gpus: int = setting(1, least=1, most=2**16)
    """GPUs that train together, with a process each; on the CPU the number of processes."""
    since: tuple[int, int] = (0, 0)
    """Updates and steps done when ``gpus`` or the steps of an update last changed."""
    horizon: int = setting(32, least=1, most=MOST)
    """Steps of every replica between two updates."""
    stagger: bool = setting(False)
    """Cut the first episode of each replica at a random step, so that replicas do not end together."""

    target_return: float | None = setting(None, least=-1e30, most=1e30, resume=True)
    """Mean return of the last 100 episodes at which the run stops; None: no target."""
    target_role: str | None = setting(None, automatic=True, resume=True)
    """Role whose return that is; None: the first that learns."""
    run_dir: str | None = setting(None, automatic=True)
    """Run directory for settings, logs and checkpoints; None: a new folder in runs/; empty: keep nothing."""
    log_interval: int = setting(10, least=1, most=MOST_STEPS, resume=True)
    """Updates between two rows of the log."""
    checkpoint_interval: int = setting(200, least=0, most=MOST_STEPS, resume=True)
    """Updates between two checkpoints; 0: one at the end."""
    keep_checkpoints: int = setting(3, least=1, most=MOST_STEPS, resume=True)
    """Checkpoints that stay on the disk."""
    keep_buffer: bool = setting(True, resume=True)
    """Keep replay buffers in checkpoints; without them a resumed run collects again before it learns."""
    graphs: bool | None = setting(None, automatic=True, resume=True)
    """Capture rollout and update in CUDA graphs; None: where possible."""
    threads: int | None = setting(None, automatic=True, least=1, most=MOST_THREADS, resume=True)
    """Threads on the CPU, at most; None: one if minibatches are small, otherwise one for each core."""

    def __new__(cls, **settings: Any) -> "Run":
        """Says where a setting belongs that is not the run's own."""
        for name, value in settings.items():
            owners = [each.__name__ for each in (*ALGORITHMS.values(), Network) if name in settings_of(each)]
            if owners:
                part = "network" if owners == ["Network"] else "algorithm"
                which = "" if part == "network" else f" ({', '.join(owners)})"
                raise TypeError(f"{name} is a setting of the {part}{which}: give {part}={owners[0]}({name}={value!r})")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Brings every setting into the form that is kept, or says which is wrong and what is allowed."""
        try:
            object.__setattr__(self, "run_dir", None if self.run_dir is None else os.fsdecode(self.run_dir))
        except TypeError:
            raise ValueError(f"run_dir is {self.run_dir!r}; give a path, '' for none, or None") from None
        super().__post_init__()
        if not isinstance(self.env, str):
            raise ValueError(f"env is {self.env!r}; give an environment's id, or the place of its spec")
        for name, example in (("params", "{'gravity': 9.8}"), ("policies", "{'runner': 'random'}")):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name} is {value!r}; give a mapping by name, such as {example}")
        check_parts(self)
        for role, policy in self.policies.items():
            if not isinstance(policy, Policy) and not (isinstance(policy, str) and policy.isprintable()):
                raise ValueError(f"policies gives {role!r} {policy!r}; give a Policy, or a policy's name, printable")
            if isinstance(policy, Policy) and role in NAMES:
                raise ValueError(f"policies names a policy {role!r}, as a setting is called; give another name")
        since = tuple(map(whole_number, self.since)) if isinstance(self.since, list | tuple) else ()
        if len(since) != 2 or None in since:
            raise ValueError(f"since is {self.since!r}; give two whole numbers, of updates and of steps")
        object.__setattr__(self, "params", {name: stored(value) for name, value in self.params.items()})
        object.__setattr__(self, "policies", dict(self.policies))
        object.__setattr__(self, "since", since)
        self._check_params()
        for name, value in vars(self.network).items():
            if value != getattr(Network, name):
                check_owner(self.algorithm.name, name)
        self._check_buffer()
        for name in self.own:
            try:
                self.of_policy(name)
            except ValueError as error:
                raise ValueError(f"policy {name!r}: {error}") from None

    def _check_params(self) -> None:
        for name in _CHOSEN:
            if name in self.params:
                instead = f"give the run's setting {name}" if name in SETTINGS else "leave it out"
                raise ValueError(f"params names {name}, which the trainer chooses by itself; {instead}")
        if self.params.get("precision", "float32") != "float32":
            precision = self.params["precision"]
            raise ValueError(f"params names precision={precision!r}; training is in float32: leave it out")
        if self.params.get("statistics", True) is False:
            raise ValueError("params names statistics=False, and the trainer counts episodes by them; leave it out")

    def _check_buffer(self) -> None:
        """Refuses a buffer that a horizon does not fit into."""
        algorithm = self.algorithm
        if not isinstance(algorithm, OffPolicy):
            return
        if algorithm.buffer_size <= max(self.horizon, algorithm.n_step):
            raise ValueError(
                f"buffer_size is {algorithm.buffer_size}, one of which is always free; horizon is {self.horizon} and "
                f"n_step is {algorithm.n_step}: give a buffer_size above both"
            )

    @property
    def own(self) -> dict[str, Policy]:
        """The policies with settings of their own, by name."""
        return {name: policy for name, policy in self.policies.items() if isinstance(policy, Policy)}

    def of_policy(self, name: str) -> "Run":
        """The run as one policy sees it: with its own algorithm and network."""
        policy = self.own.get(name, Policy())
        algorithm = policy.algorithm or self.algorithm
        network = policy.network or Network(**settings_with(algorithm.name, vars(self.network)))
        policies = dict(self.policies) | {role: role for role in self.own}
        return dataclasses.replace(self, algorithm=algorithm, network=network, policies=policies)

    @property
    def variants(self) -> tuple["Run", ...]:
        """The run as its policies see it: with the shared algorithm and network, and with those of each ``Policy``."""
        return (self, *map(self.of_policy, self.own))

    def kept_of_policy(self) -> dict[str, Any]:
        """The algorithm's and network's settings that a resumed run keeps, by their flat names."""
        return {name: value for name, value in _flat_policy(self).items() if name not in CHANGEABLE}

    @property
    def replicas(self) -> int:
        """``num_envs`` as a number."""
        if self.num_envs == AUTO:
            raise ValueError(
                f"num_envs is {AUTO!r}, which gpu_envs.training.train turns into a number; choose_num_envs says which"
            )
        return self.num_envs

    @property
    def iterations(self) -> int:
        """The number of updates, at least one."""
        updates, steps = self.since
        return max(1, updates + -(-(self.total_steps - steps) // self.steps_of_update))

    @property
    def steps_of_update(self) -> int:
        """Environment steps between two updates, of all replicas of all GPUs together."""
        return self.gpus * self.replicas * self.horizon

    def steps_at(self, iteration: Any) -> Any:
        """Environment steps of all replicas together after ``iteration`` updates, a number or a tensor."""
        updates, steps = self.since
        return steps + (iteration - updates) * self.steps_of_update

    @property
    def samples(self) -> int:
        """Samples in a minibatch, roughly."""
        if isinstance(self.algorithm, OffPolicy):
            return self.algorithm.batch_size
        return self.replicas * self.horizon // self.algorithm.passes[1]

    @property
    def cpu_threads(self) -> int | None:
        """The most threads to use on the CPU; None: one for each core."""
        # Several help with large minibatches only, and are ten times slower than one where others want their cores.
        work = max(own.samples * max(own.network.hidden) for own in self.variants)
        return 1 if self.threads is None and work <= _SMALL else self.threads

    def flat(self) -> dict[str, Any]:
        """All settings by their flat names, as JSON has them; a ``Policy`` adds those that differ from the run's."""
        policies = {role: policy for role, policy in self.policies.items() if isinstance(policy, str)}
        shared: dict[str, Any] = {"env": portable_name(self.env), "params": dict(self.params), "policies": policies}
        shared |= _flat_policy(self) | _flat(self) | {"since": list(self.since)}
        own: dict[str, Any] = {}
        for name, policy in self.own.items():
            run = self.of_policy(name)
            inherited = _flat(type(run.algorithm)(), Network()) | shared
            for key, value in _flat_policy(run).items():
                if value != inherited[key] or (policy.explicit(key) and key in CHANGEABLE):
                    own[f"{name}.{key}"] = value
        return shared | own

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> "Run":
        """Makes a run of settings by their flat names, all of which must be known, and the algorithm's."""
        if "env" not in flat:
            raise ValueError("a training run has an environment: give env, such as CartPole-v1")
        shared, own = split(flat)
        for name in shared:
            if name not in NAMES:
                raise ValueError(no_setting(name))
        algorithm, network = _parts(shared, {})
        rest = {name: value for name, value in shared.items() if name not in OF_A_POLICY}
        policies = rest.get("policies", {})
        if isinstance(policies, Mapping):  # Run refuses others
            rest["policies"] = dict(policies) | {
                name: _policy(name, shared, settings, policies.get(name, name)) for name, settings in own.items()
            }
        return cls(**rest, algorithm=algorithm, network=network)

    def changed(self, changes: Mapping[str, Any]) -> "Run":
        """The resumed run, with other settings by their flat names, if they may change."""
        for name in changes:
            if not changeable(name):
                raise ValueError(
                    f"a resumed run keeps its {name}{did_you_mean(name, CHANGEABLE)} It may change: "
                    f"{', '.join(CHANGEABLE)}"
                )
        return self.from_flat(self.flat() | dict(changes))


def _policy(name: str, shared: Mapping[str, Any], settings: Mapping[str, Any], acting: Any) -> Policy:
    """A policy with settings of its own, whose role the policy ``acting`` acts for."""
    if acting != name:
        raise ValueError(
            f"{name}.{next(iter(settings))}: {name!r} acts by the policy {acting!r}; give the setting to that policy, "
            "if it learns, or leave one of the two out"
        )
    for key in settings:
        if key not in OF_A_POLICY:
            wrong = "is the whole run's." if key in NAMES else f"does not exist{did_you_mean(key, OF_A_POLICY)}"
            raise ValueError(
                f"{name}.{key}: the setting {key!r} {wrong} A policy may have of its own: {', '.join(OF_A_POLICY)}"
            )
    try:
        algorithm, network = _parts(settings, shared)
    except ValueError as error:
        raise ValueError(f"policy {name!r}: {error}") from None
    of_network = settings.keys() & settings_of(Network)
    return Policy(
        algorithm if settings.keys() - of_network else None, network if of_network else None, frozenset(settings)
    )


def no_setting(name: str) -> str:
    """The message that there is no setting of that name."""
    return f"a training run has no setting {name!r}{did_you_mean(name, NAMES)} There are: {', '.join(NAMES)}"


def changeable(name: str) -> bool:
    """Whether a resumed run may change the setting of a flat name."""
    policy, _, key = name.rpartition(".")
    return key in CHANGEABLE and (not policy or key in OF_A_POLICY)


_CHOSEN = (
    *("shared_observations", "active_heads", "output", "autoreset_mode"),
    *("first_replica", "num_envs", "device", "threads"),
)
"""Options of an environment that the trainer chooses."""


def upgraded(flat: Mapping[str, Any], version: int = 1) -> dict[str, Any]:
    """Settings of a run directory by their flat names.

    Format 1 had other names, and every run had the settings of all algorithms, of which it used its policies'.
    """
    if version > 1:
        return dict(flat)
    own = flat.get("policy_settings", {})
    if not isinstance(own, Mapping) or not all(isinstance(values, Mapping) for values in own.values()):
        raise ValueError(f"policy_settings is {own!r}; expected settings by the policy's name")
    shared = _renamed({name: value for name, value in flat.items() if name != "policy_settings"})
    settings = settings_with(shared.get("algorithm", PPO.name), shared)
    others = {name: value for name, value in shared.items() if name not in settings}
    for policy, values in own.items():
        algorithm = values.get("algorithm", settings.get("algorithm", PPO.name))
        for name, value in settings_with(algorithm, others | _renamed(values)).items():
            settings[f"{policy}.{name}"] = value
    return settings


def _renamed(flat: Mapping[str, Any]) -> dict[str, Any]:
    if flat.get("atoms") is not None:
        raise ValueError("atoms is a setting of C51, which is gone: use the version of gpu_envs that wrote the run")
    settings = {_NEW.get(name, name): value for name, value in flat.items() if name not in _GONE}
    if isinstance(settings.get("initial_std"), int | float):
        std = SETTINGS["initial_std"]
        settings["initial_std"] = min(max(settings["initial_std"], std.least), std.most)
    return settings


_NEW = {"slots": "buffer_size", "warm_up": "learning_starts", "batch": "batch_size", "updates": "gradient_steps"}
"""Settings of format 1 that have other names now."""

_GONE = ("atoms", "least_return", "most_return")
"""Settings of format 1 that do not exist any more."""


def split(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Flat settings of the run, and those of single policies by the policy's name."""
    shared = {name: value for name, value in flat.items() if "." not in name}
    own: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        policy, dot, key = name.rpartition(".")
        if dot:
            own.setdefault(policy, {})[key] = value
    return shared, own


def _parts(settings: Mapping[str, Any], inherited: Mapping[str, Any]) -> tuple[Algorithm, Network]:
    """The algorithm and the network of flat settings, all of which must be the algorithm's, unlike inherited ones."""
    flat = {**inherited, **settings}
    name = flat.get("algorithm", PPO.name)
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ValueError(f"algorithm is {name!r}{did_you_mean(str(name), ALGORITHMS)} Allowed: {', '.join(ALGORITHMS)}")
    for key in settings:
        check_owner(name, key)
    usable = settings_with(name, flat)
    algorithm = ALGORITHMS[name](**{key: usable[key] for key in settings_of(ALGORITHMS[name]) if key in usable})
    return algorithm, Network(**{key: usable[key] for key in settings_of(Network) if key in usable})


def _flat_policy(run: Run) -> dict[str, Any]:
    algorithm = run.algorithm.name
    return settings_with(algorithm, {"algorithm": algorithm} | _flat(run.algorithm, run.network))


def _flat(*parts: Settings) -> dict[str, Any]:
    return {name: _plain(getattr(part, name)) for part in parts for name in settings_of(type(part))}


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    return str(value) if isinstance(value, Schedule) else list(value) if isinstance(value, tuple) else value


SETTINGS: Mapping[str, Setting] = {
    **settings_of(Run),
    **{name: field for cls in ALGORITHMS.values() for name, field in settings_of(cls).items()},
    **settings_of(Network),
}
"""Every setting by its flat name, without ``algorithm``, ``params`` and ``policies``."""

MAPPINGS = ("params", "policies")
"""Settings that are mappings by name."""

NAMES = ("env", "algorithm", *MAPPINGS, *SETTINGS, "since")
"""Every flat name."""

OF_A_POLICY: tuple[str, ...] = ("algorithm", *(name for name in SETTINGS if name not in settings_of(Run)))
"""Settings that a policy may have of its own."""

CHANGEABLE = tuple(name for name, field in SETTINGS.items() if field.resume)
"""Settings that a resumed run may change."""

_SMALL = 2**20
"""Samples of a minibatch times the width of a layer, up to which one thread is fastest."""
