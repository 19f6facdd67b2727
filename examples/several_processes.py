"""Train CartPole in several processes, one per GPU: ``torchrun --nproc-per-node 2 several_processes.py``.

With fewer GPUs than processes, all processes train on the CPU.
"""

import os

import torch
import torch.distributed as dist

from gpu_envs.training import PPO, Run, train


def main() -> None:
    """Train until CartPole is solved; rank 0 writes the run directory and shows the progress bar."""
    rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # all processes use GPUs, or none
    device = f"cuda:{rank}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device(device))
    else:
        dist.init_process_group("gloo")
    run = Run(
        env="CartPole-v1",
        algorithm=PPO(minibatches=4, learning_rate=3e-3),
        device=device,
        num_envs=512,
        horizon=32,
        total_steps=20_000_000,
        target_return=float(os.environ.get("TARGET_RETURN", "475")),
        run_dir=os.environ.get("RUN_DIR", ""),
    )
    result = train(run, group=dist.group.WORLD)
    if dist.get_rank() == 0:
        print(f"return {result.returns['agent']:.1f} after {result.steps:,} steps, {result.seconds:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
