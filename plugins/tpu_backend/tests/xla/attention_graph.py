"""Layers of attention as one function of device tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from core_engine_tpu.attention import TpuAttention
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.runtime import XlaRuntime

from core_engine.plugin.runtime import AttentionNeeds
from core_engine.testing.attention_case import AttentionCase

__all__ = ["AttentionGraph", "TpuStandIn"]


class TpuStandIn(XlaRuntime):
    """PJRT CPU that lets the kernel be traced; running it would fail."""

    @property
    def runs_pallas(self) -> bool:
        return True


class AttentionGraph:
    """``num_layers`` layers of ``case``, each over a cache of its own, called one after another.

    ``choice`` is as in `TpuAttention`.

    ``arguments`` are those of ``run``, on the device; ``caches`` are the tensors that it writes.
    """

    def __init__(self, runtime: XlaRuntime, case: AttentionCase, num_layers: int, choice: str) -> None:
        spec = case.layer.spec
        self._layer = case.layer
        self._backend = TpuAttention(runtime, choice, max_num_seqs=case.pad[1], max_model_len=256)
        needs = AttentionNeeds(
            num_heads=case.layer.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            head_dim_v=spec.head_dim_v,
            dtype=spec.dtype,
            block_size=case.block_size,
            sliding_window=spec.sliding_window,
            soft_cap=case.layer.soft_cap,
        )
        assert self._backend.supports(needs) is None
        io = TpuIO(runtime)
        self.caches = [case.allocate(self._backend, io) for _ in range(num_layers)]
        spans = {index: (cached, cached + new) for index, (cached, new) in enumerate(case.requests)}
        step = case.host_step(spans, case.pad)
        metadata = self._backend.build_metadata(step, 0, case.block_size)
        uploaded = io.upload(replace(step, attention=(metadata,))).attention[0]
        rows = [
            runtime.upload(torch.zeros(case.pad[0], heads, width, dtype=case.dtype))
            for heads, width in (
                (case.layer.num_heads, spec.head_dim),
                (spec.num_kv_heads, spec.head_dim),
                (spec.num_kv_heads, spec.head_dim_v),
            )
        ]
        self.arguments: tuple[Any, ...] = (*rows, uploaded)

    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        """Attend in every layer; each layer's result is a part of the next one's queries."""
        for cache in self.caches:
            attended = self._backend.forward(self._layer, query, key, value, cache, metadata)
            query = query + attended.sum()
        return query
