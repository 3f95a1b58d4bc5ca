"""CompilerProcess: the other end of `core_engine_tpu.libtpu_compiler`, which may die at any graph."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from core_engine.plugin import EngineError
from core_engine_tpu.chips import Target
from core_engine_tpu.runtime_tracing import LoweredGraph

__all__ = ["CompilerProcess"]

#: What libtpu says of a program that does not fit: "Used 32.32G of 31.25G hbm".
_TOO_MUCH = re.compile(r"RESOURCE_EXHAUSTED.*?Used (\S+) of (\S+) hbm", re.DOTALL)
#: And of a single tensor: "Allocation (size=30439309312) would exceed memory (size=17179869184)".
_ONE_TOO_LARGE = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")
_ADVICE = "lower kv_cache_bytes, device_memory_utilization or max_num_batched_tokens"


class CompilerProcess:
    """Compiles graphs for ``num_devices`` of one target in one process, and starts another where that dies.

    Used as a context; the process ends with it.
    """

    def __init__(self, target: Target, num_devices: int = 1) -> None:
        self._target = target
        self._num_devices = num_devices
        self._process: subprocess.Popen[str] | None = None
        # What crosses to the process, and what it says on stderr.
        self._module: IO[bytes] = tempfile.NamedTemporaryFile(suffix=".mlir")  # noqa: SIM115
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - both open as long as the object

    def __enter__(self) -> CompilerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)
        self._module.close()
        self._log.close()

    def compile(self, graph: LoweredGraph) -> Mapping[str, Any]:
        """Compile one graph.

        Returns the sizes that the compiler tells, as `CompiledGraph` names them, or ``{"error": text}``.
        Raises `EngineError` when libtpu does not start.
        """
        process = self._process or self._start()
        self._module.seek(0)
        self._module.truncate()
        self._module.write(graph.module)
        self._module.flush()
        job = {
            "module": self._module.name,
            "aliases": graph.aliases,
            "argument_dims": graph.argument_dims,
            "result_dims": graph.result_dims,
        }
        answer = _exchange(process, job)
        if answer is None:
            return {"error": self._tell_death(process)}
        if "error" in answer:
            answer["error"] = _short(answer["error"])
        return answer

    def _start(self) -> subprocess.Popen[str]:
        target = self._target
        command = [sys.executable, "-P", "-m", "core_engine_tpu.libtpu_compiler"]
        command += [target.text, str(self._num_devices)]
        command += [target.chip.config_name] if target.chip.config_name else []
        self._log.truncate(0)
        self._log.seek(0)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._process = process
        if _exchange(process, None) is None:
            raise EngineError(f"libtpu cannot compile for {target.text}: {self._tell_death(process)}")
        return process

    def _end(self, process: subprocess.Popen[str]) -> int:
        """Close the pipes, wait, and return the exit code."""
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        return process.wait()

    def _tell_death(self, process: subprocess.Popen[str]) -> str:
        self._process = None
        code = self._end(process)
        how = f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        told = next((line.strip() for line in lines if line.startswith(("F", "E")) or "rror" in line), "")
        return _short(f"the compiler's process {how}{': ' if told else ''}{told}")


def _exchange(process: subprocess.Popen[str], job: object) -> dict[str, Any] | None:
    """Hand over a job, if there is one, and return the process's next answer; None when it has died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if job is not None:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    answer: dict[str, Any] | None = json.loads(line) if line else None
    return answer


def _short(text: str) -> str:
    """Return what an error of libtpu's says before it lists every buffer."""
    if (too_much := _TOO_MUCH.search(text)) is not None:
        return f"it needs {too_much[1]} of memory, and the chip has {too_much[2]}; {_ADVICE}"
    if (too_large := _ONE_TOO_LARGE.search(text)) is not None:
        needed, there = (f"{int(number) / (1 << 20):,.1f} MiB" for number in too_large.groups())
        return f"one of its tensors takes {needed} of memory, and the chip has {there}; {_ADVICE}"
    return " ".join(text.partition("\n\n")[0].split())[:400]
