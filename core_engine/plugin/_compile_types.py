"""The values of the compile check: an engine's graphs as compiled for devices that are not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
    from core_engine.worker.reports import MemoryBudget


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledGraph:
    """One graph of an engine's as a device's compiler sees it; bytes are those of one device."""

    #: The function: "backbone", "logits", "sample", "score".
    name: str
    #: The step that it serves, for people: "512 tokens, 64 requests".
    step: str
    #: Why it cannot be compiled; None where it can. The numbers below are 0 then.
    error: str | None = None
    #: What compiling took.
    seconds: float = 0.0
    #: Weights and KV caches that the graph reads count among its arguments.
    argument_bytes: int = 0
    output_bytes: int = 0
    #: Those of the outputs that take over the memory of an argument, as updated KV caches do.
    alias_bytes: int = 0
    #: What the device needs besides while the graph runs.
    temp_bytes: int = 0
    #: The program itself.
    code_bytes: int = 0
    #: Calls of kernels that were written by hand.
    num_custom_calls: int = 0

    @property
    def working_bytes(self) -> int:
        """What the device needs besides the arguments while the graph runs."""
        return self.temp_bytes + self.output_bytes - self.alias_bytes


class SizePool(Protocol):
    """Core's own sizing of the KV cache, as a start does it."""

    def __call__(self, specs: Mapping[str, KVCacheSpec | str], budget: MemoryBudget, /) -> KVCacheConfig:
        """Return the pool for what `WorkerApi.get_kv_cache_spec` and `determine_available_memory` say.

        Raises `DoesNotFit`; `BackendSpec.compile_check` lets it pass.
        """
        ...
