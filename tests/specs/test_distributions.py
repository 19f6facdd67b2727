"""Parameters drawn from distributions, for each replica at the start of an episode."""

import copy
import json
import math
import pickle
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from harness import DEVICES, MODES, Place, assert_same_bits, numpy_of
from small_envs import walk
from small_kernels import compile_kernel

import gpu_envs
from gpu_envs import Choice, Derived, LogUniform, Normal, Param, Uniform, VectorEnv
from gpu_envs.cli import listing, parser
from gpu_envs.codegen import distribution_numbers
from gpu_envs.specs.distributions import parse
from gpu_envs.training.record.run_directory import RunDirectory
from gpu_envs.training.run import Run

MASS = Uniform(0.05, 0.4)
TWO: dict[str, Any] = {"pole_mass": MASS, "gravity": "normal:9.8:0.2:9:10.6"}


def cartpole(num_envs: int = 8, place: Place | None = None, **kwargs: Any) -> Any:
    given = {"device": "cpu", "autoreset_mode": "SameStep"} if place is None else place._asdict()
    env = gpu_envs.make("CartPole-v1", num_envs, **{**given, **(kwargs or TWO)})
    env.reset(seed=3)
    return env


def steps(env: Any, count: int) -> list[Any]:
    """Observations, and the current masses, with a constant action."""
    found = []
    for _ in range(count):
        seen, *_ = env.step(np.ones(env.num_envs, np.int64))
        found.append((np.array(numpy_of(seen)), np.array(numpy_of(env.params["pole_mass"]))))
    return found


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (MASS, "uniform:0.05:0.4"),
        (LogUniform(0.1, 10), "loguniform:0.1:10"),
        (Normal(9.8, 0.2, low=9, high=10.6), "normal:9.8:0.2:9:10.6"),
        (Normal(0, 1e-3), "normal:0:0.001"),
        (Normal(0, 1, low=0), "normal:0:1:0:inf"),
        (Choice(1, 2, 5), "choice:1:2:5"),
        (Choice(-0.5), "choice:-0.5"),
    ],
)
def test_objects_and_texts_are_equal(made: Any, text: str) -> None:
    assert str(made) == text
    assert parse(text) == made == pickle.loads(pickle.dumps(made))


def test_a_list_is_refused_with_an_example() -> None:
    with pytest.raises(
        TypeError, match=re.escape("Choice got [1, 2]; give numbers as separate arguments, such as Choice(1, 2, 5)")
    ):
        Choice([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("unifrom:0:1", "there is no distribution 'unifrom'. Did you mean 'uniform'?"),
        ("uniform:1", "uniform takes low, high, separated by colons"),
        ("uniform:a:b", "could not convert"),
        ("uniform:1:0", "the first at most the second"),
        ("uniform:0:inf", "two finite numbers"),
        ("loguniform:0:1", "a low above 0"),
        ("normal:1:0", "a standard deviation above 0"),
        ("normal:0:1:3:4", "has a probability of 0.0013 between 3 and 4"),
        ("choice:", "could not convert"),
    ],
)
def test_wrong_texts_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"parameter 'pole_mass'.*{re.escape(wrong)}"):
        cartpole(pole_mass=text)


def test_each_replica_draws_in_each_episode(place: Place) -> None:
    env = cartpole(64, place)
    first = np.array(numpy_of(env.params["pole_mass"]))
    assert len(np.unique(first)) == 64
    assert 0.05 <= first.min() < 0.1 < 0.35 < first.max() <= 0.4
    env.reset()
    second = np.array(numpy_of(env.params["pole_mass"]))
    assert (first != second).all()
    env.reset(options={"reset_mask": np.arange(64) < 10})
    third = numpy_of(env.params["pole_mass"])
    assert (third[:10] != second[:10]).all()
    assert_same_bits(third[10:], second[10:])
    env.reset(seed=3)
    assert_same_bits(numpy_of(env.params["pole_mass"]), first)
    assert len(np.unique(numpy_of(env.params["gravity"]))) > 60


@pytest.mark.parametrize("mode", MODES)
def test_a_replica_is_the_same_in_any_batch(mode: str, device: str) -> None:
    """On every device; in Disabled mode only a reset starts episodes."""
    whole = cartpole(5, Place(device, "numpy"), autoreset_mode=mode, **TWO)
    single = [cartpole(1, autoreset_mode=mode, first_replica=i, **TWO) for i in range(5)]
    for each in (whole, *single):
        each.allow_frozen_steps()
    rows = [steps(env, 40) for env in single]
    for t, (seen, masses) in enumerate(steps(whole, 40)):
        assert_same_bits(seen, np.concatenate([row[t][0] for row in rows]))
        assert_same_bits(masses, np.concatenate([row[t][1] for row in rows]))


def test_draws_do_not_change_other_random_numbers(device: str) -> None:
    drawn, plain = (cartpole(16, Place(device, "numpy"), **given) for given in (TWO, {"gravity": 9.8}))
    for name in drawn.state:
        assert_same_bits(numpy_of(drawn.state[name]), numpy_of(plain.state[name]))


def test_snapshots_pickles_and_forks_continue_equally(place: Place) -> None:
    env = cartpole(6, place)
    steps(env, 5)
    kept = env.get_state()
    others = [copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env.fork(1)]
    wanted = steps(env, 60)
    assert len({masses[0] for _, masses in wanted}) > 3
    env.params["pole_mass"] = 0.1
    env.set_state(kept)  # restores the distribution
    for other in (env, *others):
        assert_same_bits(steps(other, 60), wanted)
    env.set_state(kept)
    env.set_state(env.get_state(replicas=[2]), replicas=[4])
    row = steps(env, 60)
    assert_same_bits([masses[4] for _, masses in row], [masses[2] for _, masses in wanted])


@pytest.mark.parametrize("replicas", [None, [0, 1, 2, 3]])
@pytest.mark.parametrize(("mass", "other"), [(MASS, 0.1), (0.1, MASS)])
def test_snapshots_store_distributions(mass: Any, other: Any, replicas: Any, place: Place) -> None:
    """A snapshot can be restored in some replicas only if the others have the same distributions."""
    env, target = (cartpole(4, place, pole_mass=value) for value in (mass, other))
    kept = env.get_state(replicas)
    with pytest.raises(ValueError, match="all replicas must draw the same parameters: leave out replicas to write all"):
        target.set_state(kept, [0, 1, 2, 3])
    target.set_state(kept)
    assert target.distributions == env.distributions
    wanted = steps(env, 60)
    found = steps(target, 60)
    assert_same_bits([seen for seen, _ in found], [seen for seen, _ in wanted])


def test_an_edit_holds_until_the_replica_s_next_episode(place: Place) -> None:
    env = cartpole(4, place)
    twin = cartpole(4, place)
    env.params["pole_mass"][1] = 0.3
    before = np.array(numpy_of(env.params["pole_mass"]))
    assert before[1] == np.float32(0.3)
    env.step(np.zeros(4, np.int64))
    assert_same_bits(numpy_of(env.params["pole_mass"]), before)
    for each in (env, twin):
        each.reset(options={"reset_mask": np.array([True, True, False, False])})
    assert_same_bits(numpy_of(env.params["pole_mass"]), numpy_of(twin.params["pole_mass"]))
    env.params["pole_mass"][1] = math.nan
    with pytest.raises(ValueError, match="parameter 'pole_mass' of replica 1 is"):
        env.check()
    env.reset()
    env.check()


def test_assigning_numbers_and_distributions(place: Place) -> None:
    env = cartpole(4, place, pole_mass=MASS)
    live = env.params["pole_mass"]
    for value, wanted in ((0.1, [0.1] * 4), ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4])):
        env.params["pole_mass"] = value
        env.reset(seed=5)
        assert numpy_of(env.params["pole_mass"]).tolist() == np.array(wanted, np.float32).tolist()
        assert env.params["pole_mass"] is live
    env.set_attr("pole_mass", "uniform:0.2:0.3")
    env.params["length"] = Choice(0.5, 1.5)
    assert numpy_of(live).tolist() == np.array(wanted, np.float32).tolist()
    assert numpy_of(env.params["length"]).tolist() == [0.5] * 4
    env.reset(seed=5)
    fresh = cartpole(4, place, pole_mass=Uniform(0.2, 0.3), length=Choice(0.5, 1.5))
    fresh.reset(seed=5)
    for name in ("pole_mass", "length"):
        assert_same_bits(numpy_of(env.params[name]), numpy_of(fresh.params[name]))
    assert set(numpy_of(fresh.params["length"]).tolist()) == {0.5, 1.5}


CHANGES = [
    ("uniform:0.05:0.4", "uniform:0.2:0.3"),
    ("loguniform:0.05:0.4", "loguniform:0.2:0.3"),
    ("normal:0.1:0.02", "normal:0.3:0.05:0.1:0.4"),
    ("choice:0.1:0.2", "choice:0.3:0.4"),
]


@pytest.mark.parametrize(("first", "second"), CHANGES)
def test_other_numbers_need_no_compilation(first: str, second: str, place: Place) -> None:
    """Numbers of a distribution change in place; the draws are those of an environment made with the new numbers."""
    env = cartpole(256, place, pole_mass=first, length="uniform:0.4:0.6", gravity="choice:9:10")
    env.reset(seed=3)
    program = env.simulation.program
    env.set_attr("pole_mass", second)
    assert env.simulation.program is program
    env.reset(seed=5)
    fresh = cartpole(256, place, pole_mass=second, length="uniform:0.4:0.6", gravity="choice:9:10")
    fresh.reset(seed=5)
    for name in ("pole_mass", "length", "gravity"):
        assert_same_bits(numpy_of(env.params[name]), numpy_of(fresh.params[name]))
    env.set_attr("pole_mass", "uniform:0.1:0.2" if "uniform:" not in first else "choice:0.1:0.2")
    assert env.simulation.program is not program


def test_kernels_read_as_many_numbers_as_are_compiled_in() -> None:
    params: dict[str, Any] = {"pole_mass": "normal:0.1:0.02", "length": Uniform(0.4, 0.6), "gravity": "choice:9:10:11"}
    config = cartpole(2, **params, force_mag=LogUniform(9, 11)).simulation.config
    numbers = distribution_numbers(config, config.drawn)
    assert {name: len(row) for name, row in numbers.items()} == {n: d.kind.numbers for n, d in config.drawn.items()}


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("param", [Param(1.0), Param(1.0, positive=True), Param(0.5, minimum=0.1, maximum=0.7)])
def test_the_fast_check_of_a_number_agrees_with_the_check_of_arrays(param: Param, precision: str) -> None:
    info, ends = np.finfo(precision), [0.1, 0.7, 0.0, 1e-40, float(np.finfo(precision).tiny)]
    near = [float(np.nextafter(np.asarray(end, precision), s, dtype=precision)) for end in ends for s in (-9, 9)]
    for number in (*ends, *near, 1e39, float(info.max), math.inf, math.nan):
        with np.errstate(over="ignore", under="ignore"):
            array = np.asarray(number).astype(precision)
        invalid = bool(param._invalid(array))  # noqa: SLF001
        assert param._allows(number, precision) != invalid, number  # noqa: SLF001


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"pole_mass": Uniform(-1, 1)}, "parameter 'pole_mass', drawn from uniform:-1:1, got -1.0; allowed: a finite"),
        ({"pole_mass": Choice(0.1, 0)}, "drawn from choice:0.1:0, got 0.0"),
        ({"pole_mass": Normal(0.1, 1, low=-1)}, "got -1.0"),
        ({"pole_mass": Uniform(1e-60, 1)}, "float32 rounds it to"),
        ({"pole_mass": Normal(1, 1e39)}, "which is not finite in float32"),
        ({"pole_mass": Normal(1, 1e38)}, "normal:1:1e+38: 8 standard deviations is 8e+38; allowed in float32"),
        ({"gravity": LogUniform(1e-44, 1)}, "low is 1e-44; allowed in float32: 1.17549e-38 to"),
        ({"kinematics_integrator": "uniform:0:1"}, "allowed: one of"),
        ({"sutton_barto_reward": "choice:0:1"}, "is drawn from choice:0:1, and it is a switch"),
        ({"low": Uniform(-0.1, 0)}, "'low' is a reset option, which takes no distribution"),
    ],
)
def test_parameters_that_cannot_be_drawn(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        cartpole(**given)
    env = cartpole(4)
    before = numpy_of(env.params["pole_mass"]).tolist()
    for name, value in given.items():
        with pytest.raises(ValueError, match=name):
            env.params[name] = value
    assert numpy_of(env.params["pole_mass"]).tolist() == before
    env.reset()
    assert numpy_of(env.params["pole_mass"]).tolist() != before


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    """A walk that observes two elements of an array, and a number that is drawn by default."""
    params = {
        "wide": Param(3, fixed=True),
        "gain": Param([1.0, 2.0]),
        "pull": Param(1.0, shape=(2, "wide")),
        "steps": Param(4, shape=(2,)),
        "scale": Param(0.5),
        "total": Derived(lambda p: p["scale"] * p["gain"].sum()),
        "most": Param(2.0),
        "least": Param("uniform:0:1", "what is drawn by default", minimum=0),
        "pushes": Param(Normal(0, 1), shape=("wide",), positive=True),
        "fast": Param(1.0, baked=True),
    }
    rules = {
        "reset": "s.x = p.pull(1, 2);\n    s.pace = p.pushes[1];",
        "step": "s.x += p.least;\n    return {p.pushes[2] + p.gain[action], s.x > real(7)};",
        "observe": "observation[0] = float(s.x);\n    observation[1] = float(s.pace);",
    }
    return walk(tmp_path, more={"params": params, "ordered": (("least", "most"),)}, **rules)


def test_arrays_are_drawn_element_by_element(spec: Any, place: Place) -> None:
    """Also defaults of a spec. Rollouts draw as steps do, in full and partial tiles, and one draw ahead."""
    given: Any = {"device": place.device, "output": place.output, "autoreset_mode": "SameStep"}
    env, rolled = (VectorEnv(spec, 70, pull=Uniform(2, 6), max_episode_steps=9, **given) for _ in range(2))
    seen, _ = env.reset(seed=0)
    rolled.reset(seed=0)
    pull, pushes = np.array(numpy_of(env.params["pull"])), numpy_of(env.params["pushes"])
    assert pull.shape == (70, 2, 3)
    assert len(np.unique(pull)) == 420
    assert_same_bits(numpy_of(seen), np.stack([pull[:, 1, 2], pushes[:, 1]], 1))
    assert 0 < pushes.min() < 0.1 < 2 < pushes.max()
    for part in (17, 1, 30):
        result = rolled.rollout(part, np.ones((part, 70), np.int64), per_step=True)
        for t in range(part):
            assert_same_bits(numpy_of(env.step(np.ones(70, np.int64))[0]), numpy_of(result.observations[t]))
        for name in ("pull", "pushes", "least"):
            assert_same_bits(numpy_of(env.params[name]), numpy_of(rolled.params[name]))
        assert_same_bits(numpy_of(env.episode_return), numpy_of(rolled.episode_return))
    assert not (numpy_of(env.params["pull"]) == pull).any()


def test_inputs_of_derived_parameters_cannot_be_drawn(spec: Any) -> None:
    for given, wrong in (
        ({"scale": MASS}, "'scale' cannot be a distribution, because 'total' is computed from it"),
        ({"gain": MASS}, "'gain' cannot be a distribution, because 'total' is computed from it"),
        ({"steps": "choice:1:2"}, "it is an integer"),
        ({"wide": "choice:1:2"}, "shapes depend on it"),
        ({"fast": MASS}, "it is compiled in"),
        ({"most": Uniform(0.5, 3)}, "'least' must not exceed 'most'"),
        ({"most": 0.5}, "'least' must not exceed 'most'"),
        ({"total": MASS}, "is computed from other parameters"),
    ):
        with pytest.raises(ValueError, match=re.escape(wrong)):
            VectorEnv(spec, 4, device="cpu", **given)
    env = VectorEnv(spec, 4, device="cpu", most=3.0)
    for name, value in (("scale", MASS), ("most", 0.5)):
        with pytest.raises(ValueError, match=name):
            env.params[name] = value
    assert env.params["most"] == 3.0
    env.reset(seed=0)
    kept = env.get_state([1])
    kept["params"]["most"] = 0.999  # above the current draw, but below the maximum of later draws
    for replicas in (None, [2]):
        with pytest.raises(ValueError, match="'least' must not exceed 'most'"):
            env.set_state(kept, replicas)
    env.params["most"] = np.full(4, 3.0)
    env.params["most"][3] = 0.999
    with pytest.raises(ValueError, match="'least' must not exceed 'most'"):
        env.check()


def test_runs_and_lists_show_the_text(tmp_path: Path, spec: Any) -> None:
    config = Run(env="CartPole-v1", params={"pole_mass": MASS, "gravity": 9.0})
    assert parser.parse_value(str(MASS)) == str(MASS)  # of --param
    assert config.params == {"pole_mass": "uniform:0.05:0.4", "gravity": 9.0}
    assert Run.from_flat(json.loads(json.dumps(config.flat()))) == config
    run = RunDirectory.create(tmp_path / "run", config)
    assert run.config().params == config.params
    assert listing.environment_info(spec)["params"]["pushes"]["default"] == "normal:0:1"
    assert "uniform:0:1" in listing.parameter_lists(spec)


# --- distributions of the numbers ---

SHARED = 100_000
"""Number of replicas in each of two episodes."""


def kolmogorov(values: np.ndarray, below: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance times sqrt(n); ``below`` is the distribution function at each value."""
    n = len(values)
    order = np.sort(below)
    return float(max((np.arange(1, n + 1) / n - order).max(), (order - np.arange(n) / n).max()) * math.sqrt(n))


def share_of_normal(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()])


@pytest.fixture(scope="module", params=[(d, p) for d in DEVICES for p in ("float32", "float64")], ids="-".join)
def sample(request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    """Draws of many replicas in two episodes, ``[2, replicas]``."""
    device, precision = request.param
    given: dict[str, Any] = {
        "gravity": Uniform(1, 3),
        "cart_mass": LogUniform(0.1, 10),
        "pole_mass": Normal(0.5, 0.4, 0.1, 0.8),
    }
    more: dict[str, Any] = {"length": Choice(1, 2, 5), "force_mag": Uniform(1, 3)}
    env = gpu_envs.make("CartPole-v1", SHARED, device=device, precision=precision, **given, **more)
    rows = []
    for seed in (7, None):
        env.reset(seed=seed)
        rows.append({n: np.array(numpy_of(env.params[n]), np.float64) for n in (*given, *more)})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def test_numbers_have_their_distributions(sample: dict[str, np.ndarray]) -> None:
    """Kolmogorov-Smirnov: 1.95 is exceeded with a probability of 0.001."""
    for values in sample["gravity"]:
        assert kolmogorov(values, (values - 1) / 2) < 1.95
    for values in sample["cart_mass"]:
        assert kolmogorov(values, np.log(values / 0.1) / math.log(100)) < 1.95
    low, high = share_of_normal(np.array([-1.0, 0.75]))
    for values in sample["pole_mass"]:
        assert kolmogorov(values, (share_of_normal((values - 0.5) / 0.4) - low) / (high - low)) < 1.95
    for values in sample["length"]:
        found, counts = np.unique(values, return_counts=True)
        assert found.tolist() == [1, 2, 5]
        chi_square = ((counts - SHARED / 3) ** 2 / (SHARED / 3)).sum()
        assert chi_square < 13.8  # two degrees of freedom: probability 0.001


def test_few_and_many_choices(device: str) -> None:
    few, many = (gpu_envs.make("CartPole-v1", 4096, device=device, gravity=Choice(*range(64 * n))) for n in (1, 312))
    for env in (few, many):
        env.reset(seed=0)
    chosen = numpy_of(many.params["gravity"])
    assert_same_bits(chosen // 312, numpy_of(few.params["gravity"]))
    assert len(np.unique(chosen % 312)) == 312


def test_the_normal_quantile(device: str) -> None:
    tails = np.geomspace(2.0**-33 / 100, 0.5, 100_000)
    for real in ("float64", "float32"):
        given = tails.astype(real)
        body, more = "out0[i] = normal_quantile(in0[i]);", ["dialect/distributions.cuh"]
        (found,) = compile_kernel(real, [real], [real], body, device, more=more)(given)
        exact = np.array([NormalDist().inv_cdf(tail) for tail in given.tolist()])
        assert (abs(found - exact) <= 2e-6 * abs(exact) + np.finfo(real).eps).all()


@pytest.mark.parametrize(("low", "high"), [(12.2, 20), (1, 7.8)])
def test_the_tail_of_a_normal_distribution(low: float, high: float, device: str) -> None:
    env = gpu_envs.make("CartPole-v1", SHARED, device=device, gravity=Normal(10, 1, low, high))
    env.reset(seed=0)
    below = share_of_normal(np.array(numpy_of(env.params["gravity"]), np.float64) - 10)
    first, last = share_of_normal(np.array([low, high]) - 10)
    assert kolmogorov(np.array(below), (below - first) / (last - first)) < 1.95


def test_numbers_are_independent(sample: dict[str, np.ndarray]) -> None:
    """Between neighbouring replicas, episodes and parameters: chi-square of pairs in 4 by 4 classes."""
    first, second = (np.floor((sample["gravity"][e] - 1) * 2).clip(0, 3) for e in (0, 1))
    other = np.floor((sample["force_mag"][0] - 1) * 2).clip(0, 3)
    for a, b in ((first[:-1], first[1:]), (first, second), (first, other), (second[:-1], first[1:])):
        counts = np.histogram2d(a, b, bins=4)[0]
        wanted = len(a) / 16
        assert ((counts - wanted) ** 2 / wanted).sum() < 37.7  # 15 degrees of freedom: probability 0.001


@pytest.mark.parametrize("real", ["float32", "float64"])
def test_generated_ranges(real: str, device: str) -> None:
    """Generated ranges, up to the range of the precision, compared with the unit draw of the same random number."""
    count, rng, info = 20_000, np.random.default_rng(0), np.finfo(real)
    sizes = np.exp(rng.uniform(math.log(info.tiny) + 0.1, math.log(info.max) - 0.1, (2, count))).astype(real)
    sizes[:, :9] = info.max
    sizes[0, 9] = info.tiny
    body = """
        const u64 seed = u64(i);
        const u32 episode = 0;
        Random first(&seed, &episode, PARAMETER, 0, 0), second(&seed, &episode, PARAMETER, 0, 0), third = second;
        out0[i] = drawn_uniform(first, 0, 1);
        out1[i] = drawn_uniform(second, in0[i], in1[i]);
        out2[i] = drawn_loguniform(third, in2[i], in3[i], in4[i]);
    """
    draw = compile_kernel(real, [real] * 5, [real] * 3, body, device, more=["dialect/distributions.cuh"])
    low, high = np.sort(sizes * rng.choice([-1, 1], (2, count)).astype(real), 0)
    least, most = np.sort(sizes, 0)
    ratio = np.log(most.astype(np.float64)) - np.log(least.astype(np.float64))
    unit, uniform, log_uniform = draw(low, high, least, most, ratio)
    unit, scale = unit.astype(np.float64), np.maximum(-low, high).astype(np.float64)
    wanted = low / scale * (1 - unit) + high / scale * unit
    assert (np.abs(uniform / scale - wanted) <= 4 * info.eps + 2 * info.tiny / scale).all()  # denormals count as zero
    power = np.log(log_uniform.astype(np.float64)) - np.log(least.astype(np.float64))
    assert np.abs(power - ratio * unit).max() <= 2 * info.eps * ratio.max()  # errors scale with log(ratio)


def test_draws_stay_within_limits() -> None:
    """Even if rounding would: a range that contains two floats."""
    low, high = 1.0, float(np.nextafter(np.float32(1), np.float32(2)))
    for made in (Uniform(low, high), LogUniform(low, high), Normal(low, 1.0, low, high + 0.5)):
        env = gpu_envs.make("CartPole-v1", 4096, device="cpu", gravity=made)
        env.reset(seed=0)
        values = env.params["gravity"]
        assert low <= values.min() <= values.max() <= made.range[1]
