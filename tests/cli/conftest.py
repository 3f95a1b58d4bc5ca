from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core_engine.cli.main import main

SMALL = ("--backend", "cpu", "--kv-cache-bytes", "4M")

#: Flags that forbid every token of the tiny model, so that an answer ends with an error.
FORBID_ALL = ("--min-tokens", "4", *[text for i in range(264) for text in ("--stop-token-ids", str(i))])


class Shell:
    """Runs the command line in this process and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self._capsys = capsys
        self._caplog = caplog
        self.code = 0
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str) -> Shell:
        self._caplog.clear()
        self.code = main(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        return self

    @property
    def log(self) -> str:
        """What the engine logged (on stderr, were the test not listening)."""
        return self._caplog.text

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Shell:
    caplog.set_level("INFO", logger="core_engine")
    return Shell(capsys, caplog)


@pytest.fixture
def on_model(shell: Shell, tiny_model: Path) -> Callable[..., Shell]:
    """Run a command on the tiny model with small memory."""

    def run(command: str, *arguments: str) -> Shell:
        return shell(command, str(tiny_model), *SMALL, *arguments)

    return run
