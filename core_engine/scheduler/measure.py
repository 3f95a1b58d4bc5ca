"""How long the scheduler itself takes: schedule and update around a runner that does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from core_engine._ragged import Ragged
from core_engine.config import EngineConfig
from core_engine.engine.messages import CoreRequest
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.worker.output import ModelRunnerOutput

__all__ = ["SchedulerTimes", "measure_scheduler"]

_BLOCK_SIZE = 16
_PROMPT_TOKENS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerTimes:
    """Microseconds per step for each number of running requests, and the line through them."""

    step_us: dict[int, float]
    #: Step time ≈ ``base_us + per_request_us * requests`` (least squares).
    base_us: float
    per_request_us: float


def measure_scheduler(
    num_running: Sequence[int] = (1, 64, 256, 512), num_windows: int = 24
) -> SchedulerTimes:
    """Measure decode steps of ``num_running`` requests each, prefix caching and all checks of update on.

    A window is as many steps as a block has tokens, so each holds the same number of block
    allocations and hashes; the median over ``num_windows`` of them is reported.
    """
    step_us = {count: _measure(count, num_windows) for count in num_running}
    per_request_us, base_us = (
        np.polyfit(list(step_us), list(step_us.values()), 1) if len(step_us) > 1 else (0, 0)
    )
    return SchedulerTimes(step_us=step_us, base_us=float(base_us), per_request_us=float(per_request_us))


def _measure(num_running: int, num_windows: int) -> float:
    # Windows to fill the batch and to settle come first.
    num_tokens = _PROMPT_TOKENS + (num_windows + 4) * _BLOCK_SIZE
    scheduler = _scheduler(num_running, num_tokens)
    rng = np.random.default_rng(0)
    for index in range(num_running):
        scheduler.add(
            CoreRequest(
                request_id=f"request-{index}",
                prompt_token_ids=rng.integers(0, 32000, _PROMPT_TOKENS, dtype=np.int32),
                params=SamplingParams(),
                max_tokens=num_tokens,
                seed=index,
                eos_token_ids=(2,),
            )
        )
    seconds = np.empty((num_windows + 2, _BLOCK_SIZE))
    for position in np.ndindex(seconds.shape):
        started = perf_counter()
        step = scheduler.schedule()
        scheduled = perf_counter()
        assert step is not None  # the requests end only after the last window
        output = _answer(step)
        answered = perf_counter()
        scheduler.update(step, output)
        seconds[position] = scheduled - started + perf_counter() - answered
    return float(seconds[2:].min(axis=0).mean()) * 1e6


def _scheduler(num_running: int, num_tokens: int) -> UnifiedScheduler:
    spec = KVCacheSpec(num_kv_heads=1, head_dim=1, head_dim_v=1, dtype="float32", page_bytes=1)
    kv = KVCacheConfig(
        num_blocks=num_running * (num_tokens // _BLOCK_SIZE + 2) + 1,
        block_size=_BLOCK_SIZE,
        max_model_len=num_tokens + _BLOCK_SIZE,
        groups=(KVCacheGroup(layers={"layer": spec}, shared={}),),
    )
    config = EngineConfig(
        model="none", max_num_seqs=num_running, max_num_batched_tokens=_PROMPT_TOKENS * num_running
    )
    capabilities = Capabilities(chunked_prefill=True, mixed_batches=True, prefix_caching=True)
    return UnifiedScheduler(config, KVCacheManager(kv), capabilities)


def _answer(step: SchedulerOutput) -> ModelRunnerOutput:
    count = len(step.request_ids)
    tokens = Ragged(np.full(count, 5, dtype=np.int32), np.arange(count + 1, dtype=np.int32))
    return ModelRunnerOutput(step_id=step.step_id, request_ids=step.request_ids, sampled_token_ids=tokens)
