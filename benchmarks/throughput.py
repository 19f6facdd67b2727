"""Steps per second on whatever devices are here: ``python -m benchmarks.throughput``."""

import argparse
import time
from typing import Any

import gpu_envs
from benchmarks import on_cpu, record, teams
from gpu_envs.arrays import to_numpy
from gpu_envs.backend.cuda import device_count


def log(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def demo() -> None:
    """A minute's look: random steps of every environment on the device that ``auto`` chooses."""
    log(f"{'environment':26s} {'device':8s} {'replicas':>9s} {'steps/s':>10s}  mean return of random play")
    for env_id in gpu_envs.ids():
        one_agent = isinstance(gpu_envs.spec(env_id), gpu_envs.EnvSpec)
        env, seconds, steps, mean = (demo_of_one if one_agent else demo_of_team)(env_id, device_count() > 0)
        rate = env.num_envs * steps / seconds
        amount = f"{rate / 1e9:.1f} G" if rate > 1e9 else f"{rate / 1e6:.2f} M" if rate < 1e7 else f"{rate / 1e6:.0f} M"
        log(f"{env_id:26s} {env.device:8s} {env.num_envs:9,d} {amount:>10s}  {mean}")


def demo_of_one(env_id: str, on_gpu: bool) -> tuple[Any, float, int, str]:
    """An environment of one agent, many steps a launch: environment, seconds, steps, mean return."""
    env = gpu_envs.make(env_id, 2**20 if on_gpu else 2**15, autoreset_mode="SameStep")
    env.reset(seed=0)
    steps = 1000
    env.rollout(steps)
    start = time.perf_counter()
    result = env.rollout(steps)
    seconds = time.perf_counter() - start
    return env, seconds, steps, f"{result.episode_returns.sum() / max(1, result.episodes.sum()):.1f}"


def demo_of_team(env_id: str, on_gpu: bool) -> tuple[Any, float, int, str]:
    """An environment with a team, one step a launch: environment, seconds, steps, mean return by role."""
    output = {"output": "cupy"} if on_gpu else {"copy": False}
    env = gpu_envs.make(env_id, 5000 if on_gpu else 200, autoreset_mode="SameStep", **output)
    env.reset(seed=0)
    actions = teams.random_actions(env, 16, "int64")
    steps = env.max_episode_steps
    if on_gpu:
        import cupy

        actions = [{role: cupy.asarray(array) for role, array in step.items()} for step in actions]
    start = time.perf_counter()
    for t in range(steps):
        env.step(actions[t % 16])
    means = {
        role: float(to_numpy(returns).mean()) for role, returns in env.episode_return.items()
    }  # waits for the device
    seconds = time.perf_counter() - start
    return env, seconds, steps, ", ".join(f"{mean:.1f} ({role})" for role, mean in means.items())


def main() -> None:
    """Measures, prints, and writes ``benchmarks/results``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="a short look that writes nothing")
    parser.add_argument("--device", choices=("cpu", "cuda", "all"), default="all", help="what to measure")
    parser.add_argument("--commit", help="the commit measured, where the copy has no git")
    options = parser.parse_args()
    if options.demo:
        demo()
        return
    if options.device != "cuda":
        log(f"wrote {record.write('throughput_cpu', on_cpu.measure(log), options.commit)}")
    if options.device != "cpu" and device_count() > 0:
        import torch

        from benchmarks import on_cuda

        gpu = torch.cuda.get_device_name(0)
        log(f"wrote {record.write('throughput_cuda', on_cuda.measure(log), options.commit, gpu)}")


if __name__ == "__main__":
    main()
