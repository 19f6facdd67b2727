"""The workloads of each peer and of gpu_envs; this module imports no peer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

CARTPOLE, TAG, GRID = "CartPole-v1", "TagContinuous-v0", "TagGridWorld-v0"
SIMPLE_TAG, SIMPLE_SPREAD = "SimpleTag-v3", "SimpleSpread-v3"
"""Environments of MPE."""
CLASSIC = (CARTPOLE, "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")

WAYS: Mapping[str, str] = {
    "host": "one step per call, NumPy arrays in and new NumPy arrays out",
    "step": "one step per call, arrays of the device in and out",
    "graph": "32 such steps in a CUDA graph, replayed",
    "fused": "128 steps per call, with given actions",
    "train": "PPO: rollouts of 32 steps, and updates of 1 epoch and 4 minibatches, 64 x 64 tanh, float32",
}
"""How replicas are stepped, with auto-reset and with random actions that are sampled before."""

GRAPH_STEPS, FUSED_STEPS, HORIZON = 32, 128, 32

BARE = "statistics=False"
"""The variant of gpu_envs without episode statistics, which the hand-written peers do not compute, either."""


@final
@dataclasses.dataclass(frozen=True)
class Workload:
    """A workload to measure."""

    task: str
    """The environment's ID."""
    way: str
    """One of ``WAYS``."""
    device: str
    """cpu or cuda."""
    num_envs: int
    """Number of replicas."""
    team: tuple[int, ...] | None = None
    """Number of agents of each role; None: one agent."""
    cores: str = "all"
    """CPU cores that the peer uses: one or all."""
    autoreset: str = "SameStep"
    """The auto-reset mode: NextStep for Gymnasium and EnvPool, otherwise SameStep."""
    variant: str = ""
    """The peer's variant, such as a class of its vectorised environments."""

    @property
    def agents(self) -> int:
        """Number of agents in a replica."""
        return sum(self.team) if self.team else 1

    @property
    def ours(self) -> "Workload":
        """The same workload for gpu_envs, without the peer's variant."""
        return dataclasses.replace(self, variant="")

    def with_max_envs(self, num_envs: int) -> "Workload":
        """Return the workload with at most ``num_envs`` replicas."""
        return dataclasses.replace(self, num_envs=min(num_envs, self.num_envs))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Workload":
        """Create a workload from its JSON form."""
        team = fields.get("team")
        return cls(**{**fields, "team": tuple(team) if team else None})


class Measurement(NamedTuple):
    """The result of a workload."""

    seconds: float
    """Seconds per step of all replicas."""
    prepare_s: float
    """Seconds from the library's import to the end of the first step, with compilation."""


WorkloadFactory = Callable[[str], list[Workload]]
"""Returns the workloads for a device."""


def cartpole_on_host(autoreset: str, *variants: tuple[str, str, tuple[int, ...]]) -> WorkloadFactory:
    """Return CartPole workloads on the CPU for each device: variants with their cores and numbers of replicas."""
    workloads = [
        Workload(CARTPOLE, "host", "cpu", num_envs, cores=cores, autoreset=autoreset, variant=variant)
        for variant, cores, sizes in variants
        for num_envs in sizes
    ]
    return lambda _: workloads


STEP_SIZES = {"cpu": (4096, 65_536), "cuda": (65_536, 2**22)}
FUSED_SIZES = {"cpu": (4096,), "cuda": (65_536, 2**20)}
TEAM_SIZES = {"cpu": (1024, 4096), "cuda": (16_384, 262_144)}
TRAIN_SIZE = {"cpu": 1024, "cuda": 65_536}


def cartpole(device: str, *ways: str, variant: str = "") -> list[Workload]:
    """Return CartPole workloads, in each way and size."""
    sizes = {way: FUSED_SIZES[device] if way == "fused" else STEP_SIZES[device] for way in ways}
    return [Workload(CARTPOLE, way, device, num_envs, variant=variant) for way in ways for num_envs in sizes[way]]


def gymnax(device: str) -> list[Workload]:
    """Return CartPole workloads and, on a GPU, single steps of the other classic environments."""
    others = CLASSIC[1:] if device == "cuda" else ()
    return cartpole(device, "step", "fused") + [
        Workload(task, "step", device, STEP_SIZES[device][-1]) for task in others
    ]


def torch_workloads(device: str) -> list[Workload]:
    """Return CartPole workloads; CUDA graphs need a GPU."""
    ways = ("step",) if device == "cpu" else ("step", "graph")
    # graphs come last: a failed capture can break the workloads after it
    return [work for variant in ("eager", "torch.compile") for work in cartpole(device, *ways, variant=variant)]


def particles(device: str) -> list[Workload]:
    """Return the particle workloads: SimpleTag in MPE's size, SimpleSpread, and a larger SimpleTag."""
    few, *_, many = TEAM_SIZES[device]
    workloads = [Workload(SIMPLE_TAG, "step", device, num_envs, (3, 1)) for num_envs in TEAM_SIZES[device]]
    return [
        *workloads,
        Workload(SIMPLE_SPREAD, "step", device, many, (3,)),
        Workload(SIMPLE_TAG, "step", device, few, (30, 10)),
    ]


def mpe2(_: str) -> list[Workload]:
    """Return the particle workloads on one core."""
    games = ((SIMPLE_TAG, (3, 1)), (SIMPLE_SPREAD, (3,)))
    return [Workload(task, "step", "cpu", 4096, team, cores="one") for task, team in games]


def warp_drive(device: str) -> list[Workload]:
    """Return CartPole, and WarpDrive's environments in the sizes of its publications."""
    return [
        Workload(CARTPOLE, "step", device, 65_536),
        Workload(CARTPOLE, "step", device, 2**20),
        Workload(TAG, "step", device, 5000, (10, 100)),
        Workload(GRID, "step", device, 100_000, (4, 1)),
    ]


def training(device: str) -> list[Workload]:
    """Return PPO on CartPole."""
    return [Workload(CARTPOLE, "train", device, TRAIN_SIZE[device])]


def our_workloads(device: str) -> list[Workload]:
    """Return more workloads of gpu_envs: CUDA graphs, no statistics, and other sizes."""
    sizes: tuple[tuple[str, str, int], ...] = (("cpu", "one", 16_384), ("cpu", "all", 16_384), ("cpu", "all", 65_536))
    if device == "cuda":
        sizes += (("cuda", "all", 16_384), ("cuda", "all", 65_536))
    workloads = [
        Workload(CARTPOLE, "host", host, num_envs, cores=cores, autoreset="NextStep") for host, cores, num_envs in sizes
    ]
    workloads += cartpole(device, "step", "fused") + cartpole(device, "step", variant=BARE)
    if device == "cuda":
        workloads += cartpole(device, "graph")
        workloads += [Workload(TAG, way, device, 5000, (10, 100)) for way in ("step", "graph")]
        workloads += [Workload(GRID, way, device, 100_000, (4, 1)) for way in ("step", "graph")]
    return workloads


@final
@dataclasses.dataclass(frozen=True)
class Peer:
    """Another library, or another implementation of an environment."""

    label: str
    """The name in plots."""
    module: str
    """The module's name in ``benchmarks.peers``."""
    needs: Mapping[str, str]
    """Modules that it imports, and their packages."""
    workloads: WorkloadFactory
    on_cpu: bool = True
    """Whether it runs without a GPU."""
    separate_processes: bool = False
    """Whether each workload needs a new process."""


PEERS: Mapping[str, Peer] = {
    "gymnasium": Peer(
        "Gymnasium",
        "gymnasium_vector",
        {"gymnasium": "gymnasium"},
        cartpole_on_host(
            "NextStep",
            ("SyncVectorEnv", "one", (64, 1024)),
            ("AsyncVectorEnv", "all", (16, 64)),
            ("CartPoleVectorEnv", "one", (1024, 16_384)),
        ),
    ),
    "sb3": Peer(
        "Stable-Baselines3",
        "sb3_vector",
        {"stable_baselines3": "stable-baselines3"},
        cartpole_on_host("SameStep", ("DummyVecEnv", "one", (64, 1024)), ("SubprocVecEnv", "all", (16, 64))),
    ),
    "envpool": Peer(
        "EnvPool",
        "envpool_vector",
        {"envpool": "envpool"},
        cartpole_on_host(
            "NextStep", ("", "one", (16_384,)), ("", "all", (1024, 16_384)), ("asynchronous", "all", (16_384,))
        ),
    ),
    "gymnax": Peer(
        "gymnax",
        "gymnax_step",
        {"jax": "jax", "gymnax": "gymnax"},
        gymnax,
    ),
    "jax": Peer("JAX, by hand", "jax_step", {"jax": "jax"}, lambda device: cartpole(device, "step", "fused")),
    "torch": Peer("torch operations", "torch_step", {"torch": "torch"}, torch_workloads),
    "numba": Peer(
        "Numba-CUDA", "numba_step", {"numba": "numba"}, lambda device: cartpole(device, "step"), on_cpu=False
    ),
    "warpdrive": Peer(
        "WarpDrive",
        "warp_drive_step",
        {"warp_drive": "rl-warp-drive", "numba": "numba numba-cuda", "gym": "gym", "torch": "torch"},
        warp_drive,
        on_cpu=False,
        separate_processes=True,
    ),
    "vmas": Peer("VMAS", "vmas_particles", {"vmas": "vmas"}, particles),
    "jaxmarl": Peer("JaxMARL", "jaxmarl_particles", {"jax": "jax", "jaxmarl": "jaxmarl"}, particles),
    "mpe2": Peer("mpe2", "mpe2_parallel", {"mpe2": "mpe2"}, mpe2),
    "jax_ppo": Peer("PPO in JAX", "jax_train", {"jax": "jax"}, training),
}
"""The peers by name. jax, torch, numba and jax_ppo are written for this comparison; the others are libraries."""
