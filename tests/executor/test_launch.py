from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core_engine.executor.launch import import_path

#: Ends with 0 if a message arrives through descriptors that a child's streams cannot take.
CLOSED_STREAMS = """
import os
from core_engine.executor.launch import connect
for descriptor in range(3):
    os.close(descriptor)
ours, theirs = connect()
ours.send(b"hello")
arrived = theirs.recv(9)
ours.close()
os._exit(0 if min(theirs.fileno(), 3) == 3 and arrived == b"hello" and theirs.recv(9) == b"" else 1)
"""


def test_the_connection_is_apart_from_standard_streams_that_are_closed() -> None:
    assert subprocess.run([sys.executable, "-c", CLOSED_STREAMS]).returncode == 0


def test_the_import_path_holds_what_imports_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    odd: list[Any] = ["/one", Path("/no/text"), "/with:separator", "", "two", None]
    monkeypatch.setattr(sys, "path", odd)
    monkeypatch.chdir(tmp_path)
    assert import_path().split(os.pathsep) == ["/one", str(tmp_path), "two"]


def test_a_current_directory_that_is_gone_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", "/one"])
    assert import_path() == "/one"
