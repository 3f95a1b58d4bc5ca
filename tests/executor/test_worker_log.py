from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from core_engine.executor.worker_log import WorkerLog

PLACE = "rank 0 of 2"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def copied(pipe: tuple[int, int], capfd: pytest.CaptureFixture[str], text: bytes, place: str = "") -> str:
    reading, writing = pipe
    log = WorkerLog(reading, place)
    os.write(writing, text)
    os.close(writing)
    assert log.wait(60)
    captured = capfd.readouterr()
    assert captured.out == ""
    return captured.err


def test_lines_are_copied_as_they_are(pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]) -> None:
    assert copied(pipe, capfd, b"one\n\ntwo\r\nthe last") == "one\n\ntwo\r\nthe last"


def test_the_place_stands_before_each_line(pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]) -> None:
    assert copied(pipe, capfd, b"one\n\ntwo\n", PLACE) == "[rank 0 of 2] one\n\n[rank 0 of 2] two\n"


def test_a_bars_states_follow_each_other_and_are_wiped_out_whole(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    text = copied(pipe, capfd, b"\r 50%\r100%\r    \rdone\n", PLACE)
    wide = " " * len(f"[{PLACE}] ")
    assert text == f"\r[{PLACE}]  50%\r[{PLACE}] 100%\r{wide}    \r[{PLACE}] done\n"


def test_a_state_is_shown_while_the_worker_goes_on(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = pipe
    log = WorkerLog(reading, "")
    os.write(writing, b" 50%\r")
    seen = ""
    while not seen:
        seen = capfd.readouterr().err
    assert seen == " 50%\r"
    os.close(writing)
    assert log.wait(60)


def test_the_last_lines_are_kept_without_bars(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = pipe
    log = WorkerLog(reading, PLACE)
    os.write(writing, b"".join(b"line %d\n" % number for number in range(30)) + b" 50%\rfault: \xff")
    os.close(writing)
    assert log.wait(60)
    capfd.readouterr()
    lines = log.last_lines()
    assert len(lines) == 20
    assert lines[0] == "line 11"
    assert lines[-1] == "fault: \N{REPLACEMENT CHARACTER}"


def test_a_stderr_that_takes_nothing_does_not_hold_up_the_worker(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, data: bytes) -> int:
        raise BlockingIOError

    reading, writing = pipe
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    monkeypatch.setattr(os, "write", refuse)
    log = WorkerLog(reading, PLACE)
    assert log.wait(60)
    assert log.last_lines() == ("one", "two")


def test_nothing_is_written_where_stderr_never_was(
    pipe: tuple[int, int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)
    assert copied(pipe, capfd, b"one\n") == ""
