"""Tables of what was measured, made from ``benchmarks/results``."""

import functools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages.environments import specs_of
from benchmarks.pages.tables import digits, percent, table
from benchmarks.record import RESULTS, short
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
    "rice": "RiceN-v0, 27 regions, shared observations apart",
    "rice_negotiating": "the same, with negotiation",
    "rice_whole_rows": "RiceN-v0, whole rows",
    "covid": "CovidEconomy-v0, 51 governors and a planner",
}
"""By the names in the results: what was stepped."""

PRECISIONS = {"float32": "float32", "tf32": "TF32", "bf16": "bf16"}


@functools.cache
def document(name: str) -> dict[str, Any]:
    """A file of results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def results(name: str, section: str = "") -> dict[str, Any]:
    """The figures of a file, or of one of its sections."""
    found: dict[str, Any] = (document(name)["sections"][section] if section else document(name))["results"]
    return found


# --- where they come from ---


def sources(_page: Path) -> str:
    """Every file with its commands, commits and days."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        sections = document(path.stem).get("sections", {"": document(path.stem)})
        same: dict[tuple[str, str, str], list[str]] = {}
        for name, each in sections.items():
            command = re.sub(r" --(commit|\w+-python) \S+", "", each["command"])
            same.setdefault((command, each["commit"][:7], each["date"][:10]), []).append(name)
        for i, ((command, commit, date), names) in enumerate(same.items()):
            what = "" if len(same) == 1 else f": {', '.join(names)}"
            file = f"[{path.name}](../benchmarks/results/{path.name})" if i == 0 else ""
            rows.append((f"{file}{what}".removeprefix(": "), f"`{command}`", commit, date))
    return table(("file", "command", "commit", "day"), rows)


# --- steps ---


def steps_cuda(_page: Path) -> str:
    """One agent, on a GPU."""
    return _by_env(SINGLE, [(what, cells) for what, of, cells in _single() if of == "cuda"])


def steps_cpu(_page: Path) -> str:
    """One agent, on a CPU."""
    return _by_env(SINGLE, [(what, cells) for what, of, cells in _single() if of == "cpu"])


def _by_env(envs: Sequence[str], rows: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    return table(("what", *envs), ((what, *(cells.get(env, "") for env in envs)) for what, cells in rows))


def _single() -> list[tuple[str, str, dict[str, str]]]:
    """Rows: what, where, and by environment how much."""
    cuda, cpu = results("throughput_cuda"), results("throughput_cpu")
    return [
        (
            "one step a launch, 4 M replicas, new random actions each step, steps/s",
            "cuda",
            {env: short(of["steps_per_s"]) for env, of in cuda["single"].items()},
        ),
        (
            f"its share of the bandwidth of a copy ({cuda['copy_bytes_per_s'] / 1e12:.2f} TB/s)",
            "cuda",
            {env: percent(of["share_of_copy"]) for env, of in cuda["single"].items()},
        ),
        *(
            (
                "the same with `statistics=False`, steps/s",
                "cuda",
                {env: short(of["steps_per_s"]) for env, of in bare.items()},
            )
            for bare in [cuda.get("without_statistics")]
            if bare is not None
        ),
        (
            "512 random steps a launch, 1 M replicas, steps/s",
            "cuda",
            {env: short(of["steps_per_s"]) for env, of in cuda["fused"].items()},
        ),
        ("compiled, cold / from the cache, s", "cuda", _compiled(cuda)),
        (
            "one step a call, NumPy in and out, 16,384 replicas on one core, steps/s",
            "cpu",
            {env: short(of["steps_per_s"]) for env, of in cpu["vectorised"].items()},
        ),
        (
            "against its own build without vectorisation",
            "cpu",
            {env: f"{of['ratio']:.1f}x" for env, of in cpu["vectorised"].items()},
        ),
        (
            "one step of a single environment (Gymnasium's own), us",
            "cpu",
            {env: f"{of['ours']:.1f} ({of['gymnasium']:.1f})" for env, of in cpu["single_us"].items()},
        ),
        ("compiled, cold / from the cache, s", "cpu", _compiled(cpu)),
    ]


def _compiled(found: Mapping[str, Any]) -> dict[str, str]:
    return {env: f"{of['cold']:.2f} / {of['cached']:.3f}" for env, of in found["compile_s"].items()}


def teams_cuda(_page: Path) -> str:
    """Teams, on a GPU."""
    return _teams("throughput_cuda")


def teams_cpu(_page: Path) -> str:
    """Teams, on one core."""
    return _teams("throughput_cpu")


def _teams(file: str, env: str = "") -> str:
    rows = []
    for name, of in results(file)["teams"].items():
        if not of["env_id"].startswith(env) or (file == "throughput_cpu" and name.startswith("grid_4_1_1m")):
            continue
        shown = [f"{of['num_envs']:,}", of["actions"], percent(of["in_game"])]
        rows.append((TEAMS[name], *shown, digits(of["us_per_step"]), short(of["env_steps_per_s"])))
    return table(("what", "replicas", "actions", "agents in the game", "us a step", "env-steps/s"), rows)


# --- training ---


def training_cuda(_page: Path) -> str:
    """Ours beside a PPO in JAX."""
    solve, shell = results("training_cuda", "solve"), results("training_cuda", "shell")
    warm, empty = (shell["first"][f"caches {of}"]["iterate_s"] for of in ("warm", "empty"))
    beyond = sorted(run["seconds"] - run["torch_s"] for run in shell["ours"]["runs"])
    rows = [
        (
            "CartPole solved: from first weights to a mean return of 475 over 100 episodes, confirmed by 1,000 fresh "
            "ones; median of 10 seeds",
            *(f"{of['median_s']:.3f} s ({of['solved']} of {of['seeds']})" for of in (solve["ours"], solve["jax"])),
        ),
        (
            "the same from the shell, everything included, caches warm (empty)",
            *(f"{of['median_s']:.1f} s ({of['cold_s']:.1f} s)" for of in (shell["ours"], shell["jax"])),
        ),
        (
            "that, less a process that only imports torch; least and most",
            f"{shell['ours']['beyond_torch_s']:.2f} s; {beyond[0]:.2f}, {beyond[-1]:.2f}",
            "",
        ),
        ("the first iteration of a Trainer, caches warm (empty)", f"{warm:.2f} s ({empty:.2f} s)", ""),
    ]
    throughput = results("training_cuda", "throughput")
    for epochs, said in ((1, ""), (4, "with 4 epochs, ")):
        for precision, name in PRECISIONS.items():
            of = throughput[f"{precision}_{epochs}"]
            what = f"the same, {said}{name}"
            if not said and precision == "float32":
                what = f"PPO on CartPole, 65,536 replicas x 32 steps, 4 minibatches, 1 epoch, 64 x 64 tanh, {name}"
            rows.append((f"{what}, steps/s", *(short(of[who]["steps_per_s"]) for who in ("ours", "jax"))))
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
    what = "acting for them by a network of 256 x 256 in bf16, drawn and valued, in a CUDA graph"
    rows.append((what, f"{acting['bf16']['us']:.0f} us, {share}", ""))
    return table(("what", "ours", "JAX"), rows)


def training_tag(_page: Path) -> str:
    """Training of a large team."""
    found = results("training_cuda", "tag_throughput")
    names = (
        ("a2c", "A2C on TagContinuous, 10 + 100 agents, shared trunk of 256 x 256"),
        ("ppo", "PPO on it, 4 epochs"),
    )
    rows = [(what, *(short(found[f"{way}_{p}"]["ours"]["steps_per_s"]) for p in PRECISIONS)) for way, what in names]
    return table(("env-steps/s", *PRECISIONS.values()), rows)


def presets(_page: Path) -> str:
    """What presets reach."""
    rows = [
        (env, f"{of['threshold']:g}", _published(env), *_reached(of))
        for env, of in results("training_cuda", "presets").items()
    ]
    return table(("what", "threshold", "RL-Zoo's PPO", "worst and best seed", "greedily", "seconds of training"), rows)


def _published(env: str) -> str:
    found = PUBLISHED[env]
    return "" if found is None else f"{found:.1f}"


def _reached(of: Mapping[str, Any]) -> tuple[str, str, str]:
    drawn, greedy = (sorted(run[kind]["mean"] for run in of["runs"]) for kind in ("drawn", "greedy"))
    ends = [f"{means[0]:.1f}, {means[-1]:.1f}" for means in (drawn, greedy)]
    return ends[0], ends[1], f"{statistics.median(run['seconds'] for run in of['runs']):.2f}"


def worlds(_page: Path) -> str:
    """What is learnt in RICE-N and COVID."""
    return _worlds()


def _worlds(env: str = "") -> str:
    rows = []
    for name, of in results("training_cuda", "worlds").items():
        if not name.startswith(env):
            continue
        seconds = statistics.median(run["seconds"] for run in of["runs"])
        for role, learnt in of["learnt"].items():
            best, chance = of["constants"][role], of["random"][role]["mean"]
            action = ", ".join(f"{what} {level}" for what, level in best["action"].items())
            rows.append(
                (
                    f"{name}, {role}",
                    f"{chance:.4g}",
                    f"{best['mean']:.4g} ({action})",
                    f"{learnt['mean']:.4g} +- {digits(learnt['interval'])}",
                    f"{seconds:.0f}",
                )
            )
    return table(("mean return of", "at random", "best constant action", "learnt", "seconds of training"), rows)


def tag_learning(_page: Path) -> str:
    """How long runners last."""
    return _lasts(*results("training_cuda", "tag_learning"))


def _lasts(*envs: str) -> str:
    rows = []
    for env in envs:
        found = results("training_cuda", "tag_learning")[env]
        random = f"{found['random']['length']:.1f} +- {found['random']['length_interval']:.1f}"
        for where, runs in found["taggers"]["runs"].items():
            learnt = (_survival(of) for of in (runs, found["runners"]["runs"][where]))
            rows.append((f"{env}, {where}", str(len(runs)), random, *learnt))
    heads = ("steps a runner lasts", "seeds", "random against random", "trained taggers", "trained runners")
    return table(heads, rows)


def _survival(runs: Sequence[Mapping[str, Any]]) -> str:
    ends = sorted(run["evaluated"]["length"] for run in runs)
    return f"{ends[0]:.1f}, {ends[-1]:.1f} after {statistics.median(run['seconds'] for run in runs):.1f} s"


def drawn(_page: Path) -> str:
    """What a drawn parameter leaves of the rate of steps."""
    documents = {
        "H200": results("training_cuda", "drawn")["rates"],
        "one core": results("training_cpu", "drawn")["rates"],
    }
    heads = [
        f"{where}, {of['num_envs']:,} replicas, {words}"
        for where, of in documents.items()
        for words in ("a step a launch", f"{of['rollout_steps']} steps a launch")
    ]
    kinds = [kind for kind in documents["H200"]["kinds"] if kind != "none"]
    rows = [
        (f"`{kind}`", *(percent(share) for of in documents.values() for share in of["kinds"][kind].values()))
        for kind in kinds
    ]
    return table(("`pole_mass`", *heads), rows)


def drawn_worlds(_page: Path) -> str:
    """How many drawn worlds presets solve."""
    found, rows = results("training_cuda", "drawn")["worlds"], []
    for name, of in found["presets"].items():
        shares = sorted(run["solved"] for run in of["runs"])
        seconds = statistics.median(run["seconds"] for run in of["runs"])
        rows.append((f"`{name}`", f"{percent(shares[0], 1)}, {percent(shares[-1], 1)}", f"{seconds:.2f}"))
    return table(("preset", "worlds solved, by the worst and the best seed", "seconds of training"), rows)


# --- an environment's own ---


def measured(page: Path) -> str:
    """What was measured of a page's environment."""
    env = specs_of(page)[0].id
    return _measured_team(env) if specs_of(page)[0].has_team else _measured_single(env)


def _measured_single(env: str) -> str:
    found: dict[str, dict[str, str]] = {}
    for what, where, cells in _single():
        found.setdefault(what, {})[where] = cells[env]
    rows = [(what, cells.get("cuda", ""), cells.get("cpu", "")) for what, cells in found.items()]
    reached = results("training_cuda", "presets").get(env)
    if reached is not None:
        means, _, seconds = _reached(reached)
        rows.append((f"the preset, {len(reached['runs'])} seeds: median time of training, s", seconds, ""))
        rows.append(("the return of the worst and the best seed over 1,000 fresh episodes", means, ""))
    if env == "CartPole-v1":
        for section, what in (("solve", "trained to a mean return of 475, s"), ("shell", "the same from the shell, s")):
            cuda, cpu = (results(f"training_{where}", section)["ours"]["median_s"] for where in ("cuda", "cpu"))
            rows.append((what, f"{cuda:.2g}", f"{cpu:.2g}"))
    return table(("what", "NVIDIA H200", "AMD EPYC"), rows)


def _measured_team(env: str) -> str:
    cold = results("throughput_cuda")["compile_s"].get(env)
    parts = ["On an NVIDIA H200:", _teams("throughput_cuda", env)]
    if cold is not None:
        parts += [f"Compiled in {cold['cold']:.2f} s, and from the cache in {1000 * cold['cached']:.0f} ms."]
    if any(of["env_id"] == env for of in results("throughput_cpu")["teams"].values()):
        parts += ["On one core of an AMD EPYC:", _teams("throughput_cpu", env)]
    if env in results("training_cuda", "tag_learning"):
        parts += [
            "One team learning against a random one: the least and the greatest mean of the seeds over 1,000\n"
            "episodes each, and the median time of training. A runner that lasts longer is tagged later:",
            _lasts(env),
        ]
    else:
        parts += [
            "The presets, 5 seeds, with a 95 % interval of their mean, beside random actions and the best of a "
            "grid of\nconstant ones:",
            _worlds(env),
        ]
    return "\n\n".join(parts)


MADE: Mapping[str, Callable[[Path], str]] = {
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
"""By the name in the pages."""
