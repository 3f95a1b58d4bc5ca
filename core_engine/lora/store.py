"""LoRAStore: a runner's adapters, in host memory, and the slots of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch

from core_engine.errors import AdapterError, EngineError, UnsupportedFeature
from core_engine.lora.adapter import AdapterFiles
from core_engine.lora.layers import LoRALinear, lora_mask
from core_engine.lora.messages import LoRAAdapter, LoRAInfo
from core_engine.lora.slots import LoRASlots
from core_engine.lora.weights import ModuleWeights, read_adapter_weights

if TYPE_CHECKING:
    from core_engine.attention.context import ContextHolder
    from core_engine.config import EngineConfig
    from core_engine.worker.device_io import DeviceIO

__all__ = ["LoRAStore"]


class LoRAStore:
    """Holds what ``add`` loaded and writes it into slots as requests come.

    It allocates the stacked matrices of every `LoRALinear` of ``model`` through ``io``, which is the only
    way to the device's memory. Raises `UnsupportedFeature` for a model without such layers.
    """

    def __init__(
        self, model: torch.nn.Module, io: DeviceIO, config: EngineConfig, context: ContextHolder
    ) -> None:
        self._io = io
        self._max_rank = config.max_lora_rank
        self._num_slots = config.max_loras
        self._dtype = cast(torch.dtype, getattr(torch, config.dtype))
        modules = dict(model.named_modules())
        self._layers = {name: m for name, m in modules.items() if isinstance(m, LoRALinear)}
        self._others = tuple(name for name in modules if name not in self._layers)
        if not self._layers:
            raise UnsupportedFeature("no layer of this model takes a LoRA adapter: set max_loras to 0")
        #: Bytes of the matrices on the device.
        self.num_bytes = 0
        for layer in self._layers.values():
            layer.attach(self._allocate(layer.in_features), self._allocate(layer.out_features), context)
        self._infos: dict[int, LoRAInfo] = {}
        self._weights: dict[int, Mapping[str, ModuleWeights]] = {}
        self.slots = LoRASlots(config.max_loras, self._write)

    def empty_slots(self) -> LoRASlots:
        """Forget which requests use which slot, for a batch that starts anew, and return the slots."""
        self.slots = LoRASlots(self._num_slots, self._write)
        return self.slots

    def add(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Read an adapter and check it against the model; one that is held already is not read again.

        Raises `AdapterError`; nothing changes then.
        """
        if adapter.lora_id in self._infos:
            return self._infos[adapter.lora_id]
        files = AdapterFiles.read(adapter.path)
        if files.digest() != adapter.digest:
            raise AdapterError(
                f"adapter {adapter.path!r} was written to while it was loaded; try again", "lora"
            )
        config = files.config()
        weights = read_adapter_weights(
            files, config, self._layers, max_rank=self._max_rank, dtype=self._dtype, others=self._others
        )
        tensors = [tensor for pair in weights.values() for tensor in pair]
        self._weights[adapter.lora_id] = weights
        self._infos[adapter.lora_id] = info = LoRAInfo(
            lora_id=adapter.lora_id,
            name=adapter.name,
            rank=max(down.shape[0] for down, _ in weights.values()),
            num_modules=len(weights),
            num_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        )
        return info

    def remove(self, lora_id: int) -> bool:
        """Forget an adapter; its slot is free once its last request has left. False for an unknown one."""
        if lora_id not in self._infos:
            return False
        del self._infos[lora_id]
        self.slots.forget(lora_id)
        self._drop_unused()
        return True

    def infos(self) -> tuple[LoRAInfo, ...]:
        """Return what is held, by number, and where it stands."""
        return tuple(
            LoRAInfo(
                lora_id=info.lora_id,
                name=info.name,
                rank=info.rank,
                num_modules=info.num_modules,
                num_bytes=info.num_bytes,
                slot=self.slots.slot_of(info.lora_id),
            )
            for _, info in sorted(self._infos.items())
        )

    def mask(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the mask of a step; ``slots`` is its int32 ``[num_tokens]``."""
        return lora_mask(slots, num_slots=self._num_slots, rank=self._max_rank)

    def _allocate(self, width: int) -> torch.Tensor:
        shape = (self._num_slots * self._max_rank, width)
        self.num_bytes += shape[0] * shape[1] * self._dtype.itemsize
        return self._io.allocate(shape, self._dtype)

    def _write(self, lora_id: int, slot: int) -> None:
        """Overwrite the matrices of all layers with what the slots hold now.

        Whole tensors are copied, never a slice: a slice of a device tensor may be one more program.
        """
        if lora_id not in self._infos:
            raise EngineError(f"adapter {lora_id} is not loaded: call add_lora first")
        self._drop_unused()
        held = {**self.slots.holders(), slot: lora_id}
        adapters = {place: self._weights[other] for place, other in held.items()}
        for name, layer in self._layers.items():
            down = torch.zeros(layer.lora_a.shape, dtype=self._dtype)
            up = torch.zeros(layer.lora_b.shape, dtype=self._dtype)
            for place, weights in adapters.items():
                if name in weights:
                    start = place * self._max_rank
                    stop = start + weights[name][0].shape[0]
                    down[start:stop], up[start:stop] = weights[name]
            self._io.copy(layer.lora_a, down)
            self._io.copy(layer.lora_b, up)

    def _drop_unused(self) -> None:
        """Free the weights of removed adapters, but for those that running requests still use."""
        used = set(self.slots.holders().values())
        for lora_id in [i for i in self._weights if i not in self._infos and i not in used]:
            del self._weights[lora_id]
