"""Tables of ours beside others: peers, rules from outside, other libraries' loops."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pages.figures import document, results
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import short

WAYS = {
    "host": "NumPy",
    "step": "a step a call",
    "graph": "a CUDA graph of steps",
    "fused": "128 steps a call",
    "train": "PPO",
}
"""By the names in the results: how steps are taken."""


def peers_cuda(_page: Path) -> str:
    """All peers, on a GPU and its host."""
    return _peers("peers_cuda")


def peers_cpu(_page: Path) -> str:
    """All peers, on a CPU."""
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
            theirs, ours = row["env_steps_per_s"], row["ours_env_steps_per_s"]
            shown = ("", "") if ours is None else (short(ours), f"{digits(ours / theirs)}x")
            rows.append((*key, f"{row['num_envs']:,}", short(theirs), *shown))
    return table(("who", "task", "how", "replicas", "steps/s", "ours", ""), rows)


def custom(_page: Path) -> str:
    """Rules from outside, beside rules from here."""
    cuda, cpu = results("custom_cuda"), results("custom_cpu")
    named = {
        "CartPoleOutside-v1": "CartPole's rules from outside this package, in C++, beside those in it",
        "CartPoleInPython-v1": "the same rules in Python, beside those in C++",
        "Lander-v0": "the tutorial's lander in C++, beside MountainCar, whose state and rows are as large",
        "LanderInPython-v0": "the lander in Python, beside the one in C++",
    }
    rows = []
    for name, what in named.items():
        share = {of["num_envs"]: percent(of["share"], 1) for of in cuda["speed"][name]}
        on_cpu = percent(cpu["speed"][name][0]["share"], 1)
        rows.append((what, share[4194304], share[65536], on_cpu))
    compiled = [
        f"{of['compile_s']['Lander-v0']:.2f} s ({of['compile_s']['LanderInPython-v0']:.2f} s)" for of in (cuda, cpu)
    ]
    rows.append(("the lander compiled, cold, in C++ (Python)", compiled[0], "", compiled[1]))
    return table(("what", "H200, 4 M replicas", "65,536", "one core of an EPYC, 16,384"), rows)


def sb3(_page: Path) -> str:
    """Rollouts of Stable-Baselines3."""
    found = results("adapters_cpu", "sb3")
    named = {
        "gpu_envs_ppo": f"`sb3.VecEnv`, {found['num_envs']:,} replicas, with `sb3.PPO`",
        "stock_ppo": "the same, with Stable-Baselines3's PPO",
        "dummy": f"`DummyVecEnv`, {found['peers']['dummy']['num_envs']:,} environments",
        "subproc": f"`SubprocVecEnv`, {found['peers']['subproc']['num_envs']} environments",
    }
    rows = []
    for name, what in named.items():
        cells = []
        for kind in ("fresh", "balancing"):
            of = found["collect_rollouts"][kind]
            cells.append(f"{short(of['steps_per_s'][name])}, {percent(of['shares'][name]['step_wait'], 1)}")
        rows.append((what, *cells))
    head = ("steps/s, and the share of `step_wait`", "a new policy: episodes of 22 steps")
    return table((*head, "a policy that balances: 500 steps"), rows)


def libraries(_page: Path) -> str:
    """Loops of libraries that use torch."""
    found = results("adapters_cuda", "torch_libraries")["libraries"]
    named = {
        ("torchrl", "rollout"): "TorchRL, `rollout`, random actions",
        ("torchrl", "collector"): "TorchRL, collector",
        ("skrl", "skrl_ppo"): "skrl, its PPO",
        ("skrl", "gpu_envs_ppo"): "skrl, `skrl.PPO` of the adapter",
        ("rsl_rl", "ppo"): "rsl_rl, its PPO",
    }
    rows = []
    for (library, loop), what in named.items():
        of = found[library]["loops"][loop]
        constants = "; ".join(f"{us:,.0f}" for us in of["yardsticks_us"].values())
        more = "; ".join(percent(share) for share in of["overheads"].values())
        rows.append((what, f"{of['ours_us']:,.0f}", constants, more))
    return table(("loop", "around our environment", "around constants", "more than both, the bare step included"), rows)


def particles(_page: Path) -> str:
    """What is learnt in the particle environments, beside JaxMARL."""
    rows, theirs = [], results("training_cuda", "ippo")
    for env_id, ours in results("training_cuda", "particles").items():
        for who, of in {"ours": ours, "JaxMARL's IPPO": theirs[env_id]}.items():
            if "skipped" in of:
                continue
            runs = of["runs"]
            ends = sorted(run["evaluated"] for run in runs)
            first = [run["reached_s"] for run in runs if run.get("reached_s") is not None]
            reached, seconds = f"{of['reached']} of {len(runs)}", statistics.median(run["seconds"] for run in runs)
            returns = (f"{of['random']:.2f}", f"{ends[0]:.2f}, {ends[-1]:.2f}")
            until = digits(statistics.median(first)) if first else ""
            rows.append((f"{env_id}, {ours['metric']}", who, *returns, reached, digits(seconds), until))
    head = ("what", "who", "random", "least and most", "seeds that reach the aim", "seconds of training")
    return table((*head, "until it is first reached"), rows)


MADE: Mapping[str, Callable[[Path], str]] = {
    "peers-cuda": peers_cuda,
    "peers-cpu": peers_cpu,
    "custom": custom,
    "sb3": sb3,
    "libraries": libraries,
    "particles": particles,
}
"""By the name in the pages."""
