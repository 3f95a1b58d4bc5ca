"""Attention of one request written down from its formula, in float64, without any cache."""

from __future__ import annotations

import torch

__all__ = ["dense_attention"]


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend causally for the last tokens of one request.

    ``query`` is ``[num_queries, num_heads, head_dim]``, ``keys`` ``[length, num_kv_heads, head_dim]``,
    ``values`` ``[length, num_kv_heads, head_dim_v]``; query ``i`` stands at position
    ``length - num_queries + i``. Returns float64 ``[num_queries, num_heads, head_dim_v]``.
    """
    num_queries, num_heads, _ = query.shape
    length, num_kv_heads, _ = keys.shape
    positions = torch.arange(length - num_queries, length)
    distance = positions[:, None] - torch.arange(length)
    hidden = distance < 0
    if sliding_window is not None:
        hidden |= distance >= sliding_window

    heads = []
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        scores = query[:, head].double() @ keys[:, kv_head].double().T * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[head].double().expand(num_queries, 1)], dim=1)
        weights = torch.softmax(scores, dim=1)[:, :length]
        heads.append(weights @ values[:, kv_head].double())
    return torch.stack(heads, dim=1)
