"""Tables of measurements, from ``benchmarks/results``."""

import functools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.environments import specs_of
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import RESULTS, format_short
from benchmarks.training.learning import PUBLISHED

SINGLE = ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")

TEAMS = {
    "tag_10_100": "TagContinuous-v0, 10 + 100 agents, 10 nearest observed",
    "tag_10_100_all_in_game": "the same, tagged runners stay in the game",
    "tag_5_100_full": "TagContinuous-v0, 5 + 100 agents, all observed",
    "tag_10000_agents": "TagContinuous-v0, 1,000 + 9,000 agents, 10 nearest observed",
    "grid_4_1_100k": "TagGridWorld-v0, 4 + 1 agents",
    "grid_4_1_1m": "the same",
    "grid_4_1_1m_int64": "the same",
    "grid_999_1": "TagGridWorld-v0, 999 + 1 agents, nearest observed",
    "rice": "RiceN-v0, 27 regions, `shared_observations=True`",
    "rice_negotiating": "the same, with negotiation",
    "rice_whole_rows": "RiceN-v0, full observations",
    "covid": "CovidEconomy-v0, 51 governors and a planner",
}
"""Descriptions of the workloads, by the name in the results."""

PRECISIONS = {"float32": "float32", "tf32": "TF32", "bf16": "bf16"}


@functools.cache
def document(name: str) -> dict[str, Any]:
    """Return the content of a file of results."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def results(name: str, section: str = "") -> dict[str, Any]:
    """Return the results of a file, or of one of its sections."""
    values: dict[str, Any] = (document(name)["sections"][section] if section else document(name))["results"]
    return values


# --- provenance ---


def sources(_page: Path) -> str:
    """Return the table of all files, with commands, commits and dates."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        sections = document(path.stem).get("sections", {"": document(path.stem)})
        sections_by_origin: dict[tuple[str, str, str], list[str]] = {}
        for name, content in sections.items():
            command = re.sub(r" --(commit|\w+-python) \S+", "", content["command"])
            sections_by_origin.setdefault((command, content["commit"][:7], content["date"][:10]), []).append(name)
        for i, ((command, commit, date), names) in enumerate(sections_by_origin.items()):
            label = "" if len(sections_by_origin) == 1 else f": {', '.join(names)}"
            file = f"[{path.name}](../benchmarks/results/{path.name})" if i == 0 else ""
            rows.append((f"{file}{label}".removeprefix(": "), f"`{command}`", commit, date))
    return table(("file", "command", "commit", "date"), rows)


# --- steps ---


def steps_cuda(_page: Path) -> str:
    """Return the table of single-agent environments on a GPU."""
    return _by_env(SINGLE, [(label, cells) for label, device, cells in _single() if device == "cuda"])


def steps_cpu(_page: Path) -> str:
    """Return the table of single-agent environments on a CPU."""
    return _by_env(SINGLE, [(label, cells) for label, device, cells in _single() if device == "cpu"])


def _by_env(envs: Sequence[str], rows: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    return table(("measurement", *envs), ((label, *(cells.get(env, "") for env in envs)) for label, cells in rows))


def _single() -> list[tuple[str, str, dict[str, str]]]:
    """Return rows: description, device, and values by environment."""
    cuda, cpu = results("throughput_cuda"), results("throughput_cpu")
    return [
        (
            "one step per launch, 4 M replicas, new random actions each step, steps/s",
            "cuda",
            {env: format_short(entry["steps_per_s"]) for env, entry in cuda["single"].items()},
        ),
        (
            f"its share of the bandwidth of a copy ({cuda['copy_bytes_per_s'] / 1e12:.2f} TB/s)",
            "cuda",
            {env: percent(entry["share_of_copy"]) for env, entry in cuda["single"].items()},
        ),
        *(
            (
                "the same with `statistics=False`, steps/s",
                "cuda",
                {env: format_short(entry["steps_per_s"]) for env, entry in bare.items()},
            )
            for bare in [cuda.get("without_statistics")]
            if bare is not None
        ),
        (
            "512 random steps per launch, 1 M replicas, steps/s",
            "cuda",
            {env: format_short(entry["steps_per_s"]) for env, entry in cuda["fused"].items()},
        ),
        ("compilation without / with cache, s", "cuda", _compile_times(cuda)),
        (
            "one step per call, NumPy in and out, 16,384 replicas on one core, steps/s",
            "cpu",
            {env: format_short(entry["steps_per_s"]) for env, entry in cpu["vectorised"].items()},
        ),
        (
            "ratio to a build without vectorisation",
            "cpu",
            {env: f"{entry['ratio']:.1f}x" for env, entry in cpu["vectorised"].items()},
        ),
        (
            "one step of a single environment (Gymnasium's), us",
            "cpu",
            {env: f"{entry['ours']:.1f} ({entry['gymnasium']:.1f})" for env, entry in cpu["single_us"].items()},
        ),
        ("compilation without / with cache, s", "cpu", _compile_times(cpu)),
    ]


def _compile_times(throughput: Mapping[str, Any]) -> dict[str, str]:
    return {env: f"{entry['cold']:.2f} / {entry['cached']:.3f}" for env, entry in throughput["compile_s"].items()}


def teams_cuda(_page: Path) -> str:
    """Return the table of teams on a GPU."""
    return _teams("throughput_cuda")


def teams_cpu(_page: Path) -> str:
    """Return the table of teams on one core."""
    return _teams("throughput_cpu")


def _teams(file: str, env: str = "") -> str:
    rows = []
    for name, entry in results(file)["teams"].items():
        if not entry["env_id"].startswith(env) or (file == "throughput_cpu" and name.startswith("grid_4_1_1m")):
            continue
        cells = [f"{entry['num_envs']:,}", entry["actions"], percent(entry["in_game"])]
        rows.append((TEAMS[name], *cells, digits(entry["us_per_step"]), format_short(entry["env_steps_per_s"])))
    return table(("environment", "replicas", "actions", "active agents", "us/step", "env-steps/s"), rows)


# --- training ---


def training_cuda(_page: Path) -> str:
    """Return the table of training, compared with a PPO in JAX."""
    solve, shell = results("training_cuda", "solve"), results("training_cuda", "shell")
    warm, empty = (shell["first"][f"caches {entry}"]["iterate_s"] for entry in ("warm", "empty"))
    beyond = sorted(run["seconds"] - run["torch_s"] for run in shell["ours"]["runs"])
    rows = [
        (
            "CartPole solved: from initial weights to a mean return of 475 over 100 episodes, confirmed in 1,000 new "
            "episodes; median of 10 seeds",
            *(
                f"{entry['median_s']:.3f} s ({entry['solved']} of {entry['seeds']})"
                for entry in (solve["ours"], solve["jax"])
            ),
        ),
        (
            "the same from the shell, with imports and compilation, caches warm (empty)",
            *(f"{entry['median_s']:.1f} s ({entry['cold_s']:.1f} s)" for entry in (shell["ours"], shell["jax"])),
        ),
        (
            "the same, minus a process that only imports torch; minimum and maximum",
            f"{shell['ours']['beyond_torch_s']:.2f} s; {beyond[0]:.2f}, {beyond[-1]:.2f}",
            "",
        ),
        ("first iteration of a Trainer, caches warm (empty)", f"{warm:.2f} s ({empty:.2f} s)", ""),
    ]
    throughput = results("training_cuda", "throughput")
    for epochs, prefix in ((1, ""), (4, "with 4 epochs, ")):
        for precision, name in PRECISIONS.items():
            entry = throughput[f"{precision}_{epochs}"]
            label = f"the same, {prefix}{name}"
            if not prefix and precision == "float32":
                label = f"PPO on CartPole, 65,536 replicas x 32 steps, 4 minibatches, 1 epoch, 64 x 64 tanh, {name}"
            rows.append(
                (f"{label}, steps/s", *(format_short(entry[library]["steps_per_s"]) for library in ("ours", "jax")))
            )
    sampler = results("training_cuda", "sampler")
    rows.append(
        (
            "actions, log-probabilities and entropies of 220,000 agents with 21 + 21 choices, in a CUDA graph",
            f"{sampler['ours']['graph_us']:.0f} us",
            f"torch.distributions: {sampler['torch']['graph_us']:.0f} us",
        )
    )
    acting = results("training_cuda", "acting")
    share = f"{percent(acting['bf16']['share'])} of the rate of torch's product of 8,192 x 8,192"
    label = "their actions and values by a network of 256 x 256 in bf16, in a CUDA graph"
    rows.append((label, f"{acting['bf16']['us']:.0f} us, {share}", ""))
    return table(("measurement", "gpu_envs", "JAX"), rows)


def training_tag(_page: Path) -> str:
    """Return the table of training a large team."""
    data = results("training_cuda", "tag_throughput")
    names = (
        ("a2c", "A2C on TagContinuous, 10 + 100 agents, shared trunk of 256 x 256"),
        ("ppo", "PPO on the same, 4 epochs"),
    )
    rows = [
        (label, *(format_short(data[f"{way}_{p}"]["ours"]["steps_per_s"]) for p in PRECISIONS)) for way, label in names
    ]
    return table(("env-steps/s", *PRECISIONS.values()), rows)


def presets(_page: Path) -> str:
    """Return the table of the presets' returns."""
    rows = [
        (env, f"{entry['threshold']:g}", _published(env), *_final_returns(entry))
        for env, entry in results("training_cuda", "presets").items()
    ]
    return table(
        ("environment", "threshold", "RL-Zoo's PPO", "worst and best seed", "greedy actions", "training, s"), rows
    )


def _published(env: str) -> str:
    published = PUBLISHED[env]
    return "" if published is None else f"{published:.1f}"


def _final_returns(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    sampled, greedy = (sorted(run[kind]["mean"] for run in entry["runs"]) for kind in ("drawn", "greedy"))
    ends = [f"{means[0]:.1f}, {means[-1]:.1f}" for means in (sampled, greedy)]
    return ends[0], ends[1], f"{statistics.median(run['seconds'] for run in entry['runs']):.2f}"


def worlds(_page: Path) -> str:
    """Return the table of training in RICE-N and COVID."""
    return _worlds()


def _worlds(env: str = "") -> str:
    rows = []
    for name, entry in results("training_cuda", "worlds").items():
        if not name.startswith(env):
            continue
        seconds = statistics.median(run["seconds"] for run in entry["runs"])
        for role, trained in entry["learnt"].items():
            best, random_mean = entry["constants"][role], entry["random"][role]["mean"]
            action = ", ".join(f"{label} {level}" for label, level in best["action"].items())
            rows.append(
                (
                    f"{name}, {role}",
                    f"{random_mean:.4g}",
                    f"{best['mean']:.4g} ({action})",
                    f"{trained['mean']:.4g} +- {digits(trained['interval'])}",
                    f"{seconds:.0f}",
                )
            )
    return table(("role", "random actions", "best constant action", "trained", "training, s"), rows)


def tag_learning(_page: Path) -> str:
    """Return the table of the runners' survival."""
    return _survival_table(*results("training_cuda", "tag_learning"))


def _survival_table(*envs: str) -> str:
    rows = []
    for env in envs:
        data = results("training_cuda", "tag_learning")[env]
        random = f"{data['random']['length']:.1f} +- {data['random']['length_interval']:.1f}"
        for where, runs in data["taggers"]["runs"].items():
            cells = (_survival(entry) for entry in (runs, data["runners"]["runs"][where]))
            rows.append((f"{env}, {where}", str(len(runs)), random, *cells))
    heads = ("survival of runners, steps", "seeds", "random teams", "trained taggers", "trained runners")
    return table(heads, rows)


def _survival(runs: Sequence[Mapping[str, Any]]) -> str:
    ends = sorted(run["evaluated"]["length"] for run in runs)
    return f"{ends[0]:.1f}, {ends[-1]:.1f} after {statistics.median(run['seconds'] for run in runs):.1f} s"


def drawn(_page: Path) -> str:
    """Return the table of the relative speed with a parameter from a distribution."""
    documents = {
        "H200": results("training_cuda", "drawn")["rates"],
        "one core": results("training_cpu", "drawn")["rates"],
    }
    heads = [
        f"{where}, {entry['num_envs']:,} replicas, {words}"
        for where, entry in documents.items()
        for words in ("1 step/launch", f"{entry['rollout_steps']} steps/launch")
    ]
    kinds = [kind for kind in documents["H200"]["kinds"] if kind != "none"]
    rows = [
        (f"`{kind}`", *(percent(share) for entry in documents.values() for share in entry["kinds"][kind].values()))
        for kind in kinds
    ]
    return table(("`pole_mass`", *heads), rows)


def drawn_worlds(_page: Path) -> str:
    """Return the table of the share of worlds that presets solve."""
    data, rows = results("training_cuda", "drawn")["worlds"], []
    for name, entry in data["presets"].items():
        shares = sorted(run["solved"] for run in entry["runs"])
        seconds = statistics.median(run["seconds"] for run in entry["runs"])
        rows.append((f"`{name}`", f"{percent(shares[0], 1)}, {percent(shares[-1], 1)}", f"{seconds:.2f}"))
    return table(("preset", "worlds solved, worst and best seed", "training, s"), rows)


# --- pages of environments ---


def measured(page: Path) -> str:
    """Return the measurements of a page's environment."""
    env = specs_of(page)[0].id
    return _measured_team(env) if specs_of(page)[0].has_team else _measured_single(env)


def _measured_single(env: str) -> str:
    cells_by_row: dict[str, dict[str, str]] = {}
    for label, where, cells in _single():
        cells_by_row.setdefault(label, {})[where] = cells[env]
    rows = [(label, cells.get("cuda", ""), cells.get("cpu", "")) for label, cells in cells_by_row.items()]
    preset_results = results("training_cuda", "presets").get(env)
    if preset_results is not None:
        means, _, seconds = _final_returns(preset_results)
        rows.append((f"the preset, {len(preset_results['runs'])} seeds: median training time, s", seconds, ""))
        rows.append(("mean return over 1,000 new episodes, worst and best seed", means, ""))
    if env == "CartPole-v1":
        for section, label in (
            ("solve", "training to a mean return of 475, s"),
            ("shell", "the same from the shell, s"),
        ):
            cuda, cpu = (results(f"training_{where}", section)["ours"]["median_s"] for where in ("cuda", "cpu"))
            rows.append((label, f"{cuda:.2g}", f"{cpu:.2g}"))
    return table(("measurement", "NVIDIA H200", "AMD EPYC"), rows)


def _measured_team(env: str) -> str:
    cold = results("throughput_cuda")["compile_s"].get(env)
    parts = ["On an NVIDIA H200:", _teams("throughput_cuda", env)]
    if cold is not None:
        parts += [f"Compilation takes {cold['cold']:.2f} s, and loading from the cache {1000 * cold['cached']:.0f} ms."]
    if any(entry["env_id"] == env for entry in results("throughput_cpu")["teams"].values()):
        parts += ["On one core of an AMD EPYC:", _teams("throughput_cpu", env)]
    if env in results("training_cuda", "tag_learning"):
        parts += [
            "One team trains against a random one: the minimum and maximum over the seeds of the mean over 1,000\n"
            "episodes, and the median training time. A higher number means that runners are tagged later:",
            _survival_table(env),
        ]
    else:
        parts += [
            "The presets, 5 seeds, with a 95 % confidence interval of the mean, compared with random actions and the\n"
            "best of a grid of constant actions:",
            _worlds(env),
        ]
    return "\n\n".join(parts)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "sources": sources,
    "steps-cuda": steps_cuda,
    "steps-cpu": steps_cpu,
    "teams-cuda": teams_cuda,
    "teams-cpu": teams_cpu,
    "training-cuda": training_cuda,
    "training-tag": training_tag,
    "presets": presets,
    "tag-learning": tag_learning,
    "worlds": worlds,
    "drawn": drawn,
    "drawn-worlds": drawn_worlds,
    "measured": measured,
}
"""Generators by the name of their block in the pages."""
