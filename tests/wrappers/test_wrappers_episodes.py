"""RecordEpisodeStatistics against Gymnasium's wrapper of this name."""

import time
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.wrappers import vector  # noqa: E402
from harness import IDS, numpy_of, on_host, random_actions  # noqa: E402
from wrapper_cases import numpy_env, step_both, to_device, torch_env  # noqa: E402

from gpu_envs.wrappers import NormalizeReward, RecordEpisodeStatistics  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def check(ours: Any, theirs: Any, env_id: str, steps: int, device: str) -> None:
    """Step both wrappers and compare infos, counts and queues; some replicas are reset in the middle of an episode."""
    ours.reset(seed=1)
    theirs.reset(seed=1)
    ended, some = 0, np.arange(ours.num_envs) % 3 == 0
    for number, taken in enumerate(step_both(ours, theirs, env_id, steps, device)):
        if taken.mask is not None:
            continue
        infos, expected = taken.ours[4], taken.theirs[4]
        done = numpy_of(taken.ours[2]) | numpy_of(taken.ours[3])
        np.testing.assert_array_equal(numpy_of(infos["_episode"]), done)
        assert set(infos["episode"]) == {"r", "l", "t", *ours.unwrapped.env_spec.metrics}
        if done.any():
            ended += int(done.sum())
            np.testing.assert_array_equal(numpy_of(infos["_episode"]), expected["_episode"])
            assert infos["episode"]["r"].dtype == torch.float64
            for name in ("r", "l"):
                np.testing.assert_array_equal(numpy_of(infos["episode"][name]), expected["episode"][name])
        else:
            assert not infos["episode"]["r"].any()
            assert not infos["episode"]["l"].any()
        assert int(ours.episode_count) == theirs.episode_count
        assert ours.return_queue.tolist() == list(theirs.return_queue)
        assert ours.length_queue.tolist() == list(theirs.length_queue)
        assert len(ours.time_queue) == len(theirs.time_queue)
        if number == 4:
            ours.reset(options={"reset_mask": to_device(device, some)})
            theirs.reset(options={"reset_mask": some.copy()})
    assert ended > 3 * ours.num_envs


@pytest.mark.parametrize(("env_id", "precision"), [*((each, "float32") for each in IDS), ("Pendulum-v1", "float64")])
def test_as_gymnasium(env_id: str, precision: str, mode: str, device: str) -> None:
    ours = RecordEpisodeStatistics(torch_env(env_id, 37, mode, device, precision=precision))
    theirs = vector.RecordEpisodeStatistics(numpy_env(env_id, 37, mode, precision=precision))
    check(ours, theirs, env_id, 50, device)


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1500])
@pytest.mark.parametrize("length", [1, 7, 300, 100_000])
def test_queues_of_many_blocks(count: int, length: int, device: str) -> None:
    """A step ends more or fewer episodes than a queue holds, in one block or in several."""
    ours = RecordEpisodeStatistics(torch_env("CartPole-v1", count, "SameStep", device), buffer_length=length)
    theirs = vector.RecordEpisodeStatistics(numpy_env("CartPole-v1", count, "SameStep"), buffer_length=length)
    check(ours, theirs, "CartPole-v1", 50, device)


@pytest.mark.slow
def test_more_rows_than_threads_in_a_block(device: str) -> None:
    count = 256 * 1024 + 300
    ours = RecordEpisodeStatistics(torch_env("MountainCar-v0", count, "SameStep", device, max_episode_steps=3))
    theirs = vector.RecordEpisodeStatistics(numpy_env("MountainCar-v0", count, "SameStep", max_episode_steps=3))
    check(ours, theirs, "MountainCar-v0", 12, device)


def test_a_waiting_replica_is_counted_once(device: str) -> None:
    """In Disabled mode with ``allow_frozen_steps``, steps of an ended episode add nothing."""
    env = torch_env("CartPole-v1", 3, "Disabled", device)
    env.allow_frozen_steps()
    ours = RecordEpisodeStatistics(env)
    ours.reset(seed=0)
    for actions in random_actions("CartPole-v1", 20, 3):
        infos = ours.step(to_device(device, actions))[4]
    assert int(ours.episode_count) == 3
    assert not infos["_episode"].any()
    assert sorted(ours.length_queue.tolist()) == sorted(env.episode_length.tolist())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_durations(mode: str, device: str) -> None:
    """A duration is the time from the step or reset that starts an episode to the step that ends it."""
    ours = RecordEpisodeStatistics(torch_env("Pendulum-v1", 5, mode, device, max_episode_steps=3))
    started, durations = time.perf_counter(), []
    ours.reset(seed=0)
    # Step 2 ends the first episode; step 2 or 3 starts the second, and step 5 or 6 ends it.
    restart = 2 if mode == "SameStep" else 3
    for step, actions in enumerate(random_actions("Pendulum-v1", restart + 4, 5)):
        time.sleep(0.05)
        before = time.perf_counter()
        taken = numpy_of(ours.step(to_device(device, actions))[4]["episode"]["t"])
        if step in (2, restart + 3):
            assert (taken > 0.1).all()
            assert (taken < time.perf_counter() - started).all()
            durations += taken.tolist()
        else:
            assert not taken.any()
        if step == restart:
            started = before
    assert numpy_of(ours.time_queue).tolist() == durations
    assert len(durations) == 10


def test_returns_sum_the_rewards_of_the_wrapped_env(device: str) -> None:
    """Around NormalizeReward, returns sum the normalized rewards; ``final_info`` keeps the environment's returns."""
    env = torch_env("Pendulum-v1", 4, "SameStep", device)
    ours = RecordEpisodeStatistics(NormalizeReward(env))
    ours.reset(seed=0)
    total = np.zeros(4)
    for actions in random_actions("Pendulum-v1", 11, 4):
        results = ours.step(to_device(device, actions))
        total += numpy_of(results[1])
    infos = on_host(results[4])
    assert infos["_episode"].all()
    np.testing.assert_array_equal(infos["episode"]["r"], total)
    np.testing.assert_array_equal(infos["final_info"]["episode"]["r"], numpy_of(env.episode_return))
    assert (infos["final_info"]["episode"]["r"] < -10).all()


def test_stats_key(device: str) -> None:
    env = torch_env("CartPole-v1", 2, "SameStep", device)
    ours = RecordEpisodeStatistics(RecordEpisodeStatistics(env), stats_key="outer")
    ours.reset(seed=0)
    infos = ours.step(to_device(device, np.zeros(2, np.int64)))[4]
    assert set(infos["outer"]) == {"r", "l", "t", *env.unwrapped.env_spec.metrics}
    assert {"episode", "_episode", "_outer"} <= set(infos)
    with pytest.raises(ValueError, match="with stats_key='episode' already; give another stats_key"):
        RecordEpisodeStatistics(RecordEpisodeStatistics(env))


@pytest.mark.parametrize("length", [0, -1, 2.5, True, 2**31])
def test_wrong_buffer_length(length: Any) -> None:
    with pytest.raises(ValueError, match=r"buffer_length is .*; give an integer from 1"):
        RecordEpisodeStatistics(torch_env("CartPole-v1", 2, "SameStep", "cpu"), buffer_length=length)
