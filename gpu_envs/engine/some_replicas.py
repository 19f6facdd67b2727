"""Replicas that a user names: a mask, or numbers, which are looked at where they are."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import library_of, to_numpy
from gpu_envs.engine.simulation import Simulation


def current_device(sim: Simulation) -> AbstractContextManager[Any]:
    """Lets CuPy, which works on the current device alone, do so on the simulation's."""
    device: AbstractContextManager[Any] = sim.arrays.device if sim.arrays.name == "cupy" else nullcontext()
    return device


@final
class Chosen:
    """Some replicas by number, or all of them.

    Attributes:
        count: How many.
        numbers: The address of their numbers in the simulation's memory, int64; None: all, in order.
        wrong: The address where a kernel notes a number that is no replica's; None: all are known to be right.
    """

    def __init__(self, sim: Simulation, replicas: Any, *, once: bool) -> None:
        """Reads a mask or numbers, or raises what is wrong with them; of numbers on a GPU that is told by ``check``.

        Args:
            sim: The simulation.
            replicas: Bools, one for each replica, or numbers; None: all.
            once: Whether each may be named once only.
        """
        total, arrays = sim.config.num_envs, sim.arrays
        self.count, self.numbers, self.wrong = total, None, None
        if replicas is None:
            return
        array = replicas if library_of(replicas) else np.asarray(replicas)
        shape, kind = tuple(array.shape), str(array.dtype).rpartition(".")[2]
        mask = kind == "bool"
        if len(shape) != 1 or (mask and shape != (total,)) or not (mask or kind.startswith(("int", "uint"))):
            raise ValueError(
                f"replicas are {kind} {list(shape)}; give a mask, bool [{total}], or numbers of replicas from 0 to "
                f"{total - 1}, in one dimension"
            )
        on_gpu = library_of(array) == arrays.name and sim.backend.device != "cpu" and array.device == arrays.device
        if on_gpu and not mask and shape[0]:
            self._numbers = arrays.empty(shape, "int64")
            with current_device(sim):
                self._numbers[...] = array
            if "wrong" not in sim.copying:
                sim.copying["wrong"] = arrays.from_numpy(np.array([-1], np.int64))
            self.wrong = arrays.address(sim.copying["wrong"])
        else:
            numbers = np.flatnonzero(to_numpy(array)) if mask else to_numpy(array).astype(np.int64)
            self._check(numbers, total, once)
            self._numbers = arrays.from_numpy(numbers)
        self.count, self.numbers = int(self._numbers.shape[0]), arrays.address(self._numbers)

    def _check(self, numbers: np.ndarray, total: int, once: bool) -> None:
        if not len(numbers):
            raise ValueError("replicas name none; give a mask with a True, or numbers")
        wrong = numbers[(numbers < 0) | (numbers >= total)]
        if len(wrong):
            raise ValueError(f"replicas name {wrong[0]}; there are 0 to {total - 1}")
        if once and len(np.unique(numbers)) < len(numbers):
            raise ValueError("replicas name one more than once; each can have one state only")


def check_replicas(sim: Simulation) -> None:
    """Raises a ValueError if numbers from the device named what is no replica; waits for the device."""
    if "wrong" not in sim.copying:
        return
    place = int(sim.arrays.read(sim.copying["wrong"])[0])
    sim.arrays.write(sim.copying["wrong"], np.array([-1], np.int64))
    if place >= 0:
        raise ValueError(
            f"replicas[{place}] is no replica, and what it stood for was left alone: there are 0 to "
            f"{sim.config.num_envs - 1}"
        )
