"""DividedAttention: an attention backend for one device, run by each device on its own heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from core_engine.plugin.runtime import (
    Array,
    AttentionBackend,
    AttentionNeeds,
    DeviceIO,
    HostStep,
    KVCacheSpec,
    LayerParams,
)
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.faults import typed_faults
from core_engine_tpu.kv_layout import HEADS_DIM
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["DividedAttention"]

#: The dimension of queries, keys and values that holds heads.
_HEADS = 1


class _DividedIO(TpuIO):
    """Allocates for every device what is asked for one."""

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate the tensor whose parts have ``shape``."""
        num_devices = self._runtime.num_devices
        whole = tuple(size * num_devices if dim == HEADS_DIM else size for dim, size in enumerate(shape))
        with typed_faults(f"a tensor {list(whole)} of {dtype}, divided over {num_devices} devices"):
            return self._runtime.zeros(whole, dtype, divided_dim=HEADS_DIM)


class DividedAttention(AttentionBackend):
    """Gives ``inner``, whose cache is one tensor, the heads of one device; devices exchange nothing.

    The cache holds the heads of one device once for each device, along `HEADS_DIM`, and each holds its own.
    """

    def __init__(self, inner: AttentionBackend, runtime: XlaRuntime) -> None:
        self._inner = inner
        self._runtime = runtime
        self.name = inner.name

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve what ``inner`` serves of the heads of one device."""
        num_devices = self._runtime.num_devices
        if needs.num_kv_heads % num_devices or needs.num_heads % num_devices:
            return (
                f"its {needs.num_heads} query heads and {needs.num_kv_heads} K/V heads cannot be divided "
                f"over {num_devices} devices"
            )
        num_heads, num_kv_heads = needs.num_heads // num_devices, needs.num_kv_heads // num_devices
        return self._inner.supports(replace(needs, num_heads=num_heads, num_kv_heads=num_kv_heads))

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block on each device."""
        return self._inner.page_bytes(self._local_spec(spec), block_size)

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> torch.Tensor:
        """Allocate each device's part of the cache on that device."""
        divided_io = _DividedIO(self._runtime)
        cache: torch.Tensor = self._inner.allocate(self._local_spec(spec), num_blocks, block_size, divided_io)
        return cache

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Every device needs the same."""
        return self._inner.build_metadata(step, group, block_size)

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: torch.Tensor,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run ``inner`` on each device's parts; see `AttentionBackend.forward`."""
        runtime = self._runtime
        local_layer = replace(
            layer, spec=self._local_spec(layer.spec), num_heads=layer.num_heads // runtime.num_devices
        )
        local_cache = runtime.local_part(cache, HEADS_DIM)
        attended = self._inner.forward(
            local_layer,
            runtime.local_part(query, _HEADS),
            None if key is None else runtime.local_part(key, _HEADS),
            None if value is None else runtime.local_part(value, _HEADS),
            local_cache,
            {name: runtime.local_part(tensor, None) for name, tensor in metadata.items()},
            None if sinks is None else runtime.local_part(sinks, 0),
        )
        if key is not None:
            cache.copy_(runtime.whole_of(local_cache, HEADS_DIM))
        return runtime.whole_of(attended, _HEADS)

    def _local_spec(self, spec: KVCacheSpec) -> KVCacheSpec:
        return replace(spec, num_kv_heads=spec.num_kv_heads // self._runtime.num_devices)
