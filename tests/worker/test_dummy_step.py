"""Invented steps fill their shape and stay where block tables and learned positions end."""

from __future__ import annotations

import numpy as np
import pytest

from core_engine.worker.dummy_step import dummy_step
from core_engine.worker.shape_policy import SamplingKind, StepKind, StepShape
from core_engine.worker.step import HostStep


def make(num_tokens: int, num_reqs: int, max_length: int | None) -> HostStep:
    return dummy_step(
        StepShape(num_tokens, num_reqs, StepKind.MIXED),
        SamplingKind(all_greedy=True),
        num_groups=1,
        max_blocks_per_request=1,
        vocab_size=8,
        max_length=max_length,
    )


def test_tokens_are_spread_over_the_requests() -> None:
    step = make(10, 3, None)
    np.testing.assert_array_equal(step.query_start, [0, 3, 6, 10])
    np.testing.assert_array_equal(step.positions, [0, 1, 2, 0, 1, 2, 0, 1, 2, 3])
    assert step.num_tokens == 10


@pytest.mark.parametrize(("num_tokens", "num_reqs", "max_length"), [(50, 1, 16), (50, 3, 16), (48, 3, 16)])
def test_no_request_is_longer_than_it_may_be(num_tokens: int, num_reqs: int, max_length: int) -> None:
    step = make(num_tokens, num_reqs, max_length)
    assert step.num_tokens == num_reqs * max_length
    assert step.positions.max() == step.seq_lens.max() - 1 == max_length - 1
    # The rest of the shape is padding.
    assert {len(step.token_ids), len(step.token_rows), len(step.positions), len(step.slot_mapping[0])} == {
        num_tokens
    }
    assert (step.token_rows[step.num_tokens :] == -1).all()
    assert not step.positions[step.num_tokens :].any()
    assert (step.token_rows[: step.num_tokens] >= 0).all()
