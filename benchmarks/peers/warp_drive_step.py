"""WarpDrive's Numba backend: TagContinuous, TagGridWorld and CartPole, with the parameters that it publishes.

A step does the work of WarpDrive's trainer without the policy: the environment's kernel, then a reset kernel for each
array. Tag has the same initial state in each replica and episode; CartPole samples it from a pool.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.peers import child
from benchmarks.peers.workloads import CARTPOLE, TAG, Measurement, Workload
from benchmarks.timing import seconds_per_call


@contextmanager
def numpy_row_stack() -> Iterator[None]:
    """Define ``numpy.row_stack``, which NumPy has removed and numba-cuda needs, for imports and for compilation."""
    vars(np).setdefault("row_stack", np.vstack)
    yield


with numpy_row_stack():
    import torch
    from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv
    from example_envs.tag_continuous.tag_continuous import TagContinuous
    from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.utils.data_loader import create_and_push_data_placeholders

POOL_SIZE = 1000
"""Number of initial states of CartPole."""


def environment(work: Workload) -> tuple[Any, int]:
    """Return an environment of WarpDrive, and the length of an episode."""
    if work.task == CARTPOLE:
        return CUDAClassicControlCartPoleEnv(episode_length=500, env_backend="numba", reset_pool_size=POOL_SIZE), 500
    assert work.team is not None
    taggers, runners = work.team
    if work.task == TAG:
        return (
            TagContinuous(
                num_taggers=taggers,
                num_runners=runners,
                grid_length=20.0,
                episode_length=500,
                max_acceleration=0.1,
                min_acceleration=-0.1,
                max_turn=2.356,
                min_turn=-2.356,
                num_acceleration_levels=20,
                num_turn_levels=20,
                use_full_observation=False,
                num_other_agents_observed=10,
                tagging_distance=0.02,
                tag_reward_for_tagger=10.0,
                tag_penalty_for_runner=-10.0,
                seed=274880,
                env_backend="numba",
            ),
            500,
        )
    return (
        CUDATagGridWorld(
            num_taggers=taggers,
            grid_length=100,
            episode_length=100,
            seed=20,
            tag_penalty_for_runner=5.0,
            env_backend="numba",
        ),
        100,
    )


def make_step(work: Workload) -> tuple[Callable[[int], None], int]:
    """Return a function that steps all replicas, which are staggered, and the length of an episode."""
    inner, limit = environment(work)
    env = EnvWrapper(env_obj=inner, num_envs=work.num_envs, env_backend="numba")
    create_and_push_data_placeholders(env_wrapper=env, push_data_batch_placeholders=False)
    env.reset_all_envs()
    if work.task == CARTPOLE:
        env.init_reset_pool(seed=1)
    data = env.cuda_data_manager
    rng = np.random.default_rng(0)
    data.device_data("_timestep_").copy_to_device(rng.integers(0, limit, work.num_envs).astype(np.int32))
    action_tensor = data.data_on_device_via_torch("sampled_actions")
    space = inner.action_space[0]
    choices = np.asarray(space.nvec if hasattr(space, "nvec") else [space.n])
    shape = (8, *action_tensor.shape)
    actions = torch.from_numpy(rng.integers(0, choices, shape).astype(np.int32)).to(action_tensor.device)

    def call(t: int) -> None:
        action_tensor.copy_(actions[t % len(actions)])
        env.step_all_envs()
        env.reset_only_done_envs()

    return call, limit


def measure(work: Workload, seconds: float) -> Measurement:
    """Measure the seconds per step, after a warm-up of one episode."""
    start = time.perf_counter()
    call, limit = make_step(work)
    call(0)
    torch.cuda.synchronize()
    prepare = time.perf_counter() - start
    for t in range(limit if work.team is not None else 64):
        call(t)
    torch.cuda.synchronize()
    return Measurement(seconds_per_call(call, torch.cuda.synchronize, seconds=seconds), prepare)


if __name__ == "__main__":
    child.serve(("rl-warp-drive", "numba", "numba-cuda", "torch", "numpy"), measure)
