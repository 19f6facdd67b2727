"""What is compared: pieces of work, each for a peer and, the same, for us; it needs no library."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

CARTPOLE, TAG, GRID = "CartPole-v1", "TagContinuous-v0", "TagGridWorld-v0"
SIMPLE_TAG, SIMPLE_SPREAD = "SimpleTag-v3", "SimpleSpread-v3"
"""MPE's: adversaries and agents among two obstacles, and agents that cover landmarks."""
CLASSIC = (CARTPOLE, "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1")

WAYS: Mapping[str, str] = {
    "host": "one step a call, NumPy arrays in and new NumPy arrays out",
    "step": "one step a call, arrays of the device in and out",
    "graph": "32 such steps in a CUDA graph, replayed",
    "fused": "128 steps a call, all their actions given",
    "train": "PPO: rollouts of 32 steps, and updates of 1 epoch and 4 minibatches, 64 x 64 tanh, float32",
}
"""How replicas are stepped. Episodes restart by themselves; actions are random, and drawn beforehand."""

GRAPH_STEPS, FUSED_STEPS, HORIZON = 32, 128, 32

BARE = "statistics=False"
"""Our variant that keeps no returns, lengths and metrics of episodes: who writes a step by hand keeps none either."""


@final
@dataclasses.dataclass(frozen=True)
class Work:
    """A piece of work that is timed."""

    task: str
    """An environment's id."""
    way: str
    """One of ``WAYS``."""
    device: str
    """cpu or cuda."""
    num_envs: int
    """Replicas."""
    team: tuple[int, ...] | None = None
    """The agents of each role; None: there is one agent."""
    cores: str = "all"
    """Of the CPU: one or all. Who cannot choose is measured as what it is."""
    autoreset: str = "SameStep"
    """When episodes restart; NextStep, as Gymnasium and EnvPool have it, needs no last observations."""
    variant: str = ""
    """Which of a peer's own ways."""

    @property
    def agents(self) -> int:
        """The number of agents in a replica."""
        return sum(self.team) if self.team else 1

    @property
    def same(self) -> "Work":
        """What we do, to compare: the work without the peer's own part in it."""
        return dataclasses.replace(self, variant="")

    def at_most(self, num_envs: int) -> "Work":
        """The work with no more replicas than these."""
        return dataclasses.replace(self, num_envs=min(num_envs, self.num_envs))

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Work":
        """From its JSON form."""
        team = fields.get("team")
        return cls(**{**fields, "team": tuple(team) if team else None})


class Measured(NamedTuple):
    """The result of a piece of work."""

    seconds: float
    """The seconds of a step of all replicas."""
    prepare_s: float
    """Seconds until the first step was done, the library being imported: compiling is in it."""


Works = Callable[[str], list[Work]]
"""What to do, given the device of the run."""


def classic_on_host(autoreset: str, *parts: tuple[str, str, tuple[int, ...]]) -> Works:
    """CartPole on the CPU, whatever the device of the run: variants with their cores and numbers of replicas."""
    works = [
        Work(CARTPOLE, "host", "cpu", num_envs, cores=cores, autoreset=autoreset, variant=variant)
        for variant, cores, sizes in parts
        for num_envs in sizes
    ]
    return lambda _: works


STEP_SIZES = {"cpu": (4096, 65_536), "cuda": (65_536, 2**22)}
FUSED_SIZES = {"cpu": (4096,), "cuda": (65_536, 2**20)}
TEAM_SIZES = {"cpu": (1024, 4096), "cuda": (16_384, 262_144)}
TRAIN_SIZE = {"cpu": 1024, "cuda": 65_536}


def stepped(device: str, *ways: str, variant: str = "") -> list[Work]:
    """CartPole in each of these ways at every size."""
    sizes = {way: FUSED_SIZES[device] if way == "fused" else STEP_SIZES[device] for way in ways}
    return [Work(CARTPOLE, way, device, num_envs, variant=variant) for way in ways for num_envs in sizes[way]]


def gymnax(device: str) -> list[Work]:
    """CartPole, and where that is quick, one step a call of all the others."""
    others = CLASSIC[1:] if device == "cuda" else ()
    return stepped(device, "step", "fused") + [Work(task, "step", device, STEP_SIZES[device][-1]) for task in others]


def torch_works(device: str) -> list[Work]:
    """A CUDA graph can be had on CUDA alone."""
    ways = ("step",) if device == "cpu" else ("step", "graph")
    # what may fail comes last: a capture that does can spoil what follows
    return [work for variant in ("eager", "torch.compile") for work in stepped(device, *ways, variant=variant)]


def particles(device: str) -> list[Work]:
    """Tag of MPE's size at every number of replicas, spread, and a larger tag."""
    few, *_, many = TEAM_SIZES[device]
    works = [Work(SIMPLE_TAG, "step", device, num_envs, (3, 1)) for num_envs in TEAM_SIZES[device]]
    return [*works, Work(SIMPLE_SPREAD, "step", device, many, (3,)), Work(SIMPLE_TAG, "step", device, few, (30, 10))]


def mpe2(_: str) -> list[Work]:
    """One replica on a core, as often as there are ours."""
    games = ((SIMPLE_TAG, (3, 1)), (SIMPLE_SPREAD, (3,)))
    return [Work(task, "step", "cpu", 4096, team, cores="one") for task, team in games]


def warp_drive(device: str) -> list[Work]:
    """Its games at the sizes of its own publications, and CartPole."""
    return [
        Work(CARTPOLE, "step", device, 65_536),
        Work(CARTPOLE, "step", device, 2**20),
        Work(TAG, "step", device, 5000, (10, 100)),
        Work(GRID, "step", device, 100_000, (4, 1)),
    ]


def trained(device: str) -> list[Work]:
    """PPO on CartPole."""
    return [Work(CARTPOLE, "train", device, TRAIN_SIZE[device])]


def own(device: str) -> list[Work]:
    """What we do beside all that peers do: at sizes that suit us, and in our ways."""
    sizes: tuple[tuple[str, str, int], ...] = (("cpu", "one", 16_384), ("cpu", "all", 16_384), ("cpu", "all", 65_536))
    if device == "cuda":
        sizes += (("cuda", "all", 16_384), ("cuda", "all", 65_536))
    works = [
        Work(CARTPOLE, "host", place, num_envs, cores=cores, autoreset="NextStep") for place, cores, num_envs in sizes
    ]
    works += stepped(device, "step", "fused") + stepped(device, "step", variant=BARE)
    if device == "cuda":
        works += stepped(device, "graph")
        works += [Work(TAG, way, device, 5000, (10, 100)) for way in ("step", "graph")]
        works += [Work(GRID, way, device, 100_000, (4, 1)) for way in ("step", "graph")]
    return works


@final
@dataclasses.dataclass(frozen=True)
class Peer:
    """Somebody else's simulator, or another way to write one."""

    label: str
    """For pictures."""
    module: str
    """Below ``benchmarks.peers``."""
    needs: Mapping[str, str]
    """Modules that it imports, and the packages they come in."""
    works: Works
    on_cpu: bool = True
    """Whether it can do without a CUDA device."""
    separate: bool = False
    """A new process for each piece of work: two do not go into one."""


PEERS: Mapping[str, Peer] = {
    "gymnasium": Peer(
        "Gymnasium",
        "gymnasium_vector",
        {"gymnasium": "gymnasium"},
        classic_on_host(
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
        classic_on_host("SameStep", ("DummyVecEnv", "one", (64, 1024)), ("SubprocVecEnv", "all", (16, 64))),
    ),
    "envpool": Peer(
        "EnvPool",
        "envpool_vector",
        {"envpool": "envpool"},
        classic_on_host(
            "NextStep", ("", "one", (16_384,)), ("", "all", (1024, 16_384)), ("asynchronous", "all", (16_384,))
        ),
    ),
    "gymnax": Peer(
        "gymnax",
        "gymnax_step",
        {"jax": "jax", "gymnax": "gymnax"},
        gymnax,
    ),
    "jax": Peer("JAX, by hand", "jax_step", {"jax": "jax"}, lambda device: stepped(device, "step", "fused")),
    "torch": Peer("torch operations", "torch_step", {"torch": "torch"}, torch_works),
    "numba": Peer("Numba-CUDA", "numba_step", {"numba": "numba"}, lambda device: stepped(device, "step"), on_cpu=False),
    "warpdrive": Peer(
        "WarpDrive",
        "warp_drive_step",
        {"warp_drive": "rl-warp-drive", "numba": "numba numba-cuda", "gym": "gym", "torch": "torch"},
        warp_drive,
        on_cpu=False,
        separate=True,
    ),
    "vmas": Peer("VMAS", "vmas_particles", {"vmas": "vmas"}, particles),
    "jaxmarl": Peer("JaxMARL", "jaxmarl_particles", {"jax": "jax", "jaxmarl": "jaxmarl"}, particles),
    "mpe2": Peer("mpe2", "mpe2_parallel", {"mpe2": "mpe2"}, mpe2),
    "jax_ppo": Peer("PPO in JAX", "jax_train", {"jax": "jax"}, trained),
}
"""By name. What is written by us for the purpose is jax, torch, numba and jax_ppo; all others are used as they come."""
