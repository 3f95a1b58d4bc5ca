"""WorkerGroup: the worker processes of one engine, which get every call together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress

from core_engine._text import error_line
from core_engine.errors import CoreEngineError, EngineClosed, EngineError, WorkerDied
from core_engine.executor.codec import Start
from core_engine.executor.worker_process import WorkerProcess

__all__ = ["GroupCall", "WorkerGroup"]

#: How long the other ranks may take to answer a call that one of them failed.
_OUT_OF_STEP_S = 10.0
#: How long the workers may take to release their devices before their processes are ended.
_SHUTDOWN_S = 30.0
#: How long a worker that has released its device may take to end.
_EXIT_S = 10.0


class GroupCall:
    """One call under way in all ranks."""

    def __init__(
        self, method: str, futures: list[Future[bytes]], end: Callable[[CoreEngineError], None]
    ) -> None:
        self._method = method
        self._futures = futures
        self._end = end
        self._failure: BaseException | None = None

    def results(self, timeout_s: float | None = None) -> list[bytes]:
        """Wait until every rank has answered and return the encoded results, rank 0 first.

        Raises `TimeoutError`, or the error of a rank as `WorkerGroup` says.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._futures) == 1:
            return [self._futures[0].result(timeout_s)]
        done, _ = wait(self._futures, timeout_s, FIRST_EXCEPTION)
        if any(future.exception() is not None for future in done):
            self._failure = self._settle()
            raise self._failure
        if len(done) < len(self._futures):
            raise TimeoutError
        return [future.result() for future in self._futures]

    def wait(self, timeout_s: float) -> None:
        """Wait until every rank has answered or failed, but no longer than ``timeout_s``."""
        wait(self._futures, timeout_s)

    def unanswered(self) -> list[int]:
        """Return the ranks that have not answered yet."""
        return [rank for rank, future in enumerate(self._futures) if not future.done()]

    def _settle(self) -> BaseException:
        """Give the other ranks the time to answer too, and return the error that tells what happened."""
        self.wait(_OUT_OF_STEP_S)
        waiting = self.unanswered()
        errors = {
            rank: error
            for rank, future in enumerate(self._futures)
            if rank not in waiting and (error := future.exception()) is not None
        }
        # Where a process ended, what the others say of it follows from that.
        deaths = [error for error in errors.values() if isinstance(error, WorkerDied)]
        if deaths:
            return deaths[0]
        rank, first = next(iter(errors.items()))
        if len(errors) < len(self._futures) or len({str(error) for error in errors.values()}) > 1:
            first.args = (f"rank {rank}: {first}", *first.args[1:])
        if waiting:
            names = ", ".join(map(str, waiting))
            self._end(
                WorkerDied(
                    f"the worker processes were ended, because rank {rank} failed in {self._method} while "
                    f"rank {names} waited for it: {type(first).__name__}: {error_line(first)}"
                )
            )
        return first


class WorkerGroup:
    """Starts one process per rank and keeps them together.

    * An error that a rank raises is raised as its own type; the message names the rank unless all ranks say
      the same. The group goes on if every rank has answered.
    * Ranks that do not answer soon after another has failed wait for it in a collective: the group has fallen
      out of step and is ended.
    * A process that ends by itself ends the others at once. Open calls raise `WorkerDied`.

    ``failure`` then says why nothing can be called any more. A process that is forked off has no workers:
    there all calls fail, and none of the methods touches its parent's. Any thread may call.
    """

    def __init__(self, starts: Sequence[tuple[Start, Mapping[str, str]]]) -> None:
        self._failure: CoreEngineError | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._call_lock = threading.Lock()
        self._closed = False
        self._workers: list[WorkerProcess] = []
        try:
            for rank, (start, environment) in enumerate(starts):
                place = f"rank {rank} of {len(starts)}" if len(starts) > 1 else ""
                self._workers.append(WorkerProcess(start, environment, place, self._end))
        except BaseException as error:
            reason = EngineError(f"not all worker processes could be started: {error_line(error)}")
            self._end(reason)
            self.close()
            if isinstance(error, OSError):
                raise reason from error
            raise
        if self._failure is not None:  # some were not there yet when the others were ended
            for worker in self._workers:
                worker.kill(self._failure)

    @property
    def failure(self) -> CoreEngineError | None:
        """Why nothing can be called any more; None as long as all workers live."""
        if self._is_forked_off:
            return EngineClosed(
                f"its workers belong to process {self._owner}, from which this one was forked off"
            )
        return self._failure

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids, rank 0 first."""
        return tuple(worker.pid for worker in self._workers)

    def call(self, method: str, argument: bytes = b"") -> GroupCall:
        """Send a call to every rank. Raises why it cannot be answered, `EngineClosed` after ``close``."""
        if self._is_forked_off and (failure := self.failure) is not None:
            raise failure
        with self._call_lock:  # the ranks get all calls in one order
            futures = [worker.call(method, argument) for worker in self._workers]
        return GroupCall(method, futures, self._end)

    def shutdown(self) -> None:
        """Let the workers release their devices, then end their processes; idempotent.

        Workers that have died or do not answer within 30 seconds are ended without being asked.
        """
        try:
            if not self._closed and self.failure is None:
                with suppress(Exception):  # whatever keeps them from an orderly end, the processes go
                    call = self.call("shutdown")
                    call.wait(_SHUTDOWN_S)
                    for rank in call.unanswered():
                        self._workers[rank].kill(EngineClosed("the worker process was shut down"))
        finally:
            self.close()

    def close(self) -> None:
        """End all processes, those that have answered every call in their own time; idempotent."""
        if self._is_forked_off:
            return
        with self._lock:
            self._closed = True
        for worker in self._workers:
            worker.disconnect()
        deadline = time.monotonic() + _EXIT_S
        for worker in self._workers:
            worker.close(max(deadline - time.monotonic(), 0))

    @property
    def _is_forked_off(self) -> bool:
        return os.getpid() != self._owner

    def _end(self, reason: CoreEngineError) -> None:
        """End all processes at once; the first ``reason`` stays."""
        with self._lock:
            if self._closed or self._failure is not None:
                return
            self._failure = reason
        for worker in self._workers:
            worker.kill(reason)
