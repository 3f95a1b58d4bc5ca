from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def test_an_interrupt_from_the_terminal_ends_the_command_and_its_ranks(tiny_model: Path) -> None:
    """The terminal sends it to all processes of the foreground group at once."""
    command = [
        "generate",
        str(tiny_model),
        "--backend",
        "cpu",
        "--tensor-parallel-size",
        "2",
        "--prompt",
        "hello",
    ]
    running = subprocess.Popen(
        [sys.executable, "-m", "core_engine", *command, "--kv-cache-bytes", "4M", "--max-tokens", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.read(1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert len(children) == 2
    os.killpg(running.pid, signal.SIGINT)
    _, printed = running.communicate(timeout=120)
    assert running.returncode == 130, printed.decode()
    assert b"Traceback" not in printed
    assert not any(Path(f"/proc/{child}").exists() for child in children)
