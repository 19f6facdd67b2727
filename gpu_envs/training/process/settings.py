"""What a run changes of its process while it computes, and puts back."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch

from gpu_envs.backend.ahead import available_threads
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed

_COMPUTING = threading.RLock()
"""Held by the thread that computes."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Refuses to compute beside another thread: what is set here, and what is being captured, are the process's.

    Within, tensors are float32 and have gradients, whatever the caller has chosen of that.
    """
    if not _COMPUTING.acquire(blocking=False):
        raise RuntimeError(
            "another thread of this process makes, trains or evaluates policies at this moment, and torch's random "
            "numbers, threads and graphs are the process's: wait for it, or use a process for each"
        )
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        with torch.inference_mode(False):  # which also undoes no_grad
            yield
    finally:
        torch.set_default_dtype(dtype)
        _COMPUTING.release()


@contextlib.contextmanager
def torch_threads(device: str, threads: int | None) -> Iterator[None]:
    """Lets torch use so many threads on the CPU, and puts the process's setting back; None: as it is."""
    before = torch.get_num_threads()
    if device == "cpu" and threads is not None:
        torch.set_num_threads(min(threads, available_threads()))  # torch's wait for one another, and keep their cores
    try:
        yield
    finally:
        torch.set_num_threads(before)


def own_precision(device: str) -> Any:
    """Returns a context that turns the caller's ``torch.autocast`` off, which would change a run's precision."""
    return torch.autocast(torch.device(device).type, enabled=False)


@functools.cache
def wake_autograd(device: str) -> None:
    """Lets torch's thread for the way back meet a GPU: the first product there warns that it had not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ones = torch.ones((8, 8), device=device, requires_grad=True)
        torch.autograd.grad((ones @ ones).sum(), ones)


@final
class RandomState:
    """torch's own random numbers, which modules may use (dropout): within, those of the run; outside, the process's."""

    def __init__(self, seed: int, device: str, rank: int = 0, *when: str) -> None:
        """Starts those of one of the processes that train a run of this seed."""
        self._generators = {"cpu": torch.default_generator}
        if device != "cpu":
            torch.cuda.current_device()  # initialises CUDA: before, there are no generators
            self._generators["cuda"] = torch.cuda.default_generators[torch.device(device).index]
        first = derived_seed(seed, "modules", *((rank,) if rank else ()), *when)
        self._own = {kind: generator.manual_seed(first).get_state() for kind, generator in self._made().items()}
        self._outside: dict[str, torch.Tensor] | None = None

    def __enter__(self) -> None:
        """Takes the process's aside."""
        self._outside = self._current()
        self._set(self._own)

    def __exit__(self, *error: object) -> None:
        """Puts them back."""
        assert self._outside is not None
        self._own = self._current()
        self._set(self._outside)
        self._outside = None

    def state(self) -> dict[str, Any]:
        """The state of the run's generators."""
        return self._current() if self._outside is not None else dict(self._own)

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from what ``state`` gave; of another kind of device, only what there is of this."""
        own = self._own | {name: state[name].cpu() for name in self._own if name in state}
        try:
            for name, generator in self._made().items():
                generator.set_state(own[name])
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's random numbers are damaged: {error}") from None
        self._own = own
        if self._outside is not None:
            self._set(self._own)

    def _made(self) -> dict[str, torch.Generator]:
        """Other generators of the same devices."""
        return {kind: torch.Generator(generator.device) for kind, generator in self._generators.items()}

    def _current(self) -> dict[str, torch.Tensor]:
        return {kind: generator.get_state() for kind, generator in self._generators.items()}

    def _set(self, states: Mapping[str, torch.Tensor]) -> None:
        for kind, generator in self._generators.items():
            generator.set_state(states[kind])
