"""The sampler without a sort chooses what core's reference chooses."""

from __future__ import annotations

import pytest
import torch
from core_engine_tpu.sampler import SortFreeSampler
from sampling_case import keys

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind

FILTERED = SamplingKind(all_greedy=False, filters=True)
OURS, REFERENCE = SortFreeSampler(), ReferenceSampler()
NUM_ROWS = 64


def inputs(vocab_size: int, seed: int, **columns: float) -> dict[str, torch.Tensor]:
    """Draw the filters of `NUM_ROWS` rows; ``columns`` fixes some."""
    draw = torch.Generator().manual_seed(seed)

    def pick(options: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(options, dtype=dtype)[torch.randint(len(options), (NUM_ROWS,), generator=draw)]

    drawn = {
        "temperature": pick([0.0, 0.5, 1.0, 3.0]),
        "top_k": pick([1, 2, 5, 50, vocab_size], torch.int32),
        "top_p": pick([0.01, 0.3, 0.9, 0.999, 1.0]),
        "min_p": pick([0.0, 0.0, 0.05, 0.5]),
        "noise_keys": torch.from_numpy(keys(NUM_ROWS, seed=seed)),
    }
    fixed = {name: torch.full_like(drawn[name], value) for name, value in columns.items()}
    return {**drawn, **fixed}


def logits_of(shape: str, vocab_size: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(NUM_ROWS, vocab_size, generator=draw) * 3
    if shape == "ties":
        return logits.round()
    if shape == "forbidden":
        return torch.where(torch.rand(logits.shape, generator=draw) < 0.9, float("-inf"), logits)
    if shape == "zeros":
        return torch.where(torch.rand(logits.shape, generator=draw) < 0.5, -0.0, 0.0)
    return logits


@pytest.mark.parametrize("shape", ["plain", "ties", "forbidden", "zeros"])
@pytest.mark.parametrize("vocab_size", [1, 7, 300, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_filters_keep_what_the_reference_keeps(shape: str, vocab_size: int, seed: int) -> None:
    logits, columns = logits_of(shape, vocab_size, seed), inputs(vocab_size, seed)
    expected = REFERENCE.choose(logits, columns, FILTERED)
    torch.testing.assert_close(OURS.choose(logits, columns, FILTERED), expected, rtol=0, atol=0)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5, 6])
def test_of_equal_logits_the_lowest_ids_are_kept(top_k: int) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 3.0]]).expand(NUM_ROWS, 6).contiguous()
    columns = inputs(6, 0, top_k=top_k, top_p=1.0, min_p=0.0, temperature=50.0)
    chosen = set(OURS.choose(logits, columns, FILTERED).tolist())
    assert chosen <= set([1, 3, 5, 2, 4, 0][:top_k])
    torch.testing.assert_close(
        OURS.choose(logits, columns, FILTERED), REFERENCE.choose(logits, columns, FILTERED), rtol=0, atol=0
    )


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_an_answer_has_no_token(poison: float) -> None:
    logits = torch.randn(NUM_ROWS, 50)
    if poison == float("-inf"):
        logits[:] = poison
    else:
        logits[:, 9] = poison
    columns = inputs(50, 1)
    expected = REFERENCE.choose(logits, columns, FILTERED)
    torch.testing.assert_close(OURS.choose(logits, columns, FILTERED), expected, rtol=0, atol=0)
    assert (expected == -1).all()


@pytest.mark.parametrize("shape", ["plain", "forbidden"])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_the_most_likely_are_the_references(shape: str, count: int) -> None:
    logits = logits_of(shape, 300, 0)
    ids = torch.arange(NUM_ROWS)
    ours, expected = OURS.logprobs(logits, ids, count), REFERENCE.logprobs(logits, ids, count)
    torch.testing.assert_close(ours["logprobs"], expected["logprobs"], rtol=0, atol=0)
    finite = torch.isfinite(ours["logprobs"])
    assert torch.equal(ours["logprob_ids"][finite], expected["logprob_ids"][finite])
    assert torch.equal(ours["ranks"], expected["ranks"])


def test_of_equally_likely_tokens_the_lowest_ids_come_first_and_none_comes_twice() -> None:
    logits = torch.full((2, 30), float("-inf"))
    logits[:, 7:9] = 1.0
    _, top_ids = OURS.most_likely(logits, 5)
    assert top_ids.tolist() == [[7, 8, 0, 1, 2]] * 2
