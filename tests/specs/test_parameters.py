"""Parameters: shared, per replica, compiled in, changed on the way."""

import numpy as np
import pytest

import gpu_envs


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_noise_per_replica_is_the_same_noise(device: str, noise: float) -> None:
    """A value compiled in and the same value for each replica give the same bits, drawn numbers included."""
    runs = []
    for value in (noise, np.full(70, noise)):
        env = gpu_envs.make("Acrobot-v1", 70, device=device, torque_noise_max=value)
        env.reset(seed=3)
        runs.append([env.step(np.ones(70, np.int64))[0] for _ in range(30)])
    assert np.array_equal(runs[0], runs[1])


def test_a_compiled_in_parameter_can_be_set(device: str) -> None:
    """Setting a switch is obeyed from the next step on, and the trajectory goes on."""
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
    """A reset's own bounds need no other program."""
    env = gpu_envs.make("CartPole-v1", 4, device=device)
    env.reset(seed=0)
    source = env.simulation.program_source()
    env.reset(seed=0, options={"low": 0.1, "high": 0.1})
    assert (env.get_state()["state"]["theta"] == np.float32(0.1)).all()
    assert env.simulation.program_source() == source


def test_an_option_of_one_reset_leaves_nothing_behind(device: str) -> None:
    """Where replicas have bounds of their own, a reset's option makes arrays that end with that reset."""
    env = gpu_envs.make("CartPole-v1", 4, device=device, low=np.zeros(4), high=np.full(4, 0.01))
    env.reset(seed=0)
    held = env.simulation.program.args["reset"].params.low
    env.reset(options={"low": -0.5, "high": -0.4})
    assert (env.get_state()["state"]["x"] < -0.3).all()
    assert env.simulation.program.args["reset"].params.low == held
    env.reset()
    assert (env.get_state()["state"]["x"] >= 0).all()
