"""The attention kernel as an operator of torch, so that graphs are traced through it; for `XlaRuntime`."""

from __future__ import annotations

from typing import Any

import torch

from core_engine_tpu.pallas_kernel import KernelCall, lower_kernel

__all__ = ["ragged_paged_attention"]

_NAMESPACE = "core_engine_tpu"
_SCHEMA = (
    "ragged_paged_attention(Tensor query, Tensor pages, Tensor kv_lens, Tensor page_indices, "
    "Tensor query_start, Tensor num_seqs, float scale, int? sliding_window, float? soft_cap, "
    "int pages_at_once, int queries_at_once) -> Tensor"
)

_library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_SCHEMA)

#: ``torch.ops.core_engine_tpu.ragged_paged_attention``; see `XlaRuntime.ragged_paged_attention`.
ragged_paged_attention: Any = torch.ops.core_engine_tpu.ragged_paged_attention


def _fake(query: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(query)


def _on_xla(
    query: torch.Tensor,
    pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    query_start: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    pages_at_once: int,
    queries_at_once: int,
) -> torch.Tensor:
    """Record the kernel's call, lowered for a TPU whatever device runs this process."""
    import torch_xla

    call = KernelCall(
        queries=tuple(query.shape),
        pages=tuple(pages.shape),
        tables=tuple(page_indices.shape),
        dtype=str(query.dtype).removeprefix("torch."),
        scale=scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        pages_at_once=pages_at_once,
        queries_at_once=queries_at_once,
    )
    # The kernel's place in its buffers, which it keeps itself; a constant of the graph, not an input.
    progress = torch.zeros(2, dtype=torch.int32, device=query.device)
    scalars = [kv_lens, page_indices, query_start, progress, num_seqs]
    custom_call: Any = torch_xla._XLAC._xla_tpu_custom_call
    (attended,) = custom_call([*scalars, query, pages], lower_kernel(call), [query.shape], [query.dtype])
    result: torch.Tensor = attended
    return result


torch.library.register_fake(f"{_NAMESPACE}::ragged_paged_attention", _fake)
_library.impl("ragged_paged_attention", _on_xla, "XLA")
