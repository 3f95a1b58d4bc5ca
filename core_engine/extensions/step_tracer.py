"""StepTracer: the extension ``step-tracer``, which draws every worker and runner call on a time line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core_engine.hookspecs import ModelRunnerApi, WorkerApi
from core_engine.plugin._markers import runner_hookimpl, worker_hookimpl
from core_engine.worker.hook_manager import hook_names

if TYPE_CHECKING:
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.context import WorkerContext
    from core_engine.worker.output import StepHandle

__all__ = ["DEFAULT_TRACE_FILE", "TRACE_FILE_VARIABLE", "StepTracer"]

CORE_ENGINE_API = "0.1"

TRACE_FILE_VARIABLE = "CORE_ENGINE_TRACE_FILE"
#: In the current directory, unless ``CORE_ENGINE_TRACE_FILE`` says otherwise; an older file is replaced.
DEFAULT_TRACE_FILE = "core-engine-trace.json"

_END = b"\n]\n"


class StepTracer:
    """Writes a trace for https://ui.perfetto.dev or chrome://tracing (JSON array format).

    Each call is a pair of duration events named after the hook, category "worker" or "runner";
    steps carry their id, tokens and requests. A call of an asynchronous backend ends when it returns
    its handle. With several workers the rank is added to the file's name. The file is complete JSON
    after every event, so a process that dies leaves a readable trace whose last open event is the
    call that it died in.
    """

    def __init__(self, context: WorkerContext) -> None:
        path = os.environ.get(TRACE_FILE_VARIABLE) or DEFAULT_TRACE_FILE
        if context.world_size > 1:
            stem, suffix = os.path.splitext(path)
            path = f"{stem}.rank{context.plan.rank}{suffix}"
        self._lock = threading.Lock()
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        #: Where the closing bracket stands, which the next event overwrites.
        self._end = os.write(self._file, b"[")
        name = f"core-engine {context.config.backend or ''} rank {context.plan.rank}"
        self._write({"name": "process_name", "ph": "M", "args": {"name": name}})

    @worker_hookimpl(wrapper=True, specname="execute_model")
    def worker_execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> Generator[None, StepHandle, StepHandle]:
        """Trace a step of the worker."""
        with self._span("worker", "execute_model", _step_arguments(scheduler_output)):
            return (yield)

    @runner_hookimpl(wrapper=True, specname="execute_model")
    def runner_execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> Generator[None, StepHandle, StepHandle]:
        """Trace a step of the model runner."""
        with self._span("runner", "execute_model", _step_arguments(scheduler_output)):
            return (yield)

    @worker_hookimpl(wrapper=True, specname="shutdown")
    def worker_shutdown(self) -> Generator[None, bool, bool]:
        """Trace the end, then close the file."""
        try:
            with self._span("worker", "shutdown", {}):
                return (yield)
        finally:
            with self._lock:
                if self._file is not None:
                    os.close(self._file)
                self._file = None

    @contextmanager
    def _span(self, role: str, name: str, arguments: dict[str, Any]) -> Iterator[None]:
        self._write({"name": name, "cat": role, "ph": "B", "args": arguments})
        error: str | None = None
        try:
            yield
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            self._write({"name": name, "cat": role, "ph": "E", "args": {"error": error} if error else {}})

    def _write(self, event: dict[str, Any]) -> None:
        event |= {"ts": time.monotonic_ns() / 1000, "pid": os.getpid(), "tid": threading.get_native_id()}
        with self._lock:
            if self._file is None:
                return
            separator = b"\n" if self._end == 1 else b",\n"
            entry = separator + json.dumps(event).encode()
            # One write of event and closing bracket: there is no moment at which the file is broken.
            os.pwrite(self._file, entry + _END, self._end)
            self._end += len(entry)


def _step_arguments(step: SchedulerOutput) -> dict[str, int]:
    return {
        "step_id": step.step_id,
        "num_tokens": step.total_num_tokens,
        "num_requests": len(step.request_ids),
    }


def _add_plain_wrappers() -> None:
    """Give `StepTracer` a wrapper for each hook that it does not treat by name."""

    def add(marker: Any, role: str, hook: str) -> None:
        def wrapper(self: StepTracer) -> Generator[None, Any, Any]:
            with self._span(role, hook, {}):
                return (yield)

        # pluggy tells methods from functions by their qualified name.
        wrapper.__name__ = f"{role}_{hook}"
        wrapper.__qualname__ = f"{StepTracer.__qualname__}.{wrapper.__name__}"
        setattr(StepTracer, wrapper.__name__, marker(wrapper=True, specname=hook)(wrapper))

    for hook in hook_names(WorkerApi):
        if hook not in ("execute_model", "shutdown"):
            add(worker_hookimpl, "worker", hook)
    for hook in hook_names(ModelRunnerApi):
        if hook != "execute_model":
            add(runner_hookimpl, "runner", hook)


_add_plain_wrappers()
