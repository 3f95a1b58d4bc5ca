"""The whole engine on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.draft_answers import answers
from host_engine import PARAMS, PROMPTS, SETTINGS, tokens
from tiny_adapter import make_adapter
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM, LoRARequest, SamplingParams
from core_engine.plugin import Detection, DoesNotFit, OutOfDeviceMemory
from core_engine.testing.oracle import Oracle

Start = Callable[..., LLM]
KERNELS = pytest.mark.parametrize("kind", ["triton", "reference"])


@KERNELS
def test_tokens_in_float32_are_those_of_the_cpu_backend(start: Start, cpu: LLM, kind: str) -> None:
    llm = start(backend_options={"attention": kind, "sampler": kind})
    for params in PARAMS.values():
        assert tokens(llm, params) == tokens(cpu, params)


def test_log_probabilities_drafts_and_several_sequences_too(start: Start, cpu: LLM) -> None:
    assert answers(start(num_draft_tokens=2)) == answers(cpu)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_graphs_answer_as_eager_steps_do(start: Start, dtype: str) -> None:
    # Without padding both run the same kernels over the same numbers.
    graphs = start(dtype=dtype, backend_options={"graph_sizes": "1,2,3,4"})
    eager = start(dtype=dtype, enforce_eager=True)
    for params in PARAMS.values():
        assert tokens(graphs, params) == tokens(eager, params)


def test_weights_lie_on_the_gpu(start: Start) -> None:
    executor: Any = start().engine.core.executor
    model = executor.get_model()
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cuda"}


def test_adapters_answer_as_on_the_cpu_backend(start: Start, tiny_model: Path, tmp_path: Path) -> None:
    model = Oracle(tiny_model).model
    adapters = [
        LoRARequest(name, str(make_adapter(tmp_path / name, model, targets, seed=index)))
        for index, (name, targets) in enumerate({"a": ("q_proj", "v_proj"), "b": ("up_proj",)}.items())
    ]
    loras, settings = [None, *adapters], {"max_loras": 2, "max_lora_rank": 8}
    found = []
    for backend in ("cuda", "cpu"):
        outputs = start(backend, **settings).generate(PROMPTS[:1] * 3, PARAMS["greedy"], lora=loras)
        found.append([list(output.outputs[0].token_ids) for output in outputs])
    assert found[0] == found[1]


def test_a_worker_process_answers_alike(start: Start, cpu: LLM) -> None:
    assert tokens(start(executor="process"), PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])


def test_the_cache_takes_what_the_share_leaves(start: Start) -> None:
    free, _ = torch.cuda.mem_get_info()
    start(kv_cache_bytes=None, device_memory_utilization=0.5)
    left, total = torch.cuda.mem_get_info()
    assert total - left <= 0.55 * total
    assert left < free


def test_memory_is_given_back_at_the_end(start: Start) -> None:
    start().close()  # whatever stays for the life of the process
    before, _ = torch.cuda.mem_get_info()
    start(kv_cache_bytes=1 << 30).close()
    after, _ = torch.cuda.mem_get_info()
    assert before - after < 64 << 20


def test_a_cache_that_does_not_fit_is_refused_with_numbers(start: Start) -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"too little memory for .* Lower kv_cache_bytes"):
        start(kv_cache_bytes=1 << 45)


def test_a_share_that_holds_not_even_the_weights_is_refused(start: Start) -> None:
    with pytest.raises(DoesNotFit, match="the KV cache has nothing"):
        start(kv_cache_bytes=None, device_memory_utilization=1e-4)


def test_a_step_without_memory_ends_its_requests_and_the_engine_goes_on(tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path / "wide", intermediate_size=16384, max_position_embeddings=8192)
    settings = {**SETTINGS, "max_model_len": 4096, "max_num_batched_tokens": 4096, "kv_cache_bytes": 32 << 20}
    with LLM(str(model), backend="cuda", enforce_eager=True, **settings) as llm:
        expected = tokens(llm, PARAMS["greedy"])
        torch.cuda.empty_cache()
        _, total = torch.cuda.mem_get_info()
        # One layer's activations of 4,000 tokens are four times what is left.
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
        try:
            with pytest.raises(OutOfDeviceMemory, match="too little memory for a step"):
                llm.generate([[1] * 4000], SamplingParams(max_tokens=1))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert tokens(llm, PARAMS["greedy"]) == expected


def test_two_gpus_answer_as_one(start: Start, cpu: LLM, detection: Detection) -> None:
    if len(detection.devices) < 2:
        pytest.skip("one GPU is here")
    assert tokens(start(tensor_parallel_size=2), PARAMS["greedy"]) == tokens(cpu, PARAMS["greedy"])


def test_the_real_model_answers_as_on_the_cpu_backend(smollm2: Path) -> None:
    settings = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4}
    prompts = ["The capital of France is", "Water boils at"]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    texts = []
    for backend in ("cuda", "cpu"):
        with LLM(str(smollm2), backend=backend, kv_cache_bytes=256 << 20, **settings) as llm:
            texts.append([output.outputs[0].text for output in llm.generate(prompts, params)])
    assert texts[0] == texts[1]
