"""Settings of a run: allowed values, messages, flat names, and schedules. The tests do not need torch."""

import dataclasses
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import IDS, TEAM_IDS
from trainers import run_of

import gpu_envs
from gpu_envs.training.algorithms import A2C, ALGORITHMS, PPO, PQN, SAC, TD3
from gpu_envs.training.policy import Network, Policy, algorithms_with, join_names
from gpu_envs.training.presets import PRESETS
from gpu_envs.training.recurrent_settings import Memory
from gpu_envs.training.run import CHANGEABLE, POLICY_SETTINGS, SETTINGS, Run, upgraded
from gpu_envs.training.schedule import Schedule
from gpu_envs.training.settings import MAX_LAYERS, Setting, settings_of
from gpu_envs.training.settings_file import load_settings, to_toml

ENV = "CartPole-v1"

# --- every setting ---


def allowed(field: Setting, numbers: random.Random) -> Any:
    """Return a random allowed value of a setting."""
    if field.optional and numbers.random() < 0.2:
        return None
    if field.keywords and numbers.random() < 0.2:
        return numbers.choice(field.keywords)
    low, high = max(field.minimum, -50.0), min(field.maximum, max(field.minimum, -50.0) + 50.0)
    if field.kind is int:
        return numbers.randint(int(low), int(high))
    if field.kind is float:
        return high - (high - low) * numbers.random()  # never the minimum, which may be excluded
    if field.kind is Schedule:
        return str(Schedule(((0.0, numbers.uniform(low, high)), (numbers.random(), numbers.uniform(low, high)))))
    if field.kind is Memory:
        return f"{numbers.choice(('gru', 'lstm'))}:{numbers.randint(1, 99)}"
    if field.kind is bool:
        return numbers.random() < 0.5
    if field.kind is str:
        return numbers.choice(field.choices or ("auto", "a word"))
    if field.kind == tuple[str, ...]:
        return tuple(f"package.module:name_{number}" for number in range(numbers.randint(0, 3)))
    return tuple(numbers.randint(1, 99) for _ in range(numbers.randint(1, MAX_LAYERS)))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_help_and_round_trip_as_text(name: str) -> None:
    field, numbers = SETTINGS[name], random.Random(name)
    assert field.doc.endswith(".")
    for value in (field.default, *(allowed(field, numbers) for _ in range(50))):
        kept = field.validate(value)
        assert field.validate(kept) == kept
        assert field.validate(field.parse(field.format(kept))) == kept
    if not field.optional:
        with pytest.raises(ValueError, match=f"^{name}( is |: )None"):
            field.validate(None)


def test_a_setting_of_several_algorithms_is_the_same_in_each() -> None:
    for cls in (Run, Network, *ALGORITHMS.values()):
        for name, field in settings_of(cls).items():
            assert dataclasses.replace(SETTINGS[name], owner=field.owner) == field


@pytest.mark.parametrize("name", [name for name, field in SETTINGS.items() if field.kind in (int, float, Schedule)])
def test_a_number_stays_within_its_limits(name: str) -> None:
    field = SETTINGS[name]
    least, most, step = field.minimum, field.maximum, 1 if field.kind is int else 1e-3
    inside = [end for end in (least + step * field.exclusive_minimum, most) if math.isfinite(end)]
    below = least if field.exclusive_minimum else least - max(step, abs(least) / 8)
    outside: list[Any] = [end for end in (below, most + max(step, most / 8)) if math.isfinite(end)]
    form = int if field.kind is int else float
    for value in map(form, inside):
        assert field.validate(value) == (Schedule.of(value) if field.kind is Schedule else value)
    for wrong in (*map(form, outside), True, math.nan, "x", [], *([1.5] * (field.kind is int))):
        with pytest.raises(ValueError, match=f"^{name}( is |: ).*give"):
            field.validate(wrong)


@pytest.mark.parametrize("name", [name for name, field in SETTINGS.items() if field.choices])
def test_invalid_choices_are_refused(name: str) -> None:
    field, words = SETTINGS[name], ", ".join(SETTINGS[name].choices)
    for word in field.choices:
        assert field.validate(word) == word
        with pytest.raises(ValueError, match=rf"^{name} is '{word}_'\. Did you mean '{word}'\? Allowed: {words}$"):
            field.validate(f"{word}_")
    with pytest.raises(ValueError, match=rf"^{name} is 3\. Allowed: {words}$"):
        field.validate(3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_envs", 0, "num_envs is 0; give an integer from 1 up"),
        ("num_envs", "Auto", "num_envs is 'Auto'; give an integer from 1 up, or 'auto'"),
        ("horizon", "auto", "horizon is 'auto'; give an integer from 1 up"),
        ("threads", 100_000, "threads is 100000; give an integer from 1 to 1,024"),
        ("total_steps", 10**30, "give an integer from 1 to 1,000,000,000,000,000"),
        ("hidden", (10**30,), "hidden is (1000"),
        ("env", None, "env is None; give an environment ID"),
        ("gamma", 1.01, "gamma is 1.01; give a number from 0 to 1"),
        ("gamma", "0.9", "gamma is '0.9'; give a finite number"),
        ("clip", 0.0, "clip is 0.0; give a number above 0"),
        ("initial_std", 0.0067, "initial_std is 0.0067; give a number from 0.0068 to 7.38"),
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
        ("graphs", "none", "graphs is 'none'; give True or False, or None"),
        ("run_dir", 3, "run_dir is 3; give a path"),
        ("params", [("gravity", 9.0)], "params is [('gravity', 9.0)]; give a mapping by name"),
        ("policies", "random", "policies is 'random'; give a mapping by name, such as {'runner': 'random'}"),
        ("policies", {"runner": None}, "policies gives 'runner' None; give a Policy, or a printable policy name"),
        ("policies", {"runner": "a\nb"}, r"policies gives 'runner' 'a\nb'; give a Policy, or a printable policy name"),
        ("policies", {"gamma": Policy()}, "policies names a policy 'gamma', which is the name of a setting; give"),
        ("hidden", (8,) * 200_000, "hidden has 200,000 layers; give 100 or fewer"),
        ("device", None, "device is None; give a string. Device: auto (CUDA if available, else the CPU), cpu"),
        ("target_role", 3, "target_role is 3; give a string, or None. Role that target_return"),
        ("since", 3, "since is 3; give two integers"),
        ("gama", 1, "a training run has no setting 'gama'. Did you mean 'gamma'? The settings are: env, algori"),
        ("a.algorithm", ["sac"], "policy 'a': algorithm is ['sac']. Did you mean 'sac'? Allowed: ppo, a2c"),
        (
            "a.horizon",
            4,
            "a.horizon: the setting 'horizon' applies to the whole run. A policy can set: algorithm, ",
        ),
        ("a.gama", 1, "a.gama: the setting 'gama' does not exist. Did you mean 'gamma'? A policy can set"),
        ("a.gamma", 2, "policy 'a': gamma is 2; give a number from 0 to 1"),
        ("a.hidden", 3, "policy 'a': hidden is 3; give the width"),
        ("a.learning_rate", "x", "policy 'a': learning_rate: 'x' is not a schedule"),
        ("learning_rate", "0:1,2:0", "learning_rate: '0:1,2:0' is not a schedule (the progress of a schedule is [0."),
        ("learning_rate", "0:0.1,1:-0.1", "learning_rate is 0:0.1,1:-0.1; give values from 0 up"),
        ("entropy_weight", "much", "entropy_weight: 'much' is not a schedule"),
        ("epsilon", 1.5, "epsilon is 1.5; give values from 0 to 1"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any, message: str) -> None:
    owner = next(iter(algorithms_with(name)), "ppo")
    with pytest.raises(ValueError, match=re.escape(message)):
        run_of(**({"env": ENV, "algorithm": owner} | {name: value}))


def test_a_run_has_an_environment() -> None:
    with pytest.raises(ValueError, match="a training run needs an environment: give env, such as CartPole-v1"):
        Run.from_flat({})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithm": "sac"}, r"algorithm is 'sac'; give an object such as PPO(gamma=0.95)"),
        ({"network": (64, 64)}, r"network is (64, 64); give an object such as Network()"),
    ],
)
def test_wrong_types_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(env=ENV, **given)


def test_settings_are_stored_as_plain_values() -> None:
    given: dict[str, Any] = {
        "num_envs": np.int32(8),
        "seed": np.uint64(2**63),
        "target_return": 475,
        "run_dir": Path("runs") / "one",
        "gamma": np.float32(0.5),
        "clip": np.int64(1),
        "learning_rate": np.float32(0.25),
        "hidden": np.array([8, 4]),
    }
    found = run_of(env=ENV, **given).flat()
    plain = {"num_envs": 8, "seed": 2**63, "target_return": 475.0, "run_dir": str(Path("runs") / "one")}
    plain |= {"gamma": 0.5, "clip": 1.0, "learning_rate": "0.25", "hidden": [8, 4]}
    assert {name: found[name] for name in plain} == plain
    assert [type(found[name]) for name in plain] == [type(value) for value in plain.values()]


def test_initial_std_is_within_the_limits_of_policies() -> None:
    pytest.importorskip("torch")
    from gpu_envs.training.algorithms.base import LOG_STD_RANGE

    std = SETTINGS["initial_std"]
    assert LOG_STD_RANGE[0] < math.log(std.minimum) < math.log(std.maximum) < LOG_STD_RANGE[1]


# --- algorithms and policies ---


@pytest.mark.parametrize("name", [name for name in POLICY_SETTINGS if algorithms_with(name)])
def test_settings_of_other_algorithms_are_refused(name: str) -> None:
    value = Schedule.of("0:1,1:0") if SETTINGS[name].kind is Schedule else SETTINGS[name].default
    for algorithm in ALGORITHMS.keys() - algorithms_with(name):
        message = f"{algorithm} has no {name}, which is a setting of {join_names(algorithms_with(name))}; leave it out"
        given = {"algorithm": algorithm, name: value}
        with pytest.raises(ValueError, match=f"^{message}"):
            run_of(env=ENV, **given)
        with pytest.raises(ValueError, match=f"^policy 'a': {message}"):
            run_of(env=ENV, **{f"a.{key}": each for key, each in given.items()})


def test_a_network_has_no_settings_that_its_algorithm_lacks() -> None:
    trunk = Network(shared_trunk=True)
    with pytest.raises(ValueError, match=r"^pqn has no shared_trunk, which is a setting of ppo and a2c; leave it out"):
        Run(env=ENV, algorithm=PQN(), network=trunk)
    with pytest.raises(ValueError, match=r"^policy 'a': sac has no shared_trunk"):
        Run(env=ENV, policies={"a": Policy(SAC(), trunk)})


def test_a_policy_inherits_settings_of_its_algorithm() -> None:
    assert run_of(env=ENV, epochs=3, minibatches=5).algorithm.passes == (3, 5)
    assert run_of(env=ENV, algorithm="a2c").algorithm.passes == (1, 1)
    run = run_of(env=ENV, clip=0.3, epochs=7, shared_trunk=True, hidden=(8,), **{"a.algorithm": "pqn", "b.gamma": 0.9})
    assert (run.for_policy("a").algorithm, run.for_policy("a").network) == (PQN(epochs=7), Network(hidden=(8,)))
    assert run.for_policy("b").algorithm == PPO(clip=0.3, epochs=7, gamma=0.9)
    assert run.for_policy("b").network == run.network
    assert run.for_policy("c").algorithm is run.algorithm


def test_settings_of_a_role_with_another_policy_are_refused() -> None:
    for policy in ("random", "fox"):
        with pytest.raises(ValueError, match=rf"runner\.gamma: the policy of 'runner' is '{policy}'; give the setting"):
            run_of(env="TagGridWorld-v0", policies={"runner": policy}, **{"runner.gamma": 0.5})
    run = run_of(
        env="TagGridWorld-v0", policies={"runner": "fox", "tagger": "tagger"}, **{"fox.gamma": 0.5, "tagger.gamma": 0.6}
    )
    assert (run.for_policy("fox").algorithm, run.for_policy("tagger").algorithm) == (PPO(gamma=0.5), PPO(gamma=0.6))


def drawn(numbers: random.Random) -> dict[str, Any]:
    """Return random flat settings of a run with two policies."""
    found: dict[str, Any] = {"env": ENV, "params": {"gravity": 9.0}, "policies": {"runner": "fox", "hound": "random"}}
    excluded = ("critic", "critic_observes") if numbers.random() < 0.5 else ("shared_trunk", "memory")
    for policy in ("", "fox.", "a b."):
        algorithm = numbers.choice([*ALGORITHMS])
        found[f"{policy}algorithm"] = algorithm
        for name, field in SETTINGS.items():
            usable = algorithm in (algorithms_with(name) or ALGORITHMS) and (not policy or name in POLICY_SETTINGS)
            if usable and name not in excluded and numbers.random() < 0.5:
                found[policy + name] = allowed(field, numbers)
        if algorithm in ("sac", "td3", "ddpg"):
            found |= {f"{policy}buffer_size": 500, f"{policy}learning_starts": 9}
        if algorithm == "td3":
            found |= {f"{policy}gradient_steps": 6, f"{policy}policy_delay": 3}
    return found | {"total_steps": 10**6}


@pytest.mark.parametrize("seed", range(40))
def test_flat_settings_round_trip(seed: int, tmp_path: Path) -> None:
    given = drawn(random.Random(seed))
    run = run_of(**given)
    for name, value in given.items():
        policy, _, key = name.rpartition(".")
        if key in SETTINGS:
            parts = run.for_policy(policy)
            (owner,) = (part for part in (parts, parts.algorithm, parts.network) if key in settings_of(type(part)))
            assert getattr(owner, key) == SETTINGS[key].validate(value)
    again = run_of(**json.loads(json.dumps(run.flat())))
    assert again.flat() == run.flat()
    assert [again.for_policy(name) for name in ("", "fox", "a b")] == [
        run.for_policy(name) for name in ("", "fox", "a b")
    ]
    file = tmp_path / "run.toml"
    file.write_text(to_toml(run), "utf-8")
    of_one_run = {"gpus": 1, "run_dir": None}
    assert load_settings(file).flat() == run.flat() | of_one_run


def test_a_resumed_run_refuses_fixed_settings() -> None:
    run = run_of(env=ENV, horizon=8, **{"a.gamma": 0.9, "a.learning_rate": 0.5})
    for name in {*SETTINGS, "env", "algorithm", "params"} - {*CHANGEABLE}:
        with pytest.raises(ValueError, match=f"^a resumed run cannot change {name}.* It can change: .*learning_rate"):
            run.changed({name: 1})
    with pytest.raises(ValueError, match=r"^a resumed run cannot change a\.gamma"):
        run.changed({"a.gamma": 0.8})
    with pytest.raises(ValueError, match=r"^a resumed run cannot change a\.total_steps"):
        run.changed({"a.total_steps": 8})
    with pytest.raises(ValueError, match=r"learning_rat. Did you mean 'learning_rate'\? It can change: "):
        run.changed({"learning_rat": 0.5})
    found = run.changed({"total_steps": 9, "learning_rate": 0.25, "a.entropy_weight": 2})
    expected = run.flat() | {"total_steps": 9, "learning_rate": "0.25", "a.entropy_weight": "2"}
    assert found.flat() == expected


def test_settings_of_format_1_are_read() -> None:
    """It had the settings of all algorithms, other names, and nested settings of policies."""
    old = {
        "env": "Pendulum-v1",
        "algorithm": "td3",
        "slots": 300,
        "warm_up": 7,
        "batch": 64,
        "updates": 4,
        "clip": 0.4,
        "epsilon": "0:1,0.2:0.05",
        "atoms": None,
        "least_return": -10.0,
        "most_return": 10.0,
        "initial_std": 0.5,
        "gamma": 0.9,
        "policy_settings": {"a": {"algorithm": "ppo", "clip": 0.3, "batch": 3}, "b": {"updates": 2}},
    }
    found = upgraded(old)
    assert found == {
        "env": "Pendulum-v1",
        "algorithm": "td3",
        "buffer_size": 300,
        "learning_starts": 7,
        "batch_size": 64,
        "gradient_steps": 4,
        "gamma": 0.9,
        "a.algorithm": "ppo",
        "a.clip": 0.3,
        "a.initial_std": 0.5,
        "b.gradient_steps": 2,
    }
    run = run_of(**found)
    assert run.flat() == run_of(**upgraded(run.flat())).flat()
    for wrong in (3, {"a": 3}):
        with pytest.raises(ValueError, match=r"^policy_settings is .*; expected a mapping of policy names to settings"):
            run_of(**upgraded(old | {"policy_settings": wrong}))


def test_small_work_has_one_thread_of_torch() -> None:
    """By the policy with the most work."""
    run = run_of(env="TagGridWorld-v0", num_envs=64, horizon=16)
    assert run.torch_threads == 1
    for own in (Policy(None, Network(hidden=(10_000,))), Policy(A2C(), Network(hidden=(4096, 8)))):
        large = dataclasses.replace(run, policies={"tagger": own})
        assert (large.torch_threads, large.for_policy("tagger").torch_threads) == (None, None)
        assert large.for_policy("runner").torch_threads == 1


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_envs.training.run.available_threads", lambda: 8)
    run = run_of(env="CartPole-v1")
    counts = [dataclasses.replace(run, gpus=gpus).kernel_threads for gpus in (1, 2, 16)]
    assert counts == [None, 4, 1]
    assert dataclasses.replace(run, gpus=2, threads=3).kernel_threads == 3


def test_presets_are_valid_runs() -> None:
    assert [env for env in (*IDS, *TEAM_IDS) if "default" not in PRESETS[env]] == []
    for env, presets in PRESETS.items():
        assert gpu_envs.spec(env).id == env
        assert "none" not in presets  # which means no preset
        for values in presets.values():
            config = run_of(env=env, **values)
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
def test_schedules_interpolate_linearly(given: Any, values: dict[float, float]) -> None:
    assert {at: Schedule.of(given).at(at) for at in values} == values


@pytest.mark.parametrize(
    "given", ["", "a", "0:1,", "0:1:2", "1:0,0:1", "0:1,0:2", "-0.1:1", "0:1,1.5:0", "nan", "0:inf", True, None, [1, 2]]
)
def test_invalid_schedules_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="schedule"):
        Schedule.of(given)


@pytest.mark.parametrize("given", [0.1, 1 / 3, 1e-30, "0:0.1,0.3333333333333333:1e-07,1:0", "0:-0.0"])
def test_the_text_of_a_schedule_reads_back_exactly(given: Any) -> None:
    for fraction in (0.0, 0.2, 1 / 3, 0.9, 1.0):
        assert Schedule.of(str(Schedule.of(given))).at(fraction) == Schedule.of(given).at(fraction)


def test_misplaced_settings_are_explained() -> None:
    wrong: Any = Run
    for given, message in (
        ({"gamma": 0.9}, r"algorithm \(PPO, .*\): give algorithm=PPO\(gamma=0\.9\)"),
        ({"tau": 0.1}, r"algorithm \(SAC, TD3, DDPG\): give algorithm=SAC\(tau=0\.1\)"),
        ({"hidden": (3,)}, r"network: give network=Network\(hidden=\(3,\)\)"),
    ):
        with pytest.raises(TypeError, match=message):
            wrong(env=ENV, **given)
    policy: Any = Policy
    for odd in ("sac", Network()):
        with pytest.raises(ValueError, match=r"a policy's algorithm is .*; give an object such as PPO"):
            policy(odd)


def test_settings_of_a_policy_that_the_runs_algorithm_refuses() -> None:
    """Without validating inherited values, which may be an invalid combination."""
    run = Run(env=ENV, algorithm=SAC(gradient_steps=1), policies={"agent": Policy(TD3(gradient_steps=2))})
    assert Run.from_flat(run.flat()) == run
    run = Run(env=ENV, network=Network(shared_trunk=True), policies={"agent": Policy(SAC())})
    assert not run.for_policy("agent").network.shared_trunk


def test_overrides_stay_when_the_runs_value_changes() -> None:
    rate, other = Schedule.of(3e-4), Schedule.of(1e-4)
    typed = Run(env=ENV, algorithm=PPO(learning_rate=rate), policies={"a": Policy(PPO(learning_rate=rate, gamma=0.9))})
    named = run_of(env=ENV, learning_rate=3e-4, **{"a.gamma": 0.9, "b.learning_rate": 3e-4})
    for run, policy, expected in ((typed, "a", rate), (named, "a", other), (named, "b", rate)):
        changed = run.changed({"learning_rate": 1e-4}).for_policy(policy)
        assert changed.algorithm.learning_rate == expected


def test_format_1_gave_every_run_the_settings_of_all_algorithms() -> None:
    old = {"env": ENV, "algorithm": "ppo", "epochs": 2, "batch": 512, "tau": 0.05, "initial_std": 50.0, "atoms": None}
    run = Run.from_flat(upgraded({**old, "policy_settings": {"agent": {"algorithm": "sac", "warm_up": 9}}}))
    agent: Any = run.for_policy("agent").algorithm
    assert (agent.batch_size, agent.learning_starts, agent.tau) == (512, 9, 0.05)
    assert (run.algorithm, run.network.initial_std) == (PPO(epochs=2), 7.38)
    assert Run.from_flat(upgraded({**old, "algorithm": "a2c"})).algorithm == A2C()
    with pytest.raises(ValueError, match="atoms is a setting of C51, which was removed"):
        upgraded({**old, "atoms": 51})
