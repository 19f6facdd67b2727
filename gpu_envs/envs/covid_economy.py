"""COVID-19 and economy: 51 governors and a planner, in the United States of 2020."""

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpu_envs.pictures import Colour, Drawing, Params, Picture, Shape, State, line, rectangle
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.fields import Field, Table
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LAG = 29
"""Days until a stringency level affects infections."""

WINDOW = 600
"""Days of history that unemployment depends on, and maximum episode length: only days before the start are stored."""

DATA_TABLES = (
    *("population", "infection", "infection_slope", "baseline", "health_weight", "planner_norms", "weights"),
    *("min_health", "max_health", "min_economy", "max_economy", "first_susceptible", "first_infected"),
    *("first_recovered", "first_vaccinated", "first_unemployed"),
)
"""Data that become tables without conversion."""


@functools.cache
def load_data() -> Mapping[str, Any]:
    """Return data of the authors' program by name: fitted constants, and the state on 22 March 2020."""
    text = importlib.resources.files("gpu_envs.envs").joinpath("covid_economy.json").read_text("utf-8")
    return {name: np.asarray(values) for name, values in json.loads(text).items() if name != "notice"}


def _tables() -> dict[str, Table]:
    """Return the tables that the rules read: data, and the memory of stringency changes before the first day."""
    data = load_data()
    policy, days = data["policy"].astype(np.float64), data["days"]
    open_before = np.ones((1, policy.shape[1]))  # level 1, fully open, before the first day
    changes = np.diff(policy, axis=0, prepend=open_before)
    ages = np.arange(len(policy))[::-1, None]
    return {
        **{name: Table(data[name].astype(np.float64)) for name in DATA_TABLES},
        "first_memory": Table(changes.T @ np.exp(-ages / days)),
        "fading": Table(np.exp(-1 / days)),
        "faded": Table(np.exp(-WINDOW / days)),
        "policy": Table(policy.astype(np.uint8), "byte"),
    }


def _min_unemployed() -> np.ndarray:
    """Return the number of unemployed people in each state at the lowest stringency, ``[states]``."""
    data = load_data()
    return np.asarray((np.log(2) + data["baseline"]) * data["population"] / 100)


def _worker_income(params: Mapping[str, Any]) -> float:
    """Return the income that each working person produces, in dollars a day."""
    people = load_data()["us_population"]
    employed = int(params["working_share"] * people - _min_unemployed().sum())
    return float(load_data()["gdp_per_capita"] / (employed / people) / 365)


def _max_income(params: Mapping[str, Any]) -> np.ndarray:
    """Return the income of each state at the lowest stringency, in dollars a day, ``[states]``."""
    working = params["working_share"] * load_data()["population"] - _min_unemployed()
    return np.asarray(working * params["worker_income"])


ILL, OUT_OF_WORK, STRICT, MARK = (192, 57, 43), (36, 113, 163), (150, 150, 150), (90, 90, 90)

LEGEND = {"stringency": STRICT, "infected (10 times the share)": ILL, "unemployed (5 times the share)": OUT_OF_WORK}


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, three bars per state: stringency and the scaled shares of infected and unemployed."""
    del params
    people = load_data()["population"]
    width = 1 / len(people)
    left = np.arange(len(people))[None] * width

    def bars(start: float, end: float, heights: np.ndarray, colour: Colour) -> Shape:
        """Return a bar per state; ``start``, ``end``: in column widths; heights are clipped to [0, 1]."""
        return rectangle(left + start * width, 0, left + end * width, 0.49 * np.clip(heights, 0, 1), colour)

    return Picture(
        (-0.01, -0.01, 1.01, 0.5),
        (
            bars(0.05, 0.95, state["stringency"] / 10, STRICT),
            bars(0.1, 0.45, 10 * state["infected"] / people, ILL),
            bars(0.55, 0.9, 5 * state["unemployed"] / people, OUT_OF_WORK),
            line([[0.0, 0.0], [1.0, 0.0]], 0.003, MARK),
        ),
    )


COVID_ECONOMY = TeamSpec(
    id="CovidEconomy-v0",
    header="covid_economy.cuh",
    description="In an epidemic, governors close and open their states, and a planner pays subsidies.",
    roles=(
        Role(
            "governor",
            51,
            Box(-np.inf, np.inf, (64,), np.float32),
            Discrete(11),
            state={
                **{name: Field() for name in ("susceptible", "infected", "recovered", "vaccinated", "deaths")},
                **{name: Field() for name in ("unemployed", "income")},
                "stringency": Field("byte"),
                "free_from": Field("int"),
                "memory": Field(length=5),
                "levels": Field("byte", LAG),
            },
            names=tuple(load_data()["states"].tolist()),
        ),
        Role("planner", 1, Box(-np.inf, np.inf, (463,), np.float32), Discrete(21)),
    ),
    shared={"subsidy": Field("int")},
    scratch={"died": Field(), "given": Field(), "past": Field(), "laid_off": Field()},
    shared_scratch={
        "totals": Field(length=3),
        "seen": Field(shape=(9, 51)),
        **{name: Field() for name in ("time", "subsidies", "money", "vaccines")},
    },
    params={
        "episode_length": Param(
            540,
            "default of max_episode_steps, and unit of the observed time, days",
            positive=True,
            fixed=True,
            maximum=WINDOW,
        ),
        "health_priority": Param(
            0.3, "scale of the governors' odds of health against economy; 1: as fitted", minimum=0
        ),
        "health_priority_planner": Param(0.45, "the same scale for the planner", minimum=0),
        "cooldown": Param(28, "days before the action mask allows another change of level", positive=True),
        "subsidy_interval": Param(90, "days between decisions of the planner", positive=True),
        "max_subsidy": Param(20000.0, "subsidy at level 20, dollars per person and year", minimum=0),
        "interest": Param(0.03, "interest rate of subsidies", minimum=0),
        "vaccines_per_million": Param(3000.0, "vaccinations per million people and day", minimum=0),
        "vaccine_interval": Param(1, "days between deliveries", positive=True),
        "first_vaccines": Param(296, "day of the first delivery: 12 January 2021", positive=True),
        "mortality": Param(0.02, "fraction of formerly infected people who die", minimum=0, maximum=1),
        "recovery": Param(1 / 14, "fraction of infected people who recover per day", minimum=0, maximum=1),
        "too_ill_to_work": Param(0.1, "fraction of infected people who cannot work", minimum=0, maximum=1),
        "value_of_life": Param(1e7, "value of a life, dollars", minimum=0),
        "risk_aversion": Param(2.0, "risk aversion of the utility function", positive=True),
        "working_share": Param(0.6, "fraction of people who could work", minimum=0.1, maximum=1),
        "worker_income": Derived(_worker_income, "income per working person, dollars a day"),
        "max_income": Derived(_max_income, "income of each state at the lowest stringency, dollars a day", shape=(51,)),
        "max_total_income": Derived(lambda params: params["max_income"].sum(), "sum of max_income, dollars a day"),
    },
    metrics={
        "deaths": Metric("number of deaths", "sum"),
        "income": Metric("income of all states, billions of dollars", "sum"),
        "subsidies": Metric("subsidies of the planner, billions of dollars", "sum"),
    },
    tables=_tables(),
    max_episode_steps=lambda params: int(params["episode_length"]),
    longest_episode=WINDOW,
    action_mask=True,
    drawing=Drawing(_draw, size=(800, 400), frames_a_second=20, legend=LEGEND),
)
