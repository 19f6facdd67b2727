"""Tables that compare gpu_envs with other libraries, and users' environments with built-in ones."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.figures import document, results
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import format_short

WAYS = {
    "host": "NumPy",
    "step": "one step per call",
    "graph": "a CUDA graph of steps",
    "fused": "128 steps per call",
    "train": "PPO",
}
"""How steps are taken, by the name in the results."""


def peers_cuda(_page: Path) -> str:
    """Return the table of all peers, on a GPU and its host."""
    return _peers("peers_cuda")


def peers_cpu(_page: Path) -> str:
    """Return the table of all peers, on a CPU."""
    return _peers("peers_cpu")


def _peers(file: str) -> str:
    rows = []
    for name, section in document(file)["sections"].items():
        best: dict[tuple[str, str, str], dict[str, Any]] = {}
        for row in section["results"]["rows"] if name != "ours" else ():
            if "failed" in row:
                continue
            cores = f", {row['cores']} core{'s' * (row['cores'] == 'all')}" if row["way"] == "host" else ""
            label = section["results"]["label"] + (f", {row['variant']}" if row["variant"] else "")
            key = (label, row["task"], WAYS[row["way"]] + cores)
            if row["env_steps_per_s"] > best.get(key, row)["env_steps_per_s"] or key not in best:
                best[key] = row
        for key, row in best.items():
            peer, ours = row["env_steps_per_s"], row["ours_env_steps_per_s"]
            comparison = ("", "") if ours is None else (format_short(ours), f"{digits(ours / peer)}x")
            rows.append((*key, f"{row['num_envs']:,}", format_short(peer), *comparison))
    return table(("library", "task", "method", "replicas", "steps/s", "gpu_envs steps/s", "ratio"), rows)


def custom(_page: Path) -> str:
    """Return the table of users' environments, compared with built-in ones."""
    cuda, cpu = results("custom_cuda"), results("custom_cpu")
    labels = {
        "CartPoleOutside-v1": "CartPole as a user's C++ header, compared with the built-in one",
        "CartPoleInPython-v1": "the same rules in Python, compared with C++",
        "Lander-v0": "the tutorial's lander in C++, compared with MountainCar, whose state has the same size",
        "LanderInPython-v0": "the lander in Python, compared with C++",
    }
    rows = []
    for name, label in labels.items():
        share = {entry["num_envs"]: percent(entry["share"], 1) for entry in cuda["speed"][name]}
        on_cpu = percent(cpu["speed"][name][0]["share"], 1)
        rows.append((label, share[4194304], share[65536], on_cpu))
    compiled = [
        f"{entry['compile_s']['Lander-v0']:.2f} s ({entry['compile_s']['LanderInPython-v0']:.2f} s)"
        for entry in (cuda, cpu)
    ]
    rows.append(("compilation of the lander without a cache, C++ (Python)", compiled[0], "", compiled[1]))
    return table(("environment", "H200, 4 M replicas", "65,536", "one core of an EPYC, 16,384"), rows)


def sb3(_page: Path) -> str:
    """Return the table of SB3's rollouts."""
    data = results("adapters_cpu", "sb3")
    labels = {
        "gpu_envs_ppo": f"`sb3.VecEnv`, {data['num_envs']:,} replicas, with `sb3.PPO`",
        "stock_ppo": "the same, with Stable-Baselines3's PPO",
        "dummy": f"`DummyVecEnv`, {data['peers']['dummy']['num_envs']:,} environments",
        "subproc": f"`SubprocVecEnv`, {data['peers']['subproc']['num_envs']} environments",
    }
    rows = []
    for name, label in labels.items():
        cells = []
        for kind in ("fresh", "balancing"):
            entry = data["collect_rollouts"][kind]
            cells.append(
                f"{format_short(entry['steps_per_s'][name])}, {percent(entry['shares'][name]['step_wait'], 1)}"
            )
        rows.append((label, *cells))
    head = ("steps/s, and the share of `step_wait`", "untrained policy: episodes of 22 steps")
    return table((*head, "balancing policy: 500 steps"), rows)


def libraries(_page: Path) -> str:
    """Return the table of the loops of TorchRL, skrl and rsl_rl."""
    data = results("adapters_cuda", "torch_libraries")["libraries"]
    labels = {
        ("torchrl", "rollout"): "TorchRL, `rollout`, random actions",
        ("torchrl", "collector"): "TorchRL, collector",
        ("skrl", "skrl_ppo"): "skrl, its PPO",
        ("skrl", "gpu_envs_ppo"): "skrl, `skrl.PPO` of the adapter",
        ("rsl_rl", "ppo"): "rsl_rl, its PPO",
    }
    rows = []
    for (library, loop), label in labels.items():
        entry = data[library]["loops"][loop]
        constants = "; ".join(f"{us:,.0f}" for us in entry["yardsticks_us"].values())
        more = "; ".join(percent(share) for share in entry["overheads"].values())
        rows.append((label, f"{entry['ours_us']:,.0f}", constants, more))
    return table(("loop", "with our environment", "with constants", "overhead above constants and the bare step"), rows)


def particles(_page: Path) -> str:
    """Return the table of training in the particle environments, compared with JaxMARL."""
    rows, ippo = [], results("training_cuda", "ippo")
    for env_id, ours in results("training_cuda", "particles").items():
        for library, entry in {"ours": ours, "JaxMARL's IPPO": ippo[env_id]}.items():
            if "skipped" in entry:
                continue
            runs = entry["runs"]
            ends = sorted(run["evaluated"] for run in runs)
            first = [run["reached_s"] for run in runs if run.get("reached_s") is not None]
            reached, seconds = f"{entry['reached']} of {len(runs)}", statistics.median(run["seconds"] for run in runs)
            returns = (f"{entry['random']:.2f}", f"{ends[0]:.2f}, {ends[-1]:.2f}")
            until = digits(statistics.median(first)) if first else ""
            rows.append((f"{env_id}, {ours['metric']}", library, *returns, reached, digits(seconds), until))
    head = ("environment", "library", "random", "minimum and maximum", "seeds that reach the target", "training, s")
    return table((*head, "time to the target, s"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "peers-cuda": peers_cuda,
    "peers-cpu": peers_cpu,
    "custom": custom,
    "sb3": sb3,
    "libraries": libraries,
    "particles": particles,
}
"""Generators by the name of their block in the pages."""
