"""EngineCore: the loop of scheduler and executor; knows token ids, no text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreOutput, CoreRequest
    from core_engine.executor.base import Executor
    from core_engine.scheduler.contract import Scheduler

__all__ = ["EngineCore"]


class EngineCore:
    """Owns a started executor and a scheduler; one ``step`` computes one step of the model."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self._failed: list[CoreOutput] = []

    def add(self, request: CoreRequest) -> None:
        """Queue a request. Raises `InvalidRequest` when it can never run."""
        self.scheduler.add(request)

    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        """End requests from outside: "abort", or "stop" when the text side found a stop string."""
        return self.scheduler.finish(request_ids, reason)

    def has_work(self) -> bool:
        """Say whether ``step`` has anything to do."""
        return self.scheduler.has_work()

    def step(self) -> list[CoreOutput]:
        """Schedule, compute and account one step; returns what each of its requests gained.

        When the step fails its requests end with "error" (their cache is undefined), ``take_failed``
        tells of them, and the failure is raised; requests that wait are not touched, and the engine
        may go on.
        """
        step = self.scheduler.schedule()
        if step is None:
            return []
        try:
            output = self.executor.execute_model(step).result()
        except BaseException:
            self._failed += self.scheduler.finish(step.request_ids, "error")
            raise
        return self.scheduler.update(step, output)

    def take_failed(self) -> list[CoreOutput]:
        """Return the ends of requests that failed steps took with them, each once."""
        failed, self._failed = self._failed, []
        return failed

    def shutdown(self) -> None:
        """Release the workers; safe to call twice."""
        self.executor.shutdown()
