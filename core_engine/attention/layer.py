"""The attention object that every attention module of a model carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_engine.attention.base import AttentionBackend, LayerParams
from core_engine.attention.context import ContextHolder

if TYPE_CHECKING:
    import torch

__all__ = ["PagedAttention"]


class PagedAttention:
    """One layer's attention: its constants, its cache and the runner's context holder.

    The cache belongs to the runner's pool and is set by ``bind``; binding again replaces it. A layer
    that shares another layer's cache is bound to the same object and never writes.
    """

    def __init__(
        self,
        params: LayerParams,
        backend: AttentionBackend,
        context: ContextHolder,
        *,
        shares_cache_of: str | None = None,
    ) -> None:
        self.params = params
        self.backend = backend
        self.context = context
        self.shares_cache_of = shares_cache_of
        self.cache: Any = None
        self.group = 0

    def bind(self, cache: Any, group: int) -> None:
        """Attach the layer's cache and the index of its KV-cache group; ``None`` detaches."""
        self.cache = cache
        self.group = group

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend for all tokens of the step; shapes as in `AttentionBackend.forward`."""
        context = self.context.current
        if context.is_profile_run:
            return query.new_zeros(query.shape[0], self.params.num_heads, self.params.spec.head_dim_v)
        shared = self.shares_cache_of is not None
        return self.backend.forward(
            self.params,
            query,
            None if shared else key,
            None if shared else value,
            self.cache,
            context.attention[self.group],
            sinks,
        )
