"""What a run changes of its process while it computes, and puts back."""

import contextlib
import functools
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch

from gpu_envs.backend.ahead import available_threads
from gpu_envs.errors import CheckpointError
from gpu_envs.seeds import derived_seed
from gpu_envs.training.process.watch import REQUESTS

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

    def __init__(self, seed: int, device: str) -> None:
        self._device = torch.device(device)
        kinds = {"cpu": torch.device("cpu"), self._device.type: self._device}
        self._own: dict[str, Any] = {
            kind: torch.Generator(place).manual_seed(seed).get_state() for kind, place in kinds.items()
        }
        self._outside: dict[str, Any] | None = None

    @classmethod
    def of(cls, seed: int, rank: int, device: str, *when: str) -> "RandomState":
        """Those of one of the processes that train a run of this seed."""
        return cls(derived_seed(seed, "modules", *((rank,) if rank else ()), *when), device)

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
        """Goes on from what ``state`` gave; of another kind of device, only what there is of this."""
        own = self._own | {name: state[name].cpu() for name in self._own if name in state}
        try:
            for name, saved in own.items():
                torch.Generator(self._device if name == "cuda" else name).set_state(saved)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's random numbers are damaged: {error}") from None
        self._own = own
        if self._outside is not None:
            self._set(self._own)

    def _current(self) -> dict[str, Any]:
        states = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _set(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["cpu"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._device)


def request_handlers() -> dict[signal.Signals, Any]:
    """What handles requests to end, but those that are ignored, as under nohup. In other threads nothing does."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in REQUESTS}
    return {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}


def set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    """Lets them handle these signals."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def interruption() -> Iterator[threading.Event]:
    """Ctrl-C, a request to terminate and a closed terminal set the event; a second one does what it did before."""
    pressed = threading.Event()
    before = request_handlers()

    def note(*signal_and_frame: Any) -> None:
        del signal_and_frame
        pressed.set()
        set_handlers(before)

    set_handlers(dict.fromkeys(before, note))
    try:
        yield pressed
    finally:
        set_handlers(before)
