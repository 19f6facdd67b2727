"""Speed of training: PPO on CartPole compared with JAX, A2C and PPO on Tag, and sampling compared with torch."""

import itertools
import sys
from typing import Any

import gymnasium

from benchmarks.peers import process
from benchmarks.timing import capture_graph, device_milliseconds, training_rate
from benchmarks.training.plan import TrainingPlan
from benchmarks.training.solving import options, run_jax_peer

SAMPLED = (2000 * 110, (21, 21))
"""Rows and numbers of choices: 2,000 replicas of Tag with 110 agents."""

CPU_REPLICAS = (256, 1024, 4096)

TAG_REPLICAS = 2000

FEATURES, HIDDEN = 71, (256, 256)
"""Observation size of an agent of Tag, and hidden layers of its network."""

PRODUCT = 8192
"""Size of the matrices in torch's matrix product."""


def throughput(plan: TrainingPlan) -> dict[str, Any]:
    """Measure PPO on CartPole by precision, on a CPU by number of replicas, and by number of epochs."""
    sizes = dict.fromkeys(("float32", "tf32", "bf16"), 65_536) if plan.on_gpu else {f"{n}": n for n in CPU_REPLICAS}
    results: dict[str, Any] = {}
    for (name, num_envs), epochs in itertools.product(sizes.items(), (1, 4)):
        precision = name if plan.on_gpu else "float32"
        setting: dict[str, float | str] = {"num_envs": num_envs, "horizon": 32, "minibatches": 4, "learning_rate": 3e-4}
        setting |= {"precision": precision, "epochs": epochs}
        network = {"hidden": (64, 64), "activation": "tanh"}
        updates = 20 if plan.on_gpu else max(2, 16_384 // num_envs)
        ours = training_rate(setting | network | {"env": "CartPole-v1", "device": plan.device}, updates, updates)
        peer = run_jax_peer(plan, "throughput", "--updates", updates, *options(setting))
        results[f"{name}_{epochs}"] = {"settings": setting, "ours": ours, "jax": peer}
        other = f"skipped: {peer['skipped']}" if "skipped" in peer else f"{peer['steps_per_s'] / 1e3:,.0f} k"
        plan.log(
            f"CartPole PPO, {num_envs:,} replicas, {precision}, {epochs} epochs: "
            f"{ours['steps_per_s'] / 1e3:,.0f} k steps/s; JAX: {other}"
        )
    return results


def tag(plan: TrainingPlan) -> dict[str, Any]:
    """Measure A2C with one epoch, and PPO, on TagContinuous with 10 taggers and 100 runners that all learn."""
    env = "TagContinuous-v0"
    shape = {"num_envs": TAG_REPLICAS, "horizon": 32, "hidden": (256, 256), "shared_trunk": True, "stagger": True}
    results: dict[str, Any] = {}
    for algorithm, passes in (("a2c", {}), ("ppo", {"epochs": 4, "minibatches": 4})):
        for precision in ("float32", "tf32", "bf16"):
            setting = shape | {"algorithm": algorithm, "precision": precision} | passes
            ours = training_rate(setting | {"env": env, "device": plan.device, "learning_rate": 3e-4}, 20, 5)
            results[f"{algorithm}_{precision}"] = {"settings": setting, "agents": 110, "ours": ours}
            rate = ours["steps_per_s"]
            plan.log(
                f"Tag, 10 + 100 agents, {algorithm}, {precision}: {rate / 1e3:,.1f} k env-steps/s, "
                f"{rate * 110 / 1e6:,.1f} M agent-steps/s"
            )
    return results


def sampler(plan: TrainingPlan) -> dict[str, Any]:
    """Measure sampling of 21 + 21 choices, with log-probabilities and entropies: the kernel and torch."""
    rows, sizes = SAMPLED
    ours = sampler_ours(rows, sizes)
    peer = process.run_peer(sys.executable, "torch", "torch_sampler", "--rows", rows, "--sizes", *sizes)
    for kind in ("eager", "graph"):
        other = peer[f"{kind}_us"]
        peer_text = f"{other:,.1f} us" if isinstance(other, float) else other
        race = peer[f"race_{kind}_us"]
        race_text = f"{race:,.1f} us" if isinstance(race, float) else race
        plan.log(
            f"sampler, {rows:,} rows of 21 + 21, {kind}: {ours[f'{kind}_us']:,.1f} us; torch.distributions: {peer_text}"
            f"; with its sampling replaced by a race of exponentials: {race_text}"
        )
    return {"rows": rows, "sizes": list(sizes), "ours": ours, "torch": peer}


def sampler_ours(rows: int, sizes: tuple[int, ...], calls: int = 10) -> dict[str, float]:
    """Return the microseconds per call of the kernel, alone and in a CUDA graph of several."""
    import torch

    from gpu_envs.training.engines.ops import Ops
    from gpu_envs.training.heads import Head

    head = Head.of(gymnasium.spaces.MultiDiscrete(list(sizes)))
    ops = Ops(head, "cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn((rows, head.parameters), device="cuda", generator=generator)
    actions = torch.empty((rows, head.width), dtype=torch.int32, device="cuda")
    log_probs, entropies = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    stream = torch.tensor([12345, 0], device="cuda")

    def call(turn: int = 0) -> None:
        ops.sample(logits, actions, log_probs, stream=stream, turn=turn, entropies=entropies)

    eager = device_milliseconds(call, repeats=101)

    def several() -> None:
        for turn in range(calls):
            call(turn)

    graph = capture_graph(several)
    graphed = device_milliseconds(graph.replay, repeats=101, inner=calls)
    moved = rows * (4 * head.parameters + 4 * head.width + 4 + 4)
    return {"eager_us": eager * 1e3, "graph_us": graphed * 1e3, "graph_bytes_per_s": moved / (graphed / 1e3)}


def acting(plan: TrainingPlan) -> dict[str, Any]:
    """Measure the policy network of Tag's agents, compared with torch's matrix product in bf16."""
    import torch

    left, right = (torch.randn((PRODUCT, PRODUCT), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    output = torch.empty_like(left)
    product = 2 * PRODUCT**3 / device_milliseconds(lambda: torch.mm(left, right, out=output), repeats=51) * 1e3
    rows, sizes = SAMPLED
    results: dict[str, Any] = {"rows": rows, "features": FEATURES, "hidden": list(HIDDEN), "sizes": list(sizes)}
    widths = (FEATURES, *HIDDEN, sum(sizes))
    flops = 2 * rows * sum(ins * outs for ins, outs in itertools.pairwise(widths))
    for precision in ("tf32", "bf16"):
        seconds = acting_seconds(rows, sizes, precision)
        results[precision] = {"us": seconds * 1e6, "flops_per_s": flops / seconds, "share": flops / seconds / product}
        plan.log(
            f"acting, {rows:,} rows, {precision}: {seconds * 1e6:,.1f} us, {flops / seconds / 1e12:,.0f} TFLOP/s, "
            f"{flops / seconds / product:.0%} of torch's bf16 product of {PRODUCT:,} x {PRODUCT:,}"
        )
    return results | {"product_flops_per_s": product}


def acting_seconds(rows: int, sizes: tuple[int, ...], precision: str, calls: int = 10) -> float:
    """Return the seconds per call, in a CUDA graph of several."""
    import torch

    from gpu_envs.backend import open_backend
    from gpu_envs.training import PPO, Network
    from gpu_envs.training.engines import Case
    from gpu_envs.training.engines.base import ActRequest
    from gpu_envs.training.engines.optimiser import Adam
    from gpu_envs.training.engines.wide import WideNetworks, wide_network
    from gpu_envs.training.heads import Head
    from gpu_envs.training.modules import default_policy

    head = Head.of(gymnasium.spaces.MultiDiscrete(list(sizes)))
    shape = Network(hidden=HIDDEN, shared_trunk=True, precision=precision)
    case = Case(PPO(), shape, head, FEATURES, "cuda")
    module: Any = default_policy(case, torch.Generator().manual_seed(0)).to("cuda")
    adam = Adam(list(module.parameters()), device="cuda")
    processors = open_backend("cuda:0").traits.processors
    network = wide_network(case, module, processors)
    networks = WideNetworks(network, "cuda", adam)
    observations = torch.randn((rows, FEATURES), device="cuda")
    actions = torch.empty((rows, head.width), dtype=torch.int32, device="cuda")
    log_probs, values = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    stream = torch.tensor([12345, 0], device="cuda")

    def several() -> None:
        for turn in range(calls):
            networks.act(ActRequest(observations, actions, log_probs, stream, turn, values))

    several()
    return device_milliseconds(capture_graph(several).replay, repeats=51, inner=calls) / 1e3
