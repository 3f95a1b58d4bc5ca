"""TpuAttention: the attention kernel where it can serve a model, dense attention where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from core_engine.plugin import UnsupportedFeature
from core_engine.plugin.runtime import (
    Array,
    AttentionBackend,
    AttentionNeeds,
    DeviceIO,
    HostStep,
    KVCacheSpec,
    LayerParams,
)
from core_engine_tpu.dense import DenseAttention
from core_engine_tpu.divided_attention import DividedAttention
from core_engine_tpu.kv_layout import dense_layout, kernel_layout
from core_engine_tpu.pallas import PallasAttention
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["TpuAttention"]

logger = logging.getLogger("core_engine.backends.tpu")


class TpuAttention(AttentionBackend):
    """Serves all layers of a model by one of two backends with caches of one kind.

    ``choice`` is the option ``attention``: "pallas" takes the kernel or fails with the reason, "dense" never
    takes it, "auto" takes it on a TPU unless one of the model's layers is not for it. One model has one
    kind of cache, because layers of several groups share caches.
    """

    def __init__(self, runtime: XlaRuntime, choice: str, *, max_num_seqs: int, max_model_len: int) -> None:
        if choice == "pallas" and not runtime.runs_pallas:
            raise UnsupportedFeature(
                f"attention=pallas: the kernel runs on a TPU, and this process computes on {runtime.device}; "
                "take attention=auto or attention=dense"
            )
        self._runtime = runtime
        self._must_be_kernel = choice == "pallas"
        # What a TPU's tiles leave empty takes memory all the same, so there the cache is laid out with it.
        make_layout = kernel_layout if runtime.runs_pallas else dense_layout
        self._dense = _on_each_device(DenseAttention(make_layout), runtime)
        self._chosen: AttentionBackend = self._dense
        if choice != "dense" and runtime.runs_pallas:
            runtime.prepare_kernels()
            kernel = PallasAttention(runtime, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
            self._chosen = _on_each_device(kernel, runtime)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the backend that serves."""
        return self._chosen.name

    def supports(self, needs: AttentionNeeds) -> str | None:
        """Serve by the kernel what it can, else all layers of the model densely."""
        refusal = self._chosen.supports(needs)
        if refusal is None or self._chosen is self._dense or self._must_be_kernel:
            return refusal
        logger.warning("attention is dense, which gathers all that a request may hold: %s", refusal)
        self._chosen = self._dense
        return self._dense.supports(needs)

    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """See `AttentionBackend.page_bytes`."""
        return self._chosen.page_bytes(spec, block_size)

    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> torch.Tensor:
        """See `AttentionBackend.allocate`."""
        cache: torch.Tensor = self._chosen.allocate(spec, num_blocks, block_size, io)
        return cache

    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """See `AttentionBackend.build_metadata`."""
        return self._chosen.build_metadata(step, group, block_size)

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
        """Donate the cache of a layer that writes, then attend; see `AttentionBackend.forward`."""
        if key is not None:
            self._runtime.donate(cache)
        return self._chosen.forward(layer, query, key, value, cache, metadata, sinks)


def _on_each_device(backend: AttentionBackend, runtime: XlaRuntime) -> AttentionBackend:
    """Return ``backend``, or where a model is divided over devices, what runs it on the heads of each."""
    return backend if runtime.num_devices == 1 else DividedAttention(backend, runtime)
