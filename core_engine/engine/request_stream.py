"""RequestStream: one request's chunks as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from core_engine.engine.engine import LLMEngine
    from core_engine.engine.stream_chunk import StreamChunk

__all__ = ["RequestStream"]


class RequestStream(Iterator["StreamChunk"]):
    """Steps the engine until its request has something new.

    Other calls may step the engine between two chunks; what the request gains then is kept. The
    request ends when the stream is read to its end, closed, or dropped. A failed step raises here
    when this stream made it; made by another call, it ends this stream with "error".
    """

    def __init__(self, engine: LLMEngine, request_id: str) -> None:
        self._engine = engine
        self._request_id = request_id
        self._chunks: deque[StreamChunk] = deque()

    def __next__(self) -> StreamChunk:
        while not self._chunks:
            self._chunks.extend(self._engine.take_chunks(self._request_id))
            if self._chunks:
                break
            if not self._engine.is_open(self._request_id):
                self._engine.check_open()
                self.close()
                raise StopIteration
            self._engine.step()
        return self._chunks.popleft()

    def close(self) -> None:
        """Abort the request if it still runs; safe to call twice."""
        self._chunks.clear()
        self._engine.discard([self._request_id])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._engine.abandon(self._request_id)
