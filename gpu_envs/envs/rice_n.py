"""RICE-N: climate economy of regions that trade and negotiate."""

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete

from gpu_envs.pictures import Colour, Drawing, Params, Picture, Shape, State, line, rectangle
from gpu_envs.specs.derived import Derived
from gpu_envs.specs.fields import Field, Table
from gpu_envs.specs.metrics import Metric
from gpu_envs.specs.params import Param
from gpu_envs.specs.team import Role, TeamSpec

LEVELS = 10
"""Number of levels of each action element: tenths from 0 to 0.9."""

REGION_PARAMS = (
    *("initial_capital", "initial_labor", "final_labor", "labor_growth", "initial_production_factor"),
    *("factor_growth", "factor_decline", "initial_intensity", "capital_share", "damage_1", "damage_2", "damage_3"),
)
"""Parameters with a value for each region."""


@functools.cache
def regions() -> Mapping[str, list[float]]:
    """Return the values of ``REGION_PARAMS`` by name for the authors' 27 fictitious regions."""
    text = importlib.resources.files("gpu_envs.envs").joinpath("rice_n.json").read_text("utf-8")
    return {name: values for name, values in json.loads(text).items() if name in REGION_PARAMS}


def _observation(params: Mapping[str, Any]) -> Box:
    count, talks = int(params["num_regions"]), bool(params["negotiation"])
    return Box(-np.inf, np.inf, (count + 9 + talks * (1 + 6 * count),), np.float32)


def _shared_observation(params: Mapping[str, Any]) -> Box:
    count, talks = int(params["num_regions"]), bool(params["negotiation"])
    return Box(-np.inf, np.inf, (8 + talks + count * (10 + count),), np.float32)


def _action(params: Mapping[str, Any]) -> MultiDiscrete:
    count = int(params["num_regions"])
    talks = [*[LEVELS] * (2 * count), *[2] * count] if params["negotiation"] else []
    return MultiDiscrete([LEVELS] * (3 + 2 * count) + talks)


SAVED, MITIGATED, MARK, HOT, COLD = (36, 113, 163), (39, 134, 82), (120, 120, 120), (192, 57, 43), (232, 232, 232)
HOTTEST = 6.0
"""Degrees at which the thermometer is full."""

LEGEND = {"savings rate": SAVED, "mitigation rate": MITIGATED, "temperature of the air": HOT}


def _draw(state: State, params: Params) -> Picture:
    """Draws, in each replica, two bars per region (savings and mitigation rates) and a thermometer of the air."""
    del params
    count = state["savings"].shape[1]
    width = 0.9 / count
    left = np.arange(count)[None] * width

    def bars(start: float, name: str, colour: Colour) -> Shape:
        return rectangle(left + start * width, 0, left + (start + 0.4) * width, state[name], colour)

    warmth = np.clip(state["temperature"][:, 0] / HOTTEST, 0, 1)
    return Picture(
        (-0.02, -0.02, 1.0, 1.0),
        (
            line([[-0.01, 0.0], [0.99, 0.0]], 0.003, MARK),
            bars(0.05, "savings", SAVED),
            bars(0.5, "mitigation_rate", MITIGATED),
            rectangle(0.94, 0, 0.98, 1, COLD),
            rectangle(0.94, 0, 0.98, warmth, HOT),
        ),
    )


def rice_n(table: Mapping[str, Any], id: str = "RiceN-v0") -> TeamSpec:
    """Return the spec of the environment with these regions, which is not registered.

    Args:
        table: For each name in ``REGION_PARAMS`` a value for each region.
        id: Id of the environment.
    """
    num_rows = len(table["initial_capital"])

    def regional_param(name: str, description: str, **limits: Any) -> Param:
        """A parameter with a value for each region."""
        return Param(lambda params: table[name][: params["num_regions"]], description, shape=("AGENTS",), **limits)

    return TeamSpec(
        id=id,
        header="rice_n.cuh",
        description="Regions save, trade, negotiate and mitigate the emissions that warm the planet.",
        roles=(Role("region", "num_regions", _observation, _action, _shared_observation, shared_at="num_regions"),),
        state={
            **{name: Field() for name in ("capital", "labor", "production_factor", "intensity")},
            **{name: Field() for name in ("capital_depreciation", "savings", "mitigation_rate", "max_export_limit")},
            **{name: Field() for name in ("mitigation_cost", "damages", "abatement_cost", "utility", "social_welfare")},
            **{name: Field() for name in ("consumption", "current_balance", "gross_output", "investment")},
            **{name: Field() for name in ("production", "minimum_mitigation_rate", "last_reward")},
            **{name: Field(shape=("AGENTS",)) for name in ("tariffs", "imports", "promised", "requested")},
            "accepted": Field("bool", shape=("AGENTS",)),
        },
        shared={
            "temperature": Field("real", 2),
            "carbon_mass": Field("real", 3),
            "exogenous_forcing": Field(),
            "land_emissions": Field(),
        },
        scratch={
            name: Field() for name in ("wanted", "bid_share", "supplied", "exports", "imported", "foreign", "emissions")
        },
        shared_scratch={
            **{name: Field() for name in ("price", "discount", "decline", "emitted")},
            "tariffed": Field(shape=("AGENTS", "AGENTS")),
        },
        params={
            "num_regions": Param(
                num_rows, "number of regions: the first rows of the table", minimum=2, maximum=num_rows, fixed=True
            ),
            "negotiation": Param(False, "two negotiation steps before each action step", fixed=True),
            "activities": Param(20, "action steps in an episode, of five years each", positive=True, fixed=True),
            "backstop_price": Param(550.0, "price of full mitigation, dollars per ton", minimum=0),
            "backstop_decline": Param(0.001, "decline of backstop_price per step", minimum=0, maximum=1),
            "cost_exponent": Param(2.6, "exponent of the mitigation cost", positive=True),
            "depreciation": Param(0.1, "depreciation of capital per year", minimum=0, maximum=1),
            "risk_aversion": Param(1.45, "risk aversion of the utility function", positive=True),
            "time_preference": Param(0.015, "discount rate of welfare per year", minimum=0),
            "intensity_decline": Param(0.0025, "decline of emissions per unit of output, per year", minimum=0),
            "intensity_decline_slowing": Param(0.1, "decline of intensity_decline per year", minimum=0, maximum=1),
            "long_run_growth": Param(0.0033, "long-run growth of the production factor per step"),
            "balance_interest": Param(0.1, "interest rate of debts and credits per step"),
            "debt_factor": Param(10.0, "strength of the limit that debts put on imports", minimum=0),
            "domestic_preference": Param(0.5, "share parameter of domestic goods", minimum=0, maximum=1),
            "initial_temperature": Param(0.85, "initial temperature of the air above that of 1750, degrees"),
            "initial_ocean_temperature": Param(0.0068, "initial temperature of the lower ocean, degrees"),
            "initial_carbon_in_air": Param(851.0, "initial carbon in the air, billions of tons", positive=True),
            "initial_carbon_in_upper_ocean": Param(
                460.0, "initial carbon in the upper ocean, billions of tons", minimum=0
            ),
            "initial_carbon_in_lower_ocean": Param(
                1740.0, "initial carbon in the lower ocean, billions of tons", minimum=0
            ),
            "carbon_in_1750": Param(588.0, "carbon in the air of 1750, billions of tons", positive=True),
            "carbon_of_emissions": Param(1.36388, "carbon in the air per unit of emissions", minimum=0),
            "forcing_of_doubling": Param(3.6813, "forcing at twice the carbon of 1750, W/m^2"),
            "heat_of_forcing": Param(0.1005, "warming of the air per unit of forcing"),
            "first_forcing": Param(0.5, "forcing by other gases in the first step, W/m^2"),
            "last_forcing": Param(1.0, "forcing by other gases after forcing_steps, W/m^2"),
            "forcing_steps": Param(20.0, "steps from first_forcing to last_forcing", positive=True),
            "land_emissions_at_first": Param(2.6, "emissions by land use of all regions in the first step", minimum=0),
            "land_decline": Param(0.001, "decline of land emissions per step", minimum=0, maximum=1),
            "initial_capital": regional_param(
                "initial_capital", "capital of each region, trillions of dollars", positive=True
            ),
            "initial_labor": regional_param(
                "initial_labor", "workers of each region, millions of people", positive=True
            ),
            "final_labor": regional_param("final_labor", "workers in the long run, millions of people", positive=True),
            "labor_growth": regional_param("labor_growth", "rate of change from initial_labor to final_labor per step"),
            "initial_production_factor": regional_param(
                "initial_production_factor", "total factor productivity of each region", minimum=0
            ),
            "factor_growth": regional_param("factor_growth", "growth of the production factor in the first step"),
            "factor_decline": regional_param("factor_decline", "decline of factor_growth per year"),
            "initial_intensity": regional_param("initial_intensity", "emissions per unit of output", minimum=0),
            "capital_share": regional_param("capital_share", "share of capital in production", minimum=0, maximum=1),
            "damage_1": regional_param("damage_1", "linear damage to output per degree", minimum=0),
            "damage_2": regional_param("damage_2", "damage to output per degree to the power of damage_3", minimum=0),
            "damage_3": regional_param("damage_3", "exponent of the damage", minimum=0),
            "retained_capital": Derived(
                lambda p: (1 - p["depreciation"]) ** 5, "fraction of capital left after a step"
            ),
            "long_run_factor": Derived(
                lambda p: np.exp(p["long_run_growth"]), "long-run growth factor of the production factor per step"
            ),
        },
        metrics={
            "temperature": Metric("temperature of the air above that of 1750, degrees"),
            "gross_output": Metric("output of all regions in the last step"),
        },
        tables={
            "heat": Table([[0.8718, 0.0088], [0.025, 0.975]]),
            "carbon": Table([[0.88, 0.196, 0.0], [0.12, 0.797, 0.001465], [0.0, 0.007, 0.99853488]]),
        },
        action_mask=True,
        active_heads=True,
        drawing=Drawing(_draw, size=(500, 500), frames_a_second=4, legend=LEGEND),
    )


RICE_N = rice_n(regions())
