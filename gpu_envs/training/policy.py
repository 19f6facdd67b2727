"""A policy's settings: its algorithm and its network."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from gpu_envs.documented import documented
from gpu_envs.errors import did_you_mean
from gpu_envs.training.algorithms import ALGORITHMS, SAC, Algorithm
from gpu_envs.training.algorithms.base import PolicyGradient
from gpu_envs.training.settings import Settings, setting, settings_of


def _with(*bases: type[Algorithm]) -> tuple[str, ...]:
    return tuple(name for name, cls in ALGORITHMS.items() if issubclass(cls, bases))


@final
@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class Network(Settings):
    """The network of a policy."""

    hidden: tuple[int, ...] = setting((64, 64))
    """Widths of the hidden layers."""
    activation: str = setting("tanh", words=("tanh", "relu", "elu", "silu", "gelu"))
    """Activation of the hidden layers."""
    layer_norm: bool = setting(False)
    """Normalise each hidden layer before its activation, with learnt gains and offsets."""
    shared_trunk: bool = setting(False, only=_with(PolicyGradient))
    """Let actor and critic share the hidden layers."""
    initial_std: float = setting(1.0, least=0.0068, most=7.38, only=_with(PolicyGradient, SAC))
    """Standard deviation of a continuous action at the start, where the action bounds are -1 and 1."""
    normalise_observations: bool = setting(False)
    """Give observations mean 0 and standard deviation 1, by running statistics."""
    precision: str = setting("float32", words=("float32", "tf32", "bf16"))
    """Precision of matrix products: float32, tf32 (CUDA) or bf16, which holds for activations too."""
    fused: bool | None = setting(None, automatic=True, resume=True)
    """Compute perceptrons in kernels of this package; None: where one can."""


@final
@documented
@dataclasses.dataclass(frozen=True)
class Policy:
    """A learning policy whose algorithm or network differs from the run's."""

    algorithm: Algorithm | None = None
    """Its algorithm; None: the run's."""
    network: Network | None = None
    """Its network; None: the run's."""
    _explicit: frozenset[str] | None = dataclasses.field(default=None, repr=False, compare=False)
    """Flat names that were given for it, others being the run's; None: every setting of algorithm and network was."""

    def explicit(self, name: str) -> bool:
        """Whether a setting was given for this policy, so that it stays where the run's changes."""
        part = self.network if name in settings_of(Network) else self.algorithm
        return part is not None if self._explicit is None else name in self._explicit

    def __post_init__(self) -> None:
        """Refuses other things than an algorithm and a network."""
        check_parts(self)


def learns(policy: str) -> bool:
    """Whether a policy learns, by its name in ``Run.policies`` or in what ``assign`` returns."""
    return policy.partition(" (")[0] != "random" and not policy.startswith("frozen:")


def check_names(what: str, names: Iterable[str], policies: Iterable[str]) -> None:
    """Refuses what is given under names that no policy of a run has which learns."""
    known = [policy for policy in policies if learns(policy)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what} names {name!r}, which is no policy that learns{did_you_mean(name, known)} Those that learn "
                f"are: {', '.join(known)}"
            )


def check_parts(owner: Settings | Policy) -> None:
    """Refuses other things than an algorithm and a network; those of a policy may be None."""
    known = (("algorithm", ALGORITHMS.values(), "PPO(gamma=0.95)"), ("network", (Network,), "Network()"))
    whose, optional = ("a policy's ", ", or None") if isinstance(owner, Policy) else ("", "")
    for name, kinds, example in known:
        value = getattr(owner, name)
        if type(value) not in kinds and not (optional and value is None):
            raise ValueError(f"{whose}{name} is {value!r}; give an object such as {example}{optional}")


def owners_of(name: str) -> tuple[str, ...]:
    """The algorithms that have a setting; empty if all have it."""
    field = settings_of(Network).get(name)
    owners = field.only if field else tuple(n for n, cls in ALGORITHMS.items() if name in settings_of(cls))
    return () if len(owners) == len(ALGORITHMS) else owners


def settings_with(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some settings that an algorithm, or all, have."""
    return {name: value for name, value in settings.items() if algorithm in (owners_of(name) or (algorithm,))}


def check_owner(algorithm: str, name: str) -> None:
    """Refuses a setting that an algorithm does not have."""
    owners = owners_of(name)
    if owners and algorithm not in owners:
        raise ValueError(
            f"{algorithm} has no {name}, which is a setting of {listed(owners)}; leave it out, or give another "
            "algorithm"
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def check_actions(algorithm: Algorithm, kind: str, policy: str) -> None:
    """Refuses a kind of actions, ``discrete`` or ``box``, that an algorithm does not learn."""
    if kind not in algorithm.actions:
        fitting = [name for name, each in ALGORITHMS.items() if kind in each.actions]
        shown = {"box": "a Box", "discrete": "discrete"}
        raise ValueError(
            f"{algorithm.name} learns actions that are {shown[algorithm.actions[0]]}, and those of the policy "
            f"{policy!r} are {shown[kind]}; give {', '.join(fitting[:-1])} or {fitting[-1]}"
        )
