"""RiceN against recordings of its authors' program: a step from every state, starts, ends, user-defined regions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Make, Place, numpy_of, restored_registry, to_place
from registered import RICE, set_elapsed

import gpu_envs
from gpu_envs.envs.rice_n import REGION_PARAMS, regions, rice_n

RECORDED = sorted((Path(__file__).parents[1] / "recordings" / "rice_n").glob("*.npz"))

CANCELLING = ("utility", "social_welfare", "consumption", "current_balance", "last_reward")
"""Fields that are differences of larger numbers, so that rounding errors are larger."""

NAMES = {
    **{f: f"{f}_all_regions" for f in ("capital", "labor", "production_factor", "intensity", "capital_depreciation")},
    **{f: f"{f}_all_regions" for f in ("savings", "mitigation_rate", "max_export_limit", "mitigation_cost", "damages")},
    **{f: f"{f}_all_regions" for f in ("abatement_cost", "gross_output", "investment", "production")},
    **{f: f"{f}_all_regions" for f in CANCELLING[:-1]},
    "minimum_mitigation_rate": "minimum_mitigation_rate_all_regions",
    "last_reward": "reward_all_regions",
    "tariffs": "future_tariffs",
    "imports": "scaled_imports",
    "promised": "promised_mitigation_rate",
    "requested": "requested_mitigation_rate",
    "accepted": "proposal_decisions",
    "temperature": "global_temperature",
    "carbon_mass": "global_carbon_mass",
    "exogenous_forcing": "global_exogenous_emissions",
    "land_emissions": "global_land_emissions",
}
"""Names in the recordings of the state's fields."""


def recorded(file: Path) -> tuple[dict[str, np.ndarray], bool]:
    """A recording, and whether its regions negotiate."""
    with np.load(file) as found:
        return dict(found), "nego" in file.stem


def state_at(data: dict[str, np.ndarray], field: str, at: slice, shape: tuple[int, ...]) -> np.ndarray:
    return data[f"state__{NAMES[field]}"][at].reshape(-1, *shape[1:])


def masks_of(data: dict[str, np.ndarray]) -> np.ndarray:
    return np.unpackbits(data["obs_action_mask"], axis=-1)[..., : int(data["action_mask_len"])]


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_step_from_every_recorded_state(file: Path, precision: str, place: Place, make: Make) -> None:
    data, talks = recorded(file)
    steps, count = data["rewards"].shape
    kinds = {**place._asdict(), "precision": precision, "autoreset_mode": "Disabled"}
    env = make(RICE, steps, num_regions=count, negotiation=talks, **kinds)
    env.reset(seed=0)
    shapes = {field: tuple(env.state[field].shape) for field in NAMES}
    for field, shape in shapes.items():
        env.state[field] = state_at(data, field, slice(0, steps), shape)
    set_elapsed(env, np.arange(steps))
    actions = to_place(data["actions"].astype(np.int64), place)
    observations, rewards, terminations, truncations, infos = env.step({"region": actions})
    for field, shape in shapes.items():
        given, expected = numpy_of(env.state[field]), state_at(data, field, slice(1, None), shape)
        if field in CANCELLING:
            np.testing.assert_allclose(given, expected, rtol=0, atol=5e-4, err_msg=field)
        else:
            large = np.abs(expected) > 1e-3
            np.testing.assert_allclose(given[large], expected[large], rtol=1e-5, err_msg=field)
            np.testing.assert_allclose(given[~large], expected[~large], rtol=0, atol=1e-7, err_msg=field)
    np.testing.assert_allclose(numpy_of(rewards["region"]), data["rewards"], rtol=0, atol=5e-4)
    np.testing.assert_allclose(numpy_of(observations["region"]), data["obs_features"][1:], rtol=1e-5, atol=5e-4)
    assert np.array_equal(numpy_of(infos["action_mask"]["region"]), masks_of(data)[1:])
    assert np.array_equal(numpy_of(terminations["region"]), np.repeat(data["done"][:, None], count, 1))
    assert not numpy_of(truncations["region"]).any()


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_the_start_equals_the_recording(file: Path, make: Make) -> None:
    data, talks = recorded(file)
    env = make(RICE, 2, num_regions=27, negotiation=talks, device="cpu")
    assert env.max_episode_steps is None
    observations, infos = env.reset(seed=0)
    np.testing.assert_allclose(observations["region"][1], data["obs_features"][0], rtol=1e-6)
    assert np.array_equal(infos["action_mask"]["region"][1], masks_of(data)[0])
    for field in NAMES:
        expected = state_at(data, field, slice(0, 1), env.state[field].shape)
        np.testing.assert_allclose(env.state[field][:1], expected, rtol=1e-6, err_msg=field)


def test_a_risk_aversion_of_one_is_a_logarithm(make: Make) -> None:
    """At 1 the formula divides zero by zero; its limit is the logarithm."""
    env = make(RICE, 3, device="cpu", precision="float64", risk_aversion=[1 - 1e-5, 1.0, 1 + 1e-5])
    env.reset(seed=0)
    for _ in range(3):
        rewards = env.step({"region": np.full((3, 3, 9), 3)})[1]["region"]
    np.testing.assert_allclose(rewards[1], (rewards[0] + rewards[2]) / 2, rtol=1e-6)


def test_user_defined_regions(make: Make) -> None:
    """Tables may have any length; each region depends on its row."""
    table: dict[str, Any] = {name: [*regions()[name][3:7], regions()[name][3]] for name in REGION_PARAMS}
    with restored_registry():
        gpu_envs.register(rice_n(table, "Mine-v0"))
        env: Any = make("Mine-v0", 2, device="cpu")
        env.reset(seed=0)
        assert env.counts == {"region": 5}
        assert env.observation_spaces["region"].shape == (2, 5, 5 * 16 + 17)
        assert env.single_action_spaces["region"].nvec.tolist() == [10] * 13
        np.testing.assert_allclose(env.state["capital"][0], table["initial_capital"], rtol=1e-6)
        for _ in range(4):
            env.step({"region": np.full((2, 5, 13), 2)})
        utility = env.state["utility"]
        assert utility[0, 0] == pytest.approx(utility[0, 4], rel=1e-5)  # equal regions with equal actions
        assert len(np.unique(np.round(utility[0], 5))) == 4
        with pytest.raises(ValueError, match=r"num_regions.*from 2 to 5"):
            make("Mine-v0", 2, num_regions=6)


def test_the_data_has_its_license_notice() -> None:
    text = (Path(gpu_envs.__file__).parent / "envs" / "rice_n.json").read_text()
    assert {"BSD-3-Clause", "Salesforce.com"} <= set(json.loads(text)["notice"].replace(",", " ").split())
    assert {len(values) for values in regions().values()} == {27}
