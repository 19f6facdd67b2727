"""Steps per second on whatever devices are here: ``python -m benchmarks.throughput``."""

import argparse

from benchmarks import on_cpu, record
from gpu_envs.backend.cuda import device_count


def log(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def demo() -> None:
    """A minute's look: random steps of every environment on the device that ``auto`` chooses."""
    import time

    import gpu_envs

    log(f"{'environment':26s} {'device':8s} {'replicas':>9s} {'steps/s':>10s}  mean return of random play")
    for env_id in gpu_envs.ids():
        on_gpu = device_count() > 0
        env = gpu_envs.make(env_id, 2**20 if on_gpu else 2**15, autoreset_mode="SameStep")
        env.reset(seed=0)
        steps = 1000
        env.rollout(steps)
        start = time.perf_counter()
        result = env.rollout(steps)
        rate = env.num_envs * steps / (time.perf_counter() - start)
        mean = result.episode_returns.sum() / max(1, result.episodes.sum())
        amount = f"{rate / 1e9:.1f} G" if rate > 1e9 else f"{rate / 1e6:.0f} M"
        log(f"{env_id:26s} {env.device:8s} {env.num_envs:9,d} {amount:>10s}  {mean:.1f}")


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
