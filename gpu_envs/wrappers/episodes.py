"""A wrapper that records returns, lengths and durations of episodes."""

import time
from collections.abc import Mapping
from typing import Any, Final, final

import torch

from gpu_envs.backend.launcher import load_kernels
from gpu_envs.backend.structs import Struct
from gpu_envs.engine.results import Step
from gpu_envs.seeds import Seeds
from gpu_envs.vector_env import VectorEnv
from gpu_envs.wrappers.base import ResetResults, StepResults, TorchWrapper
from gpu_envs.wrappers.blocks import ROWS, num_blocks, program, rows_per_block
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
    ("Index*", "episode_counts", (2,)),
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
    ("Index*", "episode_counts", (2,)),
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
"""Clock in nanoseconds. On a GPU the kernel reads it: a launch argument would stay the same in CUDA graph replays."""

MAX_BUFFER_LENGTH = 2**31 - 1


@final
class RecordEpisodeStatistics(TorchWrapper):
    """Record the return, length and duration of each episode, and keep them for the last episodes.

    At each step ``infos["episode"]`` has ``r`` (float64), ``l`` (int32) and ``t`` (float32, seconds) of the episodes
    that ended, and zeros for other replicas; ``infos["_episode"]`` is the mask of ended episodes.

    Differences from Gymnasium: every step has these infos, since leaving them out would need a synchronization; they
    replace the environment's ``infos["episode"]`` (float32 sums of the raw rewards) but keep its metrics; the count and
    the queues are tensors on the device; lengths are int32. ``final_info``, ``out.episode_return`` and
    ``out.episode_length`` stay as the environment writes them.

    Attributes:
        episode_count: Number of finished episodes, int64 [], updated in place.
        return_queue: Copy of the returns of the last ``buffer_length`` episodes, oldest first. Reading a queue
            synchronizes with the device.
        length_queue: Lengths of these episodes.
        time_queue: Durations of these episodes in seconds.
    """

    def __init__(self, env: VectorEnv | TorchWrapper, buffer_length: int = 100, stats_key: str = "episode") -> None:
        """Wrap the environment and compile the kernels.

        Args:
            env: An environment made with ``output="torch"``, or a wrapper of one.
            buffer_length: Number of episodes that the queues hold.
            stats_key: Key of the statistics in infos.
        """
        super().__init__(env)
        is_integer = isinstance(buffer_length, int) and not isinstance(buffer_length, bool)
        if not (is_integer and 0 < buffer_length <= MAX_BUFFER_LENGTH):
            raise ValueError(f"buffer_length is {buffer_length!r}; give an integer from 1 to {MAX_BUFFER_LENGTH}")
        self._key: Final = stats_key
        inner: Any = env
        while isinstance(inner, TorchWrapper):
            if isinstance(inner, RecordEpisodeStatistics) and inner._key == stats_key:
                raise ValueError(
                    f"env has a RecordEpisodeStatistics with stats_key={stats_key!r} already; give another stats_key"
                )
            inner = inner.env
        rows = self.num_envs
        per_block = rows_per_block(rows)
        blocks = num_blocks(rows, per_block)
        self._on_host: Final = self._torch_device.type == "cpu"
        clock, types = CLOCKS[self._torch_device.type], {"Reward": REWARD_TYPES[self._simulator.precision]}
        source = program(HEADERS, CALLS, self._mode, 1, 4 * per_block, clock, types)
        record, enqueue, begin = load_kernels(self._backend, source)
        running = {
            "returns": self._zeros(rows, dtype=torch.float64),
            "lengths": self._zeros(rows, dtype=torch.int32),
            "starts": self._zeros(rows, dtype=torch.int64),
            "ended": None if self._same_step else self._zeros(rows, dtype=torch.uint8),
        }
        self._finished: Final = {
            "r": self._zeros(rows, dtype=torch.float64),
            "l": self._zeros(rows, dtype=torch.int32),
            "t": self._zeros(rows),
            "finished": self._zeros(rows, dtype=torch.bool),
        }
        self._queues: Final = {
            "return_queue": self._zeros(buffer_length, dtype=torch.float64),
            "length_queue": self._zeros(buffer_length, dtype=torch.int32),
            "time_queue": self._zeros(buffer_length),
        }
        self._episode_counts: Final = self._zeros(2, dtype=torch.int64)
        shared = {
            "blocks": blocks,
            "counts": self._zeros(blocks, dtype=torch.int32),
            "episode_counts": self._episode_counts,
        }
        for kernel in (record, enqueue, begin):
            kernel.fill(rows=rows, rows_of_block=per_block)
        self._record: Final = record.fill(**running, **shared).bind(blocks)
        self._enqueue: Final = enqueue.fill(length=buffer_length, **self._queues, **shared).bind(blocks)
        self._begin: Final = begin.fill(**running).bind(blocks)

    @property
    def episode_count(self) -> torch.Tensor:
        """Number of finished episodes, int64 [], updated in place."""
        return self._episode_counts[0]

    @property
    def return_queue(self) -> torch.Tensor:
        """Returns of the last episodes, oldest first."""
        return self._oldest_first("return_queue")

    @property
    def length_queue(self) -> torch.Tensor:
        """Lengths of the last episodes, oldest first."""
        return self._oldest_first("length_queue")

    @property
    def time_queue(self) -> torch.Tensor:
        """Durations of the last episodes in seconds, oldest first."""
        return self._oldest_first("time_queue")

    def reset(self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None) -> ResetResults:
        """Reset all replicas, or the replicas of ``options["reset_mask"]``, and discard their unfinished episodes."""
        observations, infos = self._env.reset(seed=seed, options=options)
        mask = self._reset_mask(options)
        self._begin(self._now(), None if mask is None else mask.data_ptr())
        return observations, infos

    def step(self, actions: Any, *, out: Step | None = None) -> StepResults:
        """Step every replica once, and add the statistics of the episodes that ended to infos and the queues."""
        results = self._env.step(actions, out=out)
        finished = self._finished
        if self._copy:
            finished = {name: torch.empty_like(tensor) for name, tensor in finished.items()}
        addresses = [tensor.data_ptr() for tensor in finished.values()]
        self._record(self._now(), *(tensor.data_ptr() for tensor in results[1:4]), *addresses)
        self._enqueue(*addresses)
        episode = results[4].get("episode", {})
        metrics = {name: episode[name] for name in self._simulator.env_spec.metrics if name in episode}
        results[4][self._key] = {"r": finished["r"], "l": finished["l"], "t": finished["t"], **metrics}
        results[4][f"_{self._key}"] = finished["finished"]
        return results

    def _now(self) -> int:
        return time.perf_counter_ns() if self._on_host else 0

    def _oldest_first(self, name: str) -> torch.Tensor:
        queue, count = self._queues[name], int(self._episode_counts[0])
        return queue[:count].clone() if count < len(queue) else queue.roll(-(count % len(queue)))
