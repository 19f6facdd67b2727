"""Tables of the adapters' overhead, and of the wrappers'."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pages.results import device, results
from benchmarks.pages.tables import percent, table
from benchmarks.record import format_short


def sb3(_page: Path) -> str:
    """Return the table of SB3's rollouts, and of complete training."""
    data = results("adapters_cpu", "sb3")
    learn = data["learn"]
    labels = {
        "gpu_envs_ppo": f"`sb3.VecEnv`, {data['num_envs']:,} replicas, with `sb3.PPO`",
        "stock_ppo": "the same, with Stable-Baselines3's PPO",
        "dummy": f"`DummyVecEnv`, {data['peers']['dummy']['num_envs']:,} environments",
        "subproc": f"`SubprocVecEnv`, {data['peers']['subproc']['num_envs']} environments",
    }
    learned = {} if "steps_per_s" not in learn else {"gpu_envs_ppo": "ours", learn["peer"]: "peer"}
    rows = []
    for name, label in labels.items():
        cells = []
        for kind in ("fresh", "balancing"):
            entry = data["collect_rollouts"][kind]
            cells.append(
                f"{format_short(entry['steps_per_s'][name])}, {percent(entry['shares'][name]['step_wait'], 1)}"
            )
        total = format_short(learn["steps_per_s"][learned[name]]) if name in learned else ""
        rows.append((label, *cells, total))
    head = ("steps/s, and the share of `step_wait`", "untrained policy: episodes of about 22 steps")
    return table((*head, "balancing policy: 500 steps", "`learn`: rollouts and 4 epochs of updates"), rows)


def sb3_step(_page: Path) -> str:
    """Return the table of the parts of a step of ``sb3.VecEnv`` on a GPU."""
    data = results("adapters_cuda", "sb3_step")
    parts = {
        "env_step": "checks and transfer of the actions, launch of the kernel",
        "fetch": "wait for the kernel, transfer of the results",
        "infos": f"infos of the {data['ended_per_step']:.0f} episodes that end in a step, on average",
        "other": "the rest",
    }
    rows = [(label, f"{1e3 * data['parts_ms'][name]:.0f}") for name, label in parts.items()]
    rows.append(("the complete step, timed without its parts", f"{1e3 * data['step_ms']:.0f}"))
    rows.append(
        ("the transfers of as many bytes, timed alone", f"{1e3 * data['step_ms'] * data['transfer_share']:.0f}")
    )
    step = f"a step of `sb3.VecEnv`, {data['num_envs']:,} CartPoles"
    return table((step, f"us on an {device('adapters_cuda', 'sb3_step')}"), rows)


def libraries(_page: Path) -> str:
    """Return the table of the loops of TorchRL, skrl and rsl_rl."""
    data = results("adapters_cuda", "torch_libraries")
    labels = {
        ("torchrl", "rollout"): "TorchRL, `rollout`, random actions",
        ("torchrl", "collector"): "TorchRL, collector",
        ("skrl", "skrl_ppo"): "skrl, its PPO",
        ("skrl", "gpu_envs_ppo"): "skrl, `skrl.PPO` of the adapter",
        ("rsl_rl", "ppo"): "rsl_rl, its PPO",
    }
    rows = []
    for (library, loop), label in labels.items():
        if "loops" not in (measured := data["libraries"][library]):  # it was not installed, or failed
            continue
        entry = measured["loops"][loop]
        constants = "; ".join(f"{us:,.0f}" for us in entry["yardsticks_us"].values())
        more = "; ".join(percent(share) for share in entry["overheads"].values())
        rows.append((label, f"{entry['ours_us']:,.0f}", constants, f"{measured['bare_us']:.1f}", more))
    head = (f"us per step of {data['num_envs']:,} replicas", "with gpu_envs", "with constants", "gpu_envs alone")
    return table((*head, "overhead above the two"), rows)


def wrappers(_page: Path) -> str:
    """Return the table of the time that a wrapper adds to a step."""
    size = "65536"
    cuda, cpu = (results(f"adapters_{name}", "wrappers")["sizes"][size] for name in ("cuda", "cpu"))
    labels = {"none": "none: the step itself", "tower": "the four for PPO together"}
    rows = []
    for name, entry in cuda.items():
        kinds = ("us", "graph_us") if name == "none" else ("added_us", "added_graph_us")
        times = [entry[kind] for kind in kinds]
        times += [cpu[name].get(kind) for kind in (kinds[0], kinds[0].replace("us", "gymnasium_us"))]
        cells = ("" if time is None else f"{round(time):,}" for time in times)
        rows.append((labels.get(name, f"`{name}`"), *cells))
    gpu = device("adapters_cuda", "wrappers")
    head = (f"us that a wrapper adds, {int(size):,} replicas", f"{gpu}, call", f"{gpu}, in a CUDA graph")
    return table((*head, "one CPU core", "one CPU core, Gymnasium's wrapper"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "sb3": sb3,
    "sb3-step": sb3_step,
    "libraries": libraries,
    "wrappers": wrappers,
}
"""Generators by the name of their block in the pages."""
