"""The floor of a step's time is counted from the model's shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_shapes import SHAPES, write_model
from roofline import Limits, known_limits

from core_engine.models.build import build_meta_model
from core_engine.models.causal_lm import read_transformers_config

LLAMA = SHAPES["llama-3.1-8b"].size


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_models_matrices(name: str, tmp_path: Path) -> None:
    config = read_transformers_config(write_model(SHAPES[name], tmp_path), None, trust_remote_code=False)
    model = build_meta_model(config, dtype=torch.bfloat16)
    linear = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    size = SHAPES[name].size
    assert size.layer_parameters + size.head_parameters == linear


def test_a_decode_step_reads_the_weights_once_and_every_requests_cache() -> None:
    weights = 2 * (LLAMA.layer_parameters + LLAMA.head_parameters)
    assert weights == pytest.approx(15.0e9, rel=0.01)
    # 32 layers, 8 heads of 128, keys and values of two bytes: 128 KiB a token.
    assert LLAMA.decode_bytes(4, 1000) - LLAMA.decode_bytes(0, 0) == 4 * 1000 * (128 << 10)
    assert LLAMA.decode_bytes(0, 0) == weights


def test_operations_of_one_prompt_are_those_of_its_tokens() -> None:
    # Token i of a prompt sees i tokens; the matrix of the logits serves the last one only.
    tokens = sum(LLAMA.decode_flops(1, context_len) for context_len in range(1, 11))
    assert LLAMA.prefill_flops(1, 10) == tokens - 9 * 2 * LLAMA.head_parameters
    assert LLAMA.prefill_flops(3, 10) == 3 * LLAMA.prefill_flops(1, 10)


@pytest.mark.parametrize(
    ("device", "gb_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA H100 PCIe", 2000),
        ("NVIDIA H200", 4800),
        ("NVIDIA GH200 480GB", 4000),
        ("NVIDIA B200", 8000),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L4", 300),
        ("NVIDIA L40S", 864),
        ("NVIDIA GeForce RTX 4090", 1008),
        ("NVIDIA RTX A1000", None),
        ("x86_64", None),
    ],
)
def test_devices_are_known_by_the_words_of_their_name(device: str, gb_per_s: float | None) -> None:
    assert known_limits(device).gb_per_s == gb_per_s


def test_shares_are_of_what_is_known() -> None:
    limits = Limits(tflop_per_s=100.0, gb_per_s=1000.0)
    assert limits.memory_share(5e9, 0.01) == pytest.approx(0.5)
    assert limits.compute_share(1e12, 0.02) == pytest.approx(0.5)
    assert Limits().memory_share(5e9, 0.01) is None
    assert Limits().compute_share(5e9, 0.01) is None
