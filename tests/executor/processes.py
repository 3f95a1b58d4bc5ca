"""Whether processes still run."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["is_running", "wait_until_gone"]


def is_running(pid: int) -> bool:
    """Say whether a process exists and has not ended (a zombie has)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not waited for here."""
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)
