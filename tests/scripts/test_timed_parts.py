"""Parts of a check end at their deadline, and what they told until then is kept."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from timed_parts import TimedParts


def run(parts: TimedParts, source: str, seconds: float = 60.0) -> dict[str, Any]:
    command = [sys.executable, "-c", source]
    return parts.run("part", command, seconds=seconds, environment=os.environ, directory=".")


def test_lines_of_json_are_results_and_others_are_not() -> None:
    parts = TimedParts(60)
    part = run(parts, "print('{\"a\": 1}'); print('text'); print('[2]')")
    assert part["results"] == [{"a": 1}]
    assert part["error"] is None
    assert parts.passed


def test_a_failure_is_an_entry_with_the_last_words() -> None:
    parts = TimedParts(60)
    part = run(parts, "print('{\"a\": 1}', flush=True); raise SystemExit('it broke')")
    assert part["results"] == [{"a": 1}]
    assert part["error"] == "exit code 1: it broke"
    assert not parts.passed


def test_an_error_that_is_told_as_json_wins_over_the_exit_code() -> None:
    part = run(TimedParts(60), 'print(\'{"error": "no GPU"}\'); raise SystemExit(1)')
    assert part["error"] == "no GPU"


def test_at_its_deadline_a_part_ends_with_all_that_it_started(tmp_path: Path) -> None:
    child = tmp_path / "child"
    source = (
        "import subprocess, sys, time\n"
        f"process = subprocess.Popen(['sleep', '1000'])\nopen({str(child)!r}, 'w').write(str(process.pid))\n"
        "print('{\"a\": 1}', flush=True)\ntime.sleep(1000)\n"
    )
    part = run(TimedParts(3), source)
    assert part["results"] == [{"a": 1}]
    assert part["error"] == "it was ended after 3 s"
    assert _is_gone(int(child.read_text()))


def test_without_time_nothing_is_started() -> None:
    parts = TimedParts(0)
    assert run(parts, "raise SystemExit(1)")["error"] == "no time was left"


def test_no_part_is_no_success() -> None:
    assert not TimedParts(1).passed


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            # A zombie that nobody has waited for yet is gone too.
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
