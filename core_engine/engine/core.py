"""EngineCore: the loop of scheduler and executor; knows token ids, no text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from core_engine._text import error_line
from core_engine.engine.messages import CoreOutput
from core_engine.errors import ContractError, CoreEngineError, EngineClosed

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreRequest
    from core_engine.executor.base import Executor
    from core_engine.scheduler.check import StepChecker
    from core_engine.scheduler.contract import Scheduler
    from core_engine.scheduler.output import SchedulerOutput

__all__ = ["EngineCore"]

logger = logging.getLogger(__name__)

#: So many times in a row the scheduler may fail to build a step before the engine gives it up.
_MAX_SCHEDULER_FAULTS = 3


class EngineCore:
    """Owns a started executor and a scheduler; one ``step`` computes one step of the model.

    Every request that was added ends exactly once: by ``step``, ``finish``, ``take_failed`` or ``shutdown``.

    * A step that fails in the executor, or whose results cannot be taken, ends its own requests with
      "error"; requests that wait are not touched. The runner may not have heard of the step, so
      the next one tells again who ended and who was preempted.
    * Where nobody will ever compute again (`Executor.failure`), all requests end with "error", and the engine
      is closed: later calls raise the reason, as its own type.
    * A wrong step (see `StepChecker`) never reaches the executor. It ends all requests that it names.
    * A scheduler that raises, builds a wrong step, or has work but builds no step, three times in a row, is
      given up: all requests end with "error", and the engine is closed.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler, checker: StepChecker) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self._checker = checker
        #: The ids of requests that have not ended, in order.
        self._open: dict[str, None] = {}
        self._failed: list[CoreOutput] = []
        #: Ids that ended or were preempted in steps that failed, in order.
        self._untold_finished: tuple[str, ...] = ()
        self._untold_preempted: tuple[str, ...] = ()
        self._num_faults = 0
        #: Why nothing more is computed; None while the engine is open.
        self._closed: CoreEngineError | None = None

    def add(self, request: CoreRequest) -> None:
        """Queue a request.

        Raises `InvalidRequest` when it can never run, `ContractError` when the scheduler fails over it and
        `EngineClosed` or `WorkerDied` when nothing is computed any more; other requests are not touched.
        """
        self._look_at_executor()
        self._check_open()
        name = request.request_id
        try:
            self.scheduler.add(request)
        except CoreEngineError:
            raise
        except Exception as error:
            if name not in self._open:
                self._ask(self.scheduler.finish, [name], "error")
            raise ContractError(
                f"the scheduler failed over request {name!r}, which is refused: {_told(error)}"
            ) from error
        self._open[name] = None

    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        """End requests from outside: "abort", or "stop" when the text side found a stop string.

        They end also when the scheduler fails over it; what it may go on to compute for them is nobody's.
        """
        names = list(request_ids)
        try:
            outputs = self.scheduler.finish(names, reason)
            self._close_ended(outputs)
        except Exception:
            logger.exception("the scheduler failed to end requests")
            outputs = [
                CoreOutput(request_id=name, finish_reason=reason) for name in names if name in self._open
            ]
            self._close_ended(outputs)
        return outputs

    def has_work(self) -> bool:
        """Say whether ``step`` has anything to do."""
        return not self._closed and self.scheduler.has_work()

    def step(self) -> list[CoreOutput]:
        """Schedule, compute and account one step; returns what each of its requests gained.

        Raises what went wrong, after which ``take_failed`` tells which requests that ended, and the engine
        may go on; the reason when nothing is computed any more, as ``add`` does.
        """
        self._check_open()
        step = self._next_step()
        if step is None:
            return []
        try:
            output = self.executor.execute_model(self._with_untold(step)).result()
            outputs = self.scheduler.update(step, output)
            ended = [output for output in outputs if output.finish_reason is not None]
        except BaseException as error:
            self._untold_finished += step.finished_request_ids
            self._untold_preempted += step.preempted_request_ids
            self._failed += self._lose(step, step.request_ids, f"its step failed: {_told(error)}")
            self._look_at_executor()
            raise
        self._untold_finished = self._untold_preempted = ()
        self._close_ended(ended)
        return outputs

    def take_failed(self) -> list[CoreOutput]:
        """Return the ends of requests that failed steps took with them, each once."""
        failed, self._failed = self._failed, []
        return failed

    def shutdown(self) -> list[CoreOutput]:
        """End the open requests with "abort" and release the workers; a second call does nothing.

        Returns those ends. Works whatever has failed before.
        """
        self._closed = self._closed or EngineClosed("this engine was closed; build a new one")
        try:
            return self._end(list(self._open), "abort", None)
        finally:
            self.executor.shutdown()

    def _check_open(self) -> None:
        if self._closed is not None:
            # A new one each time: the traceback of one would grow with every call.
            raise type(self._closed)(str(self._closed))

    def _next_step(self) -> SchedulerOutput | None:
        """Let the scheduler build a step, and check it."""
        step = None
        try:
            step = self.scheduler.schedule()
            if step is not None:
                self._checker.check(step)
            elif self._open or self.scheduler.has_work():
                raise ContractError("the scheduler has work, but builds no step")
        except BaseException as error:
            self._take_fault(step, error)
            raise
        self._num_faults = 0
        return step

    def _take_fault(self, step: SchedulerOutput | None, error: BaseException) -> None:
        """End the requests that a wrong step names, and everything once the scheduler is given up.

        An interrupt may leave a step that was not checked and will not be computed, but is no fault.
        """
        self._num_faults += isinstance(error, Exception)
        if step is not None:
            named = _names(step)
            self._checker.excuse(named)
            self._untold_finished += named
            self._failed += self._lose(step, named, _told(error))
        if self._num_faults == _MAX_SCHEDULER_FAULTS:
            self._close(
                EngineClosed(
                    f"the scheduler failed {self._num_faults} times in a row and was given up; build a new "
                    f"engine with another scheduler. The last time: {_told(error)}"
                )
            )

    def _look_at_executor(self) -> None:
        """Close the engine if its workers are gone."""
        failure = self.executor.failure
        if failure is not None:
            self._close(type(failure)(f"this engine has ended, build a new one: {failure}"))

    def _close(self, reason: CoreEngineError) -> None:
        """End everything with ``reason``; the first one stays."""
        if self._closed is None:
            self._closed = reason
            self._failed += self._end(list(self._open), "error", _told(reason))

    def _with_untold(self, step: SchedulerOutput) -> SchedulerOutput:
        """Add what steps before told that failed, as the runner may not know it."""
        if not self._untold_finished and not self._untold_preempted:
            return step
        return replace(
            step,
            finished_request_ids=self._untold_finished + step.finished_request_ids,
            preempted_request_ids=self._untold_preempted + step.preempted_request_ids,
        )

    def _close_ended(self, ended: Iterable[CoreOutput]) -> None:
        for output in ended:
            self._open.pop(output.request_id, None)

    def _lose(self, step: SchedulerOutput, request_ids: Iterable[str], message: str) -> list[CoreOutput]:
        """Take back a step that was not computed; end its requests and those of ``request_ids``, if open."""
        # A wrong step may not name all of them.
        ended = self._ask(self.scheduler.abandon, step)
        return self._end(dict.fromkeys((*request_ids, *ended)), "error", message)

    def _end(self, request_ids: Iterable[str], reason: str, message: str | None) -> list[CoreOutput]:
        """End those of ``request_ids`` that are open, also when the scheduler does not help."""
        names = [name for name in request_ids if name in self._open]
        self._ask(self.scheduler.finish, names, reason)
        for name in names:
            del self._open[name]
        return [CoreOutput(request_id=name, finish_reason=reason, message=message) for name in names]

    def _ask(self, call: Callable[..., list[CoreOutput]], *arguments: object) -> list[str]:
        """Let the scheduler end requests and return their ids; the engine does not depend on it."""
        try:
            return [output.request_id for output in call(*arguments)]
        except Exception:
            logger.exception("the scheduler failed to end requests")
            return []


def _names(step: SchedulerOutput) -> tuple[str, ...]:
    """Return all requests that a step names, each once; what cannot be read names none."""
    try:
        new = [request.request_id for request in step.new_requests]
        listed = (*step.request_ids, *new, *step.resumed_request_ids, *step.preempted_request_ids)
        return tuple(dict.fromkeys((*listed, *step.finished_request_ids)))
    except (AttributeError, TypeError):
        return ()


def _told(error: BaseException) -> str:
    line = error_line(error)
    return line if isinstance(error, CoreEngineError) else f"{type(error).__name__}: {line}"
