"""Steps of invented tokens, for profiling and warm-up; they write only to the null block."""

from __future__ import annotations

import numpy as np

from core_engine.worker.shape_policy import SamplingKind, StepShape
from core_engine.worker.step import HostSampling, HostStep

__all__ = ["dummy_sampling", "dummy_step"]


def dummy_step(
    shape: StepShape,
    kind: SamplingKind,
    *,
    num_groups: int,
    max_blocks_per_request: int,
    vocab_size: int,
    max_length: int | None = None,
    num_logprobs: int | None = None,
    lora: bool = False,
) -> HostStep:
    """Build a step that fills ``shape``: tokens spread evenly over the requests, every block the null block.

    No request has more than ``max_length`` tokens: block tables, and the positions that some models have
    learned, end there. What is left of the shape is padding. With ``num_logprobs`` every request asks for
    as many. With ``lora`` the step computes the products of all LoRA slots, though no token has an adapter.
    """
    num_padded, num_reqs = shape.num_tokens, shape.num_reqs
    num_tokens = num_padded if max_length is None else min(num_padded, num_reqs * max_length)
    query_start = np.linspace(0, num_tokens, num_reqs + 1).astype(np.int32)
    counts = np.diff(query_start)
    token_rows = np.full(num_padded, -1, dtype=np.int32)
    token_rows[:num_tokens] = np.repeat(np.arange(num_reqs, dtype=np.int32), counts)
    positions = np.zeros(num_padded, dtype=np.int32)
    positions[:num_tokens] = np.arange(num_tokens, dtype=np.int32) - query_start[token_rows[:num_tokens]]
    return HostStep(
        shape=shape,
        num_tokens=num_tokens,
        num_reqs=num_reqs,
        token_ids=np.zeros(num_padded, dtype=np.int32),
        positions=positions,
        token_rows=token_rows,
        query_start=query_start,
        seq_lens=counts.astype(np.int32),
        slot_mapping=tuple(np.zeros(num_padded, dtype=np.int32) for _ in range(num_groups)),
        block_tables=tuple(
            np.zeros((num_reqs, max_blocks_per_request), dtype=np.int32) for _ in range(num_groups)
        ),
        logits_rows=np.maximum(query_start[1:] - 1, 0),
        sampling=dummy_sampling(num_reqs, kind, vocab_size),
        num_logprobs=num_logprobs,
        lora_slots=np.full(num_padded, -1, dtype=np.int32) if lora else None,
    )


def dummy_sampling(num_reqs: int, kind: SamplingKind, vocab_size: int) -> HostSampling:
    """Build the sampler's inputs for ``kind`` with neutral values."""
    dense = (num_reqs, vocab_size)
    return HostSampling(
        kind=kind,
        temperature=np.full(num_reqs, 0.0 if kind.all_greedy else 1.0, dtype=np.float32),
        top_k=np.full(num_reqs, vocab_size, dtype=np.int32),
        top_p=np.ones(num_reqs, dtype=np.float32),
        min_p=np.zeros(num_reqs, dtype=np.float32),
        noise_keys=np.zeros((num_reqs, 2), dtype=np.int32),
        penalties=np.tile(np.array([1, 0, 0], dtype=np.float32), (num_reqs, 1)) if kind.penalties else None,
        prompt_mask=np.zeros(dense, dtype=np.bool_) if kind.penalties else None,
        output_counts=np.zeros(dense, dtype=np.int32) if kind.penalties else None,
        bias=np.zeros(dense, dtype=np.float32) if kind.bias else None,
    )
