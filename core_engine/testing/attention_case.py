"""A step of invented requests for attention backends, with the answer each must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from core_engine._ragged import IntArray
from core_engine.attention.base import AttentionBackend, LayerParams
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.testing.attention_oracle import dense_attention
from core_engine.worker.device_io import DeviceIO
from core_engine.worker.dummy_step import dummy_sampling
from core_engine.worker.shape_policy import SamplingKind, StepKind, StepShape
from core_engine.worker.step import HostStep

__all__ = ["AttentionCase"]


class AttentionCase:
    """Requests with random queries, keys and values whose blocks lie scattered over a pool.

    ``requests`` lists (tokens cached before the step, tokens computed in it). ``pad`` gives the
    padded (num_tokens, num_reqs); by default the step has its own size. Tensors given to the backend
    lie on ``device``. All random numbers follow from ``seed``.
    """

    def __init__(
        self,
        requests: Sequence[tuple[int, int]],
        *,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 32,
        head_dim_v: int | None = None,
        dtype: str = "float32",
        block_size: int = 16,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: bool = False,
        pad: tuple[int, int] | None = None,
        spare_blocks: int = 3,
        seed: int = 0,
        device: Any = "cpu",
    ) -> None:
        self.device = device
        self.requests = tuple(requests)
        self.block_size = block_size
        spec = KVCacheSpec(
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v or head_dim,
            dtype=dtype,
            sliding_window=sliding_window,
        )
        self.layer = LayerParams(
            layer_name="layers.0", spec=spec, num_heads=num_heads, scale=head_dim**-0.5, soft_cap=soft_cap
        )
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._noise = torch.Generator().manual_seed(seed)
        lengths = [cached + new for cached, new in self.requests]
        self.queries = [self._random(new, num_heads, head_dim) for _, new in self.requests]
        self.keys = [self._random(length, num_kv_heads, head_dim) for length in lengths]
        self.values = [self._random(length, num_kv_heads, spec.head_dim_v) for length in lengths]
        self.sinks = self._random(num_heads) if sinks else None

        blocks_of = [-(-length // block_size) for length in lengths]
        self.num_blocks = 1 + sum(blocks_of) + spare_blocks
        shuffled = 1 + np.random.default_rng(seed).permutation(self.num_blocks - 1).astype(np.int32)
        self.block_ids: list[IntArray] = np.split(shuffled, np.cumsum(blocks_of))[:-1]
        #: The blocks that no request owns, the null block left out.
        self.free_block_ids: IntArray = shuffled[sum(blocks_of) :]
        num_tokens = sum(new for _, new in self.requests)
        self.pad = pad or (num_tokens, len(self.requests))

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._noise).to(self.dtype)

    def host_step(self, spans: Mapping[int, tuple[int, int]], pad: tuple[int, int] | None = None) -> HostStep:
        """Build the step that computes positions ``start:end`` of some requests, given by their index."""
        counts = [end - start for start, end in spans.values()]
        num_tokens, num_reqs = sum(counts), len(spans)
        padded_tokens, padded_reqs = pad or (num_tokens, num_reqs)
        kind = StepKind.DECODE if all(count == 1 for count in counts) else StepKind.MIXED
        width = max(len(blocks) for blocks in self.block_ids) + 1

        positions = np.zeros(padded_tokens, dtype=np.int32)
        token_rows = np.full(padded_tokens, -1, dtype=np.int32)
        slots = np.zeros(padded_tokens, dtype=np.int32)
        query_start = np.full(padded_reqs + 1, num_tokens, dtype=np.int32)
        query_start[: num_reqs + 1] = np.concatenate([[0], np.cumsum(counts)])
        tables = np.zeros((padded_reqs, width), dtype=np.int32)
        seq_lens = np.zeros(padded_reqs, dtype=np.int32)
        for row, (index, (start, end)) in enumerate(spans.items()):
            tokens = slice(query_start[row], query_start[row + 1])
            places = np.arange(start, end)
            blocks = self.block_ids[index]
            positions[tokens] = places
            token_rows[tokens] = row
            slots[tokens] = blocks[places // self.block_size] * self.block_size + places % self.block_size
            tables[row, : len(blocks)] = blocks
            seq_lens[row] = end
        return HostStep(
            shape=StepShape(padded_tokens, padded_reqs, kind),
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            token_ids=np.zeros(padded_tokens, dtype=np.int32),
            positions=positions,
            token_rows=token_rows,
            query_start=query_start,
            seq_lens=seq_lens,
            slot_mapping=(slots,),
            block_tables=(tables,),
            logits_rows=np.maximum(query_start[1:] - 1, 0),
            sampling=dummy_sampling(padded_reqs, SamplingKind(all_greedy=True), vocab_size=1),
        )

    def blocks_behind_window(self) -> list[int]:
        """Return the blocks whose positions no token of the step sees: they may belong to others by now."""
        window = self.layer.spec.sliding_window
        if window is None:
            return []
        behind = [max(0, cached - window + 1) // self.block_size for cached, _ in self.requests]
        return [block for row, count in zip(self.block_ids, behind, strict=True) for block in row[:count]]

    def allocate(self, backend: AttentionBackend, io: DeviceIO) -> Any:
        """Allocate one layer's cache for this case's pool."""
        return backend.allocate(self.layer.spec, self.num_blocks, self.block_size, io)

    def write_past(self, backend: AttentionBackend, io: DeviceIO, cache: Any) -> None:
        """Compute the steps before the step at hand, so that the cache holds every request's past."""
        past = {index: (0, cached) for index, (cached, _) in enumerate(self.requests) if cached}
        if past:
            queries = {
                index: self._random(end, *self.queries[index].shape[1:]) for index, (_, end) in past.items()
            }
            self._forward(backend, io, cache, past, queries)

    def run_step(
        self, backend: AttentionBackend, io: DeviceIO, cache: Any, *, shares_cache: bool = False
    ) -> torch.Tensor:
        """Compute the step and return its output, padding rows included.

        With ``shares_cache`` the layer writes nothing: the cache must hold this step's keys and values.
        """
        spans = {index: (cached, cached + new) for index, (cached, new) in enumerate(self.requests)}
        queries = dict(enumerate(self.queries))
        return self._forward(backend, io, cache, spans, queries, self.pad, shares_cache=shares_cache)

    def run(self, backend: AttentionBackend, io: DeviceIO) -> torch.Tensor:
        """Allocate a cache, compute the past and the step, and return the step's real rows."""
        cache = self.allocate(backend, io)
        self.write_past(backend, io, cache)
        return self.run_step(backend, io, cache)[: sum(new for _, new in self.requests)]

    def expected(self) -> torch.Tensor:
        """Return the step's real rows by `dense_attention`, float64."""
        rows = [
            dense_attention(
                query,
                keys,
                values,
                scale=self.layer.scale,
                sliding_window=self.layer.spec.sliding_window,
                soft_cap=self.layer.soft_cap,
                sinks=self.sinks,
            )
            for query, keys, values in zip(self.queries, self.keys, self.values, strict=True)
        ]
        return torch.cat(rows)

    def _forward(
        self,
        backend: AttentionBackend,
        io: DeviceIO,
        cache: Any,
        spans: Mapping[int, tuple[int, int]],
        queries: Mapping[int, torch.Tensor],
        pad: tuple[int, int] | None = None,
        shares_cache: bool = False,
    ) -> torch.Tensor:
        step = self.host_step(spans, pad)
        metadata = backend.build_metadata(step, 0, self.block_size)
        uploaded = io.upload(replace(step, attention=(metadata,))).attention[0]

        def padded(rows: list[torch.Tensor]) -> torch.Tensor:
            flat = torch.cat(rows)
            room = torch.ones(step.shape.num_tokens - len(flat), *flat.shape[1:], dtype=flat.dtype)
            return torch.cat([flat, room]).to(self.device)

        keys = values = None
        if not shares_cache:
            keys = padded([self.keys[index][start:end] for index, (start, end) in spans.items()])
            values = padded([self.values[index][start:end] for index, (start, end) in spans.items()])
        sinks = None if self.sinks is None else self.sinks.to(self.device)
        query = padded([queries[index] for index in spans])
        return backend.forward(self.layer, query, keys, values, cache, uploaded, sinks).cpu()
