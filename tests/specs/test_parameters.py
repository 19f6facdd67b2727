"""Parameters: shared, per replica, compiled in, and changed later."""

import numpy as np
import pytest

import gpu_envs


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_noise_per_replica_is_the_same_noise(device: str, noise: float) -> None:
    """A compiled-in value and the same value per replica give equal bits, including random numbers."""
    runs = []
    for value in (noise, np.full(70, noise)):
        env = gpu_envs.make("Acrobot-v1", 70, device=device, torque_noise_max=value)
        env.reset(seed=3)
        runs.append([env.step(np.ones(70, np.int64))[0] for _ in range(30)])
    assert np.array_equal(runs[0], runs[1])


def test_a_compiled_in_parameter_can_be_set(device: str) -> None:
    """A changed switch takes effect in the next step of the same trajectory."""
    env = gpu_envs.make("CartPole-v1", 4, device=device)
    env.reset(seed=0)
    assert env.step(np.ones(4, np.int64))[1].tolist() == [1, 1, 1, 1]
    before = env.get_state()["state"]["x"]
    env.set_attr("sutton_barto_reward", True)
    assert np.array_equal(env.get_state()["state"]["x"], before)
    assert env.step(np.ones(4, np.int64))[1].tolist() == [0, 0, 0, 0]
    env.set_attr("sutton_barto_reward", [True, False, True, False])
    assert env.step(np.ones(4, np.int64))[1].tolist() == [0, 1, 0, 1]


def test_options_are_not_compiled_in(device: str) -> None:
    """The options of a reset need no other program."""
    env = gpu_envs.make("CartPole-v1", 4, device=device)
    env.reset(seed=0)
    source = env.simulation.program_source()
    env.reset(seed=0, options={"low": 0.1, "high": 0.1})
    assert (env.get_state()["state"]["theta"] == np.float32(0.1)).all()
    assert env.simulation.program_source() == source


def test_an_option_holds_for_one_reset(device: str) -> None:
    """If replicas have different bounds, a reset option makes temporary arrays."""
    env = gpu_envs.make("CartPole-v1", 4, device=device, low=np.zeros(4), high=np.full(4, 0.01))
    env.reset(seed=0)
    held = env.simulation.program.args["reset"].params.low
    env.reset(options={"low": -0.5, "high": -0.4})
    assert (env.get_state()["state"]["x"] < -0.3).all()
    assert env.simulation.program.args["reset"].params.low == held
    env.reset()
    assert (env.get_state()["state"]["x"] >= 0).all()
