"""Current and peak memory of torch's tensors while a block runs."""

import weakref
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Context that tracks every tensor that a torch operation creates.

    Attributes:
        held: Bytes of the tensors that are still alive.
        most: Maximum of ``held``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self.held = self.most = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        storages = [leaf.untyped_storage() for leaf in leaves]  # kept: an output's may otherwise get the same id
        inputs = set(map(id, storages))
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            storage = leaf.untyped_storage() if isinstance(leaf, torch.Tensor) else None
            if storage is not None and id(storage) not in inputs and storage not in self._known:
                self._known.add(storage)
                self.held += storage.nbytes()
                self.most = max(self.most, self.held)
                weakref.finalize(storage, self._forget, storage.nbytes())
        return output

    def _forget(self, size: int) -> None:
        self.held -= size
