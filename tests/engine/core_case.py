"""An engine core over a fake runner, whose executor fails where a test says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from scheduler.harness import ALL, MODEL, kv_config

from core_engine.config import EngineConfig
from core_engine.engine.core import EngineCore
from core_engine.engine.messages import CoreOutput, CoreRequest
from core_engine.errors import CoreEngineError
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.scheduler.check import StepChecker
from core_engine.scheduler.contract import Scheduler
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.testing.fake_model import FakeModel
from core_engine.testing.fake_runner import FakeRunner
from core_engine.worker.output import StepHandle


class FakeExecutor:
    """What a core needs of an executor, around a fake runner.

    Raises ``fail_with`` once, on the first step that ``fails_on`` names, before the runner has heard of
    it or when it has computed it.
    """

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        self.fail_with: BaseException | None = None
        self.fails_on: Callable[[SchedulerOutput], bool] = lambda step: True
        self.fails_before_the_runner = False
        self.num_shutdowns = 0
        #: What a test says has ended the workers.
        self.failure: CoreEngineError | None = None

    def execute_model(self, scheduler_output: SchedulerOutput) -> StepHandle:
        error = self.fail_with if self.fails_on(scheduler_output) else None
        if error is not None:
            self.fail_with = None
        if error is not None and self.fails_before_the_runner:
            raise error
        handle = self.runner.execute_model(scheduler_output)
        if error is not None:
            raise error
        return handle

    def shutdown(self) -> bool:
        self.num_shutdowns += 1
        return self.num_shutdowns == 1


class Core:
    """A core whose outputs are collected by request."""

    def __init__(
        self,
        kv: KVCacheConfig | None = None,
        scheduler: Callable[..., Scheduler] = UnifiedScheduler,
        *,
        model: FakeModel = MODEL,
        **settings: Any,
    ) -> None:
        self.kv_config = kv or kv_config()
        limits = {"max_num_batched_tokens": 32, "max_num_seqs": 8}
        config = EngineConfig(model="fake", **{**limits, **settings})
        limits = {name: getattr(config, name) for name in limits}
        self.runner = FakeRunner(self.kv_config, model, **limits)
        self.executor: Any = FakeExecutor(self.runner)
        self.kv = KVCacheManager(self.kv_config)
        self.scheduler: Any = scheduler(config, self.kv, ALL)
        self.core = EngineCore(self.executor, self.scheduler, StepChecker(self.kv_config, **limits))
        self.outputs: dict[str, list[CoreOutput]] = defaultdict(list)

    def add(self, *requests: CoreRequest) -> None:
        for request in requests:
            self.core.add(request)

    def step(self) -> None:
        """Compute one step; what a failed one ends is collected too."""
        try:
            self.collect(self.core.step())
        finally:
            self.collect(self.core.take_failed())

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def collect(self, outputs: list[CoreOutput]) -> None:
        for output in outputs:
            self.outputs[output.request_id].append(output)

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in output.new_token_ids]

    def ends(self, name: str) -> list[str]:
        """All finish reasons that were reported for ``name``."""
        return [o.finish_reason for o in self.outputs[name] if o.finish_reason is not None]

    def message(self, name: str) -> str:
        return str(self.outputs[name][-1].message)

    def assert_clean(self) -> None:
        """Every block is free, and the runner has forgotten every request."""
        assert self.kv.pool.num_free == self.kv.pool.num_usable
        assert not self.runner.request_ids
