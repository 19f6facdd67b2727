"""Runs that differ in their seeds, settings and parameters."""

import dataclasses
import math
from typing import Any

import pytest

pytest.importorskip("torch")

from gpu_envs.training import Run
from gpu_envs.training.variants import groups_of, value_at, values_of, variants, varied_names

RUN = Run(env="CartPole-v1", num_envs=16, total_steps=8192)


def test_a_range_is_uniform_or_uniform_in_the_logarithm() -> None:
    from gpu_envs.specs.distributions import parse

    assert value_at(parse("uniform:1:3"), 0.25) == 1.5
    assert math.isclose(value_at(parse("loguniform:1e-4:1e-2"), 0.5), 1e-3)
    assert [value_at([5, 6, 7], share) for share in (0.0, 0.34, 0.99)] == [5, 6, 7]


def test_a_grid_has_all_combinations_and_the_ends_of_ranges() -> None:
    vary = {"gamma": [0.9, 0.95, 0.99], "learning_rate": "log:1e-4:1e-2"}
    runs = variants(RUN, vary=vary, count=9, search="grid")
    names = varied_names(runs)
    rows = {tuple(values_of(run, names)) for run in runs}
    assert (names, len(rows)) == (["learning_rate", "gamma"], 9)
    rates = sorted({float(rate) for rate, _ in rows})
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2])


@pytest.mark.parametrize("search", ["random", "sobol"])
def test_a_search_draws_the_same_values_again(search: str) -> None:
    def drawn() -> list[Any]:
        runs = variants(RUN, vary={"gamma": "uniform:0.9:1", "env.pole_mass": [0.1, 0.2]}, count=32, search=search)
        return [values_of(run, varied_names(runs)) for run in runs]

    values = drawn()
    assert values == drawn()
    assert {mass for _, mass in values} == {0.1, 0.2}
    assert all(0.9 <= gamma <= 1 for gamma, _ in values)
    quarters = [sum(int((gamma - 0.9) / 0.025) == quarter for gamma, _ in values) for quarter in range(4)]
    assert min(quarters) >= (8 if search == "sobol" else 1)  # evenly spread


def test_seeds_are_consecutive_or_given() -> None:
    assert [run.seed for run in variants(RUN, seeds=3)] == [RUN.seed, RUN.seed + 1, RUN.seed + 2]
    assert [run.seed for run in variants(RUN, seeds=[7, 5])] == [7, 5]


def test_combinations_are_listed_each_with_all_seeds() -> None:
    vary: tuple[dict[str, Any], ...] = ({"gamma": 0.9, "env.pole_mass": 0.2}, {"learning_rate": "0:0.1,1:0"}, {})
    runs = variants(RUN, seeds=[7, 5], vary=vary)
    rows = [values_of(run, ["seed", "gamma", "env.pole_mass", "learning_rate"]) for run in runs]
    gamma, rate = values_of(RUN, ["gamma", "learning_rate"])
    assert rows[::2] == [[7, 0.9, 0.2, rate], [7, gamma, None, "0:0.1,1:0"], [7, gamma, None, rate]]
    assert [[5, *row[1:]] for row in rows[::2]] == rows[1::2]


def test_other_networks_and_other_kinds_of_parameters_train_apart() -> None:
    vary = {"hidden": [[32, 32], [64, 64]], "env.pole_mass": [0.1, 0.2, "uniform:0.1:0.2", "uniform:0.1:0.3"]}
    groups = groups_of(variants(RUN, vary=vary, search="grid"))
    assert sorted(map(len, groups)) == [2, 2, 2, 2]
    assert len(groups_of(variants(RUN, seeds=4, vary={"target_kl": [0.01, 0.02]}, search="grid"))) == 1
    assert len(groups_of(variants(RUN, vary={"target_kl": [None, 0.02]}, search="grid"))) == 2
    long = ",".join(f"{k / 15}:{0.001 * (k + 1)}" for k in range(16))
    assert len(groups_of(variants(RUN, vary={"learning_rate": ["0:0.1,1:0", long]}, search="grid"))) == 2
    tag = dataclasses.replace(RUN, env="TagGridWorld-v0")
    assert len(groups_of(variants(tag, vary={"env.num_taggers": [1, 2]}, search="grid"))) == 2


def test_a_grid_over_three_ranges_uses_all_runs() -> None:
    vary = dict.fromkeys(("gamma", "gae_lambda", "clip"), "uniform:0.1:0.2")
    assert len(variants(RUN, vary=vary, count=64, search="grid")) == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vary": {"gama": [0.9]}}, r"vary names 'gama', which is no setting of this run. Did you mean 'gamma'\?"),
        ({"vary": {"gamma": "0.9"}}, "vary gives 'gamma' '0.9'; give a range"),
        ({"vary": {"gamma": []}}, r"vary gives 'gamma' \[\]; give a range"),
        ({"vary": {"gamma": "uniform:0.9"}}, "vary gives 'gamma' 'uniform:0.9'"),
        ({"vary": {"gamma": "uniform:0.9:1"}, "search": "grid"}, "a grid over ranges needs the number of runs"),
        ({"vary": {"gamma": [2.0]}}, "gamma is 2.0"),
        ({"search": "sobel"}, "search is 'sobel'. Did you mean 'sobol'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"vary": {"seed": [1, 2]}}, "vary names 'seed'; give seeds instead"),
        ({"vary": []}, r"vary is \[\]; give ranges by name, or a list of combinations, such as \[{'gamma': 0.9}\]"),
        ({"vary": ["gamma"]}, r"vary is \['gamma'\]; give ranges by name"),
        ({"vary": "gamma"}, "vary is 'gamma'; give ranges by name"),
        ({"vary": [{"gamma": 0.9}, {"gama": 0.9}]}, "vary names 'gama', which is no setting of this run. Did you mean"),
        ({"vary": [{"gamma": 0.9}, {"seed": 1}]}, "vary names 'seed'; give seeds instead"),
        ({"vary": [{"gamma": 0.9}], "count": 1}, "vary lists all combinations; leave out runs and search"),
        ({"vary": [{"gamma": 0.9}], "search": "grid"}, "vary lists all combinations; leave out runs and search"),
        ({"vary": {"gamma": [0.9, 0.99]}, "count": 0}, "runs is 0"),
        ({"vary": {"gamma": [0.9, 0.99]}, "count": 1, "search": "grid"}, "has 2 runs; give runs=2 or more"),
    ],
)
def test_mistakes_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variants(RUN, **arguments)
