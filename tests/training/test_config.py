"""A run's configuration: what is allowed, what is said where it is not, and schedules. None of it needs torch."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import IDS, TEAM_IDS

import gpu_envs
from gpu_envs.training.algorithms import OWN_SETTINGS, owned
from gpu_envs.training.config import Config
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.schedule import Schedule


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_envs", 0, "num_envs is 0; give a whole number from 1 up"),
        ("num_envs", True, "num_envs is True"),
        ("num_envs", "Auto", "num_envs is 'Auto'; give a whole number from 1 up, or 'auto'"),
        ("horizon", "auto", "horizon is 'auto'; give a whole number from 1 up"),
        ("horizon", -1, "horizon is -1"),
        ("seed", -1, "seed is -1; give a whole number from 0 up"),
        ("total_steps", 0, "total_steps is 0"),
        ("threads", 0, "threads is 0"),
        ("threads", 100_000, "threads is 100000; give a whole number from 1 to 1,024"),
        ("total_steps", 10**30, "give a whole number from 1 to 1,000,000,000,000,000"),
        ("hidden", (10**30,), "hidden is (1000"),
        ("env", None, "env is None; give an environment's id"),
        ("checkpoint_interval", -1, "checkpoint_interval is -1"),
        ("keep_checkpoints", 0, "keep_checkpoints is 0"),
        ("gamma", 1.01, "gamma is 1.01; it must lie from 0 to 1"),
        ("gae_lambda", float("nan"), "gae_lambda is nan"),
        ("gamma", "0.9", "gamma is '0.9'; give a number"),
        ("clip", 0.0, "clip is 0.0; it must lie above 0"),
        ("max_grad_norm", 0.0, "max_grad_norm is 0.0"),
        ("target_kl", -1.0, "target_kl is -1.0"),
        ("initial_std", 0.0067, "initial_std is 0.0067; it must lie from 0.0068 to 7.38"),
        ("initial_std", 7.39, "initial_std is 7.39; it must lie from 0.0068 to 7.38"),
        ("target_return", float("inf"), "target_return is inf"),
        ("algorithm", "poo", "algorithm is 'poo'. Did you mean 'ppo'? Allowed: ppo, a2c, pqn"),
        ("activation", "tan", "activation is 'tan'. Did you mean 'tanh'?"),
        ("precision", "float64", "precision is 'float64'. Did you mean 'float32'?"),
        ("hidden", (), "hidden is ()"),
        ("hidden", (64, 0), "hidden is (64, 0)"),
        ("hidden", (64, 6.5), "hidden is (64, 6.5)"),
        ("hidden", 64, "hidden is 64; give the width of each hidden layer"),
        ("hidden", "64", "hidden is '64'"),
        pytest.param("gamma", 10**400, "gamma is 1000", id="gamma-huge"),
        ("normalise_advantages", 1, "normalise_advantages is 1; give True or False"),
        ("normalise_observations", "no", "normalise_observations is 'no'; give True or False"),
        ("graphs", "none", "graphs is 'none'; give True or False, or None"),
        ("fused", 1, "fused is 1; give True or False, or None"),
        ("run_dir", 3, "run_dir is 3; give a path"),
        ("params", [("gravity", 9.0)], "params is [('gravity', 9.0)]; give a mapping by name"),
        ("policies", "random", "policies is 'random'; give a mapping by name"),
        ("policies", {"runner": None}, "policies names None for 'runner'"),
        ("policies", {"runner": "a\nb"}, r"policies names 'a\nb' for 'runner'; give a policy's name, printable"),
        ("hidden", (8,) * 200_000, "hidden has 200,000 layers; give 100 or fewer"),
        ("device", None, "device is None; give auto, cpu, cuda or cuda:N"),
        ("target_role", 3, "target_role is 3; give a role's name, or None"),
        ("since", 3, "since is 3; give two whole numbers"),
        ("policy_settings", {"a": {"algorithm": ["sac"]}}, "policy_settings of 'a': algorithm is ['sac']"),
        ("policy_settings", {"a": "b"}, "policy_settings gives 'a' 'b'; give a mapping such as {'gamma': 0.95}"),
        ("policy_settings", {3: {}}, "policy_settings is {3: {}}; give a mapping by name, such as {'runner': {'gamma'"),
        (
            "policy_settings",
            {"a": {"horizon": 4}},
            "policy_settings gives 'a' the setting 'horizon', which is the whole run's. A policy may have of its own: "
            "algorithm, epochs, ",
        ),
        ("policy_settings", {"a": {"policy_settings": {}}}, "which is the whole run's."),
        ("policy_settings", {"a": {"gama": 1}}, "the setting 'gama', which does not exist. Did you mean 'gamma'?"),
        ("policy_settings", {"a": {2: 1}}, "the setting 2, which does not exist. A policy may have"),
        ("policy_settings", {"a": {"gamma": 2}}, "policy_settings of 'a': gamma is 2; it must lie from 0 to 1"),
        ("policy_settings", {"a": {"hidden": 3}}, "policy_settings of 'a': hidden is 3; give the width"),
        ("policy_settings", {"a": {"learning_rate": "x"}}, "policy_settings of 'a': learning_rate: 'x' is not a sche"),
        ("learning_rate", "0:1,2:0", "learning_rate: '0:1,2:0' is not a schedule (a schedule's fractions must rise"),
        ("learning_rate", "0:0.1,1:-0.1", "learning_rate is 0:0.1,1:-0.1; it cannot be negative"),
        ("entropy_weight", "much", "entropy_weight: 'much' is not a schedule"),
        ("epsilon", 1.5, "epsilon is 1.5; it must lie from 0 to 1"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Config(**{"env": "CartPole-v1", name: value})


def test_settings_are_kept_as_plain_values() -> None:
    given: dict[str, Any] = {
        "num_envs": np.int32(8), "seed": np.uint64(2**63), "hidden": np.array([8, 4]), "gamma": np.float32(0.5),
        "clip": np.int64(1), "learning_rate": np.float32(0.25), "target_return": 475, "run_dir": Path("runs") / "one",
        "policy_settings": {"agent": {"learning_rate": "0:1,1:0", "hidden": [8, 4], "target_kl": None, "gamma": 1}},
    }  # fmt: skip
    config = Config(env="CartPole-v1", **given)
    found = {name: getattr(config, name) for name in given}
    own = {"agent": {"learning_rate": Schedule.of("0:1,1:0"), "hidden": (8, 4), "target_kl": None, "gamma": 1.0}}
    plain = {"num_envs": 8, "seed": 2**63, "hidden": (8, 4), "gamma": 0.5, "clip": 1.0, "target_return": 475.0}
    plain |= {"run_dir": str(Path("runs") / "one")}
    assert found == plain | {"learning_rate": Schedule.of(0.25), "policy_settings": own}
    assert [type(found[name]) for name in plain] == [type(value) for value in plain.values()]
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("then", "now"), [(1e-5, 0.0068), (0.5, 0.5), (100.0, 7.38)])
def test_a_deviation_of_a_run_before_it_was_bounded(then: float, now: float) -> None:
    from gpu_envs.training.operations.heads import LOG_STD_RANGE

    config = Config.from_json(Config(env="Pendulum-v1").to_json() | {"initial_std": then})
    assert config.initial_std == now
    assert LOG_STD_RANGE[0] < math.log(now) < LOG_STD_RANGE[1]  # where it acts as it did


def test_settings_of_other_algorithms_are_refused() -> None:
    for algorithm, name, value in (
        ("pqn", "clip", 0.3), ("pqn", "shared_trunk", True), ("a2c", "epochs", 7), ("ppo", "epsilon", 0.5)
    ):  # fmt: skip
        owners = " and ".join(OWN_SETTINGS[name])
        given: dict[str, Any] = {"algorithm": algorithm, name: value}
        with pytest.raises(ValueError, match=f"^{algorithm} has no {name}, which is a setting of {owners}; leave"):
            Config(env="CartPole-v1", **given)
        with pytest.raises(ValueError, match=f"policy_settings of 'a': {algorithm} has no {name}"):
            Config(env="CartPole-v1", policy_settings={"a": given})
        kept = Config(env="CartPole-v1", algorithm=algorithm)
        assert Config.from_json(owned(kept.to_json() | {name: value})) == kept  # once it was ignored
        of_policy = {"policy_settings": {"a": given}}
        kept = dataclasses.replace(Config(env="CartPole-v1"), policy_settings={"a": {"algorithm": algorithm}})
        assert Config.from_json(owned(kept.to_json() | of_policy)) == kept


def test_a_run_may_have_what_one_of_its_policies_has() -> None:
    assert Config(env="CartPole-v1", epochs=3, minibatches=5).passes == (3, 5)
    assert Config(env="CartPole-v1", algorithm="a2c").passes == (1, 1)
    config = Config(env="CartPole-v1", clip=0.3, epochs=7, policy_settings={"a": {"algorithm": "pqn"}})
    assert (config.of_policy("a").clip, config.of_policy("a").epochs) == (0.2, 7)
    assert (config.of_policy("b").clip, config.of_policy("b").epochs) == (0.3, 7)
    Config(env="CartPole-v1", algorithm="pqn", clip=0.3, policy_settings={"a": {"algorithm": "ppo"}})


def test_small_work_has_one_thread() -> None:
    """By the policy that has most of it."""
    config = Config(env="TagGridWorld-v0", num_envs=64, horizon=16)
    assert config.cpu_threads == 1
    for own in ({"hidden": (10_000,)}, {"hidden": (4096, 8), "algorithm": "a2c"}):
        large = dataclasses.replace(config, policy_settings={"tagger": own})
        assert (large.cpu_threads, large.of_policy("tagger").cpu_threads) == (None, None)
        assert large.of_policy("runner").cpu_threads == 1


def test_every_environment_has_presets_that_are_runs() -> None:
    assert [env for env in (*IDS, *TEAM_IDS) if "default" not in PRESETS[env]] == []
    for env, presets in PRESETS.items():
        assert gpu_envs.spec(env).id == env
        assert "none" not in presets  # which asks for no preset
        for values in presets.values():
            config = Config(env=env, **values)
            gpu_envs.spec(env).check_params(dict(config.params), config.replicas)


# --- schedules ---


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (0.5, {0.3: 0.5}),
        (3, {1.0: 3.0}),
        ("1e-3", {0.0: 1e-3}),
        ("0:4,1:0", {0.0: 4.0, 0.25: 3.0, 1.0: 0.0}),
        ("0.5:4,0.75:2", {0.2: 4.0, 0.5: 4.0, 0.625: 3.0, 0.9: 2.0}),
        ([(0, 1), (0.5, 2), (1, 0)], {0.75: 1.0}),
        ("0.25:7", {0.0: 7.0}),
    ],
)
def test_values_lie_on_straight_lines(given: Any, values: dict[float, float]) -> None:
    assert {at: Schedule.of(given).at(at) for at in values} == values


@pytest.mark.parametrize(
    "given", ["", "a", "0:1,", "0:1:2", "1:0,0:1", "0:1,0:2", "-0.1:1", "0:1,1.5:0", "nan", "0:inf", True, None, [1, 2]]
)
def test_what_is_no_schedule_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="schedule"):
        Schedule.of(given)


@pytest.mark.parametrize("given", [0.1, 1 / 3, 1e-30, "0:0.1,0.3333333333333333:1e-07,1:0", "0:-0.0"])
def test_the_text_of_a_schedule_reads_back_exactly(given: Any) -> None:
    for fraction in (0.0, 0.2, 1 / 3, 0.9, 1.0):
        assert Schedule.of(str(Schedule.of(given))).at(fraction) == Schedule.of(given).at(fraction)
