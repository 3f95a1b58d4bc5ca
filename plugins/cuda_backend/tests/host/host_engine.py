"""Engines over the fake GPU, and what tests look at inside one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from core_engine_cuda.model_runner import CudaModelRunner
from host_runtime import HostRuntime

from core_engine import LLM, SamplingParams

__all__ = ["PARAMS", "PLAIN", "PROMPTS", "StartEngine", "make_engine", "runner_of", "runtime_of", "tokens"]

StartEngine = Callable[..., LLM]

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "block_size": 16,
    "kv_cache_bytes": 8 << 20,
}
#: Without kernels, unless a test asks for them: Triton's interpreter is slow.
PLAIN = {"attention": "reference", "sampler": "reference"}
PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [150, 2], list(range(100, 190))]
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
    "random": SamplingParams(temperature=0.8, seed=5, max_tokens=16, ignore_eos=True),
    "filters": SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=16, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, logit_bias={4: 2.0}, seed=4, max_tokens=16, ignore_eos=True
    ),
}


def make_engine(model: Path, backend: str = "cuda-host", **settings: Any) -> LLM:
    """Start an engine with `SETTINGS`."""
    options = {**PLAIN, **settings.pop("backend_options", {})} if backend == "cuda-host" else {}
    return LLM(str(model), backend=backend, backend_options=options, **{**SETTINGS, **settings})


def runner_of(llm: LLM) -> CudaModelRunner:
    """Return the model runner behind the façades."""
    executor: Any = llm.engine.core.executor
    runner: CudaModelRunner = executor._worker.model_runner._hooks._owner
    return runner


def runtime_of(llm: LLM) -> HostRuntime:
    """Return the fake GPU of an engine."""
    runtime = runner_of(llm).device
    assert isinstance(runtime, HostRuntime)
    return runtime


def tokens(llm: LLM, params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    """Return what the engine answers to token ids."""
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
