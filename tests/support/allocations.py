"""How much memory torch's tensors take while something runs: what is held, and the most that ever was."""

import weakref
from typing import Any, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Within, follows every tensor that an operation of torch's makes.

    Attributes:
        held: Bytes of those that are still there.
        most: The most that ``held`` has been.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self.held = self.most = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(self._storage(leaf)) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                storage = self._storage(leaf)
                if id(storage) not in given and storage not in self._known:
                    self._follow(storage)
        return found

    @staticmethod
    def _storage(tensor: torch.Tensor) -> Any:
        return tensor.untyped_storage()

    def _follow(self, storage: Any) -> None:
        self._known.add(storage)
        size = storage.nbytes()
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.held -= size
