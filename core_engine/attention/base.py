"""AttentionBackend: the paged KV cache's layout on a device and the kernel that reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core_engine._ragged import Array
from core_engine.kv_cache.specs import KVCacheSpec

if TYPE_CHECKING:
    import torch

    from core_engine.worker.device_io import DeviceIO
    from core_engine.worker.step import HostStep

__all__ = ["AttentionBackend", "AttentionNeeds", "LayerParams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionNeeds:
    """What the layers of a loaded model ask of attention; one object per kind of layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: str
    block_size: int
    sliding_window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParams:
    """What is constant for one attention layer."""

    layer_name: str
    spec: KVCacheSpec
    num_heads: int
    #: Multiplies query · key.
    scale: float
    #: ``cap * tanh(score / cap)`` before the softmax, or None.
    soft_cap: float | None = None


class AttentionBackend(ABC):
    """Reads and writes the paged cache of all layers of one runner."""

    #: For the start log and `doctor`.
    name: str

    @abstractmethod
    def supports(self, needs: AttentionNeeds) -> str | None:
        """Return None when layers of this kind are served, else the reason why not.

        Called for every layer of a model before the cache of any is sized, so that a backend with
        several kernels may choose among them by what all layers ask.
        """

    @abstractmethod
    def page_bytes(self, spec: KVCacheSpec, block_size: int) -> int:
        """Return the bytes of one block of one layer, alignment included."""

    @abstractmethod
    def allocate(self, spec: KVCacheSpec, num_blocks: int, block_size: int, io: DeviceIO) -> Any:
        """Allocate one layer's zeroed cache through ``io.allocate``; the layout is the backend's own."""

    @abstractmethod
    def build_metadata(self, step: HostStep, group: int, block_size: int) -> Mapping[str, Array]:
        """Build what ``forward`` needs to know of a step, in numpy, once per step and group.

        Array shapes depend on ``step.shape`` only, so that programs compiled for a shape stay valid.
        """

    @abstractmethod
    def forward(
        self,
        layer: LayerParams,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: Any,
        metadata: Mapping[str, torch.Tensor],
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write this step's keys and values, then attend.

        ``query`` is ``[T, num_heads, head_dim]``, ``key`` ``[T, num_kv_heads, head_dim]``, ``value``
        ``[T, num_kv_heads, head_dim_v]``; both are None for a layer that shares an earlier layer's
        cache. ``sinks`` is ``[num_heads]``: one more logit per head that takes part in the softmax
        and has no value. Returns ``[T, num_heads, head_dim_v]`` in the dtype of ``query``; rows of
        padding tokens are finite and otherwise undefined.
        """
