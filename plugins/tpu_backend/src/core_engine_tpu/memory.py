"""How much memory each device has, and what of it the KV cache may take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core_engine.plugin import DoesNotFit

if TYPE_CHECKING:
    from core_engine.plugin.runtime import MemoryBudget, WorkerContext
    from core_engine_tpu.runtime import XlaRuntime

__all__ = ["divide_memory", "total_memory"]


def total_memory(runtime: XlaRuntime, context: WorkerContext) -> tuple[int, str]:
    """Return the bytes of each device, and who says so.

    That is the device itself; else what its kind of chip has, because torch_xla does not tell the
    memory of several devices; else the option ``memory_bytes`` (PJRT on the CPU knows no limit).
    """
    told = runtime.memory()
    if told is not None:
        return told[0], "its memory"
    by_kind = [device.memory_bytes for device in context.devices if device.memory_bytes]
    if by_kind:
        return min(by_kind), "the memory of its kind of chip"
    return int(context.options["memory_bytes"] or 0), "memory_bytes"


def divide_memory(budget: MemoryBudget, *, share: float, source: str) -> MemoryBudget:
    """Give the KV cache what weights and activations leave of ``share`` of the memory.

    Raises `DoesNotFit` with the numbers when they leave nothing.
    """
    total = budget.total_bytes or 0
    usable = int(total * share)
    kv_cache_bytes = usable - budget.weight_bytes - budget.activation_bytes
    if kv_cache_bytes <= 0:
        raise DoesNotFit(
            f"on each device the weights take {_mib(budget.weight_bytes)} and the largest step "
            f"{_mib(budget.activation_bytes)}, but {share:.0%} of {source} is {_mib(usable)}: nothing is "
            "left for the KV cache. Divide the model over more devices (tensor_parallel_size), lower "
            "max_num_batched_tokens, or raise device_memory_utilization"
            + (" or the option memory_bytes" if source == "memory_bytes" else "")
        )
    rule = f"{share:.0%} of {source}, less weights and activations"
    return replace(budget, kv_cache_bytes=kv_cache_bytes, rule=rule)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
