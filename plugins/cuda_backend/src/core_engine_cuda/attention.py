"""TritonPagedAttention: attention over a paged cache by kernels in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from core_engine.plugin import DTYPE_BYTES, EngineError
from core_engine.plugin.runtime import (
    Array,
    AttentionBackend,
    AttentionNeeds,
    DeviceIO,
    HostStep,
    KVCacheSpec,
    LayerParams,
    StepKind,
)
from core_engine_cuda.kernels.layer_work import LayerWork, layer_works
from core_engine_cuda.kernels.tiles import BLOCK_DIMS, WorkKind, block_dim
from core_engine_cuda.kernels.variant import TRITON_DTYPES
from core_engine_cuda.kernels.variants import attend_variant, join_variant, write_variant
from core_engine_cuda.kernels.work_list import WorkPlan

__all__ = ["BLOCK_SIZES", "TritonPagedAttention"]

#: Block sizes that the kernels serve.
BLOCK_SIZES = (16, 32, 64, 128)
#: Elements of a vector: head sizes and strides are multiples of it.
_VECTOR = 8
_NO_WINDOW = int(np.iinfo(np.int32).max)

_Cache = tuple[torch.Tensor, torch.Tensor]


class TritonPagedAttention(AttentionBackend):
    """Serves decode, prefill and mixed steps with one kernel in two tile sizes.

    One layer's cache is a pair (keys, values) of tensors ``[num_blocks, num_kv_heads, block_size, head_dim]``
    and ``[…, head_dim_v]``: what one program reads of a block lies in one piece.

    All grids and metadata shapes depend on `StepShape` alone, and nothing waits for the device, so decode
    steps may be captured and replayed. Not for calls from several streams at once: scratch memory is
    shared by all layers.
    """

    name = "triton"

    def __init__(self, *, num_sms: int, major: int) -> None:
        """Serve a device with ``num_sms`` multiprocessors whose compute capability is ``major``.x."""
        self._num_sms = num_sms
        self._major = major
        #: The works of the layers that ``supports`` saw, by what distinguishes them.
        self._works: dict[tuple[Any, ...], tuple[LayerWork, LayerWork]] = {}
        self._scratch = torch.empty(0)
        #: The last step and its lists, which are the same for every group of layers.
        self._built: tuple[HostStep, int, dict[str, Array]] | None = None

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve heads of up to 256 in whole vectors, and note how such layers divide their work."""
        if needs.dtype not in TRITON_DTYPES:
            return f"dtype {needs.dtype!r} is none of {', '.join(TRITON_DTYPES)}"
        if needs.num_heads % needs.num_kv_heads:
            return f"{needs.num_heads} query heads do not divide among {needs.num_kv_heads} K/V heads"
        for head_dim in (needs.head_dim, needs.head_dim_v):
            if head_dim % _VECTOR or head_dim > BLOCK_DIMS[-1]:
                return (
                    f"head size {head_dim} is not a multiple of {_VECTOR} up to {BLOCK_DIMS[-1]}; "
                    "--backend-option attention=reference serves every layer"
                )
        if needs.block_size not in BLOCK_SIZES:
            return f"block size {needs.block_size} is none of {', '.join(map(str, BLOCK_SIZES))}"
        self._works[_key(needs, needs.num_heads, needs.sliding_window)] = layer_works(
            num_heads=needs.num_heads,
            num_kv_heads=needs.num_kv_heads,
            head_dim=needs.head_dim,
            head_dim_v=needs.head_dim_v,
            element_bytes=DTYPE_BYTES[needs.dtype],
            window=needs.sliding_window,
            num_sms=self._num_sms,
            major=self._major,
        )
        return None

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block's keys and values."""
        elements = block_size * spec.num_kv_heads * (spec.head_dim + spec.head_dim_v)
        return elements * DTYPE_BYTES[spec.dtype]

    @property
    def scratch_bytes(self) -> int:
        """What ``allocate`` takes once, for all layers that ``supports`` saw, besides their caches."""
        return 4 * self._scratch_floats

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> _Cache:
        """Allocate the pair (keys, values), and the scratch memory with the first of them."""
        if len(self._scratch) < self._scratch_floats:
            self._scratch = io.allocate((self._scratch_floats,), torch.float32)
        dtype: torch.dtype = getattr(torch, spec.dtype)
        pages = (num_blocks, spec.num_kv_heads, block_size)
        return io.allocate((*pages, spec.head_dim), dtype), io.allocate((*pages, spec.head_dim_v), dtype)

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Build ``slots`` ``[T]``, ``block_tables`` ``[R, width]`` and the work lists of all layers."""
        built = self._built
        if built is None or built[0] is not step or built[1] != block_size:
            lists: dict[str, Array] = {}
            for plan in self._plans(step.shape.kind):
                lists[plan.items_name], lists[plan.joins_name] = plan.build(step, block_size)
            self._built = built = step, block_size, lists
        return {
            "slots": np.ascontiguousarray(step.slot_mapping[group]),
            "block_tables": np.ascontiguousarray(step.block_tables[group]),
            **built[2],
        }

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: _Cache,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write, then attend by decode and by prefill work; see `AttentionBackend.forward`."""
        spec = layer.spec
        works = self._works.get(_key(spec, layer.num_heads, spec.sliding_window))
        if works is None:
            raise EngineError(f"supports() was never asked about layer {layer.layer_name!r}")
        if key is not None and value is not None:
            self.write(spec, key, value, cache, metadata["slots"])
        rows = _aligned(query, cache[0].dtype)
        output = rows.new_empty(len(rows), layer.num_heads, spec.head_dim_v)
        for work in works:
            if work.plan.items_name in metadata:
                self._attend(work, layer, output, rows, cache, metadata, sinks)
        return output.to(query.dtype)

    def write(
        self, spec: KVCacheSpec, key: torch.Tensor, value: torch.Tensor, cache: _Cache, slots: torch.Tensor
    ) -> None:
        """Copy keys ``[T, num_kv_heads, head_dim]`` and values ``[…, head_dim_v]`` to their slots."""
        keys, values = cache
        key, value = _aligned(key, keys.dtype), _aligned(value, keys.dtype)
        variant = write_variant(spec.dtype, block_dim(spec.head_dim, spec.head_dim_v))
        num_rows = len(key) * spec.num_kv_heads
        variant.launch(
            (-(-num_rows // variant.constants["BLOCK_ROWS"]),),
            key_cache=keys,
            value_cache=values,
            key=key,
            value=value,
            slots=slots,
            key_token_vectors=key.stride(0) // _VECTOR,
            key_head_vectors=key.stride(1) // _VECTOR,
            value_token_vectors=value.stride(0) // _VECTOR,
            value_head_vectors=value.stride(1) // _VECTOR,
            key_vectors=spec.head_dim // _VECTOR,
            value_vectors=spec.head_dim_v // _VECTOR,
            num_rows=num_rows,
            num_kv_heads=spec.num_kv_heads,
            block_shift=_shift(keys),
        )

    def _attend(
        self,
        work: LayerWork,
        layer: LayerParams,
        output: torch.Tensor,
        query: torch.Tensor,
        cache: _Cache,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None,
    ) -> None:
        spec, (keys, values) = layer.spec, cache
        items, joins = metadata[work.plan.items_name], metadata[work.plan.joins_name]
        block_tables = metadata["block_tables"]
        shared: dict[str, Any] = {
            "output": output,
            "partial_scales": self._scratch,
            "partial_values": self._scratch[work.scale_floats :],
            "value_vectors": spec.head_dim_v // _VECTOR,
            "num_kv_heads": spec.num_kv_heads,
            "group_size": layer.num_heads // spec.num_kv_heads,
            "tile_heads": work.tile_heads,
        }
        attend_variant(
            spec.dtype, work.dim, work.kind, has_soft_cap=layer.soft_cap is not None, major=self._major
        ).launch(
            (len(items) * work.num_head_tiles,),
            **shared,
            query=query,
            key_cache=keys,
            value_cache=values,
            sinks=query if sinks is None else sinks.to(query.dtype),
            block_tables=block_tables,
            items=items,
            query_token_vectors=query.stride(0) // _VECTOR,
            query_head_vectors=query.stride(1) // _VECTOR,
            key_vectors=spec.head_dim // _VECTOR,
            table_width=block_tables.shape[1],
            block_shift=_shift(keys),
            window=spec.sliding_window or _NO_WINDOW,
            has_sinks=int(sinks is not None),
            scale=layer.scale,
            soft_cap=layer.soft_cap or 1.0,
        )
        join_variant(spec.dtype, work.dim).launch(
            (len(joins) * work.num_head_tiles, work.joins_per_tile),
            **shared,
            joins=joins,
            tile_rows=work.tile.rows,
            program_rows=work.join_rows,
        )

    def _plans(self, kind: StepKind) -> list[WorkPlan]:
        plans = (work.plan for works in self._works.values() for work in works)
        return [plan for plan in plans if plan.kind is WorkKind.DECODE or kind is StepKind.MIXED]

    @property
    def _scratch_floats(self) -> int:
        works = (work for works in self._works.values() for work in works)
        return max((work.scale_floats + work.value_floats for work in works), default=0)


def _key(of: AttentionNeeds | KVCacheSpec, num_heads: int, window: int | None) -> tuple[Any, ...]:
    """Return what distinguishes kinds of layers."""
    return of.num_kv_heads, of.head_dim, of.head_dim_v, of.dtype, num_heads, window


def _shift(keys: torch.Tensor) -> int:
    """Return the logarithm of the block size."""
    return keys.shape[2].bit_length() - 1


def _aligned(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``rows`` ``[T, heads, dim]`` in ``dtype``, each of them whole and aligned to 16 bytes."""
    rows = rows.to(dtype)
    if (
        rows.stride(2) == 1
        and rows.stride(0) % _VECTOR == rows.stride(1) % _VECTOR == rows.data_ptr() % 16 == 0
    ):
        return rows
    return rows.clone(memory_format=torch.contiguous_format)
