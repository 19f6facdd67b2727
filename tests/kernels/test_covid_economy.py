"""CovidEconomy against its authors' totals, and against its equations in NumPy with the full window of 600 days."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Make

import gpu_envs
from gpu_envs.envs.covid_economy import load_data

ID = "CovidEconomy-v0"

TOTALS = {"open": 183.8, "closed": 317.8, "closed at first": 334.2}
"""The planner's rewards over 405 days as the authors publish them, with the fitted weight of health."""


def levels_of(policy: str, day: int) -> tuple[int, int]:
    """The level of all governors, and of the planner, on a day."""
    if policy == "closed":
        return 10, 20
    return (10 if policy == "closed at first" and day < 180 else 1), 0


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_authors_totals_are_reproduced(precision: str, device: str, make: Make) -> None:
    env = make(ID, 3, device=device, precision=precision, health_priority=1.0, health_priority_planner=1.0)
    env.reset(seed=0)
    totals = np.zeros(3)
    for day in range(405):
        actions = np.array([levels_of(policy, day) for policy in TOTALS])
        governors = np.repeat(actions[:, :1], 51, 1)
        totals += env.step({"governor": governors, "planner": actions[:, 1:]})[1]["planner"][:, 0]
    np.testing.assert_allclose(totals, list(TOTALS.values()), atol=0.05)


class Oracle:
    """One replica in float64, by the equations; each day's state follows from all levels so far."""

    def __init__(self, days: int, priorities: tuple[float, float]) -> None:
        self.d: Any = load_data()
        self.people, self.days, self.priorities = self.d["population"], days, priorities
        self.levels = [np.ones(51)] * 600 + list(self.d["policy"].astype(float))  # level 1 before the series
        self.s, self.i, self.r, self.v, self.u = (
            self.d[f"first_{name}"].astype(float)
            for name in ("susceptible", "infected", "recovered", "vaccinated", "unemployed")
        )
        self.deaths, self.income, self.subsidy, self.t = 0.02 * self.r, np.zeros(51), 0, 0
        self.free_from = np.zeros(51, int)
        jobless = (np.log(2) + self.d["baseline"]) * self.people / 100
        workers = int(0.6 * self.d["us_population"] - jobless.sum())
        self.wage = 65300 / (workers / self.d["us_population"]) / 365
        self.most = (0.6 * self.people - jobless) * self.wage

    def step(self, governors: np.ndarray, planner: int) -> np.ndarray:
        """The rewards of all agents, the planner last."""
        self.t += 1
        t, d, people = self.t, self.d, self.people
        self.levels.append(np.where(governors != 0, governors, self.levels[-1]).astype(float))
        due = t == self.free_from + 1
        self.free_from += np.where(due, np.where(governors == 0, 1, 28), 0)
        self.subsidy = planner if (t - 1) % 90 == 0 else self.subsidy
        doses = np.floor(people / 1e6 * 3000) if t >= 296 else np.zeros(51)
        rate = d["infection"] + d["infection_slope"] * self.levels[-30]
        treated = np.minimum(doses, self.s)
        fell = rate * (self.s / people) * self.i * (1 - np.minimum(1, doses / (self.s + 1e-10)))
        well, before = self.i / 14, self.deaths
        self.s, self.i = np.maximum(0, self.s - fell - treated), np.maximum(0, self.i + fell - well)
        self.r, self.v = self.r + well + treated, self.v + treated
        self.deaths = 0.02 * (self.r - self.v)
        changes = np.diff(np.stack(self.levels[-601:]), axis=0)[::-1]  # the newest first
        filters = np.exp(-np.arange(600)[:, None] / d["days"])
        x = np.einsum("lk,li,ik->i", filters, changes, d["weights"])
        self.u = (np.log1p(np.exp(x)) + d["baseline"]) * people / 100
        paid = self.subsidy / 20 * people * 20000 / 365
        work = np.maximum(0, 0.6 * people - 0.6 * (0.1 * self.i + self.deaths) - self.u)
        self.income = work * self.wage + paid
        died = self.deaths - before
        own = weighed(
            scaled(-died * 1e7 / (365 * self.most), d["min_health"], d["max_health"]),
            scaled(utility(self.income / (365 * self.most)), d["min_economy"], d["max_economy"]),
            d["health_weight"],
            self.priorities[0],
        )
        norms, year = d["planner_norms"], 365 * self.most.sum()
        all_of_them = weighed(
            scaled(-died.sum() * 1e7 / year, norms[0], norms[1]),
            scaled(utility((self.income.sum() - 1.03 * paid.sum()) / year), norms[2], norms[3]),
            norms[4],
            self.priorities[1],
        )
        return np.append(own, all_of_them)

    def observations(self) -> tuple[np.ndarray, np.ndarray]:
        """The observations of governors and of the planner."""
        table = np.stack([self.s, self.i, self.r, self.deaths, self.v, self.u]) / self.people
        share, following = self.income / self.most, self.levels[-29] / 10
        time, strict = self.t / self.days, self.levels[-1] / 10
        end = [(90 - self.t % 90) / 90, self.subsidy / 20, 0.0 if self.t == 295 else 1.0]
        rows = [
            np.concatenate([np.eye(51)[k], table[:, k], [share[k], following[k], time, strict[k]], end])
            for k in range(51)
        ]
        return np.stack(rows), np.concatenate([table.ravel(), share, following, [time], strict, end])


def utility(share: np.ndarray) -> np.ndarray:
    return np.asarray((2 - 1 / np.clip(365 * share, 0.1, 3)) / 365)


def scaled(value: Any, least: Any, most: Any) -> Any:
    return (value - least) / (most - least + 1e-10)


def weighed(health: Any, economy: Any, weight: Any, priority: float) -> Any:
    odds = priority * weight / (1 - weight)
    return odds / (1 + odds) * health + economy / (1 + odds)


@pytest.mark.parametrize(("precision", "near", "seen"), [("float64", 1e-9, 1e-6), ("float32", 5e-4, 5e-5)])
def test_an_episode_follows_the_equations(precision: str, near: float, seen: float, device: str, make: Make) -> None:
    """Random levels, rare at first, later daily, for all 540 days."""
    env = make(ID, 1, device=device, precision=precision, autoreset_mode="Disabled")
    oracle = Oracle(540, (0.3, 0.45))
    observations, infos = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for day in range(541):
        governors, planner = oracle.observations()
        np.testing.assert_allclose(observations["governor"][0], governors, rtol=0, atol=seen)
        np.testing.assert_allclose(observations["planner"][0, 0], planner, rtol=0, atol=seen)
        masks: Any = infos["action_mask"]
        assert np.array_equal(masks["governor"][0, :, 1:].all(1), oracle.t >= oracle.free_from)
        assert np.array_equal(masks["governor"][0, :, 1:].any(1), oracle.t >= oracle.free_from)
        assert masks["planner"][0, 0, 1:].tolist() == [int(day % 90 == 0)] * 20
        assert masks["planner"][0, 0, 0] == masks["governor"][0, :, 0].all() == 1
        if day == 540:
            break
        levels = rng.integers(0, 11, 51) * (rng.random(51) < (0.03 if day < 300 else 1.0))
        money = int(rng.integers(0, 21))
        step: Any = env.step({"governor": levels[None], "planner": np.array([[money]])})
        observations, rewards, terminations, truncations, infos = step
        given_now = np.append(rewards["governor"][0], rewards["planner"][0])
        np.testing.assert_allclose(given_now, oracle.step(levels, money), rtol=0, atol=near)
        assert not terminations["governor"].any()
        assert truncations["planner"].all() == truncations["governor"].all() == (day == 539)


def test_vaccines_every_third_day(make: Make) -> None:
    """The countdown falls between deliveries; doses beyond the number of healthy people are lost."""
    env: Any = make(ID, 1, device="cpu", vaccine_interval=3, first_vaccines=4, vaccines_per_million=2e5)
    env.reset(seed=0)
    vaccinated, shown = [], []
    for _ in range(24):
        observations = env.step({"governor": np.zeros((1, 51), int), "planner": np.zeros((1, 1), int)})[0]
        vaccinated.append(float(env.state["vaccinated"][0, 0]))
        shown.append(round(3 * float(observations["planner"][0, 0, -1]), 3))
    assert shown[:9] == [1.0, 1.0, 0.667, 0.333, 0.0, 2.0, 1.0, 3.0, 2.0]
    assert vaccinated[4] == 0.0 < vaccinated[5] == vaccinated[7] < vaccinated[8]
    assert vaccinated[-1] <= load_data()["first_susceptible"][0]


def test_a_risk_aversion_of_one_is_a_logarithm(make: Make) -> None:
    env: Any = make(ID, 3, device="cpu", precision="float64", risk_aversion=[1 - 1e-5, 1.0, 1 + 1e-5])
    env.reset(seed=0)
    rewards = env.step({"governor": np.full((3, 51), 5), "planner": np.zeros((3, 1), int)})[1]["planner"]
    np.testing.assert_allclose(rewards[1], (rewards[0] + rewards[2]) / 2, rtol=1e-6)


def test_an_episode_is_not_longer_than_the_window(make: Make) -> None:
    with pytest.raises(ValueError, match="600"):
        make(ID, 1, device="cpu", max_episode_steps=601)


def test_the_data_has_its_license_notice() -> None:
    data = json.loads((Path(gpu_envs.__file__).parent / "envs" / "covid_economy.json").read_text())
    assert all(word in data["notice"] for word in ("BSD-3-Clause", "Salesforce.com", "OxCGRT", "JHU", "Our World"))
    assert len(data["states"]) == 51
