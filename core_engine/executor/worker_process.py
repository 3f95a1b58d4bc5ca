"""WorkerProcess: one worker in a process of its own, as its parent holds it."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress

from core_engine.errors import CoreEngineError, EngineClosed, EngineError, WorkerDied
from core_engine.executor.channel import Channel, ChannelClosed
from core_engine.executor.codec import Call, Reply, Start, decode, encode
from core_engine.executor.launch import connect, import_path
from core_engine.executor.remote_error import rebuild_error
from core_engine.executor.worker_log import WorkerLog

__all__ = ["WorkerProcess"]

#: How often the parent looks whether the process lives, should a grandchild hold the socket open.
_LIVENESS_S = 1.0
#: How long a worker may take to end once its socket is closed.
_EXIT_S = 10.0


class WorkerProcess:
    """Starts ``python -m core_engine.executor.worker`` and exchanges messages with it.

    The process is a fresh interpreter: it runs no line of the caller's script. What it prints, on
    stdout too, goes to this process's stderr. It ends by itself when this process does. It leads a process
    group, so that an interrupt from the terminal reaches this process alone and the programs that it starts
    end with it.

    ``place`` ("rank 1 of 2") stands in messages and before printed lines where there are several.
    ``on_end`` is told, by another thread, when the process ends without being asked, before open calls fail.
    """

    def __init__(
        self,
        start: Start,
        environment: Mapping[str, str],
        place: str = "",
        on_end: Callable[[CoreEngineError], None] = lambda reason: None,
    ) -> None:
        variables = {**os.environ, **environment}
        # The child must find the modules that this process finds; its own children get the old path.
        own_path = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = import_path()
        arguments = [str(os.getpid()), *([] if own_path is None else [own_path])]
        with ExitStack() as ours_if_failed:
            ours, theirs = map(ours_if_failed.enter_context, connect())
            self._process = subprocess.Popen(
                # -P: the current directory is on the path only if it is on ours.
                [sys.executable, "-P", "-m", "core_engine.executor.worker", str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=variables,
                process_group=0,
            )
            theirs.close()
            ours_if_failed.pop_all()
        self._place = place
        self._on_end = on_end
        #: Nobody is left in the group, whose number may come to belong to others.
        self._group_ended = False
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._next_call_id = 0
        self._pending: dict[int, Future[bytes]] = {}
        #: Why no call can be answered any more.
        self._end: CoreEngineError | None = None
        assert self._process.stdout is not None  # a pipe was asked for
        self._log = WorkerLog(self._process.stdout.fileno(), place)
        self._reply_thread = threading.Thread(target=self._read_replies, name="worker-replies", daemon=True)
        self._reply_thread.start()
        self._send(encode(start))

    def __str__(self) -> str:
        return f"worker process {self.pid}" + (f" ({self._place})" if self._place else "")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, method: str, argument: bytes = b"") -> Future[bytes]:
        """Send a call; the future holds the encoded result or raises the worker's error.

        Calls are answered in order. Raises `WorkerDied` or `EngineClosed` when nobody will answer.
        """
        future: Future[bytes] = Future()
        with self._lock:
            if self._end is not None:
                raise copy.copy(self._end)
            call_id, self._next_call_id = self._next_call_id, self._next_call_id + 1
            self._pending[call_id] = future
        self._send(encode(Call(call_id=call_id, method=method, argument=argument)))
        return future

    def kill(self, reason: CoreEngineError) -> None:
        """End the process and what it started at once; open and later calls raise ``reason``."""
        self._finish(reason)
        self._kill_group()

    def disconnect(self) -> None:
        """Close the connection: the process ends once it has answered what it is doing; idempotent."""
        self._finish(EngineClosed("the worker process was shut down"))
        self._channel.close()

    def close(self, exit_s: float = _EXIT_S) -> None:
        """Disconnect, and kill the process if it takes longer than ``exit_s`` to end; idempotent."""
        self.disconnect()
        try:
            self._reap(exit_s)
        except subprocess.TimeoutExpired:
            self._kill_group()
            self._reap(None)
        self._reply_thread.join(_EXIT_S)
        if self._log.wait(_EXIT_S) and self._process.stdout is not None:
            self._process.stdout.close()

    def _send(self, frame: bytes) -> None:
        with suppress(ChannelClosed):  # the reply thread sees the end as well and says why
            self._channel.send(frame)

    def _read_replies(self) -> None:
        while True:
            try:
                reply = decode(self._channel.receive(_LIVENESS_S), Reply)
            except TimeoutError:
                if self._process.poll() is None:
                    continue
                return self._fail(self._death())
            except ChannelClosed:
                return self._fail(self._death())
            except EngineError as damage:
                return self._fail(damage)
            with self._lock:
                future = self._pending.pop(reply.call_id, None)
            if future is None:
                return self._fail(EngineError(f"the worker answered call {reply.call_id}, which is not open"))
            if reply.error:
                future.set_exception(rebuild_error(reply, self._place))
            else:
                future.set_result(reply.result)

    def _fail(self, reason: CoreEngineError) -> None:
        """Take it that the process has ended or speaks no sense."""
        if self._end is None:
            self._on_end(reason)
        self._finish(reason)

    def _finish(self, reason: CoreEngineError) -> None:
        """Answer all open calls, and every later one, with ``reason``; the first reason stays."""
        with self._lock:
            if self._end is None:
                self._end = reason
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_exception(copy.copy(self._end))

    def _death(self) -> WorkerDied:
        try:
            code = self._reap(_EXIT_S)
        except subprocess.TimeoutExpired:
            return WorkerDied(f"{self} closed its connection but still runs")
        self._log.wait(_LIVENESS_S)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        last = "".join(f"\n  {line}" for line in self._log.last_lines()) or " nothing"
        return WorkerDied(f"{self} ended {how}; its last output was:{last}")

    def _reap(self, timeout_s: float | None) -> int:
        """Wait for the process, end the programs that it left behind, and return its exit code."""
        code = self._process.wait(timeout_s)
        self._kill_group()
        return code

    def _kill_group(self) -> None:
        """Kill the process, should it still run, and the programs that it started; once it has ended."""
        if self._group_ended:
            return
        self._group_ended = self._process.poll() is not None
        with suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(self.pid, signal.SIGKILL)
