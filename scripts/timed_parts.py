"""Run the parts of a check under one deadline; what a part told before it was ended is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import IO, Any

__all__ = ["TimedParts", "json_line"]

_LAST_LINES = 15
#: How long an ended part may take to disappear before it is left alone, as one that waits for a driver is.
_REAP_S = 5.0

Part = dict[str, Any]
Reader = Callable[[Part, str], None]


def json_line(part: Part, line: str) -> None:
    """Add a line of JSON to the part's results; an "error" in it is the part's own."""
    try:
        told = json.loads(line)
    except ValueError:
        return
    if isinstance(told, dict):
        part["results"].append(told)
        if "error" in told:
            part["error"] = told["error"]


class TimedParts:
    """Processes that share ``seconds``; each becomes an entry with its results, its time and its error."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = time.monotonic() + seconds
        #: By name; an entry is there as soon as its part has begun.
        self.parts: dict[str, Part] = {}

    @property
    def seconds_left(self) -> float:
        """What is left for the parts to come."""
        return self._ends_s - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether there was a part and none had an error."""
        return bool(self.parts) and all(part["error"] is None for part in self.parts.values())

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str],
        directory: str,
        read: Reader = json_line,
    ) -> Part:
        """Run ``command`` for at most ``seconds`` and return its entry; ``read`` takes each line of stdout.

        Its process group is killed at the deadline. Its stderr is passed on.
        """
        part: Part = {"results": [], "seconds": 0.0, "error": "it has not ended"}
        self.parts[name] = part
        allowed_s = min(seconds, self.seconds_left)
        if allowed_s <= 0:
            part["error"] = "no time was left"
            return part
        print(f"gpu_check: {name}, at most {allowed_s:.0f} s", file=sys.stderr, flush=True)
        begun_s = time.monotonic()
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)

        def pass_on(_: Part, line: str) -> None:
            last_lines.append(line.rstrip())
            sys.stderr.write(line)

        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        part["error"] = None
        readers = [_follow(process.stdout, part, read), _follow(process.stderr, part, pass_on)]
        try:
            code = process.wait(allowed_s)
        except subprocess.TimeoutExpired:
            part["error"] = f"it was ended after {allowed_s:.0f} s"
        except KeyboardInterrupt:
            part["error"] = "it was interrupted"
            raise
        else:
            if code and part["error"] is None:
                part["error"] = f"exit code {code}: " + " | ".join(last_lines)
        finally:
            _kill(process)
            for reader in readers:
                reader.join(_REAP_S)
        part["seconds"] = round(time.monotonic() - begun_s, 1)
        return part


def _follow(stream: IO[str] | None, part: Part, read: Reader) -> Thread:
    assert stream is not None

    def follow() -> None:
        with stream:
            for line in stream:
                read(part, line)

    thread = Thread(target=follow, daemon=True)
    thread.start()
    return thread


def _kill(process: subprocess.Popen[str]) -> None:
    """End what is left of the part and of what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        print("gpu_check: a part cannot be ended; it waits for a driver", file=sys.stderr)
