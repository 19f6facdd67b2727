"""``make``: typed arguments, and messages about unknown ones."""

import inspect
from typing import Any, get_args

import gymnasium
import pytest

import gpu_envs
from gpu_envs import making
from gpu_envs.engine.batch import Batch
from gpu_envs.envs import ALL
from gpu_envs.specs.team import TeamSpec


def test_editors_complete_the_ids_of_all_environments() -> None:
    teams = {spec.id for spec in ALL if isinstance(spec, TeamSpec)}
    assert set(get_args(making.MultiAgentId)) == teams
    assert set(get_args(making.SingleAgentId)) == {spec.id for spec in ALL} - teams


def test_make_has_the_options_of_environments() -> None:
    """With the same defaults."""
    own, constructor = inspect.signature(gpu_envs.make).parameters, inspect.signature(Batch.__init__).parameters
    assert list(own.values())[1:] == list(constructor.values())[2:]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("outputs", "output"),
        ("n_envs", "num_envs"),
        ("auto_reset_mode", "autoreset_mode"),
        ("max_steps", "max_episode_steps"),
        ("masspole", "pole_mass"),
        ("Gravity", "gravity"),
    ],
)
def test_an_unknown_argument_is_matched_with_options_and_parameters(name: str, meant: str) -> None:
    """The message lists options and parameters."""
    wrong: dict[str, Any] = {name: 1}
    with pytest.raises(ValueError, match=rf"no option or parameter '{name}'\. Did you mean '{meant}'\?") as caught:
        gpu_envs.make("CartPole-v1", device="cpu", **wrong)
    assert "Options: num_envs, device," in str(caught.value)
    assert "render_mode; parameters: gravity, cart_mass," in str(caught.value)


def test_the_message_about_seed_names_reset() -> None:
    with pytest.raises(ValueError, match=r"'seed'\. Give a seed to reset: env\.reset\(seed=0\)\."):
        gpu_envs.make("CartPole-v1", device="cpu", seed=0)


def test_options_of_one_replica_are_named() -> None:
    with pytest.raises(TypeError, match=r"'masspole'\. Did you mean 'pole_mass'\? Options: device, precision"):
        gymnasium.make("gpu_envs/CartPole-v1", masspole=1.0)


@pytest.mark.usefixtures("builtin_registry")
def test_no_suggestion_without_a_similar_name() -> None:
    with pytest.raises(gpu_envs.UnknownEnvironmentError, match=r"no environment 'LunarLander-v3'\. There are: Acrobot"):
        gpu_envs.make("LunarLander-v3")
    with pytest.raises(ValueError, match=r"no option or parameter 'color'\. Options:"):
        gpu_envs.make("CartPole-v1", device="cpu", color="red")
