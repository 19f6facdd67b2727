"""Settings of a policy: its algorithm and its network."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.training.algorithms import ALGORITHMS, SAC, Algorithm
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.recurrent_settings import Memory
from gpu_envs.training.settings import Settings, setting, settings_of


def _subclasses(*bases: type[Algorithm]) -> tuple[str, ...]:
    return tuple(name for name, cls in ALGORITHMS.items() if issubclass(cls, bases))


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Network(Settings):
    """The network of a policy."""

    hidden: tuple[int, ...] = setting((64, 64))
    """Widths of the hidden layers."""
    activation: str = setting("tanh", choices=("tanh", "relu", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """Layer normalisation before each hidden activation, with learnt gains and offsets."""
    shared_trunk: bool = setting(False, algorithms=_subclasses(PolicyGradient))
    """Whether actor and critic share the hidden layers."""
    critic: str = setting("own", choices=("own", "team", "all"), algorithms=_subclasses(PolicyGradient))
    """What the critic sees: own, the actor's observation; team, the observations of all agents of the role, and the
    agent's number; all, the same of all roles. The last two not with shared_trunk or memory."""
    critic_observes: tuple[str, ...] = setting((), algorithms=_subclasses(PolicyGradient))
    """Parameters of the environment that the critic sees, too, such as drawn ones: pole_mass,length. A role of several
    agents needs critic team or all."""
    memory: Memory | str | None = setting(None, algorithms=_subclasses(PolicyGradient))
    """Recurrent layer behind the hidden layers, such as gru:64 or lstm:64; None: the policy has no memory."""
    initial_std: float = setting(1.0, minimum=0.0068, maximum=7.38, algorithms=_subclasses(PolicyGradient, SAC))
    """Initial standard deviation of a continuous action, in units where the action bounds are -1 and 1."""
    normalise_observations: bool = setting(False)
    """Whether observations are normalised to mean 0 and standard deviation 1, by running statistics."""
    precision: str = setting("float32", choices=("float32", "tf32", "bf16"))
    """Precision of matrix products: float32, tf32 (CUDA only), or bf16, also of activations; not in CPU kernels."""
    fused: bool | None = setting(None, automatic=True, resume=True)
    """Whether fused kernels of this package compute the networks, in place of torch; None: wherever they can."""

    def __post_init__(self) -> None:
        """Validate and convert every setting."""
        super().__post_init__()
        if self.central and (self.shared_trunk or self.memory is not None):
            name = "shared_trunk" if self.shared_trunk else "memory"
            more = "critic" if self.critic != "own" else "critic_observes"
            raise ValueError(
                f"{more} is {getattr(self, more)!r} and {name} is {getattr(self, name)}: a critic that sees more than "
                f"the actor cannot have {name}; give the default of one of the two, {more}={getattr(Network, more)!r} "
                f"or {name}={getattr(Network, name)}"
            )

    @property
    def central(self) -> bool:
        """Whether the critic sees more than the actor."""
        return self.critic != "own" or bool(self.critic_observes)

    @property
    def state_size(self) -> int:
        """Numbers that the default policy with memory keeps for each row; 0 without memory."""
        if not isinstance(self.memory, Memory):
            return 0
        return self.memory.states * self.memory.size * (1 if self.shared_trunk else 2)


@final
@documented
@dataclasses.dataclass(frozen=True)
class Policy:
    """A learning policy whose algorithm or network differs from the run's."""

    algorithm: Algorithm | None = None
    """Algorithm of the policy; None: the run's."""
    network: Network | None = None
    """Network of the policy; None: the run's."""
    _explicit: frozenset[str] | None = dataclasses.field(default=None, repr=False, compare=False)
    """Flat names of the settings that were set for this policy; None: all settings of its algorithm and network."""

    def explicit(self, name: str) -> bool:
        """Return whether a setting was set for this policy: a change of the run's setting does not affect it."""
        part = self.network if name in settings_of(Network) else self.algorithm
        return part is not None if self._explicit is None else name in self._explicit

    def __post_init__(self) -> None:
        """Check the types of algorithm and network."""
        check_algorithm_and_network(self)


def learns(policy: str) -> bool:
    """Return whether a policy learns, from its name in ``Run.policies`` or in the result of ``assign``."""
    return policy.partition(" (")[0] != "random" and not policy.startswith("frozen:")


def check_learning_policies(argument: str, names: Iterable[str], policies: Iterable[str]) -> None:
    """Raise a ValueError if ``argument`` names a policy that does not learn; ``policies``: all of the run's."""
    learning = [policy for policy in policies if learns(policy)]
    for name in names:
        if name not in learning:
            raise ValueError(
                f"{argument} names {name!r}, which is not a learning policy{did_you_mean(name, learning)} The learning "
                f"policies are: {', '.join(learning)}"
            )


def check_algorithm_and_network(owner: Settings | Policy) -> None:
    """Raise a ValueError if ``owner`` has an algorithm or network of a wrong type; a ``Policy`` may have None."""
    allowed = (("algorithm", ALGORITHMS.values(), "PPO(gamma=0.95)"), ("network", (Network,), "Network()"))
    prefix, optional = ("a policy's ", ", or None") if isinstance(owner, Policy) else ("", "")
    for name, kinds, example in allowed:
        value = getattr(owner, name)
        if type(value) not in kinds and not (optional and value is None):
            raise ValueError(f"{prefix}{name} is {value!r}; give an object such as {example}{optional}")


def algorithms_with(name: str) -> tuple[str, ...]:
    """Return the names of the algorithms that have a setting; empty if all have it, or none."""
    field = settings_of(Network).get(name)
    algorithms = field.algorithms if field else tuple(n for n, cls in ALGORITHMS.items() if name in settings_of(cls))
    return () if len(algorithms) == len(ALGORITHMS) else algorithms


def settings_for(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that apply to an algorithm; the others are dropped."""
    return {name: value for name, value in settings.items() if algorithm in (algorithms_with(name) or (algorithm,))}


def check_supported(algorithm: str, name: str) -> None:
    """Raise a ValueError if an algorithm does not have the setting ``name``."""
    algorithms = algorithms_with(name)
    if algorithms and algorithm not in algorithms:
        raise ValueError(
            f"{algorithm} has no {name}, which is a setting of {join_names(algorithms)}; leave it out, or give another "
            "algorithm"
        )


def join_names(names: Sequence[str]) -> str:
    """Join names for a sentence: ``a, b and c``."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def check_actions(algorithm: Algorithm, kind: str, policy: str) -> None:
    """Raise a ValueError if an algorithm does not support a kind of actions, ``discrete`` or ``box``."""
    if kind not in algorithm.actions:
        fitting = [name for name, cls in ALGORITHMS.items() if kind in cls.actions]
        labels = {"box": "Box", "discrete": "discrete"}
        raise ValueError(
            f"{algorithm.name} supports {labels[algorithm.actions[0]]} actions, and the policy {policy!r} has "
            f"{labels[kind]} actions; give the algorithm {', '.join(fitting[:-1])} or {fitting[-1]}"
        )
