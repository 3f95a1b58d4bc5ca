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
from core_engine.scheduler.check import StepChecker
from core_engine.scheduler.contract import Scheduler
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.worker.output import ModelRunnerOutput

__all__ = ["SchedulerTimes", "SteadyDecode", "measure_scheduler"]

_BLOCK_SIZE = 16
_PROMPT_TOKENS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerTimes:
    """Microseconds per step for each number of running requests, and the line through them."""

    #: ``schedule`` and ``update``.
    step_us: dict[int, float]
    #: Step time ≈ ``base_us + per_request_us * requests`` (least squares).
    base_us: float
    per_request_us: float
    #: The engine's check of each step, which comes on top.
    check_us: dict[int, float]


class SteadyDecode:
    """A scheduler with ``num_running`` requests that decode, for ``num_windows`` windows of steps.

    A window is as many steps as a block has tokens, so each holds the same number of block allocations and
    hashes. Prefix caching is on; a scheduler that offers chunked prefill has it on.
    """

    def __init__(
        self, num_running: int, num_windows: int, scheduler: type[Scheduler] = UnifiedScheduler
    ) -> None:
        num_tokens = _PROMPT_TOKENS + (num_windows + 4) * _BLOCK_SIZE
        kv = _kv_config(num_running, num_tokens)
        config = EngineConfig(
            model="none",
            max_num_seqs=num_running,
            max_num_batched_tokens=max(_PROMPT_TOKENS * num_running, kv.max_model_len),
        )
        capabilities = Capabilities(chunked_prefill=True, mixed_batches=True, prefix_caching=True)
        self.scheduler = scheduler(config, KVCacheManager(kv), capabilities)
        self.checker = StepChecker(
            kv, max_num_batched_tokens=config.max_num_batched_tokens, max_num_seqs=num_running
        )
        rng = np.random.default_rng(0)
        for index in range(num_running):
            self.scheduler.add(
                CoreRequest(
                    request_id=f"request-{index}",
                    prompt_token_ids=rng.integers(0, 32000, _PROMPT_TOKENS, dtype=np.int32),
                    params=SamplingParams(),
                    max_tokens=num_tokens,
                    seed=index,
                    eos_token_ids=(2,),
                )
            )
        # Fill the batch and settle.
        while self.scheduler.stats().num_waiting:
            self.step()
        for _ in range(_BLOCK_SIZE):
            self.step()

    def step(self) -> tuple[float, float]:
        """Make one step; returns the seconds of schedule and update, and those of the check."""
        started = perf_counter()
        step = self.scheduler.schedule()
        scheduled = perf_counter()
        assert step is not None  # the requests end only after the last window
        self.checker.check(step)
        checked = perf_counter()
        output = _answer(step)
        answered = perf_counter()
        self.scheduler.update(step, output)
        return scheduled - started + perf_counter() - answered, checked - scheduled

    def window(self) -> list[tuple[float, float]]:
        """Make the steps of one window; what each took."""
        return [self.step() for _ in range(_BLOCK_SIZE)]


def measure_scheduler(
    num_running: Sequence[int] = (1, 64, 256, 512),
    num_windows: int = 24,
    scheduler: type[Scheduler] = UnifiedScheduler,
) -> SchedulerTimes:
    """Measure decode steps of ``num_running`` requests each.

    For each place in a window the fastest of ``num_windows`` counts, as other processes only make it
    slower; the mean over the places is reported.
    """
    step_us, check_us = {}, {}
    for count in num_running:
        load = SteadyDecode(count, num_windows, scheduler)
        seconds = np.array([load.window() for _ in range(num_windows)])
        step_us[count], check_us[count] = (seconds.min(axis=0).mean(axis=0) * 1e6).tolist()
    per_request_us, base_us = (
        np.polyfit(list(step_us), list(step_us.values()), 1) if len(step_us) > 1 else (0, 0)
    )
    return SchedulerTimes(
        step_us=step_us, base_us=float(base_us), per_request_us=float(per_request_us), check_us=check_us
    )


def _kv_config(num_running: int, num_tokens: int) -> KVCacheConfig:
    spec = KVCacheSpec(num_kv_heads=1, head_dim=1, head_dim_v=1, dtype="float32", page_bytes=1)
    return KVCacheConfig(
        num_blocks=num_running * (num_tokens // _BLOCK_SIZE + 2) + 1,
        block_size=_BLOCK_SIZE,
        max_model_len=num_tokens + _BLOCK_SIZE,
        groups=(KVCacheGroup(layers={"layer": spec}, shared={}),),
    )


def _answer(step: SchedulerOutput) -> ModelRunnerOutput:
    count = len(step.request_ids)
    tokens = Ragged(np.full(count, 5, dtype=np.int32), np.arange(count + 1, dtype=np.int32))
    return ModelRunnerOutput(step_id=step.step_id, request_ids=step.request_ids, sampled_token_ids=tokens)
