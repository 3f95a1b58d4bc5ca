"""The worker: how memory is divided, and what becomes of a device that has too little or fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from core_engine_cuda.worker import CudaWorker
from host_engine import PARAMS, PLAIN, StartEngine, make_engine, runner_of, runtime_of, tokens
from host_plugin import HostWorker
from host_runtime import GIB, HostRuntime

from core_engine import LLM, SamplingParams
from core_engine.plugin import DeviceLost, DoesNotFit, EngineError, OutOfDeviceMemory, UnsupportedFeature
from core_engine.testing.fake_context import fake_worker_context

PROMPT = [[1, 2, 3]]
#: Bytes of one block of the tiny model: 4 layers, keys and values, 16 tokens, 2 heads of 16 floats.
BLOCK_BYTES = 4 * 2 * 16 * 2 * 16 * 4


def with_runtime(monkeypatch: pytest.MonkeyPatch, runtime: HostRuntime) -> HostRuntime:
    """Have the next engine open ``runtime``."""
    monkeypatch.setattr(HostWorker, "open_runtime", lambda self: runtime)
    return runtime


def break_backbone(llm: LLM, error: RuntimeError) -> None:
    """Have the next step of an eager engine fail."""
    runner: Any = runner_of(llm)
    real = runner._backbone

    def fails(*args: Any) -> None:
        runner._backbone = real
        raise error

    runner._backbone = fails


def test_the_cache_takes_what_the_share_leaves(start: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = with_runtime(monkeypatch, HostRuntime(total_bytes=GIB, used_before=GIB // 4))
    llm = start(kv_cache_bytes=None, enforce_eager=True, device_memory_utilization=0.5)
    runner: Any = runner_of(llm)
    left = GIB // 4 - runner._loaded.weight_bytes - runtime.peak_bytes
    assert runner._kv.num_blocks == left // BLOCK_BYTES


def test_graphs_are_kept_room_for(start: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    num_blocks = []
    for enforce_eager in (True, False):
        with_runtime(monkeypatch, HostRuntime(total_bytes=GIB, used_before=GIB // 4))
        runner: Any = runner_of(
            start(kv_cache_bytes=None, enforce_eager=enforce_eager, device_memory_utilization=0.5)
        )
        num_blocks.append(runner._kv.num_blocks)
    # Three sizes of four layers, and the activations of 4 of the 32 tokens of the largest step.
    reserve = 3 * 4 * (128 << 10) + (1 << 20) // 8
    assert (num_blocks[0] - num_blocks[1]) * BLOCK_BYTES == pytest.approx(reserve, abs=BLOCK_BYTES)


def test_too_little_memory_is_told_before_the_cache_is_made(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_runtime(monkeypatch, HostRuntime(total_bytes=GIB, used_before=GIB // 2 + GIB // 4))
    with pytest.raises(DoesNotFit, match="CUDA and other programs 768 MiB"):
        make_engine(tiny_model, kv_cache_bytes=None, device_memory_utilization=0.5)


def test_graphs_are_counted_against_what_was_kept_back(
    start: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "core_engine.backends.cuda"):
        start()
    (line,) = [record.message for record in caplog.records if "CUDA graphs take" in record.message]
    # Sizes 4, 2 and 1: a backbone, a head, three samplers and a scorer each.
    assert line.startswith("18 CUDA graphs take ")


@pytest.mark.parametrize("after", [0, 3, 9, 12])
def test_an_allocation_that_fails_at_any_time_of_a_start_is_typed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    runtime = with_runtime(monkeypatch, HostRuntime())
    runtime.allocations_left = after
    with pytest.raises(OutOfDeviceMemory, match="the GPU has too little memory for"):
        make_engine(tiny_model)


def test_weights_that_do_not_fit_are_typed(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **keywords: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)
    with pytest.raises(OutOfDeviceMemory, match=r"for the model's weights: .*Tried to allocate"):
        make_engine(tiny_model)


def test_a_step_without_memory_ends_its_requests_and_the_engine_goes_on(start: StartEngine, cpu: LLM) -> None:
    llm = start(enforce_eager=True)
    break_backbone(llm, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB."))
    with pytest.raises(OutOfDeviceMemory, match="for a step"):
        llm.generate(PROMPT, SamplingParams(max_tokens=2))
    assert tokens(llm, PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])


def test_a_device_that_failed_is_not_used_again(start: StartEngine) -> None:
    llm = start(enforce_eager=True)
    worker: Any = llm.engine.core.executor
    assert worker.check_health().healthy
    break_backbone(llm, RuntimeError("CUDA error: an illegal memory access was encountered"))
    for _ in range(2):
        with pytest.raises(DeviceLost, match="illegal memory access"):
            llm.generate(PROMPT, SamplingParams(max_tokens=2))
    health = worker.check_health()
    assert not health.healthy
    assert "illegal memory access" in health.detail


def test_a_gpu_that_turns_out_too_old_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_runtime(monkeypatch, HostRuntime()).capability = (7, 5)
    with pytest.raises(UnsupportedFeature, match=r"compute capability 7\.5; 8\.0 or later"):
        make_engine(tiny_model)


@pytest.mark.parametrize("kind", ["attention", "sampler"])
def test_kernels_that_could_not_be_started_are_refused_before_the_gpu_is_opened(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("core_engine_cuda.worker.toolchain_refusal", lambda: "no C compiler")
    worker = CudaWorker(fake_worker_context(options={**PLAIN, kind: "triton"}))
    with pytest.raises(EngineError, match="no C compiler"):
        worker.open_runtime()


def test_without_kernels_no_compiler_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_engine_cuda.worker.toolchain_refusal", lambda: "no C compiler")
    monkeypatch.setattr("core_engine_cuda.worker.CudaRuntime", lambda uuid: "opened")
    worker = CudaWorker(fake_worker_context(options=PLAIN))
    assert worker.open_runtime() == "opened"


def test_memory_goes_back_to_the_driver_at_the_end(start: StartEngine) -> None:
    llm = start()
    runtime = runtime_of(llm)
    before = runtime.num_released
    llm.close()
    assert runtime.num_released == before + 1
