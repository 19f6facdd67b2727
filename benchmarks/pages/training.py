"""Tables of training: its speed, and what it reaches."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.results import device, results
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import format_short
from benchmarks.training.learning import PUBLISHED
from benchmarks.training.populations import SEEDS, TAG_REPLICAS, TAG_RUNS, TAG_UPDATES

PRECISIONS = {"float32": "float32", "tf32": "TF32", "bf16": "bf16"}

LIBRARIES = {"ours": "gpu_envs", "jax": "JAX", "sb3": "Stable-Baselines3"}
"""Columns of the tables of training, by the name in the results."""


def training_cuda(_page: Path) -> str:
    """Return the table of training on a GPU, compared with a PPO in JAX."""
    shell = results("training_cuda", "shell")
    beyond = sorted(run["seconds"] - run["torch_s"] for run in shell["ours"]["runs"])
    warm, empty = (shell["first"][f"caches {state}"]["iterate_s"] for state in ("warm", "empty"))
    sampler, acting = results("training_cuda", "sampler"), results("training_cuda", "acting")
    share = f"with {percent(acting['bf16']['share'])} of the FLOP/s of torch's product of two 8,192 x 8,192 matrices"
    return _with_libraries(
        "training_cuda",
        ("ours", "jax"),
        [
            (
                "the same, minus the time of a process that only imports torch: median; minimum, maximum",
                {"ours": f"{shell['ours']['beyond_torch_s']:.2f} s; {beyond[0]:.2f} s, {beyond[-1]:.2f} s"},
            ),
            (
                "first iteration of a Trainer, with filled (empty) caches",
                {"ours": f"{warm:.2f} s ({empty:.2f} s)"},
            ),
        ],
        [
            (
                "actions, log-probabilities and entropies of 220,000 agents with 21 + 21 choices, in a CUDA graph",
                {
                    "ours": f"{sampler['ours']['graph_us']:.0f} us",
                    "jax": f"torch.distributions: {_microseconds(sampler['torch']['graph_us'])}",
                },
            ),
            (
                "actions and values of these agents by a network of 256 x 256 in bf16, in a CUDA graph",
                {"ours": f"{acting['bf16']['us']:.0f} us, {share}"},
            ),
        ],
    )


def training_cpu(_page: Path) -> str:
    """Return the table of training on a CPU, compared with a PPO in JAX and with Stable-Baselines3."""
    return _with_libraries("training_cpu", ("ours", "jax", "sb3"))


def _with_libraries(
    file: str,
    libraries: Sequence[str],
    after_solving: Sequence[tuple[str, Mapping[str, str]]] = (),
    after_speed: Sequence[tuple[str, Mapping[str, str]]] = (),
) -> str:
    """Return a table of solving CartPole and of PPO's speed, with more rows, each a label and cells by library."""
    solve, shell, throughput = (results(file, section) for section in ("solve", "shell", "throughput"))
    rows: list[tuple[str, Mapping[str, str]]] = [
        (
            f"CartPole, from initial weights to a mean return of {solve['target']:g} over 100 episodes, confirmed in "
            f"{solve['episodes']:,} new episodes: median (seeds that reach it)",
            {name: _time_to_solve(solve[name]) for name in libraries if name in solve},
        ),
        (
            "the same as a command, with imports and compilation: median with filled caches (with empty ones)",
            {name: _time_of_command(shell[name]) for name in libraries if name in shell},
        ),
        *after_solving,
    ]
    before = None
    for entry in throughput.values():
        setting = entry["settings"]
        size = f"{setting['num_envs']:,} replicas x {setting['horizon']} steps, {setting['minibatches']} minibatches"
        task = "the same" if setting["num_envs"] == before else f"PPO on CartPole, {size}, 64 x 64 tanh"
        before = setting["num_envs"]
        epochs = f"{setting['epochs']} epoch{'s' * (setting['epochs'] > 1)}"
        label = f"{task}, {epochs}, {PRECISIONS[setting['precision']]}, steps/s"
        rows.append((label, {library: _rate(entry[library]) for library in libraries if library in entry}))
    rows += after_speed
    head = ("measurement", *(LIBRARIES[name] for name in libraries))
    return table(head, ((label, *(cells.get(name, "") for name in libraries)) for label, cells in rows))


def _microseconds(value: Any) -> str:
    """Format a time, or return the peer's reason for its absence."""
    return f"{value:.0f} us" if isinstance(value, int | float) else str(value)


def _time_to_solve(entry: Mapping[str, Any]) -> str:
    """Format the median time and the number of solved seeds; a peer that was not measured has an empty cell."""
    if "skipped" in entry:
        return ""
    reached = f"{entry['solved']} of {entry['seeds']}"
    return reached if entry["median_s"] is None else f"{entry['median_s']:.3f} s ({reached})"


def _time_of_command(entry: Mapping[str, Any]) -> str:
    if "skipped" in entry or entry["median_s"] is None:
        return ""
    cold = "" if entry["cold_s"] is None else f" ({entry['cold_s']:.1f} s)"
    return f"{entry['median_s']:.1f} s{cold}"


def _rate(entry: Mapping[str, Any]) -> str:
    return "" if "skipped" in entry else format_short(entry["steps_per_s"])


def training_tag(_page: Path) -> str:
    """Return the table of training a large team."""
    data = results("training_cuda", "tag_throughput")
    names = (
        ("a2c", "A2C on TagContinuous, 10 + 100 agents, shared trunk of 256 x 256"),
        ("ppo", "PPO on the same, 4 epochs"),
    )
    rows = [
        (label, *(format_short(data[f"{algorithm}_{p}"]["ours"]["steps_per_s"]) for p in PRECISIONS))
        for algorithm, label in names
    ]
    return table(("env-steps/s", *PRECISIONS.values()), rows)


def presets(_page: Path) -> str:
    """Return the table of the presets' returns."""
    rows = []
    for env, entry in results("training_cuda", "presets").items():
        published = PUBLISHED[env]
        cells = (f"{entry['threshold']:g}", "" if published is None else f"{published:.1f}", str(len(entry["runs"])))
        rows.append((env, *cells, *final_returns(entry)))
    head = ("environment", "threshold", "RL-Zoo's PPO", "seeds")
    kinds = tuple(f"{kind} actions, worst and best seed" for kind in ("sampled", "greedy"))
    return table((*head, *kinds, "training, s"), rows)


def final_returns(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the worst and best seed's return with sampled and with greedy actions, and the training seconds."""
    sampled, greedy = (sorted(run[kind]["mean"] for run in entry["runs"]) for kind in ("drawn", "greedy"))
    ends = [f"{means[0]:.1f}, {means[-1]:.1f}" for means in (sampled, greedy)]
    return ends[0], ends[1], f"{statistics.median(run['seconds'] for run in entry['runs']):.2f}"


def worlds(_page: Path) -> str:
    """Return the table of training in RICE-N and COVID."""
    return worlds_of("")


def worlds_of(env: str) -> str:
    """Return the table of training in RICE-N and COVID, or in one of them."""
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
                    str(len(entry["runs"])),
                    f"{trained['mean']:.4g} +- {digits(trained['interval'])}",
                    f"{seconds:.0f}",
                )
            )
    return table(("role", "random actions", "best constant action", "seeds", "trained", "training, s"), rows)


def tag_learning(_page: Path) -> str:
    """Return the table of the runners' survival."""
    return survival(*results("training_cuda", "tag_learning"))


def survival(*envs: str) -> str:
    """Return the table of the runners' survival in some environments."""
    rows = []
    for env in envs:
        data = results("training_cuda", "tag_learning")[env]
        random = f"{data['random']['length']:.1f} +- {data['random']['length_interval']:.1f}"
        for where, runs in data["taggers"]["runs"].items():
            cells = (_survival(entry) for entry in (runs, data["runners"]["runs"][where]))
            rows.append((f"{env}, networks in {where}", str(len(runs)), random, *cells))
    trained = (f"trained {team}, lowest to highest; time" for team in ("taggers", "runners"))
    heads = ("survival of runners, steps", "seeds", "random teams", *trained)
    return table(heads, rows)


def _survival(runs: Sequence[Mapping[str, Any]]) -> str:
    ends = sorted(run["evaluated"]["length"] for run in runs)
    return f"{ends[0]:.1f} to {ends[-1]:.1f}; {statistics.median(run['seconds'] for run in runs):.1f} s"


def drawn(_page: Path) -> str:
    """Return the table of the relative speed with a parameter from a distribution."""
    documents = {
        device("training_cuda", "drawn"): results("training_cuda", "drawn")["rates"],
        "one core": results("training_cpu", "drawn")["rates"],
    }
    heads = [
        f"{where}, {entry['num_envs']:,} replicas, {words}"
        for where, entry in documents.items()
        for words in ("1 step/launch", f"{entry['rollout_steps']} steps/launch")
    ]
    kinds = [kind for kind in next(iter(documents.values()))["kinds"] if kind != "none"]
    rows = [
        (f"`{kind}`", *(percent(share) for entry in documents.values() for share in entry["kinds"][kind].values()))
        for kind in kinds
    ]
    return table(("`pole_mass`", *heads), rows)


def drawn_worlds(_page: Path) -> str:
    """Return the table of the share of environments that presets solve."""
    data, rows = results("training_cuda", "drawn")["worlds"], []
    for name, entry in data["presets"].items():
        shares = sorted(run["solved"] for run in entry["runs"])
        seconds = statistics.median(run["seconds"] for run in entry["runs"])
        cells = (str(len(shares)), f"{percent(shares[0], 1)}, {percent(shares[-1], 1)}", f"{seconds:.2f}")
        rows.append((f"`{name}`", *cells))
    solved = f"solved of {data['worlds']:,} environments, worst and best seed"
    return table(("preset", "seeds", solved, "training, s"), rows)


def planning(_page: Path) -> str:
    """Return the table of copies of a state, and of the decisions of the planning example."""
    data = results("training_cuda", "planning")
    rows = [
        (f"copy one {env} into {entry['replicas']:,} replicas, and step", digits(entry["set_state_and_step_us"]), "")
        for env, entry in data["moments"].items()
    ]
    for env, entry in data["planner"].items():
        setting, returns = entry["settings"], entry["returns"]
        size = f"{setting['iterations']} iterations of {setting['trials']:,} trials of {setting['horizon']} steps"
        label = f"a decision on {env}: {setting['method'].upper()}, {size}"
        mean = f"{statistics.mean(returns):.1f}, minimum {min(returns):.1f}, in {len(returns)} episodes"
        rows.append((label, digits(1e3 * entry["decision_ms"]), mean))
    return table((f"on one {device('training_cuda', 'planning')}", "time, us", "mean return"), rows)


def engines(_page: Path) -> str:
    """Return the table of presets on a CPU, with kernels and with torch, and of PPO with SB3's settings."""
    data, rows = dict(results("training_cpu", "engines")), []
    equal = data.pop("sb3")
    for name, entry in data.items():
        kernels, torch = entry["kernels"], entry["torch"]
        rates = (format_short(engine["steps_per_s"]) for engine in (kernels, torch))
        rows.append((f"preset {name}", *rates, *(digits(engine["cpu_us"]) for engine in (kernels, torch)), ""))
    ours = equal["ours"]
    cells = (format_short(ours["steps_per_s"]), "", digits(ours["cpu_us"]), "", digits(equal["sb3"]["cpu_us"]))
    rows.append(("PPO on CartPole with 8 replicas x 32 steps, 20 epochs of one minibatch", *cells))
    head = ("", "steps/s", "in torch", "CPU time of a step, us", "in torch", "Stable-Baselines3")
    return table(head, rows)


def populations(_page: Path) -> str:
    """Return the table of populations: times of all runs together, one after the other, and of JAX."""
    rows = []
    for name in ("cuda", "cpu"):
        data, on = results(f"training_{name}", "populations"), device(f"training_{name}", "populations")
        for size, entry in data["cartpole"].items():
            runs, replicas = size.split(" x ")
            many = f"{int(runs):,} run{'s' * (runs != '1')} of CartPole with {replicas} replicas"
            label = f"{many}, {data['steps']:,} steps each, {on}"
            rate = entry["jax"].get("steps_per_s")
            jax = "" if rate is None else f"{int(runs) * data['steps'] / rate:.2f} s"
            rows.append((label, f"{entry['seconds']:.2f} s", f"{entry['alone_s']:.2f} s", jax))
    data = results("training_cuda", "populations")
    solved, tag = data["preset"], data["tag"]
    label = f"{SEEDS} seeds of CartPole's preset, until 475 ({solved['solved']} reach it)"
    rows.append((label, f"{solved['seconds']:.2f} s", "", ""))
    label = f"{TAG_RUNS} seeds of TagGridWorld's preset `taggers` with {TAG_REPLICAS} replicas, {TAG_UPDATES} updates"
    rows.append((label, f"{tag['seconds']:.2f} s", f"{TAG_RUNS * tag['alone_s']:.2f} s", ""))
    return table(("", "population", "one after the other", "JAX, vmap"), rows)


def memory_speed(_page: Path) -> str:
    """Return the table of the speed of training with a GRU, and of a PPO in JAX."""
    rows = []
    for entry in results("training_cuda", "recurrent")["rates"].values():
        chosen, ours, jax = entry["settings"], entry["ours"]["steps_per_s"], entry["jax"]["steps_per_s"]
        epochs = f"{chosen['epochs']} epoch{'s' * (chosen['epochs'] > 1)}"
        label = f"{chosen['num_envs']:,} replicas x {chosen['horizon']}, {epochs}"
        rows.append((label, format_short(ours), format_short(jax), f"{ours / jax:.1f}"))
    return table(("", "steps/s", "JAX, steps/s", "times JAX"), rows)


def memory_learning(_page: Path) -> str:
    """Return the table of environments that need memory: results of policies with memory and without."""
    data = results("training_cuda", "recurrent")
    parts = (
        ("CartPole without speeds: return", "cartpole", digits),
        ("T-maze of length {}: turns to the side of the cue", "mazes", percent),
        (
            "TagContinuous, one agent observed and no speeds: steps that random runners survive (fewer is better)",
            "tag",
            digits,
        ),
    )
    rows = []
    for label, part, as_text in parts:
        for name, entry in data[part].items():
            length, _, network = name.rpartition(", ")
            network = {"memory": "GRU of 64", "no memory": "no memory"}.get(network, f"no memory, {network}")
            ends = sorted(run["evaluated"] for run in entry["runs"])
            seconds = statistics.median(run["seconds"] for run in entry["runs"])
            cells = (as_text(ends[0]), as_text(ends[-1]), f"{seconds:.2f} s")
            rows.append((label.format(length), network, *cells))
    return table(("", "policy", "lowest", "highest", "training"), rows)


def curriculum(_page: Path) -> str:
    """Return the table of poles that the preset ``curriculum`` solves, and the same settings without it."""
    data = results("training_cpu", "curriculum")
    rows = [(str(run["seed"]), percent(run["curriculum"]), percent(run["drawn"])) for run in data["runs"]]
    return table(("seed", "preset `curriculum`", "the same settings, all poles from the start"), rows)


GENERATORS: Mapping[str, Callable[[Path], str]] = {
    "populations": populations,
    "memory-speed": memory_speed,
    "memory-learning": memory_learning,
    "curriculum": curriculum,
    "training-cuda": training_cuda,
    "training-cpu": training_cpu,
    "engines-cpu": engines,
    "training-tag": training_tag,
    "presets": presets,
    "tag-learning": tag_learning,
    "worlds": worlds,
    "drawn": drawn,
    "drawn-worlds": drawn_worlds,
    "planning": planning,
}
"""Generators by the name of their block in the pages."""
