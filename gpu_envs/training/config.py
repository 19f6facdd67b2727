"""What a training run is: one dataclass, from which the command line is made, and which the run directory keeps."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, final, get_args

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.registry.known import lasting
from gpu_envs.specs.distributions import stored
from gpu_envs.training.algorithms import OFF_POLICY, lacking, refuse
from gpu_envs.training.bounds import MAPPINGS, RANGES, SCHEDULES, WHOLE, WORDS, check_params, checked, checked_widths
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.values import merged, real_number, whole_number

AUTO: Final = "auto"

CHANGEABLE = (
    *("device", "total_steps", "learning_rate", "entropy_weight", "policy_settings", "target_return", "target_role"),
    *("log_interval", "checkpoint_interval", "keep_checkpoints", "keep_buffer", "threads", "graphs", "fused"),
)
"""Settings that a run may be resumed with others of."""

OF_A_POLICY = (
    *("algorithm", "epochs", "minibatches", "learning_rate", "gamma", "gae_lambda", "clip", "value_clip"),
    *("value_weight", "entropy_weight", "max_grad_norm", "target_kl", "normalise_advantages"),
    *("normalise_observations", "normalise_rewards", "hidden", "activation", "layer_norm", "shared_trunk"),
    *("initial_std", "epsilon", "slots", "warm_up", "batch", "updates", "n_step", "tau", "exploration", "noise"),
    *("temperature", "target_entropy", "target_noise", "target_noise_clip", "policy_delay"),
    *("atoms", "least_return", "most_return", "precision", "fused"),
)
"""Settings that a policy may have of its own; all others are the whole run's."""


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A training run."""

    env: str
    """The environment's id, such as CartPole-v1, or the place of its spec, such as path/to/my_env.py:MY_ENV."""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The environment's own parameters, by name; a distribution, such as uniform:0.05:0.4, is kept as its text."""
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Which policy acts for a role or a single agent (tagger, runner_0): a name of your own for one that learns, shared
    by all who name it; "random"; or "frozen:RUN" or "frozen:RUN:POLICY" for one trained before. A role not named has
    one of its own that learns."""
    policy_settings: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """What a policy that learns has of its own in place of the run's settings, by the policy's name and the setting's:
    its algorithm, learning rate, loss, normalisers and network."""
    algorithm: str = "ppo"
    """ppo; a2c: one pass over the horizon, without clipping; pqn: Q(lambda), for actions that are whole numbers; or,
    for actions of a Box, sac, td3 or ddpg, which learn from a buffer of what happened before."""
    seed: int = 0
    """Everything random follows from it: weights, actions, minibatches, environments."""
    device: str = "auto"
    """auto (CUDA where there is a CUDA device), cpu, cuda or cuda:N."""

    total_steps: int = 10_000_000
    """Train for so many steps of the environment, all replicas together."""
    num_envs: int | Literal["auto"] = 1024
    """Replicas that are stepped together, on each GPU; auto: what suits the device, measured before the run begins."""
    gpus: int = 1
    """How many GPUs train together, a process each; on the CPU, how many processes."""
    since: tuple[int, int] = (0, 0)
    """The updates and steps that had been done when ``gpus`` became what it is."""
    horizon: int = 32
    """Steps of every replica between two updates."""
    epochs: int = 4
    """How many times an update goes through the horizon."""
    minibatches: int = 4
    """Into how many random parts the horizon is split in each epoch."""

    learning_rate: Schedule | str | float = dataclasses.field(default_factory=lambda: Schedule.of(1e-3))
    """Of Adam: a number, or points of progress and value, such as 0:0.001,1:0."""
    gamma: float = 0.99
    """The discount of rewards a step later."""
    gae_lambda: float = 0.95
    """The mixture of long and short advantages (Schulman et al. 2016), or of returns, where it is Q(lambda)'s."""
    clip: float = 0.2
    """How far PPO lets the probability of an action change: the ratio stays within 1 - clip and 1 + clip."""
    value_clip: float | None = None
    """How far a value may move from its old one in an update; None: as far as it will."""
    value_weight: float = 0.5
    """The weight of the value's loss."""
    entropy_weight: Schedule | str | float = dataclasses.field(default_factory=lambda: Schedule.of(0.0))
    """The weight of the entropy bonus: a number, or points of progress and value."""
    max_grad_norm: float | None = 0.5
    """The gradient is shortened to this; None: never."""
    target_kl: float | None = None
    """An update stops when the policy has moved so far from the one that acted; None: it never stops early."""
    normalise_advantages: bool = True
    """Give the advantages of a horizon mean 0 and deviation 1."""
    normalise_observations: bool = False
    """Give observations mean 0 and deviation 1 by running statistics."""
    normalise_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    epsilon: Schedule | str | float = dataclasses.field(default_factory=lambda: Schedule.of("0:1,0.2:0.05"))
    """How likely an element of an action is a random choice: a number, or points of progress and value."""
    stagger: bool = False
    """Cut the first episode of each replica at a random step, so that replicas are not in step with one another."""

    slots: int = 1024
    """How many steps of each replica the buffer holds."""
    warm_up: int = 32_768
    """Take so many steps at random before the first update, all replicas of a GPU together."""
    batch: int = 4096
    """So many transitions, drawn anew each time, does an update learn from, on each GPU."""
    updates: int = 32
    """How many updates follow each horizon."""
    n_step: int = 1
    """Returns are of so many steps' rewards, and what the critics expect after those."""
    tau: float = 0.005
    """How far the target networks go towards the others with each update."""
    exploration: str = "white"
    """Numbers by which actions vary: white, new at each step; ou, those of an Ornstein-Uhlenbeck process; or state, a
    function of the state that is drawn anew for each episode."""
    noise: float = 0.1
    """The deviation of actions that are tried, where the bounds are -1 and 1."""
    temperature: float = 1.0
    """The weight of the entropy at first, from where it is learnt."""
    target_entropy: float | None = None
    """The entropy that the temperature aims at, where the bounds are -1 and 1; None: -1 for each element."""
    target_noise: float = 0.2
    """The deviation of actions that the target critics are asked about."""
    target_noise_clip: float = 0.5
    """How far those may be from the target actor's."""
    policy_delay: int = 2
    """The actor learns with every so many updates of the critics."""
    atoms: int | None = None
    """Critics give the probabilities of so many returns; None: the expected one."""
    least_return: float = -10.0
    """The least of those returns."""
    most_return: float = 10.0
    """The largest of them."""

    hidden: tuple[int, ...] = (64, 64)
    """The widths of the policy's hidden layers."""
    activation: str = "tanh"
    """Between them: tanh, relu, elu, silu or gelu."""
    layer_norm: bool = False
    """Normalise each row of a hidden layer before the activation, with gains and shifts that are learnt."""
    shared_trunk: bool = False
    """Actor and critic share the hidden layers."""
    initial_std: float = 1.0
    """Of a continuous action at first, where the bounds are -1 and 1: from 0.0068 to 7.38."""
    precision: str = "float32"
    """Of matrix products: float32, tf32 (CUDA), or bf16 (activations too)."""
    graphs: bool | None = None
    """Capture rollout and update in CUDA graphs; None: where that is possible."""
    fused: bool | None = None
    """Run multilayer perceptrons in kernels of our own; None: where that is possible."""
    threads: int | None = None
    """On the CPU: the most threads to use; None: one where minibatches are small, otherwise one for each core."""

    target_return: float | None = None
    """Stop when the mean return of the last 100 episodes reaches this."""
    target_role: str | None = None
    """The role whose return that is; None: the first that learns."""
    run_dir: str | None = None
    """Where configuration, logs and checkpoints go; None: a new folder in runs/. Empty: nowhere."""
    log_interval: int = 10
    """Log every so many updates."""
    checkpoint_interval: int = 200
    """Save a checkpoint every so many updates, and at the end; 0: at the end alone."""
    keep_checkpoints: int = 3
    """How many checkpoints stay on the disk."""
    keep_buffer: bool = True
    """Keep the buffer in checkpoints; without it a run that goes on collects for the warm-up before it learns again."""

    def __post_init__(self) -> None:
        """Brings schedules, tuples and mappings into their form, and says which value is wrong, and what is allowed."""
        if not isinstance(self.env, str):
            raise ValueError(f"env is {self.env!r}; give an environment's id, or the place of its spec")
        if not isinstance(self.device, str):
            raise ValueError(f"device is {self.device!r}; give auto, cpu, cuda or cuda:N")
        for name, example in MAPPINGS.items():
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name} is {value!r}; give a mapping by name, such as {example}")
            self._keep(name, {key: stored(each) for key, each in value.items()})
        check_params(self.params)
        for role, policy in self.policies.items():
            if not isinstance(policy, str) or not policy.isprintable():
                raise ValueError(
                    f"policies names {policy!r} for {role!r}; give a policy's name, printable"
                )
        if not isinstance(self.target_role, str | None):
            raise ValueError(f"target_role is {self.target_role!r}; give a role's name, or None")
        try:
            self._keep("run_dir", None if self.run_dir is None else os.fsdecode(self.run_dir))
        except TypeError:
            raise ValueError(f"run_dir is {self.run_dir!r}; give a path, '' for none, or None") from None
        kinds = {field.name: field.type for field in dataclasses.fields(self)}
        optional = {name for name, kind in kinds.items() if type(None) in get_args(kind)}
        for name in (*SCHEDULES, *WORDS, *WHOLE, *RANGES):
            value = getattr(self, name)
            auto = name == "num_envs" and isinstance(value, str) and value == AUTO
            if not auto and not (value is None and name in optional):
                self._keep(name, checked(name, value, f", or {AUTO!r}" if name == "num_envs" else ""))
        for name in (name for name, kind in kinds.items() if kind in (bool, bool | None)):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name in optional and value is None):
                raise ValueError(f"{name} is {value!r}; give True or False{', or None' if name in optional else ''}")
        self._keep("hidden", checked_widths(self.hidden))
        since = tuple(map(whole_number, self.since)) if isinstance(self.since, list | tuple) else ()
        if len(since) != 2 or None in since:
            raise ValueError(f"since is {self.since!r}; give two whole numbers, of updates and of steps")
        self._keep("since", since)
        settings = {policy: self._own(policy, given) for policy, given in self.policy_settings.items()}
        self._keep("policy_settings", settings)
        algorithms = [self.algorithm, *(own["algorithm"] for own in settings.values() if "algorithm" in own)]
        refuse(self.algorithm, lacking(algorithms, vars(self), _defaults()))
        for own in self.variants:
            if own.algorithm in OFF_POLICY:
                own._check_buffer()

    def _check_buffer(self) -> None:
        """Refuses settings of a buffer, and of learning from it, that do not fit one another."""
        if self.slots <= max(self.horizon, self.n_step):
            raise ValueError(
                f"slots is {self.slots}, of which one is always free; the horizon is {self.horizon}, and n_step is "
                f"{self.n_step}: give more slots than each of them"
            )
        if self.warm_up * self.gpus >= self.total_steps:
            raise ValueError(
                f"warm_up is {self.warm_up:,}, and the run ends after {self.total_steps // self.gpus:,} steps of each "
                "GPU, before anything is learnt: give a shorter warm_up, or more total_steps"
            )
        if self.algorithm == "td3" and self.updates % self.policy_delay:
            raise ValueError(
                f"updates is {self.updates}, and policy_delay {self.policy_delay}: give updates a multiple of it, "
                "since the actor learns with every so many of them"
            )
        if self.least_return >= self.most_return:
            raise ValueError(
                f"least_return is {self.least_return:g} and most_return {self.most_return:g}: give a larger one"
            )

    def _own(self, policy: str, given: Any) -> dict[str, Any]:
        """A policy's own settings in the form that is kept, or says which is wrong."""
        if not isinstance(given, Mapping):
            raise ValueError(f"policy_settings gives {policy!r} {given!r}; give a mapping such as {{'gamma': 0.95}}")
        for name in given:
            if name not in OF_A_POLICY:
                whole = any(name == field.name for field in dataclasses.fields(self))
                wrong = "is the whole run's." if whole else f"does not exist{did_you_mean(str(name), OF_A_POLICY)}"
                raise ValueError(
                    f"policy_settings gives {policy!r} the setting {name!r}, which {wrong} A policy may have of its "
                    f"own: {', '.join(OF_A_POLICY)}"
                )
        try:
            own = self._with(given)
            refuse(own.algorithm, lacking([own.algorithm], {name: getattr(own, name) for name in given}, _defaults()))
        except ValueError as error:
            raise ValueError(f"policy_settings of {policy!r}: {error}") from None
        return {name: getattr(own, name) for name in given}

    def _with(self, own: Mapping[str, Any]) -> "Config":
        """The run with settings of one policy's own, without those of the run's that its algorithm does not have."""
        others = lacking([own.get("algorithm", self.algorithm)], vars(self), _defaults())
        return dataclasses.replace(
            self, **{**{name: _defaults()[name] for name in others}, "policy_settings": {}, **own}
        )

    def _keep(self, name: str, value: Any) -> None:
        """Sets a field to its value in the form that is kept."""
        object.__setattr__(self, name, value)

    def changed(self, changes: Mapping[str, Any]) -> "Config":
        """The run as it goes on with other settings, or says which of them has to stay."""
        for name in changes:
            if name not in CHANGEABLE:
                raise ValueError(
                    f"a run that goes on keeps its {name}{did_you_mean(name, CHANGEABLE)} Others may be given of: "
                    f"{', '.join(CHANGEABLE)}"
                )
        config = dataclasses.replace(self, **changes)
        if "policy_settings" not in changes:
            return config
        changeable = [name for name in CHANGEABLE if name in OF_A_POLICY]
        for policy, own in config.policy_settings.items():
            for name in own:
                if name not in changeable:
                    raise ValueError(
                        f"a run that goes on keeps the {name} of its policy {policy!r}. Others may be given of: "
                        f"{', '.join(changeable)}"
                    )
        return dataclasses.replace(config, policy_settings=merged(self.policy_settings, config.policy_settings))

    def of_policy(self, name: str) -> "Config":
        """The run as one policy sees it: with the settings that this has of its own."""
        return self._with(self.policy_settings.get(name, {}))

    @property
    def variants(self) -> tuple["Config", ...]:
        """The run as policies without settings of their own see it, and as each of the others does."""
        return (self, *map(self.of_policy, self.policy_settings))

    @property
    def replicas(self) -> int:
        """``num_envs`` as a number, or says that it is yet to be found."""
        if self.num_envs == AUTO:
            raise ValueError(
                f"num_envs is {AUTO!r}, which gpu_envs.training.train turns into a number; choose_num_envs says which"
            )
        return self.num_envs

    @property
    def iterations(self) -> int:
        """How many updates there are: at least one."""
        updates, steps = self.since
        return max(1, updates + -(-(self.total_steps - steps) // self.steps_of_update))

    @property
    def steps_of_update(self) -> int:
        """Steps of the environment between two updates, all replicas of all GPUs together."""
        return self.gpus * self.replicas * self.horizon

    def steps_at(self, iteration: Any) -> Any:
        """Steps of the environment after so many updates, all replicas together: of a number, or of a tensor of it."""
        updates, steps = self.since
        return steps + (iteration - updates) * self.steps_of_update

    @property
    def cpu_threads(self) -> int | None:
        """The most threads to use on the CPU; None: one for each core.

        Several threads help with large minibatches alone, and where another process wants a core, threads that wait
        for one another at every layer can be slower than one by more than ten times.
        """
        work = max(own.samples * max(own.hidden) for own in self.variants)
        return 1 if self.threads is None and work <= _SMALL else self.threads

    @property
    def passes(self) -> tuple[int, int]:
        """Epochs and minibatches of an update, of algorithms that have them."""
        return (1, 1) if self.algorithm in ("a2c", *OFF_POLICY) else (self.epochs, self.minibatches)

    @property
    def samples(self) -> int:
        """About how many an update learns from."""
        return self.batch if self.algorithm in OFF_POLICY else self.replicas * self.horizon // self.passes[1]

    def to_json(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts: what ``from_json`` reads."""
        values = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        settings = {
            policy: {name: _plain(value) for name, value in own.items()} for policy, own in self.policy_settings.items()
        }
        return values | {"env": lasting(self.env), "policy_settings": settings}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Config":
        """Makes the run that ``to_json`` described, or says which name is unknown.

        A deviation that was allowed once, and acted as the nearest that is allowed now, becomes that.
        """
        if "env" not in given:
            raise ValueError("a training run has an environment: give env, such as CartPole-v1")
        for name in given:
            if name not in SETTINGS:
                raise ValueError(
                    f"a training run has no setting {name!r}{did_you_mean(name, SETTINGS)} There are: "
                    f"{', '.join(SETTINGS)}"
                )
        std = real_number(given.get("initial_std"))
        low, high, _ = RANGES["initial_std"]
        held = {} if std is None or not 0.0 < std <= _ONCE_ALLOWED else {"initial_std": min(max(std, low), high)}
        return cls(**(dict(given) | held))


SETTINGS = tuple(field.name for field in dataclasses.fields(Config))
"""The names of all settings."""


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """What settings are where nothing is said of them."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(Config)
    }


def _plain(value: Any) -> Any:
    """A schedule as text, a tuple as a list, and all else as it is."""
    return str(value) if isinstance(value, Schedule) else list(value) if isinstance(value, tuple) else value


_ONCE_ALLOWED = 100.0
"""The largest ``initial_std`` of runs that were written before it was bounded."""

_SMALL = 2**20
"""Samples of a minibatch times the width of a layer: so much is soon done by one thread."""
