from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sampling_case import FILTERED, GREEDY, PLAIN, keys, sampler_inputs

from core_engine.sampling.reference import ReferenceSampler
from core_engine.worker.shape_policy import SamplingKind

LOGITS = np.array([2.0, 1.5, -0.5, 0.0, 1.0, 3.0, -2.0, 0.5, 2.5, -1.0, 0.25, 1.25], dtype=np.float32)
NUM_DRAWS = 20_000


def sample(logits: Any, kind: SamplingKind, **columns: Any) -> list[int]:
    rows = logits if isinstance(logits, torch.Tensor) else torch.as_tensor(np.atleast_2d(logits))
    inputs = sampler_inputs(*rows.shape, **columns)
    return ReferenceSampler().sample(rows, inputs, kind).tolist()


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def filtered(probabilities: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Apply the filters one after the other, token by token, as their definitions say."""
    order = sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i))
    order = [i for i in order if probabilities[i] >= min_p * probabilities.max()][:top_k]
    left = probabilities[order].sum()
    kept, mass = [], 0.0
    for i in order:
        if mass >= top_p * left:
            break
        kept.append(i)
        mass += probabilities[i]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


def assert_drawn_from(tokens: list[int], expected: np.ndarray) -> None:
    """Pearson's chi-square test at a level of 0.001; the draws are seeded, so the outcome is fixed."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert counts[expected == 0].sum() == 0, "a token was drawn that the filters exclude"
    possible = expected > 0
    mean = expected[possible] * len(tokens)
    statistic = ((counts[possible] - mean) ** 2 / mean).sum()
    freedom = possible.sum() - 1
    # Wilson and Hilferty's approximation of the quantile.
    spread = 2 / (9 * freedom)
    assert statistic < freedom * (1 - spread + 3.09 * spread**0.5) ** 3


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    tokens = sample(np.tile(LOGITS, (NUM_DRAWS, 1)), PLAIN, temperature=temperature)
    assert_drawn_from(tokens, softmax(LOGITS / temperature))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (3, 1.0, 0.0),
        (12, 0.6, 0.0),
        (12, 1.0, 0.2),
        (4, 0.7, 0.1),
        (5, 0.95, 0.3),
        (12, 0.999, 0.01),
    ],
)
def test_filters_leave_the_renormalised_distribution(top_k: int, top_p: float, min_p: float) -> None:
    expected = filtered(softmax(LOGITS / 0.8), top_k, top_p, min_p)
    rows = np.tile(LOGITS, (NUM_DRAWS, 1))
    tokens = sample(rows, FILTERED, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)
    assert_drawn_from(tokens, expected)


def test_penalties_shift_the_distribution_as_defined() -> None:
    counts = np.array([2, 0, 1, 0, 0, 0, 0, 0, 3, 0, 0, 0])
    prompt = np.zeros(12, dtype=bool)
    prompt[[1, 6]] = True
    logits = LOGITS.astype(np.float64)
    seen = prompt | (counts > 0)
    logits = np.where(seen, np.where(logits > 0, logits / 1.5, logits * 1.5), logits)
    logits = logits - 0.3 * counts - 0.7 * (counts > 0)
    tokens = sample(
        np.tile(LOGITS, (NUM_DRAWS, 1)),
        SamplingKind(all_greedy=False, penalties=True),
        penalties=[1.5, 0.7, 0.3],
        output_counts=counts,
        prompt_mask=prompt,
    )
    assert_drawn_from(tokens, softmax(logits))


def test_bias_is_added_before_the_penalties() -> None:
    kind = SamplingKind(all_greedy=True, bias=True, penalties=True)
    # 1 + 4 = 5, halved to 2.5, is less than 3; without the bias first it would be 0.5 + 4.
    columns: dict[str, Any] = {"bias": [0, 4], "penalties": [2, 0, 0], "prompt_mask": [False, True]}
    assert sample([3.0, 1.0], kind, **columns) == [0]


def test_a_bias_of_minus_infinity_forbids() -> None:
    kind = SamplingKind(all_greedy=False, bias=True)
    bias = np.zeros(12, dtype=np.float32)
    bias[5] = -np.inf
    assert 5 not in sample(np.tile(LOGITS, (500, 1)), kind, bias=bias)


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    assert sample([1.0, 3.0, 3.0, 2.0], GREEDY) == [1]


@pytest.mark.parametrize("kind", [PLAIN, FILTERED])
def test_a_greedy_row_among_sampled_ones_takes_its_largest_logit(kind: SamplingKind) -> None:
    rows = np.tile(np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32), (200, 1))
    temperature = np.tile([0, 1], 100)
    tokens = sample(rows, kind, temperature=temperature)
    assert set(tokens[::2]) == {1}
    assert set(tokens[1::2]) == {0, 1, 2, 3}


def test_top_k_cuts_equal_logits_by_id() -> None:
    tokens = sample(np.zeros((200, 6), dtype=np.float32), FILTERED, top_k=2)
    assert set(tokens) == {0, 1}


def test_top_p_keeps_at_least_the_most_likely_token() -> None:
    assert set(sample(np.tile(LOGITS, (200, 1)), FILTERED, top_p=1e-6)) == {5}


def test_the_smallest_temperature_does_not_overflow() -> None:
    rows = np.tile(LOGITS * 1000, (50, 1))
    for kind in (PLAIN, FILTERED):
        assert set(sample(rows, kind, temperature=1e-30)) == {5}


KINDS = {"greedy": GREEDY, "plain": PLAIN, "filtered": FILTERED}
FAULTS = {
    "all forbidden": np.full(12, -np.inf),
    "all NaN": np.full(12, np.nan),
    "one NaN": np.where(np.arange(12) == 7, np.nan, LOGITS),
    "NaN among forbidden": np.where(np.arange(12) == 7, np.nan, -np.inf),
    "one +inf": np.where(np.arange(12) == 7, np.inf, LOGITS),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("top_k", [3, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_without_a_finite_choice_gives_minus_one_and_disturbs_no_other(
    fault: np.ndarray, kind: SamplingKind, top_k: int, dtype: torch.dtype
) -> None:
    columns: dict[str, Any] = {"temperature": 0.8, "top_k": top_k, "top_p": 0.9 if top_k < 12 else 1.0}
    rows = torch.from_numpy(np.stack([LOGITS, fault, LOGITS]).astype(np.float32)).to(dtype)
    healthy = torch.from_numpy(np.stack([LOGITS] * 3)).to(dtype)

    tokens = sample(rows, kind, **columns)

    expected = sample(healthy, kind, **columns)
    assert tokens == [expected[0], -1, expected[2]]


def test_a_row_of_no_numbers_reports_log_probabilities_of_no_meaning_and_the_others_keep_theirs() -> None:
    rows = torch.from_numpy(np.stack([np.full(12, np.nan, dtype=np.float32), LOGITS]))

    broken = ReferenceSampler().logprobs(rows, torch.tensor([0, 5], dtype=torch.int32), 2)
    alone = ReferenceSampler().logprobs(rows[1:], torch.tensor([5], dtype=torch.int32), 2)

    assert broken["logprobs"][1].tolist() == alone["logprobs"][0].tolist()
    assert broken["logprob_ids"][1].tolist() == [5, 5, 8]


@pytest.mark.parametrize("kind", [PLAIN, FILTERED])
def test_case_22_a_draw_does_not_depend_on_the_batch(kind: SamplingKind) -> None:
    generator = torch.Generator().manual_seed(3)
    rows, row_keys = torch.randn(16, 300, generator=generator).numpy(), keys(16)
    together = sample(rows, kind, noise_keys=row_keys, top_p=0.9 if kind.filters else 1.0)
    order = np.random.default_rng(0).permutation(16)
    columns: dict[str, Any] = {"top_p": 0.9 if kind.filters else 1.0}
    shuffled = sample(rows[order], kind, noise_keys=row_keys[order], **columns)
    alone = [sample(rows[i], kind, noise_keys=row_keys[i], **columns)[0] for i in range(16)]
    assert shuffled == [together[i] for i in order]
    assert alone == together


def test_a_row_without_filters_draws_the_same_beside_a_filtered_one() -> None:
    rows = torch.randn(8, 300, generator=torch.Generator().manual_seed(4)).numpy()
    assert sample(rows, PLAIN) == sample(rows, FILTERED)


def test_case_19_streams_of_one_seed_are_independent_and_repeatable() -> None:
    rows = np.tile(LOGITS, (64, 1))
    streams = [tuple(sample(rows, PLAIN, noise_keys=keys(64, seed=7, stream=s))) for s in range(4)]
    assert len(set(streams)) == 4
    assert streams == [tuple(sample(rows, PLAIN, noise_keys=keys(64, seed=7, stream=s))) for s in range(4)]


def test_logprobs_are_those_of_the_token_and_of_the_most_likely_ones() -> None:
    result = ReferenceSampler().logprobs(torch.from_numpy(LOGITS[None]), torch.tensor([6]), 3)
    expected = np.log(softmax(LOGITS))
    assert result["logprob_ids"].tolist() == [[6, 5, 8, 0]]
    np.testing.assert_allclose(result["logprobs"][0].numpy(), expected[[6, 5, 8, 0]], rtol=1e-5)
    assert result["ranks"].tolist() == [12]
    assert [result[name].dtype for name in ("logprob_ids", "ranks")] == [torch.int32] * 2


def test_zero_logprobs_report_the_token_alone() -> None:
    result = ReferenceSampler().logprobs(torch.from_numpy(LOGITS[None]).bfloat16(), torch.tensor([5]), 0)
    assert result["logprob_ids"].tolist() == [[5]]
    assert result["logprobs"].dtype == torch.float32
    assert result["ranks"].tolist() == [1]


def test_the_logits_are_not_changed() -> None:
    kind = SamplingKind(all_greedy=False, bias=True, penalties=True, filters=True)
    logits = torch.from_numpy(LOGITS[None].copy())
    ReferenceSampler().sample(logits, sampler_inputs(1, 12, bias=1.0, penalties=[2, 1, 1]), kind)
    assert logits[0].tolist() == LOGITS.tolist()


class _Sample(torch.nn.Module):
    def __init__(self, kind: SamplingKind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return ReferenceSampler().sample(logits, inputs, self.kind)


@pytest.mark.parametrize(
    "kind",
    [
        GREEDY,
        SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True),
    ],
)
def test_sampling_traces_as_one_graph(kind: SamplingKind) -> None:
    logits = torch.randn(4, 32, generator=torch.Generator().manual_seed(5))
    inputs = sampler_inputs(4, 32, top_p=0.8)
    exported = torch.export.export(_Sample(kind), (logits, inputs))
    other = sampler_inputs(4, 32, top_p=0.5, noise_keys=keys(4, seed=9))
    result = exported.module()(logits, other)
    assert result.tolist() == ReferenceSampler().sample(logits, other, kind).tolist()
