"""Returns, lengths and durations of episodes."""

import time
from collections.abc import Mapping
from typing import Any, Final, final

import torch

from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.engine.results import Step
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import Begun, Results, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, blocks_of, program, rows_of_block
from gpu_envs.wrappers.rewards import REWARD_TYPES

_RUNNING = (
    ("double*", "returns", ("rows",)),
    ("int*", "lengths", ("rows",)),
    ("Index*", "starts", ("rows",)),
    ("u8*?", "ended", ("rows",)),
)
_FINISHED = (("double*", "r"), ("int*", "l"), ("float*", "t"), ("u8*", "finished"))

RECORD_CALL = Struct.of(
    "RecordCall",
    "float",
    *ROWS,
    *_RUNNING,
    ("int*", "counts", ("blocks",)),
    ("Index*", "seen", (2,)),
    ("Index", "now"),
    ("const Reward*", "rewards"),
    ("const u8*", "terminations"),
    ("const u8*", "truncations"),
    *_FINISHED,
)

ENQUEUE_CALL = Struct.of(
    "EnqueueCall",
    "float",
    *ROWS,
    ("Index", "blocks"),
    ("int", "length"),
    ("const int*", "counts", ("blocks",)),
    ("Index*", "seen", (2,)),
    ("double*", "return_queue", ("length",)),
    ("int*", "length_queue", ("length",)),
    ("float*", "time_queue", ("length",)),
    *_FINISHED,
)

BEGIN_CALL = Struct.of("BeginCall", "float", *ROWS, *_RUNNING, ("Index", "now"), ("const u8*", "mask"))

HEADERS = ("wrappers/episodes.cuh",)
CALLS = {"record": RECORD_CALL, "enqueue": ENQUEUE_CALL, "begin": BEGIN_CALL}

CLOCKS = {
    "cpu": "FN Index clock_now(Index host) { return host; }",
    "cuda": """FN Index clock_now(Index) {
    Index now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}""",
}
"""Nanoseconds: a launch's own argument would stay the same in every replay of a CUDA graph."""

MOST_QUEUED = 2**31 - 1


@final
class RecordEpisodeStatistics(TorchWrapper):
    """Sums up rewards, steps and seconds of each episode, and keeps those of the last episodes.

    In each step ``infos["episode"]`` has ``r`` (float64), ``l`` (int32) and ``t`` (float32, seconds) of the episodes
    that end with it, zero for the other replicas, and ``infos["_episode"]`` says which do.

    As Gymnasium's, with these differences: those infos are there in every step, since to leave them out one would have
    to wait for the device; they take the place of the environment's own ``infos["episode"]`` (of the raw rewards, in
    float32), whose metrics they keep; the count and the queues are tensors on the device; lengths are int32. The
    environment's own ``final_info`` stays, and so do ``out.episode_return`` and ``out.episode_length``.

    Attributes:
        episode_count: How many episodes have ended, int64 []: live.
        return_queue: Returns of the last ``buffer_length`` episodes, the oldest first: a copy. To read a queue is to
            wait for the device, which knows how many there are.
        length_queue: Their lengths.
        time_queue: Their durations in seconds.
    """

    def __init__(self, env: VectorEnv | TorchWrapper, buffer_length: int = 100, stats_key: str = "episode") -> None:
        """Takes the environment, and compiles.

        Args:
            env: Made with ``output="torch"``, or wrapped already.
            buffer_length: How many episodes the queues hold.
            stats_key: The key of infos.
        """
        super().__init__(env)
        if (
            isinstance(buffer_length, bool)
            or not isinstance(buffer_length, int)
            or not 0 < buffer_length <= MOST_QUEUED
        ):
            raise ValueError(f"buffer_length is {buffer_length!r}; give a whole number from 1 to {MOST_QUEUED}")
        self._key: Final = stats_key
        inner: Any = env
        while isinstance(inner, TorchWrapper):
            if isinstance(inner, RecordEpisodeStatistics) and inner._key == stats_key:
                raise ValueError(
                    f"there is a RecordEpisodeStatistics inside already; give stats_key, not {stats_key!r}"
                )
            inner = inner.env
        rows = self.num_envs
        each = rows_of_block(rows)
        blocks = blocks_of(rows, each)
        self._on_host: Final = self._torch_device.type == "cpu"
        clock, types = CLOCKS[self._torch_device.type], {"Reward": REWARD_TYPES[self._simulator.precision]}
        made = program(HEADERS, CALLS, self._mode, 1, 4 * each, clock, types)
        record, enqueue, begin = load_kernels(self._backend, made)
        running = {
            "returns": self._empty(rows, dtype=torch.float64),
            "lengths": self._empty(rows, dtype=torch.int32),
            "starts": self._empty(rows, dtype=torch.int64),
            "ended": None if self._same_step else self._empty(rows, dtype=torch.uint8),
        }
        self._finished: Final = {
            "r": self._empty(rows, dtype=torch.float64),
            "l": self._empty(rows, dtype=torch.int32),
            "t": self._empty(rows),
            "finished": self._empty(rows, dtype=torch.bool),
        }
        self._queues: Final = {
            "return_queue": self._empty(buffer_length, dtype=torch.float64),
            "length_queue": self._empty(buffer_length, dtype=torch.int32),
            "time_queue": self._empty(buffer_length),
        }
        self._seen: Final = self._empty(2, dtype=torch.int64)
        shared = {"blocks": blocks, "counts": self._empty(blocks, dtype=torch.int32), "seen": self._seen}
        for kernel in (record, enqueue, begin):
            kernel.fill(rows=rows, rows_of_block=each)
        self._record: Final = record.fill(**running, **shared).bind(blocks)
        self._enqueue: Final = enqueue.fill(length=buffer_length, **self._queues, **shared).bind(blocks)
        self._begin: Final = begin.fill(**running).bind(blocks)

    @property
    def episode_count(self) -> torch.Tensor:
        """How many episodes have ended, int64 []: live."""
        return self._seen[0]

    @property
    def return_queue(self) -> torch.Tensor:
        """Returns of the last episodes, the oldest first."""
        return self._oldest_first("return_queue")

    @property
    def length_queue(self) -> torch.Tensor:
        """Lengths of the last episodes, the oldest first."""
        return self._oldest_first("length_queue")

    @property
    def time_queue(self) -> torch.Tensor:
        """Durations of the last episodes in seconds, the oldest first."""
        return self._oldest_first("time_queue")

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> Begun:
        """Begins new episodes in all replicas, or in those of ``options["reset_mask"]``; what they had is forgotten."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._mask(options)
        self._begin(self._now(), None if mask is None else mask.data_ptr())
        return observations, infos

    def step(self, actions: Any, *, out: Step | None = None) -> Results:
        """Steps every replica once, and sums up; the environment's own results go into ``out``."""
        results = self._env.step(actions, out=out)
        finished = self._finished
        if self._fresh:
            finished = {name: torch.empty_like(tensor) for name, tensor in finished.items()}
        places = [tensor.data_ptr() for tensor in finished.values()]
        self._record(self._now(), *(tensor.data_ptr() for tensor in results[1:4]), *places)
        self._enqueue(*places)
        own = results[4].get("episode", {})
        metrics = {name: own[name] for name in self._simulator.env_spec.metrics if name in own}
        results[4][self._key] = {"r": finished["r"], "l": finished["l"], "t": finished["t"], **metrics}
        results[4][f"_{self._key}"] = finished["finished"]
        return results

    def _now(self) -> int:
        return time.perf_counter_ns() if self._on_host else 0

    def _oldest_first(self, name: str) -> torch.Tensor:
        queue, seen = self._queues[name], int(self._seen[0])
        return queue[:seen].clone() if seen < len(queue) else queue.roll(-(seen % len(queue)))
