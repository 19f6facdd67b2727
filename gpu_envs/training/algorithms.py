"""The algorithms, and the settings that not all of them have."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OFF_POLICY = ("sac", "td3", "ddpg")
"""Those that learn from what they remember, by critics of actions."""

ALGORITHMS = ("ppo", "a2c", "pqn", *OFF_POLICY)

OWN_SETTINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("clip", "target_kl"), ("ppo",)),
    **dict.fromkeys(("epochs", "minibatches"), ("ppo", "pqn")),
    **dict.fromkeys(("gae_lambda", "normalise_rewards"), ("ppo", "a2c", "pqn")),
    **dict.fromkeys(
        ("value_clip", "value_weight", "entropy_weight", "normalise_advantages", "shared_trunk"), ("ppo", "a2c")
    ),
    "initial_std": ("ppo", "a2c", "sac"),
    "epsilon": ("pqn",),
    **dict.fromkeys(
        ("slots", "warm_up", "batch", "updates", "n_step", "tau", "exploration", "keep_buffer"), OFF_POLICY
    ),
    **dict.fromkeys(("temperature", "target_entropy"), ("sac",)),
    "noise": ("td3", "ddpg"),
    **dict.fromkeys(
        ("target_noise", "target_noise_clip", "policy_delay", "atoms", "least_return", "most_return"), ("td3",)
    ),
}
"""The algorithms that have a setting; settings that are not named here are everybody's."""


def lacking(algorithms: Iterable[str], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Settings with other values than their defaults that none of some algorithms has."""
    return [name for name in foreign(algorithms, given) if given[name] != defaults[name]]


def foreign(algorithms: Iterable[str], given: Iterable[str]) -> list[str]:
    """Those of some settings that none of some algorithms has."""
    chosen = [*algorithms]
    return [name for name in given if not any(each in OWN_SETTINGS.get(name, chosen) for each in chosen)]


def refuse(algorithm: str, names: Iterable[str]) -> None:
    """Says of settings that an algorithm does not have them, and which do."""
    for name in names:
        raise ValueError(
            f"{algorithm} has no {name}, which is a setting of {listed(OWN_SETTINGS[name])}; leave it out, or give "
            "another algorithm"
        )


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def check_actions(algorithm: str, kind: str, policy: str) -> None:
    """Refuses a kind of actions, ``discrete`` or ``box``, that an algorithm cannot choose."""
    if algorithm in OFF_POLICY and kind != "box":
        raise ValueError(
            f"{algorithm} learns actions of a Box, and those of the policy {policy!r} are whole numbers; give ppo, a2c "
            "or pqn"
        )
    if algorithm == "pqn" and kind == "box":
        raise ValueError(
            f"pqn values each choice of an action, and the actions of the policy {policy!r} are a Box, which has no "
            f"choices; give ppo, a2c, sac, td3 or ddpg"
        )


def owned(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept of a run's settings, without those that its algorithms do not have: once they were ignored."""
    whole, policies = given.get("algorithm", ALGORITHMS[0]), given.get("policy_settings", {})
    if not isinstance(policies, Mapping) or not all(isinstance(own, Mapping) for own in policies.values()):
        return dict(given)  # which Config refuses
    algorithms = {policy: own.get("algorithm", whole) for policy, own in policies.items()}
    settings = {
        policy: {name: own[name] for name in own if name not in foreign([algorithms[policy]], own)}
        for policy, own in policies.items()
    }
    others = foreign([whole, *algorithms.values()], given)
    return {name: value for name, value in given.items() if name not in others} | {"policy_settings": settings}
