"""The program of a worker process: ``python -m core_engine.executor.worker FD PARENT [PYTHONPATH]``.

It reads a `Start` and then `Call` frames from the inherited socket ``FD``, answers each with a `Reply`, and
ends when the socket does. ``PARENT`` is the parent's process id. ``PYTHONPATH`` is the variable's value for
programs that the worker starts; its own is the parent's whole import path. Whatever it does when the parent
ends, it ends soon after; see `ParentWatch`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from core_engine._log import show_log
from core_engine.backends.reference import decode_ref, resolve_ref
from core_engine.errors import ContractError, EngineError
from core_engine.executor.channel import Channel, ChannelClosed
from core_engine.executor.codec import WORKER_CALLS, Call, Reply, Start, decode, encode
from core_engine.executor.parent_watch import ParentWatch
from core_engine.executor.remote_error import describe_error
from core_engine.executor.worker_host import WorkerHost

__all__ = ["main"]


class WorkerServer:
    """Answers calls with a `WorkerHost`, which is built at the first one so that its errors have a reader."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._host: WorkerHost | None = None

    def answer(self, call: Call) -> Reply:
        """Run one call; whatever it raises becomes the reply: no interrupt of a terminal comes here."""
        try:
            return Reply(call_id=call.call_id, result=self._run(call))
        except BaseException as error:
            return describe_error(call.call_id, error)

    def close(self) -> None:
        """Shut the worker down if there is one."""
        if self._host is not None:
            self._host.shutdown()

    def _run(self, call: Call) -> bytes:
        spec = WORKER_CALLS.get(call.method)
        if spec is None:
            raise EngineError(f"a worker process has no call {call.method!r}")
        if self._host is None:
            if call.method == "shutdown":
                return encode(False)
            # Exactly what the parent resolved: no selection, no detection.
            backend = resolve_ref(decode_ref(self._start.ref))
            self._host = WorkerHost(backend, self._start.worker_context(), self._start.extensions)
        method = getattr(self._host, call.method)
        result = method() if spec.argument is None else method(decode(call.argument, spec.argument_type))
        if call.method == "execute_model":
            result = result.result()
        return encode(result) if spec.of_every_rank or self._start.rank == 0 else b""


def main(arguments: list[str]) -> int:
    """Serve the socket whose file descriptor is the first argument, until it is closed."""
    descriptor, parent, *own_path = arguments
    os.environ.pop("PYTHONPATH", None)
    if own_path:
        os.environ["PYTHONPATH"] = own_path[0]
    connection = socket.socket(fileno=int(descriptor))
    # Neither a grandchild nor the terminal's interrupt may outlive or outrun the parent.
    connection.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = ParentWatch(connection.fileno(), int(parent))
    channel = Channel(connection)
    server = None
    try:
        start = decode(channel.receive(), Start)
        watch.rendezvous = start.rendezvous
        if start.rank == 0:
            show_log()  # the others' lines would be the same; their warnings are shown without it
        server = WorkerServer(start)
        while True:
            channel.send(encode(server.answer(decode(channel.receive(), Call))))
    except ChannelClosed:
        if server is not None:
            server.close()
        watch.leave()
        return 0
    except (ContractError, EngineError) as damage:
        print(f"core-engine worker: {damage}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
