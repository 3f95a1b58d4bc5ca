"""NumbaPagedAttention: the CPU's attention over the paged cache, compiled by numba."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from core_engine.backends.cpu.attention_plan import build_plan, max_partials
from core_engine.backends.cpu.kernel_cache import compile_cached, kernel_cache
from core_engine.backends.cpu.kernels import arguments as a
from core_engine.backends.cpu.numba_threads import share_threads
from core_engine.plugin import DTYPE_BYTES
from core_engine.plugin.runtime import (
    Array,
    AttentionBackend,
    AttentionNeeds,
    DeviceIO,
    HostStep,
    IntArray,
    KVCacheSpec,
    LayerParams,
)

__all__ = ["BLOCK_SIZES", "CpuKVCache", "NumbaPagedAttention"]

#: Block sizes that the kernel serves: whole vectors, and whole blocks in its chunks.
BLOCK_SIZES = (32, 16, 64, 128)
_LANES = 16


class CpuKVCache:
    """One layer's keys and values in the kernel's layout, which `kernels.paged_attention` describes."""

    def __init__(self, spec: KVCacheSpec, block_size: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.spec = spec
        self.block_size = block_size
        self.keys = keys
        self.values = values
        #: Address of the kernel for the cache's dtype.
        self.kernel: int = _compiled(spec.dtype).address
        #: The argument block of each layer that reads this cache; only its first part changes.
        self.arguments: dict[str, Array] = {}


class NumbaPagedAttention(AttentionBackend):
    """Attends over float32, float16 and bfloat16 caches in float32, with as many threads as torch.

    Not for calls from several Python threads at once: scratch memory and argument blocks are reused.
    """

    name = "numba"

    def __init__(self) -> None:
        self._num_threads = share_threads()
        self._run_step = _kernels().run_step
        self._scratch = torch.empty(0)
        self._partials = torch.empty(0)
        #: The last step and its plan, which is the same for every group of layers.
        self._planned: tuple[HostStep, IntArray] | None = None

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve every dtype and every kind of layer with an even head size."""
        if needs.dtype not in DTYPE_BYTES:
            return f"dtype {needs.dtype!r} is none of {', '.join(DTYPE_BYTES)}"
        if needs.num_heads % needs.num_kv_heads:
            return f"{needs.num_heads} query heads do not divide among {needs.num_kv_heads} K/V heads"
        if needs.head_dim % 2:
            return f"head size {needs.head_dim} is odd"
        if needs.block_size not in BLOCK_SIZES:
            return f"block size {needs.block_size} is none of {', '.join(map(str, sorted(BLOCK_SIZES)))}"
        return None

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block; rows of values are padded to whole vectors."""
        elements = block_size * spec.num_kv_heads * (spec.head_dim + _row_elements_v(spec))
        return elements * DTYPE_BYTES[spec.dtype]

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> CpuKVCache:
        """Allocate keys and values as two flat tensors; the first cache of a dtype compiles its kernel."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        rows = num_blocks * spec.num_kv_heads * block_size
        keys = io.allocate((rows * spec.head_dim,), dtype)
        values = io.allocate((rows * _row_elements_v(spec),), dtype)
        return CpuKVCache(spec, block_size, keys, values)

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Build ``plan`` (see `attention_plan`), ``slots`` ``[T]`` and ``tables`` ``[R, width]``, int32."""
        if self._planned is None or self._planned[0] is not step:
            self._planned = step, build_plan(step, block_size, self._num_threads)
        return {
            "plan": self._planned[1],
            "slots": np.ascontiguousarray(step.slot_mapping[group]),
            "tables": np.ascontiguousarray(step.block_tables[group]),
        }

    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: CpuKVCache,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write and attend in one call of the compiled kernel; see `AttentionBackend.forward`."""
        args = cache.arguments.get(layer.layer_name)
        if args is None:
            args = cache.arguments[layer.layer_name] = self._layer_arguments(layer, cache)
        dtype = cache.keys.dtype
        tables = metadata["tables"]
        query = _rows(query, dtype)
        keys = values = (0, 0, 0)
        if key is not None and value is not None:
            key, value = _rows(key, dtype), _rows(value, dtype)
            keys = (key.data_ptr(), key.stride(0), key.stride(1))
            values = (value.data_ptr(), value.stride(0), value.stride(1))
        if sinks is not None:
            sinks = sinks.float().contiguous()
        output = torch.empty((query.shape[0], layer.num_heads, cache.spec.head_dim_v), dtype=dtype)
        args[: a.KEY_CACHE] = (
            metadata["plan"].data_ptr(),
            metadata["slots"].data_ptr(),
            tables.data_ptr(),
            tables.shape[1],
            query.data_ptr(),
            query.stride(0),
            query.stride(1),
            *keys,
            *values,
            output.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            self._scratch.data_ptr(),
            self._partials.data_ptr(),
        )
        self._run_step(cache.kernel, args)
        return output

    def _layer_arguments(self, layer: LayerParams, cache: CpuKVCache) -> Array:
        """Fill what is constant for a layer, and grow the scratch memory to what it needs."""
        spec, num_threads = cache.spec, self._num_threads
        group_size = layer.num_heads // spec.num_kv_heads
        floats = num_threads * a.scratch_floats(group_size, spec.head_dim, _row_elements_v(spec))
        if floats > len(self._scratch):
            self._scratch = torch.empty(floats)
        floats = max_partials(num_threads) * layer.num_heads * (spec.head_dim_v + 2)
        if floats > len(self._partials):
            self._partials = torch.empty(floats)
        args = np.zeros(a.NUM_ARGUMENTS, dtype=np.int64)
        args[a.KEY_CACHE] = cache.keys.data_ptr()
        args[a.VALUE_CACHE] = cache.values.data_ptr()
        args[a.NUM_KV_HEADS] = spec.num_kv_heads
        args[a.GROUP_SIZE] = group_size
        args[a.HEAD_DIM] = spec.head_dim
        args[a.HEAD_DIM_V] = spec.head_dim_v
        args[a.ROW_ELEMENTS_V] = _row_elements_v(spec)
        args[a.BLOCK_SIZE] = cache.block_size
        args[a.PAIR_SHIFT] = cache.keys.dtype is torch.bfloat16
        args[a.WINDOW] = layer.spec.sliding_window or np.iinfo(np.int32).max
        args[a.SCALE_BITS] = np.float32(layer.scale).view(np.int32)
        args[a.SOFT_CAP_BITS] = np.float32(layer.soft_cap or 0.0).view(np.int32)
        args[a.NUM_THREADS] = num_threads
        return args


def _row_elements_v(spec: KVCacheSpec) -> int:
    return -(-spec.head_dim_v // _LANES) * _LANES


def _rows(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor in the cache's dtype with adjacent numbers in its last dimension."""
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


@cache
def _kernels() -> Any:
    with kernel_cache():
        return import_module("core_engine.backends.cpu.kernels.paged_attention")


@cache
def _compiled(dtype: str) -> Any:
    """Return the C callback for a dtype; it must live as long as its address is used."""
    return compile_cached(getattr(_kernels(), f"attend_{dtype}"), "void(int64, int64, int64)")
