"""Adapters that take turns in two slots, beside drafts: neither needs a graph of its own."""

from __future__ import annotations

from pathlib import Path

from request_mix import tokens_of
from tiny_adapter import make_adapter
from xla_engine import StartEngine, graph_counts, make_engine

from core_engine import LoRARequest, SamplingParams
from core_engine.testing.oracle import Oracle

TARGETS = (("q_proj", "v_proj"), ("q_proj", "up_proj"), ("k_proj", "down_proj"))
SETTINGS = {"max_loras": 2, "max_lora_rank": 8, "num_draft_tokens": 2}
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def test_adapters_and_drafts_answer_as_on_the_cpu_backend(
    start: StartEngine, tiny_model: Path, tmp_path: Path
) -> None:
    model = Oracle(tiny_model).model
    adapters = [
        LoRARequest(f"adapter {i}", str(make_adapter(tmp_path / str(i), model, targets, seed=i)))
        for i, targets in enumerate(TARGETS)
    ]
    loras = [None, *adapters, adapters[0]]
    prompts = [[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]] * len(loras)
    with make_engine(tiny_model, "cpu", **SETTINGS) as cpu:
        expected = tokens_of(cpu.generate(prompts, PARAMS, lora=loras))
    assert len({tuple(answer) for answer in expected}) == 4

    tpu = start(**SETTINGS)
    before = graph_counts(tpu)
    assert tokens_of(tpu.generate(prompts, PARAMS, lora=loras)) == expected
    assert graph_counts(tpu) == before
    assert tpu.engine.core.scheduler.stats().num_draft_tokens > 0
