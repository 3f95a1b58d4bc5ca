"""Start an engine: choose the backend and settle the configuration; then load, size the cache, warm up."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from core_engine._log import show_log
from core_engine.backends.selection import Selection, select_backend
from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.core import EngineCore
from core_engine.engine.settle import settle_config
from core_engine.errors import CoreEngineError
from core_engine.executor.start import create_executor
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.plan import plan_kv_cache
from core_engine.kv_cache.start_table import StartTable
from core_engine.models.config_reader import read_model_config
from core_engine.plugin import Capabilities
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.worker.context import WorkerContext

__all__ = ["PreparedEngine", "StartedEngine", "prepare_engine", "start_engine"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """Everything that is known before a device is opened or a weight is read."""

    #: What the user asked for.
    asked: EngineConfig
    #: The same without open fields, ``max_model_len`` excepted.
    config: EngineConfig
    model: ModelConfig
    selection: Selection
    context: WorkerContext


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine core that is ready for requests, and how it came to be."""

    core: EngineCore
    config: EngineConfig
    model: ModelConfig
    capabilities: Capabilities
    selection: Selection
    table: StartTable


def prepare_engine(config: EngineConfig) -> PreparedEngine:
    """Choose the backend, read the model's facts and settle the configuration.

    Raises `PluginError` when no backend can be chosen, `ModelError` for the model's files and
    `ConfigError` for settings that cannot work.
    """
    show_log()
    selection = select_backend(config.backend)
    selection.log()
    backend, devices = selection.backend, selection.detection.devices
    model = read_model_config(config)
    options = backend.parse_options(config.backend_options)
    capabilities = backend.capabilities(devices, config, model)
    settled, degraded = settle_config(config, model, capabilities, backend.name)
    settled, changed = backend.check_config(settled, model, devices)
    for line in (*degraded, *changed):
        logger.info(line)
    plans = backend.plan_workers(settled, devices)
    context = WorkerContext(
        config=settled,
        model=model,
        capabilities=capabilities,
        plan=plans[0],
        devices=tuple(device for device in devices if device.index in plans[0].device_indices),
        options=options,
        world_size=len(plans),
    )
    return PreparedEngine(config, settled, model, selection, context)


def start_engine(prepared: PreparedEngine) -> StartedEngine:
    """Open the device, load the model, size the cache and warm up; docs/explanation/one-request.md tells how.

    Raises `ModelError` for damaged weights, `DoesNotFit` and `OutOfDeviceMemory` for too little memory,
    `PluginError` when the backend fails. What was opened is closed again then.
    """
    started_s = time.perf_counter()
    config, model, backend = prepared.config, prepared.model, prepared.selection.backend
    executor = create_executor(backend, prepared.context)
    try:
        capabilities = executor.init_device().capabilities
        if capabilities != prepared.context.capabilities:
            config = _narrow(prepared, capabilities)
        executor.load_model()
        specs = executor.get_kv_cache_spec()
        budget = executor.determine_available_memory()
        kv_config = plan_kv_cache(
            specs,
            available_bytes=budget.kv_cache_bytes,
            block_size=config.block_size or capabilities.block_sizes[0],
            max_model_len=config.max_model_len,
            longest_model_len=model.max_position_embeddings,
            max_step_tokens=config.max_num_batched_tokens,
        )
        kv_cache_bytes = executor.initialize_cache(kv_config)
        executor.compile_or_warm_up_model()
        config = replace(config, max_model_len=kv_config.max_model_len)
        scheduler = UnifiedScheduler(config, KVCacheManager(kv_config), capabilities)
    except BaseException:
        try:
            executor.shutdown()
        except CoreEngineError as error:  # the first failure is the one to tell
            logger.warning("the worker did not shut down: %s", error)
        raise
    table = StartTable.build(
        budget, kv_config, kv_cache_bytes=kv_cache_bytes, load_seconds=time.perf_counter() - started_s
    )
    for line in table.lines():
        logger.info(line)
    core = EngineCore(executor, scheduler)
    return StartedEngine(core, config, model, capabilities, prepared.selection, table)


def _narrow(prepared: PreparedEngine, capabilities: Capabilities) -> EngineConfig:
    """Settle what the user left open once more: the device offers less than its driver promised."""
    backend = prepared.selection.backend
    narrowed, degraded = settle_config(prepared.asked, prepared.model, capabilities, backend.name)
    for line in degraded:
        logger.info(line)
    return replace(
        prepared.config,
        enable_prefix_caching=narrowed.enable_prefix_caching,
        enable_chunked_prefill=narrowed.enable_chunked_prefill,
        max_num_seqs=min(prepared.config.max_num_seqs, narrowed.max_num_seqs),
    )
