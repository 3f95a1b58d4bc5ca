"""The kernels as the GPU runs them, held to the formula and to the reference; bfloat16 here too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_run import assert_right, make_case, run
from core_engine_cuda.sampler import TritonSampler
from sampling_case import FILTERED, GREEDY, PLAIN, sampler_inputs

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind

STEPS = {
    "decodes": [(0, 1), (15, 1), (16, 1), (1700, 1)],
    "prefill": [(0, 300)],
    "mixed": [(900, 1), (0, 200), (50, 18), (12, 1)],
}
LAYERS: dict[str, dict[str, Any]] = {
    "llama": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128},
    "small": {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64},
    "wide": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 256, "soft_cap": 20.0},
    "window and sinks": {
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 64,
        "sliding_window": 100,
        "sinks": True,
    },
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("requests", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_attention_is_the_formula(requests: list[tuple[int, int]], layer: dict[str, Any], dtype: str) -> None:
    case = make_case(requests, dtype=dtype, **layer)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    assert_right(case, run(case, num_sms=sms))


@pytest.mark.parametrize("kind", [GREEDY, PLAIN, FILTERED], ids=["greedy", "plain", "filtered"])
@pytest.mark.parametrize("vocab_size", [1000, 49152, 128256])
def test_the_samplers_tokens_are_the_references(kind: SamplingKind, vocab_size: int) -> None:
    logits = 3 * torch.randn(16, vocab_size, generator=torch.Generator().manual_seed(0))
    inputs = sampler_inputs(16, vocab_size, temperature=0.8, top_p=0.95, top_k=50)
    expected = ReferenceSampler().sample(logits, inputs, kind)
    on_gpu = {name: tensor.cuda() for name, tensor in inputs.items()}
    assert TritonSampler().sample(logits.cuda(), on_gpu, kind).tolist() == expected.tolist()
