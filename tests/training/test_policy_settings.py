"""Settings of single policies: each is honoured, changes its policy and no other, and goes on with the run."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from harness import assert_same_bits
from trainers import FIELD, FIELD_PARAMS, GRID, off_policy, saved, small, timeless

torch = pytest.importorskip("torch")


from gpu_envs.training import RunDirectory, Trainer, evaluate, resume, train, tune  # noqa: E402
from gpu_envs.training.config import OF_A_POLICY, Config  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

UPDATING: Mapping[str, Any] = {
    "algorithm": "a2c", "epochs": 3, "minibatches": 4, "learning_rate": "0:0.02,1:0.01", "gamma": 0.9,
    "gae_lambda": 0.8, "clip": 1e-3, "value_clip": 1e-3, "value_weight": 0.1, "entropy_weight": "0:0.1,0.5:0",
    "max_grad_norm": None, "target_kl": 1e-9, "normalise_advantages": False, "normalise_observations": True,
    "normalise_rewards": True,
}  # fmt: skip
"""What plays no part before the first update: another value of each."""

ACTING: Mapping[str, Any] = {
    "hidden": (8, 24), "activation": "relu", "layer_norm": True, "shared_trunk": True, "initial_std": 0.5,
    "precision": "bf16", "fused": False,
}  # fmt: skip
"""What makes a policy act otherwise from the beginning."""

OF_CHOICES = ("epsilon",)
"""Settings that boxes do not have."""

FROM_A_BUFFER: Mapping[str, tuple[str, Any]] = {
    "slots": ("sac", 60), "batch": ("sac", 64), "updates": ("sac", 4), "n_step": ("sac", 3), "tau": ("sac", 0.5),
    "temperature": ("sac", 0.2), "target_entropy": ("sac", -3.0), "target_noise": ("td3", 0.6),
    "target_noise_clip": ("td3", 0.01), "policy_delay": ("td3", 1), "atoms": ("td3", 21),
    "least_return": ("td3", -3.0), "most_return": ("td3", 30.0),
}  # fmt: skip
"""The same of learning from a buffer: for which algorithm, and another value."""

EXPLORING: Mapping[str, tuple[str, Any]] = {
    "warm_up": ("sac", 10_000), "exploration": ("sac", "ou"), "noise": ("td3", 0.5),
}  # fmt: skip
"""What makes it act otherwise from the beginning."""

OTHERS = {**UPDATING, **ACTING}
ROLES = ("tagger", "runner")


def duel(device: str, **settings: Any) -> Config:
    """A game with two policies whose actions are boxes, so that every setting means something."""
    given: dict[str, Any] = {"params": FIELD_PARAMS | {"actions": "continuous"}, "learning_rate": 0.01}
    return small(device, FIELD, **(given | settings))


def learnt(config: Config, updates: int = 1) -> dict[str, Any]:
    """The state of every policy after so many updates."""
    trainer = Trainer(config)
    trainer.iterate(updates)
    state: dict[str, Any] = timeless(trainer.state())["learners"]
    return state


def test_every_setting_has_another_value_here() -> None:
    assert sorted([*OTHERS, *OF_CHOICES, *FROM_A_BUFFER, *EXPLORING]) == sorted(OF_A_POLICY)
    defaults = duel("cpu")
    assert all(getattr(duel("cpu", **{name: value}), name) != getattr(defaults, name) for name, value in OTHERS.items())


def varied(name: str, device: str) -> tuple[Callable[..., Config], Any]:
    """Makes runs in which a setting means something; and another value for it."""
    if name in OTHERS:
        return partial(duel, device), OTHERS[name]
    algorithm, value = {**FROM_A_BUFFER, **EXPLORING}[name]
    base: dict[str, Any] = {"algorithm": algorithm, "updates": 2} | ({"atoms": 11} if algorithm == "td3" else {})
    return lambda **settings: off_policy(device, FIELD, **(base | settings)), value


NAMES = [*UPDATING, *FROM_A_BUFFER, *EXPLORING]


@pytest.mark.parametrize(("name", "role"), [*zip(NAMES, cycle(ROLES), strict=False)])
def test_a_setting_changes_its_policy_and_no_other(name: str, role: str, device: str) -> None:
    run, value = varied(name, device)
    plain, every = learnt(run()), learnt(run(**{name: value}))
    found = learnt(run(policy_settings={role: {name: value}}))
    for each in ROLES if name not in EXPLORING else ():  # who acts otherwise changes what the other one sees
        assert_same_bits((every if each == role else plain)[each], found[each], each)
    with pytest.raises(AssertionError):
        assert_same_bits(plain[role], found[role])


@pytest.mark.parametrize("name", ["hidden", "activation", "layer_norm", "shared_trunk", "initial_std"])
def test_a_network_of_its_own(name: str, device: str) -> None:
    value = OTHERS[name]
    plain, every = (Trainer(duel(device, **given)).learners for given in ({}, {name: value}))
    found = Trainer(duel(device, policy_settings={"runner": {name: value}})).learners
    for role, expected in (("tagger", plain), ("runner", every)):
        assert repr(found[role].module) == repr(expected[role].module)
        assert_same_bits(expected[role].module.state_dict(), found[role].module.state_dict())


def test_matrix_products_have_the_precision_of_their_policy(device: str) -> None:
    """On their ways there and back."""
    trainer = Trainer(small(device, GRID, fused=False, policy_settings={"runner": {"precision": "tf32"}}))
    seen: set[tuple[str, bool, str]] = set()

    def watched(name: str) -> Callable[..., None]:
        def note(*_: Any, back: bool = True) -> None:
            seen.add((name, back, torch.get_float32_matmul_precision()))

        def there(_: Any, __: Any, output: Any) -> None:
            note(back=False)
            if output.requires_grad:
                output.register_hook(note)

        return there

    for name, learner in trainer.learners.items():
        learner.module.get_submodule("actor").register_forward_hook(watched(name))
    trainer.iterate(2)
    precisions = (("tagger", "highest"), ("runner", "high"))
    assert seen == {(name, back, precision) for name, precision in precisions for back in (False, True)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("taggers", r"names 'taggers', which is no policy that learns. Did you mean 'tagger'\? Those that learn are: "),
        ("runner", r"names 'runner', which is no policy that learns\..* are: fox, tagger$"),
        ("random (runner)", "names .*, which is no policy that learns"),
    ],
)
def test_a_policy_that_does_not_learn_has_no_settings(name: str, message: str, device: str) -> None:
    policies = {"runner": "random", "tagger_0": "fox"}
    config = small(device, GRID, policies=policies, policy_settings={name: {"gamma": 0.5}})
    for begun in (Trainer, tune):
        with pytest.raises(ValueError, match=f"policy_settings {message}"):
            begun(config)


# --- runs that go on ---

OWN = {"tagger": {"hidden": (8,), "normalise_observations": True, "gamma": 0.9, "learning_rate": 0.02}}


def test_a_run_goes_on_with_them_and_may_with_other_rates(tmp_path: Path, device: str) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    for run, updates in ((whole, 4), (part, 2)):
        train(small(device, GRID, policy_settings=OWN, total_steps=8 * 16 * updates, run_dir=str(run)), progress=False)
    kept = json.loads((part / "config.json").read_text())["config"]["policy_settings"]
    assert kept == {"tagger": {**OWN["tagger"], "hidden": [8], "learning_rate": "0.02"}}
    resume(part, total_steps=8 * 16 * 4, progress=False)
    before = weights(whole)
    assert_same_bits(before, weights(part))
    assert evaluate(whole, episodes=8, device=device) == evaluate(part, episodes=8, device=device)

    with pytest.raises(ValueError, match=r"keeps the gamma of its policy 'runner'. Others may be given of: learn"):
        resume(whole, progress=False, policy_settings={"runner": {"gamma": 0.5}})
    resume(whole, total_steps=8 * 16 * 6, progress=False, policy_settings={"tagger": {"learning_rate": 0}})
    after = weights(whole)
    assert_same_bits(before["tagger"], after["tagger"])
    with pytest.raises(AssertionError):
        assert_same_bits(before["runner"], after["runner"])
    about = RunDirectory.open(whole).about()
    changed = about["changes"][0]["policy_settings"]
    assert changed["to"] == {"tagger": {**changed["from"]["tagger"], "learning_rate": "0"}}
    assert about["config"]["policy_settings"] == changed["to"]


def weights(run: Path) -> dict[str, Any]:
    return {name: kept["module"] for name, kept in saved(run)["learners"].items()}
