"""DenseKernel: attention over keys that lie in one piece, and the one that torch has everywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

from core_engine.attention.base import AttentionNeeds

__all__ = ["DenseKernel", "TorchDenseKernel"]


class DenseKernel(ABC):
    """Causal attention of N independent rows; it knows no pages, no chunks and no other step."""

    #: For the start log and `doctor`.
    name: str

    @abstractmethod
    def supports(self, needs: AttentionNeeds) -> str | None:
        """Return None when layers of this kind are served, else the reason why not."""

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        lengths: torch.Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend with the last query of each row at the row's last key (bottom-right alignment).

        ``query`` is ``[N, Q, num_heads, head_dim]``, ``keys`` ``[N, S, num_kv_heads, head_dim]``, ``values``
        ``[N, S, num_kv_heads, head_dim_v]`` and ``lengths`` int32 ``[N]``. Row ``n`` has ``lengths[n]``
        keys, and query ``q`` stands at position ``p = lengths[n] - Q + q``: it sees the keys at
        positions 0 to ``p``, of those at most the last ``sliding_window``. All keys and values are
        finite. Q is 1 in decode steps and may be larger than a row's length; where ``p`` is negative
        there is no query, and the result is arbitrary.

        ``soft_cap`` and ``sinks`` are as in `LayerParams` and `AttentionBackend.forward`; they are
        given only for layers that ``supports`` accepted. Returns ``[N, Q, num_heads, head_dim_v]``.
        """


class TorchDenseKernel(DenseKernel):
    """`torch.nn.functional.scaled_dot_product_attention` with an explicit mask: static, for any device."""

    name = "torch-sdpa"

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve sliding windows and grouped heads; torch's function has neither soft cap nor sinks."""
        missing = [
            name
            for name, asked in (("soft cap", needs.soft_cap is not None), ("sinks", needs.sinks))
            if asked
        ]
        return f"torch's scaled_dot_product_attention has no {' and no '.join(missing)}" if missing else None

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        lengths: torch.Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `DenseKernel.attend`."""
        num_queries, num_keys = query.shape[1], keys.shape[1]
        back = torch.arange(num_queries, 0, -1, dtype=lengths.dtype, device=lengths.device)
        places = torch.arange(num_keys, dtype=lengths.dtype, device=lengths.device)
        distance = (lengths[:, None] - back)[:, :, None] - places
        visible = distance >= 0
        if sliding_window is not None:
            visible = visible & (distance < sliding_window)
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys.to(query.dtype).transpose(1, 2),
            values.to(query.dtype).transpose(1, 2),
            attn_mask=visible[:, None],
            scale=scale,
            enable_gqa=query.shape[2] != keys.shape[2],
        )
        return attended.transpose(1, 2)
