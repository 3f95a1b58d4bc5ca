"""What tests look at inside an engine that runs in this process."""

from __future__ import annotations

from typing import Any

from core_engine_tpu.runtime import XlaRuntime

from core_engine import LLM

__all__ = ["graph_counts", "runner_of"]


def runner_of(llm: LLM) -> Any:
    """Return the `TpuModelRunner` behind the façades."""
    executor: Any = llm.engine.core.executor
    return executor._worker.model_runner._hooks._owner


def graph_counts(llm: LLM) -> tuple[int, int]:
    """Return the two counters of the guard: graphs held, and compilations since the process began."""
    runtime: XlaRuntime = runner_of(llm).device
    return runtime.num_graphs(), runtime.num_compilations()
