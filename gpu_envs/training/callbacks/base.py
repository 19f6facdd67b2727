"""The base class of callbacks, and the calls of a trainer."""

import reprlib
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from gpu_envs.errors import did_you_mean
from gpu_envs.registry.sources import load_object
from gpu_envs.training.record.checkpoint import check_saveable


class Callback:
    """Base class of callbacks. Any other object that has some of these methods is a callback, too.

    ``trainer`` is the ``Trainer`` of the run, ``report`` a ``Report``, ``evaluations`` the result of
    ``Trainer.evaluate``, and ``result`` that of ``train``. In a population, they are the ``Population``, a
    ``PopulationReport``, and a ``PopulationResult``; it calls ``on_start``, ``on_iteration``, ``on_log``, ``on_file``,
    ``on_end`` and ``on_exit``.

    A callback whose next actions depend on what it has seen also has ``state_dict``, which returns dicts, lists,
    numbers, strings and tensors, and ``load_state_dict``: then a resumed run continues bit for bit. With several
    processes every process calls its own callbacks, and checkpoints have the state of the first.
    """

    parameters: Sequence[str] = ()
    """Names of environment parameters that the callback gives to ``Trainer.set_params``."""
    of_population: bool = False
    """Whether the callback needs a population."""

    def on_start(self, trainer: Any) -> None:
        """Called once before the first iteration of a new or a resumed run."""

    def on_iteration(self, trainer: Any, report: Any) -> Mapping[int, str] | str | None:
        """Called once for each iteration, in order, when the next iteration has been queued on the device.

        Its changes take effect in iteration ``report.iteration + 2``.

        Returns:
            None, or the reason to stop, which becomes ``Result.reason``: the run is saved and ends. In a population
            also reasons by the numbers of runs.
        """

    def on_evaluation(self, trainer: Any, evaluations: Any) -> None:
        """Called after each ``Trainer.evaluate``."""

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        """Called after a checkpoint has been written, in every process."""

    def on_log(self, trainer: Any, row: Mapping[str, float]) -> None:
        """Called for each row of ``log.csv``, also if the run has no directory."""

    def on_file(self, trainer: Any, path: Path) -> None:
        """Called by ``Trainer.add_file``, such as with a replay."""

    def on_end(self, trainer: Any, result: Any) -> None:
        """Called once at the end of the run, after the last checkpoint."""

    def on_exit(self, trainer: Any, error: BaseException | None) -> None:
        """Called after everything else, also when an exception ends the run."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
"""Names of a callback's methods that a trainer calls."""


@final
class Callbacks:
    """The callbacks of a trainer.

    Attributes:
        parameters: Names of the parameters that callbacks change.
        running: Whether a method of a callback is running.
        hooks: Names of the methods that some callback has.
    """

    def __init__(self, callbacks: Iterable[Any] = (), *, of_population: bool = False) -> None:
        """Check each callback, which a trainer or a population calls; texts, as in ``Run.callbacks``, are imported."""
        self._callbacks: dict[str, Any] = {}
        for each in callbacks:
            callback, name = each, type(each).__name__
            if isinstance(each, str):
                found, name = load_object(each), each
                callback = found() if isinstance(found, type | types.FunctionType) else found
            _check(callback)
            number = 1 + sum(other.partition(" ")[0] == name for other in self._callbacks)
            self._callbacks[name if number == 1 else f"{name} {number}"] = callback
        self.parameters = [name for each in self._callbacks.values() for name in getattr(each, "parameters", ())]
        for name, each in self._callbacks.items():
            changed = ", ".join(getattr(each, "parameters", ()))
            if of_population and changed:
                raise ValueError(
                    f"the callback {name} changes {changed}, which callbacks of a population cannot: use vary"
                )
            if not of_population and getattr(each, "of_population", False):
                raise TypeError(f"the callback {name} compares runs: give it to Population.train")
        self._methods = {hook: _methods(hook, self._callbacks.values()) for hook in HOOKS}
        self.hooks = {hook for hook, methods in self._methods.items() if methods}
        self.running = False

    def call(self, hook: str, *args: Any) -> list[Any]:
        """Call a method of all callbacks that have it; return the results."""
        outer, self.running = self.running, True
        try:
            return [method(*args) for method in self._methods[hook]]
        finally:
            self.running = outer

    def watch(self, trainer: Any, report: Any) -> str | None:
        """Call ``on_iteration`` of all callbacks; return the first reason to stop, or None."""
        reasons = self.call("on_iteration", trainer, report)
        for reason in reasons:
            if reason is not None and not (isinstance(reason, str) and reason):
                raise TypeError(
                    f"on_iteration of a callback returned {reason!r}; return None to continue, or a string, "
                    "the reason to stop"
                )
        return next(filter(None, reasons), None)

    def state(self) -> dict[str, Any]:
        """Return the callbacks' states by name."""
        return {name: each.state_dict() for name, each in self._callbacks.items() if hasattr(each, "state_dict")}

    def check_states(self) -> None:
        """Raise a TypeError or a CheckpointError if a checkpoint cannot have a callback's state."""
        for name, state in self.state().items():
            check_saveable(state, f"state_dict of the callback {name}")

    def load(self, states: Mapping[str, Any]) -> None:
        """Restore a result of ``state``; warn of callbacks that are missing."""
        for name, state in states.items():
            if name in self._callbacks:
                self._callbacks[name].load_state_dict(state)
        if missing := [name for name in states if name not in self._callbacks]:
            warnings.warn(
                f"the checkpoint has the state of the callbacks {', '.join(missing)}, which are not given: the run "
                "continues without them",
                stacklevel=2,
            )


def _check(callback: Any) -> None:
    """Raise a TypeError if an object is no callback, or has a method that looks like a misspelled one."""
    names = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
    wrong = [name for name in names if name not in HOOKS]
    if isinstance(callback, type):
        raise TypeError(f"the callback {callback.__name__} is a class; give an object, such as {callback.__name__}()")
    if wrong:
        raise TypeError(
            f"the callback {reprlib.repr(callback)} has a method {wrong[0]!r}{did_you_mean(wrong[0], HOOKS)} A run "
            f"calls: {', '.join(HOOKS)}"
        )
    if not names:
        raise TypeError(f"{reprlib.repr(callback)} is no callback: it has none of the methods {', '.join(HOOKS)}")
    if isinstance(getattr(callback, "parameters", ()), str):
        raise TypeError(
            f"parameters of {reprlib.repr(callback)} is a text; give a tuple of names, such as ('gravity',)"
        )
    if hasattr(callback, "state_dict") != hasattr(callback, "load_state_dict"):
        raise TypeError(f"the callback {reprlib.repr(callback)} needs both state_dict and load_state_dict, or neither")


def _methods(hook: str, callbacks: Iterable[Any]) -> list[Callable[..., Any]]:
    """Return a method of each callback that has it, except the empty methods of ``Callback``."""
    found = [getattr(callback, hook, None) for callback in callbacks]
    return [method for method in found if method and getattr(method, "__func__", None) is not getattr(Callback, hook)]
