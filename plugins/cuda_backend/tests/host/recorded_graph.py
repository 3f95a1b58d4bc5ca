"""A fake graph that does what a CUDA graph does: operations on fixed memory, and no Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["RecordedGraph", "WaitRefused"]

#: Operations that give a number to the host, or bring one from it (`torch.tensor`): on a GPU they wait, and a
#: capture fails there.
_WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.lift_fresh.default,
}


class RecordedGraph:
    """Records every operation of a call; ``replay`` runs them again over the same tensors.

    Python runs once, while recording. What the operations computed then is overwritten with NaN, as a
    capture computes nothing: results are there after a replay only.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        recorder = _Recorder()
        with recorder:
            run()
        self._steps = recorder.steps
        self.num_replays = 0
        for _, _, _, outputs in self._steps:
            for output in outputs:
                output.fill_(float("nan") if output.is_floating_point() else 0)

    @property
    def num_operations(self) -> int:
        """How many operations a replay runs."""
        return len(self._steps)

    def replay(self) -> None:
        """Run the recorded operations."""
        self.num_replays += 1
        for function, args, keywords, outputs in self._steps:
            results = _tensors(function(*args, **keywords))
            for output, result in zip(outputs, results, strict=bool(outputs)):
                output.copy_(result)


class WaitRefused(TorchDispatchMode):
    """Refuses operations that wait, in the words of torch."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        if function in _WAITING:
            raise RuntimeError("called a synchronizing CUDA operation")
        return function(*args, **(keywords or {}))


class _Recorder(TorchDispatchMode):
    """Keeps each operation with its arguments, and the tensors that it made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        if function in _WAITING:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        result = function(*args, **keywords)
        # A result in the memory of an argument is a view of it, or was written in place. The schema does not
        # tell: `reshape` and `to` copy where they must.
        given = {leaf.untyped_storage().data_ptr() for leaf in _tensors((args, keywords))}
        made = [leaf for leaf in _tensors(result) if leaf.untyped_storage().data_ptr() not in given]
        if made or function._schema.is_mutable:
            self.steps.append((function, args, keywords, made))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
