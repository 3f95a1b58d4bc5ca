"""Finds operations that look along features which ranks divide, where a plan forgot them.

A statistic over divided features (a mean, a largest value) is another on each rank. The whole model and a
rank's both run on the meta device; what they look along, and over how many entries, must be the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core_engine.models.token_mixing import ALONG_DIM, dims_along

__all__ = ["LookedAlong"]

#: Cutting is no statistic: a wrong cut changes shapes, which the forward pass shows.
_STATISTICS = ALONG_DIM - {"slice", "select"}


class LookedAlong(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it bare
    """Counts, during forward passes, the statistics by their operation and the number of entries."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._counts: Counter[tuple[str, int]] = Counter()

    def beyond(self, other: LookedAlong) -> str | None:
        """Return the name of a statistic that ``other`` does not have as often, or None."""
        return next((name for name, _ in self._counts - other._counts), None)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and count it where it is a statistic."""
        kwargs = kwargs or {}
        name = func.__name__.split(".")[0]
        if name in _STATISTICS and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            tensor = args[0]
            for dim in dims_along(name, args, kwargs, tensor) if tensor.dim() else ():
                self._counts[name, tensor.shape[dim]] += 1
        return func(*args, **kwargs)
