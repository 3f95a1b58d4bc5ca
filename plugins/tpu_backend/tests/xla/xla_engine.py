"""Small engines on PJRT CPU, and what tests look at inside one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from core_engine_tpu.runtime import XlaRuntime

from core_engine import LLM

__all__ = ["BLOCK_BYTES", "StartEngine", "graph_counts", "make_engine", "runner_of"]

StartEngine = Callable[..., LLM]

#: What every engine of these tests has unless the test says otherwise. A compilation after warm-up fails.
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "block_size": 16,
}
OPTIONS = {"token_buckets": "16,32", "recompilation": "error"}
#: Bytes of one block of the tiny model: 4 layers, keys and values, 16 tokens, 2 heads of 16 floats.
BLOCK_BYTES = 4 * 2 * 16 * 2 * 16 * 4


def make_engine(model: Path, backend: str = "tpu", **settings: Any) -> LLM:
    """Start an engine with `SETTINGS`; 80 blocks hold everything that the tests ask for."""
    options = {**OPTIONS, **settings.pop("backend_options", {})} if backend == "tpu" else {}
    merged = {**SETTINGS, "kv_cache_bytes": 81 * BLOCK_BYTES, **settings}
    return LLM(str(model), backend=backend, backend_options=options, **merged)


def runner_of(llm: LLM) -> Any:
    """Return the `TpuModelRunner` behind the façades."""
    executor: Any = llm.engine.core.executor
    return executor._worker.model_runner._hooks._owner


def graph_counts(llm: LLM) -> tuple[int, int]:
    """Return the two counters of the guard: graphs held, and compilations since the process began."""
    runtime: XlaRuntime = runner_of(llm).device
    return runtime.num_graphs(), runtime.num_compilations()
