"""Compile an engine for devices that are not here, and say whether it fits them."""

from __future__ import annotations

from collections.abc import Mapping

from core_engine._log import show_log
from core_engine.backends.for_target import select_for_target
from core_engine.config import EngineConfig
from core_engine.engine.compile_result import CompileResult
from core_engine.engine.start import PreparedEngine, prepare_selected, size_pool
from core_engine.errors import ContractError, DoesNotFit
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
from core_engine.plugin import CompiledGraph
from core_engine.worker.reports import MemoryBudget

__all__ = ["check_compilation"]


class _PoolSizing:
    """The `SizePool` of one check; keeps what it was asked and what it answered."""

    def __init__(self, prepared: PreparedEngine) -> None:
        self._prepared = prepared
        self.budget: MemoryBudget | None = None
        self.pool: KVCacheConfig | None = None

    def __call__(self, specs: Mapping[str, KVCacheSpec | str], budget: MemoryBudget, /) -> KVCacheConfig:
        """Size the pool as a start does."""
        prepared = self._prepared
        self.budget = budget
        self.pool = size_pool(
            prepared.config, prepared.model, prepared.context.capabilities, specs, budget.kv_cache_bytes
        )
        return self.pool


def check_compilation(config: EngineConfig, target: str) -> CompileResult:
    """Settle the engine of ``config`` for ``target``, compile its graphs there, and add up the memory.

    The model's weights are not read and may be missing. Raises what `select_for_target` and
    `prepare_engine` raise, and what the backend raises where it cannot compile at all; what does not
    compile or fit is part of the result.
    """
    show_log()
    selection = select_for_target(config.backend, target, config.backend_options)
    prepared = prepare_selected(config, selection, weights=False)
    sizing = _PoolSizing(prepared)
    graphs: tuple[CompiledGraph, ...] = ()
    shortage = None
    import core_engine._torch_import  # noqa: F401 - torch's first import comes before the backend's

    try:
        graphs = selection.backend.compile_check(prepared.context, target, sizing)
    except DoesNotFit as error:
        shortage = str(error)
    else:
        if sizing.pool is None:
            raise ContractError(f"{selection.backend}: compile_check must ask size_pool for its KV cache")
    return CompileResult(
        backend=selection.backend.name,
        target=target,
        devices=prepared.context.devices,
        num_target_devices=len(selection.detection.devices),
        config=prepared.config,
        graphs=graphs,
        budget=sizing.budget,
        pool=sizing.pool,
        shortage=shortage,
    )
