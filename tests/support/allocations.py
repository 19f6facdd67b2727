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
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            storage = leaf.untyped_storage() if isinstance(leaf, torch.Tensor) else None
            if storage is not None and id(storage) not in given and storage not in self._known:
                self._known.add(storage)
                self.held += storage.nbytes()
                self.most = max(self.most, self.held)
                weakref.finalize(storage, self._forget, storage.nbytes())
        return found

    def _forget(self, size: int) -> None:
        self.held -= size
