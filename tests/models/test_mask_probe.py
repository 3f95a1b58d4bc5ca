"""A mask's rule is evaluated, so its meaning is known without building it."""

from __future__ import annotations

import torch

from core_engine.models.mask_probe import MaskKind, classify_mask, kind_of, probe_mask


def causal(batch: object, head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key <= query


def test_causal_attention_has_no_window() -> None:
    assert classify_mask(causal) == MaskKind()


def test_a_window_counts_the_query_itself() -> None:
    kind = classify_mask(lambda b, h, q, k: (k <= q) & (k > q - 4096))
    assert kind == MaskKind(sliding_window=4096)


def test_a_window_of_one_is_the_query_alone() -> None:
    assert classify_mask(lambda b, h, q, k: k == q) == MaskKind(sliding_window=1)


def test_chunked_attention_is_refused() -> None:
    kind = classify_mask(lambda b, h, q, k: (k <= q) & (k // 8192 == q // 8192))
    assert kind.refusal is not None
    assert "chunked" in kind.refusal


def test_bidirectional_attention_is_refused() -> None:
    kind = classify_mask(lambda b, h, q, k: torch.ones_like(k, dtype=torch.bool))
    assert kind.refusal is not None
    assert "bidirectional" in kind.refusal


def test_a_prefix_that_all_see_beside_a_window_is_refused() -> None:
    kind = classify_mask(lambda b, h, q, k: (k <= q) & ((k > q - 128) | (k < 4)))
    assert kind.refusal is not None
    assert "holes" in kind.refusal


def test_a_rule_that_reads_the_input_is_refused() -> None:
    groups = torch.zeros(1, 8, dtype=torch.int64, device="meta")
    kind = classify_mask(lambda b, h, q, k: groups[b, q] == groups[b, k])
    assert kind.refusal is not None
    assert "depends on the input" in kind.refusal


def test_the_placeholder_carries_its_kind_until_a_model_computes_with_it() -> None:
    placeholder = probe_mask(1, 5, 5, causal)

    assert placeholder.shape == (1, 1, 5, 5)
    assert kind_of(placeholder) == MaskKind()
    assert kind_of(placeholder.float() + 1) is None
    assert kind_of(None) is None
