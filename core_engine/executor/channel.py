"""Channel: whole messages over a stream socket."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from contextlib import suppress

from core_engine.errors import EngineError

__all__ = ["Channel", "ChannelClosed"]

_LENGTH = struct.Struct("<I")
#: No message comes near this; a longer announcement means that the stream is damaged.
_MAX_FRAME_BYTES = 1 << 30
_RECEIVE_BYTES = 1 << 16


class ChannelClosed(Exception):
    """The other side has closed the connection (or its process has ended)."""


class Channel:
    """Sends and receives frames: a little-endian uint32 length, then that many bytes.

    Any thread may send; one thread receives.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send one frame. Raises `ChannelClosed` when nobody reads, `EngineError` when it is too long."""
        if len(frame) > _MAX_FRAME_BYTES:
            raise EngineError(f"a message of {len(frame)} bytes is too long; the most is {_MAX_FRAME_BYTES}")
        with self._send_lock:
            try:
                self._connection.sendall(_LENGTH.pack(len(frame)) + frame)
            except OSError as error:
                raise ChannelClosed(str(error)) from None

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Wait for the next frame.

        Raises `ChannelClosed` at the end of the stream, `TimeoutError` after ``timeout_s`` (what has
        arrived is kept for the next call) and `EngineError` when the bytes are no frame.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._fill(_LENGTH.size, deadline)
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > _MAX_FRAME_BYTES:
            raise EngineError(f"a message of {length} bytes is announced: the stream is damaged")
        self._fill(_LENGTH.size + length, deadline)
        frame = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        return frame

    def close(self) -> None:
        """Close the connection; the other side sees the end of the stream."""
        # A plain close would not wake a thread that waits in receive.
        with suppress(OSError):  # the other side was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _fill(self, size: int, deadline: float | None) -> None:
        while len(self._buffer) < size:
            # Not the socket's own timeout: that would also cut short what another thread sends.
            if deadline is not None and not self._poller.poll(max(deadline - time.monotonic(), 0) * 1e3):
                raise TimeoutError
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("end of stream")
            self._buffer += data
