"""The program of a worker process: ``python -m core_engine.executor.worker FD [PYTHONPATH]``.

It reads a `Start` and then `Call` frames from the inherited socket ``FD``, answers each with a
`Reply`, and ends when the socket does. ``PYTHONPATH`` is the variable's value for programs that the
worker starts; its own is the parent's whole import path.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time

from core_engine.backends.reference import decode_ref, resolve_ref
from core_engine.errors import ContractError, EngineError
from core_engine.executor.channel import Channel, ChannelClosed
from core_engine.executor.codec import WORKER_CALLS, Call, Reply, Start, decode, encode
from core_engine.executor.remote_error import describe_error
from core_engine.executor.worker_host import WorkerHost

__all__ = ["main"]

#: How long a call in progress may go on after the parent has gone.
_GRACE_S = 5.0


class WorkerServer:
    """Answers calls with a `WorkerHost`, which is built at the first one so that its errors have a reader."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._host: WorkerHost | None = None

    def answer(self, call: Call) -> Reply:
        """Run one call; whatever it raises becomes the reply: no interrupt of a terminal comes here."""
        try:
            return Reply(call_id=call.call_id, result=encode(self._run(call)))
        except BaseException as error:
            return describe_error(call.call_id, error)

    def close(self) -> None:
        """Shut the worker down if there is one."""
        if self._host is not None:
            self._host.shutdown()

    def _run(self, call: Call) -> object:
        spec = WORKER_CALLS.get(call.method)
        if spec is None:
            raise EngineError(f"a worker process has no call {call.method!r}")
        if self._host is None:
            if call.method == "shutdown":
                return False
            # Exactly what the parent resolved: no selection, no detection.
            backend = resolve_ref(decode_ref(self._start.ref))
            self._host = WorkerHost(backend, self._start.worker_context(), self._start.extensions)
        method = getattr(self._host, call.method)
        result = method() if spec.argument is None else method(decode(call.argument, spec.argument_type))
        return result.result() if call.method == "execute_model" else result


def main(arguments: list[str]) -> int:
    """Serve the socket whose file descriptor is the first argument, until it is closed."""
    descriptor, *own_path = arguments
    os.environ.pop("PYTHONPATH", None)
    if own_path:
        os.environ["PYTHONPATH"] = own_path[0]
    connection = socket.socket(fileno=int(descriptor))
    # Neither a grandchild nor the terminal's interrupt may outlive or outrun the parent.
    connection.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(connection.fileno(),), daemon=True).start()
    channel = Channel(connection)
    try:
        server = WorkerServer(decode(channel.receive(), Start))
        while True:
            channel.send(encode(server.answer(decode(channel.receive(), Call))))
    except ChannelClosed:
        server.close()
        return 0
    except (ContractError, EngineError) as damage:
        print(f"core-engine worker: {damage}", file=sys.stderr)
        return 1


def _end_with_parent(descriptor: int) -> None:
    """Wait for the other end of the socket to close, then end the process whatever it is doing."""
    poller = select.poll()
    poller.register(descriptor, 0)
    poller.poll()
    time.sleep(_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
