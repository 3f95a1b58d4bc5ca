"""Start an engine: choose the backend, settle the configuration, load, size the cache, warm up."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from core_engine._log import show_log
from core_engine.backends.selection import Selection, select_backend
from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.core import EngineCore
from core_engine.engine.settle import settle_config
from core_engine.executor.start import create_executor
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.plan import plan_kv_cache
from core_engine.kv_cache.start_table import StartTable
from core_engine.models.config_reader import read_model_config
from core_engine.plugin import Capabilities
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.worker.context import WorkerContext

__all__ = ["StartedEngine", "start_engine"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine core that is ready for requests, and how it came to be."""

    core: EngineCore
    config: EngineConfig
    model: ModelConfig
    capabilities: Capabilities
    selection: Selection
    table: StartTable


def start_engine(config: EngineConfig) -> StartedEngine:
    """Bring an engine up; the steps and their order are told in docs/explanation/one-request.md.

    Raises `PluginError` when no backend can be chosen or the chosen one fails, `ModelError` for the
    model's files, `ConfigError` for settings that cannot work. What was opened is closed again.
    """
    show_log()
    started_s = time.perf_counter()
    selection = select_backend(config.backend)
    selection.log()
    backend, devices = selection.backend, selection.detection.devices
    model = read_model_config(config)
    options = backend.parse_options(config.backend_options)
    capabilities = backend.capabilities(devices, config, model)
    asked = config
    config, degraded = settle_config(asked, model, capabilities, backend.name)
    config, changed = backend.check_config(config, model, devices)
    for line in (*degraded, *changed):
        logger.info(line)
    plans = backend.plan_workers(config, devices)
    context = WorkerContext(
        config=config,
        model=model,
        capabilities=capabilities,
        plan=plans[0],
        devices=tuple(device for device in devices if device.index in plans[0].device_indices),
        options=options,
        world_size=len(plans),
    )
    executor = create_executor(backend, context)
    try:
        opened = executor.init_device().capabilities
        if opened != capabilities:
            # The device offers less than its driver promised; what the user left open follows.
            narrowed, degraded = settle_config(asked, model, opened, backend.name)
            for line in degraded:
                logger.info(line)
            config = replace(
                config,
                enable_prefix_caching=narrowed.enable_prefix_caching,
                enable_chunked_prefill=narrowed.enable_chunked_prefill,
                max_num_seqs=min(config.max_num_seqs, narrowed.max_num_seqs),
            )
            capabilities = opened
        executor.load_model()
        specs = executor.get_kv_cache_spec()
        budget = executor.determine_available_memory()
        kv_config = plan_kv_cache(
            specs,
            available_bytes=budget.kv_cache_bytes,
            block_size=config.block_size or capabilities.block_sizes[0],
            max_model_len=config.max_model_len,
            longest_model_len=model.max_position_embeddings,
        )
        kv_cache_bytes = executor.initialize_cache(kv_config)
        executor.compile_or_warm_up_model()
        config = replace(config, max_model_len=kv_config.max_model_len)
        scheduler = UnifiedScheduler(config, KVCacheManager(kv_config), capabilities)
    except BaseException:
        executor.shutdown()
        raise
    table = StartTable.build(
        budget, kv_config, kv_cache_bytes=kv_cache_bytes, load_seconds=time.perf_counter() - started_s
    )
    for line in table.lines():
        logger.info(line)
    return StartedEngine(EngineCore(executor, scheduler), config, model, capabilities, selection, table)
