"""Start an engine: choose the backend and settle the configuration; then load, size the cache, warm up."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from core_engine._log import show_log
from core_engine.backends.selection import Selection, select_backend
from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.core import EngineCore
from core_engine.engine.feature_table import FeatureTable
from core_engine.engine.prepare import SettledEngine, settle_engine
from core_engine.engine.settle import longest_sequence, longest_sequence_rows, settle_config
from core_engine.errors import CoreEngineError
from core_engine.executor.start import create_executor
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.plan import plan_kv_cache
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
from core_engine.kv_cache.start_table import StartTable
from core_engine.plugin import Capabilities
from core_engine.scheduler.check import StepChecker
from core_engine.scheduler.plugins import load_scheduler
from core_engine.worker.context import WorkerContext

__all__ = [
    "PreparedEngine",
    "StartedEngine",
    "prepare_engine",
    "prepare_selected",
    "size_pool",
    "start_engine",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """Everything that is known before a device is opened or a weight is read."""

    settled: SettledEngine
    selection: Selection
    #: One per worker, rank 0 first.
    contexts: tuple[WorkerContext, ...]

    @property
    def config(self) -> EngineConfig:
        """What was asked for without open fields, ``max_model_len`` excepted."""
        return self.settled.config

    @property
    def model(self) -> ModelConfig:
        """The model's facts."""
        return self.settled.model

    @property
    def context(self) -> WorkerContext:
        """What rank 0 is built from."""
        return self.contexts[0]


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine core that is ready for requests, and how it came to be."""

    core: EngineCore
    config: EngineConfig
    model: ModelConfig
    capabilities: Capabilities
    selection: Selection
    features: FeatureTable
    table: StartTable


def prepare_engine(config: EngineConfig) -> PreparedEngine:
    """Choose the backend, read the model's facts and settle the configuration.

    Raises `PluginError` when no backend can be chosen, `ModelError` for the model's files and
    `ConfigError` for settings that cannot work.
    """
    show_log()
    return prepare_selected(config, select_backend(config.backend))


def prepare_selected(config: EngineConfig, selection: Selection, *, weights: bool = True) -> PreparedEngine:
    """Prepare an engine on a backend that is already chosen; see `prepare_engine`.

    With ``weights=False`` the model's weights may be missing.
    """
    selection.log()
    backend, devices = selection.backend, selection.detection.devices
    settled = settle_engine(config, selection, weights=weights)
    plans = backend.plan_workers(settled.config, devices)
    if len(plans) > 1:
        settled = settled.over_processes(len(plans))
    for line in settled.features.lines():
        logger.info(line)
    by_index = {device.index: device for device in devices}
    contexts = tuple(
        WorkerContext(
            config=settled.config,
            model=settled.model,
            capabilities=settled.capabilities,
            plan=plan,
            devices=tuple(by_index[index] for index in plan.device_indices),
            options=backend.parse_options(config.backend_options),
            world_size=len(plans),
        )
        for plan in plans
    )
    return PreparedEngine(settled, selection, contexts)


def start_engine(prepared: PreparedEngine) -> StartedEngine:
    """Open the device, load the model, size the cache and warm up; docs/explanation/one-request.md tells how.

    Raises `ModelError` for damaged weights, `DoesNotFit` and `OutOfDeviceMemory` for too little memory,
    `PluginError` when the backend fails. What was opened is closed again then.
    """
    started_s = time.perf_counter()
    config, model, backend = prepared.config, prepared.model, prepared.selection.backend
    features = prepared.settled.features
    executor = create_executor(backend, prepared.contexts)
    try:
        capabilities = executor.init_device().capabilities
        if capabilities != prepared.context.capabilities:
            config, features = _narrow(prepared, capabilities)
        loaded = executor.load_model()
        specs = executor.get_kv_cache_spec()
        budget = executor.determine_available_memory()
        kv_config = size_pool(config, model, capabilities, specs, budget.kv_cache_bytes)
        kv_cache_bytes = executor.initialize_cache(kv_config)
        capture = executor.compile_or_warm_up_model()
        config = replace(config, max_model_len=kv_config.max_model_len)
        assert config.scheduler is not None  # settled
        scheduler = load_scheduler(config.scheduler)(config, KVCacheManager(kv_config), capabilities)
    except BaseException:
        try:
            executor.shutdown()
        except CoreEngineError as error:  # the first failure is the one to tell
            logger.warning("the worker did not shut down: %s", error)
        raise
    table = StartTable.build(
        budget,
        kv_config,
        capture,
        kv_cache_bytes=kv_cache_bytes,
        load_seconds=time.perf_counter() - started_s,
        num_devices=config.tensor_parallel_size,
        divided_share=loaded.divided_share,
    )
    for line in table.lines():
        logger.info(line)
    checker = StepChecker(
        kv_config, max_num_batched_tokens=config.max_num_batched_tokens, max_num_seqs=config.max_num_seqs
    )
    core = EngineCore(executor, scheduler, checker)
    return StartedEngine(core, config, model, capabilities, prepared.selection, features, table)


def size_pool(
    config: EngineConfig,
    model: ModelConfig,
    capabilities: Capabilities,
    specs: Mapping[str, KVCacheSpec | str],
    kv_cache_bytes: int,
) -> KVCacheConfig:
    """Return the KV-cache pool of a settled ``config`` in ``kv_cache_bytes``. Raises `DoesNotFit`."""
    return plan_kv_cache(
        specs,
        available_bytes=kv_cache_bytes,
        block_size=config.block_size or capabilities.block_sizes[0],
        max_model_len=config.max_model_len,
        longest_model_len=longest_sequence(config, model, capabilities),
        max_step_tokens=config.max_num_batched_tokens,
    )


def _narrow(prepared: PreparedEngine, capabilities: Capabilities) -> tuple[EngineConfig, FeatureTable]:
    """Settle what the user left open once more: the device offers less than its driver promised."""
    backend, settled = prepared.selection.backend, prepared.settled
    narrowed, features = settle_config(settled.asked, settled.model, capabilities, backend.name)
    config = replace(
        settled.config,
        scheduler=narrowed.scheduler,
        enable_prefix_caching=narrowed.enable_prefix_caching,
        enable_chunked_prefill=narrowed.enable_chunked_prefill,
        max_num_seqs=min(settled.config.max_num_seqs, narrowed.max_num_seqs),
    )
    # The worker was built with its data type and its largest step; those stay.
    features = features.without("dtype", "max_num_batched_tokens")
    features = features.replaced(*longest_sequence_rows(config, settled.model, capabilities))
    news = features.news_since(settled.features)
    for line in news.lines():
        logger.info(line)
    return config, settled.features.replaced(*news.rows)
