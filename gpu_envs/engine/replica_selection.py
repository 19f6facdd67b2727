"""Selection of replicas by a mask or by indices; indices on a GPU are checked by the kernel that uses them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import numpy as np

from gpu_envs.backend.arrays import dtype_name, library_of, to_numpy
from gpu_envs.engine.simulation import Simulation


def current_device(sim: Simulation) -> AbstractContextManager[Any]:
    """Context that makes the simulation's device current for CuPy, which works on no other; else an empty context."""
    device: AbstractContextManager[Any] = sim.arrays.device if sim.arrays.name == "cupy" else nullcontext()
    return device


@final
class ReplicaSelection:
    """Some replicas by index, or all of them.

    Attributes:
        count: Number of selected replicas.
        indices: Address of their indices in the simulation's memory, int64; None for all replicas in order.
        invalid: Address where a kernel writes the position of an invalid index; None if the indices were checked.
    """

    def __init__(self, sim: Simulation, replicas: Any, *, unique: bool) -> None:
        """Read a mask or indices, or raise an error if they are invalid; ``check`` raises it for indices on a GPU.

        Args:
            sim: The simulation.
            replicas: Mask, bool ``[num_envs]``, or indices; None for all.
            unique: Refuse repeated indices.
        """
        total, arrays = sim.config.num_envs, sim.arrays
        self.count, self.indices, self.invalid = total, None, None
        if replicas is None:
            return
        array = replicas if library_of(replicas) else np.asarray(replicas)
        shape, kind = tuple(array.shape), dtype_name(array)
        mask = kind == "bool"
        if len(shape) != 1 or (mask and shape != (total,)) or not (mask or kind.startswith(("int", "uint"))):
            raise ValueError(
                f"replicas are {kind} {list(shape)}; give a mask, bool [{total}], or indices of replicas from 0 to "
                f"{total - 1}, in one dimension"
            )
        on_gpu = library_of(array) == arrays.name and sim.backend.device != "cpu" and array.device == arrays.device
        if on_gpu and not mask and shape[0]:
            self._indices = arrays.empty(shape, "int64")
            with current_device(sim):
                self._indices[...] = array
            if "invalid" not in sim.copy_cache:
                sim.copy_cache["invalid"] = arrays.from_numpy(np.array([-1], np.int64))
            self.invalid = arrays.address(sim.copy_cache["invalid"])
        else:
            indices = np.flatnonzero(to_numpy(array)) if mask else to_numpy(array).astype(np.int64)
            self._check_indices(indices, total, unique)
            self._indices = arrays.from_numpy(indices)
        self.count, self.indices = int(self._indices.shape[0]), arrays.address(self._indices)

    def _check_indices(self, indices: np.ndarray, total: int, unique: bool) -> None:
        """Raise a ValueError unless there are indices, all below ``total`` and, if ``unique``, without repetition."""
        if not len(indices):
            raise ValueError("replicas are empty; give a mask with at least one True, or at least one index")
        invalid = indices[(indices < 0) | (indices >= total)]
        if len(invalid):
            raise ValueError(f"replicas contain {invalid[0]}; allowed are 0 to {total - 1}")
        if unique and len(np.unique(indices)) < len(indices):
            raise ValueError("replicas contain an index more than once; give each index once")


def check_replicas(sim: Simulation) -> None:
    """Raise a ValueError if indices on the GPU were out of range since the last check; waits for the device."""
    if "invalid" not in sim.copy_cache:
        return
    position = int(sim.arrays.read(sim.copy_cache["invalid"])[0])
    sim.arrays.write(sim.copy_cache["invalid"], np.array([-1], np.int64))
    if position >= 0:
        highest = sim.config.num_envs - 1
        raise ValueError(f"replicas[{position}] is out of range and was skipped: allowed are 0 to {highest}")
