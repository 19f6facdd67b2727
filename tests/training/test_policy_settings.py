"""Settings of single policies: each changes only its policy, and a resumed run keeps it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from harness import assert_same_bits
from trainers import FIELD, FIELD_PARAMS, GRID, last_checkpoint, off_policy_run, small_run, without_times

torch = pytest.importorskip("torch")

from gpu_envs.training import Network, Policy, Run, RunDirectory, Trainer, evaluate, resume, train, tune  # noqa: E402
from gpu_envs.training.run import POLICY_SETTINGS  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

UPDATING: Mapping[str, Any] = {
    "algorithm": "a2c",
    "epochs": 3,
    "minibatches": 4,
    "learning_rate": "0:0.02,1:0.01",
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "clip": 1e-3,
    "value_clip": 1e-3,
    "value_weight": 0.1,
    "entropy_weight": "0:0.1,0.5:0",
    "max_grad_norm": None,
    "target_kl": 1e-9,
    "normalise_advantages": False,
    "normalise_observations": True,
    "normalise_rewards": True,
    "normalise_values": True,
}
"""Settings without an effect before the first update, with another value for each."""

ACTING: Mapping[str, Any] = {
    "hidden": (8, 24),
    "activation": "relu",
    "layer_norm": True,
    "shared_trunk": True,
    "memory": "gru:8",
    "critic": "team",
    "critic_observes": ("grid_length",),
    "initial_std": 0.5,
    "precision": "bf16",
    "fused": False,
}
"""Settings that change the first actions."""

OF_MEMORY: Mapping[str, Any] = {"sequence_length": 4}
"""Settings of policies with memory, without an effect before the first update."""

OF_CHOICES = ("epsilon",)
"""Settings that do not apply to Box actions."""

FROM_A_BUFFER: Mapping[str, tuple[str, Any]] = {
    "buffer_size": ("sac", 60),
    "batch_size": ("sac", 64),
    "gradient_steps": ("sac", 4),
    "n_step": ("sac", 3),
    "tau": ("sac", 0.5),
    "temperature": ("sac", 0.2),
    "target_entropy": ("sac", -3.0),
    "target_noise": ("td3", 0.6),
    "target_noise_clip": ("td3", 0.01),
    "policy_delay": ("td3", 1),
}
"""Settings of off-policy algorithms: algorithm and another value."""

EXPLORING: Mapping[str, tuple[str, Any]] = {
    "learning_starts": ("sac", 10_000),
    "exploration": ("sac", "ou"),
    "noise": ("td3", 0.5),
}
"""Settings of off-policy algorithms that change the first actions."""

OTHERS = {**UPDATING, **ACTING}
ROLES = ("tagger", "runner")


def duel(device: str, **settings: Any) -> Run:
    """A game with two policies with Box actions, so that every setting has an effect."""
    given: dict[str, Any] = {"params": FIELD_PARAMS | {"actions": "continuous"}, "learning_rate": 0.01}
    return small_run(device, FIELD, **(given | settings))


def states_after(config: Run, updates: int = 1) -> dict[str, Any]:
    """Return the state of every policy after ``updates`` updates."""
    trainer = Trainer(config)
    trainer.iterate(updates)
    state: dict[str, Any] = without_times(trainer.state())["learners"]
    return state


def test_every_setting_has_another_value_here() -> None:
    assert sorted([*OTHERS, *OF_MEMORY, *OF_CHOICES, *FROM_A_BUFFER, *EXPLORING]) == sorted(POLICY_SETTINGS)
    for name in (*OTHERS, *OF_MEMORY, *FROM_A_BUFFER, *EXPLORING):
        run, value = varied(name, "cpu")
        assert run(**{name: value}).flat()[name] != run().flat()[name]


def varied(name: str, device: str) -> tuple[Callable[..., Run], Any]:
    """Return a function that makes runs where a setting has an effect, and another value for the setting."""
    if name in OTHERS:
        return partial(duel, device), OTHERS[name]
    if name in OF_MEMORY:
        return partial(duel, device, memory="gru:4"), OF_MEMORY[name]
    algorithm, value = {**FROM_A_BUFFER, **EXPLORING}[name]
    return partial(off_policy_run, device, FIELD, algorithm=algorithm, gradient_steps=2), value


NAMES = [*UPDATING, *OF_MEMORY, *FROM_A_BUFFER, *EXPLORING]


@pytest.mark.parametrize(("name", "role"), [*zip(NAMES, cycle(ROLES), strict=False)])
def test_a_setting_changes_only_its_policy(name: str, role: str, device: str) -> None:
    run, value = varied(name, device)
    plain, every = states_after(run()), states_after(run(**{name: value}))
    found = states_after(run(**{f"{role}.{name}": value}))
    for each in ROLES if name not in EXPLORING else ():  # otherwise other actions change all observations
        assert_same_bits((every if each == role else plain)[each], found[each], each)
    with pytest.raises(AssertionError):
        assert_same_bits(plain[role], found[role])


@pytest.mark.parametrize("name", ["hidden", "activation", "layer_norm", "shared_trunk", "initial_std", "critic"])
def test_policies_have_separate_networks(name: str, device: str) -> None:
    value = OTHERS[name]
    plain, every = (Trainer(duel(device, **given)).learners for given in ({}, {name: value}))
    found = Trainer(duel(device, **{f"runner.{name}": value})).learners
    for role, expected in (("tagger", plain), ("runner", every)):
        assert repr(found[role].module) == repr(expected[role].module)
        assert_same_bits(expected[role].module.state_dict(), found[role].module.state_dict())


def test_matrix_products_have_the_precision_of_their_policy(device: str) -> None:
    """In forward and backward passes."""
    trainer = Trainer(small_run(device, GRID, fused=False, **{"runner.precision": "tf32"}))
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
        (
            "taggers",
            r"names 'taggers', which is not a learning policy. Did you mean 'tagger'\? The learning policies are: ",
        ),
        ("runner_", r"names 'runner_', which is not a learning policy\..* are: fox, tagger$"),
        ("random (runner)", "names .*, which is not a learning policy"),
    ],
)
def test_a_policy_that_does_not_learn_has_no_settings(name: str, message: str, device: str) -> None:
    policies = {"runner": "random", "tagger_0": "fox"}
    config = small_run(device, GRID, policies=policies, **{f"{name}.gamma": 0.5})
    for begun in (Trainer, tune):
        with pytest.raises(ValueError, match=f"policies {message}"):
            begun(config)


# --- resumed runs ---

OWN = {"tagger.hidden": (8,), "tagger.normalise_observations": True, "tagger.gamma": 0.9, "tagger.learning_rate": 0.02}


def test_a_resumed_run_keeps_policy_settings_and_may_change_rates(tmp_path: Path, device: str) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    for run, updates in ((whole, 4), (part, 2)):
        train(small_run(device, GRID, total_steps=8 * 16 * updates, run_dir=str(run), **OWN), progress=False)
    kept = json.loads((part / "config.json").read_text())["config"]
    expected = {**OWN, "tagger.hidden": [8], "tagger.learning_rate": "0.02"}
    assert {name: value for name, value in kept.items() if "." in name} == expected
    resume(part, total_steps=8 * 16 * 4, progress=False)
    before = weights(whole)
    assert_same_bits(before, weights(part))
    assert evaluate(whole, episodes=8, device=device) == evaluate(part, episodes=8, device=device)

    refused: dict[str, Any] = {"runner.gamma": 0.5}
    with pytest.raises(ValueError, match=r"cannot change runner\.gamma.* It can change: .*learning_rate"):
        resume(whole, progress=False, **refused)
    changes: dict[str, Any] = {"total_steps": 8 * 16 * 6, "tagger.learning_rate": 0}
    resume(whole, progress=False, **changes)
    after = weights(whole)
    assert_same_bits(before["tagger"], after["tagger"])
    with pytest.raises(AssertionError):
        assert_same_bits(before["runner"], after["runner"])
    about = RunDirectory.open(whole).about()
    steps, rate = {"from": 8 * 16 * 4, "to": 8 * 16 * 6}, {"from": "0.02", "to": "0"}
    assert about["changes"] == [{"iteration": 4, "total_steps": steps, "tagger.learning_rate": rate}]
    assert about["config"] == kept | {"total_steps": 8 * 16 * 6, "tagger.learning_rate": "0", "run_dir": str(whole)}


def test_a_run_is_evaluated_without_a_policy_that_has_settings(tmp_path: Path, device: str) -> None:
    run = str(tmp_path / "run")
    policies = {"runner": "fox", "fox": Policy(None, Network(hidden=(8,)))}
    train(small_run(device, GRID, policies=policies, total_steps=8 * 16, run_dir=run), progress=False)
    assert evaluate(run, episodes=8, device=device, policies={"runner": "random"}).keys() == {"tagger", "runner"}


def weights(run: Path) -> dict[str, Any]:
    return {name: kept["module"] for name, kept in last_checkpoint(run)["learners"].items()}
