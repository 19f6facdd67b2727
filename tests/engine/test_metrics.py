"""Metrics of episodes equal the results of a plain loop over the states, in all modes and on all devices."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom import spec_path as place_of
from gymnasium.vector import AutoresetMode
from harness import MODES, MULTITHREADED_COUNT, Make, Place, assert_same_bits, numpy_of
from nvrtc import H200, nvrtc_missing, ptx_of
from registered import (
    COVID,
    HOST,
    VARIANTS,
    Variant,
    draw_actions,
    guarded_array,
    make_variant,
    needs_cuda,
    numpy_by_role,
    place_actions,
    storage_place,
)
from small_envs import chase, check_message, walk

import gpu_envs
from gpu_envs import Metric, Rules, Step
from gpu_envs.codegen import PRECISIONS, SimulationConfig, generate, layout_of
from gpu_envs.codegen.header import rules_part
from gpu_envs.engine.options import Options, config_of
from gpu_envs.testing import builds, check_environment

SPECS = {
    name: gpu_envs.spec(place_of(f"measured.py:{name}"))
    for name in ("DRIFTER", "DRIFTER_IN_PYTHON", "FLOCK", "FLOCK_IN_PYTHON")
}
MEASURED = {name: Variant(spec.id, {"max_episode_steps": 9}) for name, spec in SPECS.items()}
each_measured = pytest.mark.parametrize("variant", MEASURED.values(), ids=MEASURED)

State = Mapping[str, np.ndarray]
Episodes = dict[tuple[int, int], tuple[np.ndarray, ...]]
"""Length and metrics of each complete episode, by replica and episode number."""


def play_episodes(env: Any, actions: Mapping[str, np.ndarray], steps: int, place: Place = HOST) -> Episodes:
    """Repeat the same actions for a number of steps; in Disabled mode, reset ended replicas."""
    episodes: Episodes = {}
    count = [0] * env.num_envs
    for _ in range(steps):
        env.step(place_actions(env, actions, place))
        over = numpy_of(env.simulation.buffers["finished"])
        if not over.any():
            continue
        metrics = {name: numpy_of(values) for name, values in env.episode_metrics.items()}
        (lengths, *_) = (
            values.reshape(env.num_envs, -1).max(1) for values in numpy_by_role(env, env.episode_length).values()
        )
        for i in np.flatnonzero(over):
            episodes[int(i), count[i]] = (lengths[i], *(values[i] for values in metrics.values()))
            count[i] += 1
        if env.autoreset_mode is AutoresetMode.DISABLED:
            env.reset(options={"reset_mask": over})
    return episodes


def make_and_reset(make: Make, variant: Variant, count: int = 6, place: Place = HOST, **kwargs: Any) -> Any:
    env = make_variant(make, variant, count, place, **kwargs)
    env.reset(seed=3)
    return env


# --- values of metrics ---


def tag_metrics(state: State, rewards: Mapping[str, np.ndarray], before: State) -> dict[str, Any]:
    """A tagger's only rewards are 10 for each tag."""
    del before
    runners = state["in_game"][:, len(rewards["tagger"][0]) :]
    return {"tags": rewards["tagger"].sum(1) / 10, "survival": state["runners_left"] / runners.shape[1]}


def grid_metrics(state: State, rewards: Mapping[str, np.ndarray], before: State) -> dict[str, Any]:
    del rewards, before
    tagged = ~state["in_game"][:, -1]
    return {"tags": tagged, "survival": state["elapsed"] - tagged}


def covid_metrics(state: State, rewards: Mapping[str, np.ndarray], before: State) -> dict[str, Any]:
    del rewards
    people = gpu_envs.spec(COVID).table("population", {}).sum()
    return {
        "deaths": (state["deaths"] - before["deaths"]).sum(1),
        "income": state["income"].sum(1) / 1e9,
        "subsidies": state["subsidy"] / 20 * people * 20000 / 365 / 1e9,
    }


def cart_pole_metrics(state: State, *_: Any) -> dict[str, Any]:
    return {"position": abs(state["x"]), "angle": abs(state["theta"])}


def drifter_metrics(state: State, *_: Any) -> dict[str, Any]:
    x, trail = state["x"], state["trail"]
    return {"last": x, "mean": x / x.dtype.type(2), "sum": trail[:, 2], "highest": x - trail[:, 0]}


def flock_metrics(state: State, *_: Any) -> dict[str, Any]:
    x = state["x"]
    size = np.add.accumulate(abs(x), 1)[:, -1]
    return {"last": x[:, -1], "mean": size, "sum": (x > 2).sum(1), "highest": x[:, 0]}


ORACLES: dict[str, Callable[[State, Mapping[str, np.ndarray], State], dict[str, Any]]] = {
    "CartPole-v0": cart_pole_metrics,
    "CartPole-v1": cart_pole_metrics,
    "CartPoleHidden-v1": cart_pole_metrics,
    "MountainCar-v0": lambda s, *_: {"position": s["position"]},
    "MountainCarContinuous-v0": lambda s, *_: {"position": s["position"]},
    "Pendulum-v1": lambda s, *_: {"angle": abs((s["theta"] + math.pi) % (2 * math.pi) - math.pi)},
    "Acrobot-v1": lambda s, *_: {"height": -np.cos(s["theta1"]) - np.cos(s["theta1"] + s["theta2"])},
    "RepeatPrevious-v0": lambda s, *_: {"correct": s["correct"]},
    "TMaze-v0": lambda s, *_: {"correct": s["side"] == s["cue"]},
    "TagContinuous-v0": tag_metrics,
    "TagGridWorld-v0": grid_metrics,
    "RiceN-v0": lambda s, *_: {"temperature": s["temperature"][:, 0], "gross_output": s["gross_output"].sum(1)},
    COVID: covid_metrics,
    **{SPECS[name].id: drifter_metrics for name in ("DRIFTER", "DRIFTER_IN_PYTHON")},
    **{SPECS[name].id: flock_metrics for name in ("FLOCK", "FLOCK_IN_PYTHON")},
}
REDUCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "last": lambda values: values[-1],
    "mean": lambda values: REDUCTIONS["sum"](values) / values[0].dtype.type(len(values)),
    "sum": lambda values: np.add.accumulate(values)[-1],
    "max": lambda values: np.max(values, 0),
}


@pytest.mark.parametrize(
    ("variant", "precision"),
    [
        *((variant, "") for variant in VARIANTS.values()),
        *((variant, precision) for variant in MEASURED.values() for precision in PRECISIONS),
    ],
    ids=[*VARIANTS, *(f"{name}-{precision}" for name in MEASURED for precision in PRECISIONS)],
)
def test_metrics_equal_a_plain_loop(variant: Variant, precision: str, make: Make) -> None:
    """Over the states after each step; bit for bit if a precision is given."""
    env = make_and_reset(make, variant, 7, autoreset_mode="Disabled", precision=precision or "float32")
    spec, oracle = env.env_spec, ORACLES[variant.env_id]
    values: dict[str, list[np.ndarray]] = {name: [] for name in spec.metrics}

    def state() -> dict[str, np.ndarray]:
        fields = {name: numpy_of(array) for name, array in env.state.items()}
        return {n: v.astype(precision or float) if v.dtype.kind == "f" else v for n, v in fields.items()}

    finished = 0
    for action in draw_actions(env, 40):
        before = state()
        rewards = env.step(place_actions(env, action))[1]
        now = oracle(state(), numpy_by_role(env, rewards), before)
        assert list(now) == list(spec.metrics)
        for name, metric_values in now.items():
            values[name].append(metric_values.astype(precision or float))
        over = numpy_of(env.simulation.buffers["finished"])
        for i in np.flatnonzero(over):
            length = max(each[i].max() for each in numpy_by_role(env, env.episode_length).values())
            for name, metric in spec.metrics.items():
                expected = REDUCTIONS[metric.reduce]([each[i : i + 1] for each in values[name][-int(length) :]])
                if precision:
                    assert_same_bits(expected, env.episode_metrics[name][i : i + 1], name)
                else:
                    assert env.episode_metrics[name][i] == pytest.approx(expected[0], rel=1e-4, abs=1e-5), name
            finished += 1
        if over.any():
            env.reset(options={"reset_mask": over})
    assert finished > 20


ALL_VARIANTS = {**VARIANTS, **MEASURED}


@pytest.mark.parametrize("variant", ALL_VARIANTS.values(), ids=ALL_VARIANTS)
def test_modes_and_batches_agree(variant: Variant, make: Make, place: Place) -> None:
    """The first episodes of a replica are the same in every mode, in smaller batches and on every device."""
    results = {}
    for mode in MODES:
        env = make_and_reset(make, variant, 6, place, autoreset_mode=mode)
        actions = draw_actions(env, 1)[0]
        results[mode] = play_episodes(env, actions, 26, place)
    small_batch = make_and_reset(make, variant, 2, place)
    first_actions = {role: values[:2] for role, values in actions.items()}
    results["small batch"] = play_episodes(small_batch, first_actions, 26, place)
    host = make_and_reset(make, variant, 6, HOST)
    results["host"] = play_episodes(host, actions, 26)
    for other in ("NextStep", "Disabled", "small batch", "host"):
        shared = results["SameStep"].keys() & results[other].keys()
        assert len(shared) >= 4
        for key in shared:
            assert_same_bits(results["SameStep"][key], results[other][key], f"{other} {key}")


def test_threads_and_blocks_agree(make: Make, device: str) -> None:
    for name in ("DRIFTER", "FLOCK"):
        launches = [{"threads": 1}, {"threads": 2}] if device == "cpu" else [{"block_size": 64}, {"block_size": 256}]
        place = Place(device, "numpy")
        envs = [make_and_reset(make, MEASURED[name], MULTITHREADED_COUNT, place, **launch) for launch in launches]
        for env in envs:
            for _ in range(12):
                env.step(place_actions(env, draw_actions(env, 1)[0]))
        assert_same_bits(envs[0].episode_metrics, envs[1].episode_metrics)


@needs_cuda
def test_a_team_spread_over_the_gpu_has_the_same_metrics(make: Make) -> None:
    variant = MEASURED["FLOCK"]._replace(params={"max_episode_steps": 9, "birds": 3000})
    envs = [
        make_and_reset(make, variant, 3, Place(device, "numpy"), autoreset_mode="SameStep")
        for device in ("cpu", "cuda")
    ]
    assert envs[1].simulation.layout.schedule.kind == "SPREAD"
    on_cpu, on_cuda = (play_episodes(env, draw_actions(env, 1)[0], 20) for env in envs)
    assert_same_bits(list(on_cpu.values()), list(on_cuda.values()))


@pytest.mark.slow
@pytest.mark.parametrize("birds", [3, 300, 3000])
def test_every_schedule_compiles(birds: int) -> None:
    if nvrtc_missing():
        pytest.skip(nvrtc_missing())
    spec, kinds = SPECS["FLOCK"], {3: "BLOCK", 300: "BLOCK", 3000: "SPREAD"}
    for mode in MODES:
        config = SimulationConfig(spec, 8, mode, "float32", 9, spec.check_params({"birds": birds}, 1))
        for measured in (False, True):
            layout: Any = layout_of(dataclasses.replace(config, running_metrics=measured), H200)
            assert layout.schedule.kind == kinds[birds]
            ptx_of(generate(layout, "multi_agent").source)


def test_live_metrics_of_a_single_agent_compile(mode: str) -> None:
    if nvrtc_missing():
        pytest.skip(nvrtc_missing())
    spec = SPECS["DRIFTER"]
    config = SimulationConfig(spec, 8, mode, "float32", 9, spec.check_params({}, 1), running_metrics=True)
    ptx_of(generate(layout_of(config, H200), "vector_env").source)


@each_measured
def test_live_metrics_change_no_metric(variant: Variant, make: Make, place: Place, mode: str) -> None:
    """Afterwards the program is the previous one, also if a parameter was set in between."""
    envs = [make_and_reset(make, variant, 6, place, autoreset_mode=mode) for _ in range(2)]
    for env in envs:
        env.allow_frozen_steps()
    actions = draw_actions(envs[0], 20)
    source = envs[0].simulation.program_source()
    for t, action in enumerate(actions):
        with envs[0].live_metrics() if t % 5 == 2 else contextlib.nullcontext():
            for env in envs:
                env.step(place_actions(env, action, place))
                if t == 7:
                    env.set_attr("edge", 1.5)
        assert_same_bits(envs[0].get_state(), envs[1].get_state())
    assert envs[0].simulation.program_source() == envs[1].simulation.program_source()
    assert not envs[0].simulation.config.running_metrics
    assert "RUNNING_METRICS = false" in source


# --- where metrics are returned ---


@each_measured
def test_infos_have_metrics(variant: Variant, make: Make, place: Place, mode: str) -> None:
    env = make_and_reset(make, variant, 6, place, autoreset_mode=mode, statistics=True)
    env.allow_frozen_steps()
    finished = 0
    for action in draw_actions(env, 20):
        infos = env.step(place_actions(env, action, place))[4]
        over = numpy_of(env.simulation.buffers["finished"])
        if "episode" not in infos:
            assert not over.any()
            continue
        assert set(infos["episode"]) == {"r", "l", *env.env_spec.metrics}
        for name, values in env.episode_metrics.items():
            in_infos = numpy_of(infos["episode"][name])
            assert_same_bits(in_infos[over], numpy_of(values)[over])
            assert place.output != "numpy" or not in_infos[~over].any()
            finished += over.sum()
    assert finished


@each_measured
def test_a_step_writes_metrics_into_the_users_array(variant: Variant, make: Make, place: Place) -> None:
    env = make_and_reset(make, variant, 6, place, autoreset_mode="SameStep", statistics=True)
    guarded, array = guarded_array(place, (6, 4), "float32")
    ended = np.zeros(6, bool)
    for action in draw_actions(env, 20):
        infos = env.step(place_actions(env, action, storage_place(place)), out=Step(episode_metrics=array))[4]
        ended |= numpy_of(env.simulation.buffers["finished"])
        for j, (name, values) in enumerate(env.episode_metrics.items()):
            assert_same_bits(numpy_of(array)[ended, j], numpy_of(values)[ended])
            assert "episode" not in infos or np.array_equal(numpy_of(infos["episode"][name]), numpy_of(array)[:, j])
    assert ended.all()
    assert (numpy_of(guarded)[[0, -1]] == 77).all()


def test_environments_without_metrics(tmp_path: Path, device: str) -> None:
    env = gpu_envs.VectorEnv(walk(tmp_path), 2, device=device, statistics=True)
    env.reset(seed=0)
    assert env.episode_metrics == {}
    with pytest.raises(ValueError, match=r"out\.episode_metrics is written by environments whose spec has metrics"):
        env.step(np.zeros(2, int), out=Step(episode_metrics=np.zeros((2, 1), np.float32)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_checker_passes(name: str) -> None:
    """Sanitizers are slow to compile and run for the C++ specs only, since the Python specs have the same rules."""
    check_environment(SPECS[name], num_envs=4, steps=20, sanitize=not name.endswith("IN_PYTHON"))


# --- mistakes in specs and rules ---


MEASURE = "FN void measure(const State& s, const Params& p, Metrics& metrics)"


@pytest.mark.parametrize(
    ("metrics", "further", "message"),
    [
        ({"r": Metric()}, "", "the metric 'r' has the name of another entry"),
        ({"no good": Metric()}, "", "the metric 'no good' must be a name"),
        ({"Metrics": Metric()}, "", "the metric 'Metrics' has a name that the headers use"),
        ({"far": 1}, "", r"metrics: 'far' is 1; give a Metric"),
        (("far",), "", r"metrics is \('far',\); give a mapping"),
        ({"far": Metric()}, "", r"metrics names far, but .*walk\.cuh has no function measure"),
        ({}, f"{MEASURE} {{}}", r"has measure.*but the spec has no metrics"),
        ({"far": Metric()}, MEASURE + " { metrics.fart = s.x; }", r"Metrics has no field 'fart'\. Did you mean 'far'"),
    ],
)
def test_invalid_specs_are_refused(metrics: Any, further: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError, gpu_envs.CompileError), match=message):
        gpu_envs.VectorEnv(walk(tmp_path, more={"metrics": metrics}, further=further), 1, device="cpu")


def test_unknown_reductions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reduce is 'average'\. Allowed: last, mean, sum, max"):
        Metric(reduce="average")


@pytest.mark.slow
def test_only_one_iteration_may_write_a_metric(tmp_path: Path) -> None:
    """A build that records the iterations of phases finds it."""
    measure = """FN void measure(World& w, const Params& p, Team& team, Metrics& metrics) {
        FOR_EACH_AGENT(i, AGENTS) metrics.far = w.x[i];
    }"""
    spec = chase(tmp_path, more={"metrics": {"far": Metric()}}, further=measure)
    assert "chase.cuh:29: several iterations write 'metrics.far' (iterations " in check_message(builds.phases, spec)


def replace_functions(name: str, **functions: Any) -> gpu_envs.Spec:
    """A spec with rules in Python, with other functions."""
    spec = SPECS[name]
    assert isinstance(spec.header, Rules)
    return dataclasses.replace(spec, id=f"Other{spec.id}", header=dataclasses.replace(spec.header, **functions))


def sets_on_some_paths(s: Any, p: Any, metrics: Any) -> None:
    metrics.last = s.x
    metrics.mean = s.x
    metrics.sum = s.x
    if s.x > 0.0:
        metrics.highest = p.edge


def sets_not_all(s: Any, p: Any, metrics: Any) -> None:
    metrics.last = metrics.mean = s.x / p.edge


def changes_state(s: Any, p: Any, metrics: Any) -> None:
    s.x = p.edge
    metrics.last = metrics.mean = metrics.sum = metrics.highest = 0.0


def writes_in_every_iteration(w: Any, p: Any, team: Any, metrics: Any) -> None:
    for i in team.agents():
        metrics.last = w.x[i] + p.edge


def writes_between_phases(w: Any, p: Any, team: Any, metrics: Any) -> None:
    metrics.last = p.edge
    for i in team.agents():
        w.size[i] = 0.0


@pytest.mark.parametrize(
    ("name", "measure", "message"),
    [
        ("DRIFTER_IN_PYTHON", sets_on_some_paths, r"measure sets metrics\.highest on some paths only"),
        ("DRIFTER_IN_PYTHON", sets_not_all, r"measure does not set metrics\.sum"),
        ("DRIFTER_IN_PYTHON", changes_state, "changes_state must not change the state"),
        ("DRIFTER_IN_PYTHON", None, "has the metrics last, mean, sum, highest, but the rules have no measure"),
        (
            "FLOCK_IN_PYTHON",
            writes_in_every_iteration,
            r"every iteration writes 'metrics\.last'.*Write it in one iteration, if i == 0:$",
        ),
        ("FLOCK_IN_PYTHON", writes_between_phases, "code between phases must not depend on the world"),
    ],
)
def test_invalid_python_is_refused(name: str, measure: Any, message: str) -> None:
    spec = replace_functions(name, measure=measure)
    with pytest.raises(gpu_envs.TranslationError, match=f"(?s){message}"):
        rules_part(config_of(spec, 1, Options(), {}))


def test_checking_names_the_metric(tmp_path: Path, device: str) -> None:
    measure = f"{MEASURE} {{ metrics.far = real(1) / (s.x - s.x); }}"
    spec = walk(tmp_path, more={"metrics": {"far": Metric()}, "max_episode_steps": 2}, further=measure)
    env = gpu_envs.VectorEnv(spec, 2, device=device, checking=True)
    env.reset(seed=0)
    env.step(np.zeros(2, int))
    match = "replica 0, step 2 of its episode: the metric 'far' is inf"
    with pytest.raises(gpu_envs.NotFiniteError, match=match) as caught:
        env.step(np.zeros(2, int))
    assert (caught.value.source, caught.value.field) == ("metric", "far")
