from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from core_engine.errors import EngineError
from core_engine.executor.channel import Channel, ChannelClosed

Pair = tuple[Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with right:
        channel = Channel(left)
        yield channel, right
        channel.close()


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_a_frame_arrives_whole(size: int) -> None:
    left, right = socket.socketpair()
    sender, receiver = Channel(left), Channel(right)
    thread = threading.Thread(target=lambda: [sender.send(b"x" * size), sender.send(b"next")])
    thread.start()
    assert receiver.receive() == b"x" * size
    assert receiver.receive() == b"next"
    thread.join()
    sender.close()
    receiver.close()


def test_a_timeout_keeps_what_has_arrived(pair: Pair) -> None:
    channel, raw = pair
    raw.sendall(struct.pack("<I", 4) + b"ab")
    with pytest.raises(TimeoutError):
        channel.receive(timeout_s=0)
    raw.sendall(b"cd")
    assert channel.receive(timeout_s=5) == b"abcd"


def test_the_end_of_the_stream_is_told(pair: Pair) -> None:
    channel, raw = pair
    raw.sendall(struct.pack("<I", 4) + b"ab")
    raw.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    with pytest.raises(ChannelClosed):
        channel.send(b"x" * 1_000_000)


def test_garbage_is_a_clean_error(pair: Pair) -> None:
    channel, raw = pair
    raw.sendall(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(EngineError, match="the stream is damaged"):
        channel.receive()
