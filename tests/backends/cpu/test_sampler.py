from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sampling_case import FILTERED, GREEDY, PLAIN, keys, sampler_inputs

from core_engine.backends.cpu.sampler import KernelSampler, make_sampler
from core_engine.sampling.reference import ReferenceSampler
from core_engine.worker.shape_policy import SamplingKind

NUM_ROWS = 24


def random_logits(shape: str, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """Return rows that are flat, peaked like a model's, or full of equal values."""
    logits = torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(seed))
    if shape == "peaked":
        logits[:, ::97] += 12
    return (logits * 2).round() if shape == "ties" else logits * 3


def assert_as_reference(logits: torch.Tensor, kind: SamplingKind, **columns: Any) -> None:
    inputs = sampler_inputs(*logits.shape, **columns)
    got = KernelSampler().sample(logits, inputs, kind)
    assert got.dtype == torch.int32
    assert got.tolist() == ReferenceSampler().sample(logits, inputs, kind).tolist()


OPTIONS = {
    "plain": {},
    "cool": {"temperature": 0.2},
    "hot": {"temperature": 2.0},
    "top_k 1": {"top_k": 1},
    "top_k 20": {"top_k": 20},
    "top_k of more than the chunks": {"top_k": 400},
    "top_p": {"top_p": 0.9},
    "small top_p": {"top_p": 1e-4},
    "large top_p": {"top_p": 0.9999},
    "min_p": {"min_p": 0.05},
    "min_p 1": {"min_p": 1.0},
    "all filters": {"min_p": 0.001, "top_k": 60, "top_p": 0.8, "temperature": 0.7},
    "min_p and top_p": {"min_p": 0.01, "top_p": 0.7},
    "top_k of more than the chunks and top_p": {"top_k": 300, "top_p": 0.97},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", ["flat", "peaked", "ties"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_tokens_are_the_references(dtype: torch.dtype, shape: str, options: dict[str, Any]) -> None:
    kind = FILTERED if options.keys() - {"temperature"} else PLAIN
    assert_as_reference(random_logits(shape, 5000).to(dtype), kind, **options)


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("kind", [GREEDY, PLAIN, FILTERED], ids=["greedy", "plain", "filtered"])
def test_any_vocabulary_size_works(vocab_size: int, kind: SamplingKind) -> None:
    assert_as_reference(random_logits("flat", vocab_size), kind, top_p=0.8 if kind.filters else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_greedy_takes_the_lowest_id_of_equal_logits(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 1000, dtype=dtype)
    logits[0, [300, 301, 900]] = 5
    logits[1] = -3
    assert_as_reference(logits, GREEDY)


def test_rows_of_different_options_do_not_disturb_each_other() -> None:
    columns = {
        "temperature": np.tile([0, 1, 0.5, 2], NUM_ROWS // 4),
        "top_k": np.tile([3000, 5, 3000], NUM_ROWS // 3),
        "top_p": np.tile([0.5, 1], NUM_ROWS // 2),
        "min_p": np.tile([0, 0, 0.1, 0], NUM_ROWS // 4),
    }
    assert_as_reference(random_logits("flat", 3000), FILTERED, **columns)


@pytest.mark.parametrize("kind", [GREEDY, PLAIN, FILTERED], ids=["greedy", "plain", "filtered"])
def test_forbidden_tokens_are_never_taken(kind: SamplingKind) -> None:
    logits = random_logits("flat", 1000)
    logits[:, 1::2] = -torch.inf
    logits[0] = -torch.inf
    assert_as_reference(logits, kind, top_p=0.9 if kind.filters else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [GREEDY, PLAIN, FILTERED], ids=["greedy", "plain", "filtered"])
def test_rows_without_a_finite_choice_give_no_token(dtype: torch.dtype, kind: SamplingKind) -> None:
    logits = random_logits("flat", 1000).to(dtype)
    logits[1] = torch.nan
    logits[3, 999] = torch.nan
    logits[5] = -torch.inf
    logits[6, 300] = -torch.nan
    logits[7, 0] = torch.inf
    logits[9] = -torch.inf
    logits[9, 4] = torch.nan
    columns: dict[str, Any] = {"top_p": 0.9 if kind.filters else 1.0}
    assert_as_reference(logits, kind, **columns)
    tokens = KernelSampler().sample(logits, sampler_inputs(NUM_ROWS, 1000, **columns), kind)
    assert [row for row in range(NUM_ROWS) if tokens[row] < 0] == [1, 3, 5, 6, 7, 9]


def test_bias_and_penalties_come_first() -> None:
    kind = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
    generator = np.random.default_rng(1)
    assert_as_reference(
        random_logits("flat", 700).bfloat16(),
        kind,
        bias=generator.normal(size=700),
        penalties=[1.3, 0.5, 0.2],
        output_counts=generator.integers(0, 3, size=700),
        prompt_mask=generator.integers(0, 2, size=700),
        top_p=0.9,
    )


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits, row_keys = random_logits("flat", 2000), keys(NUM_ROWS)
    sampler = KernelSampler()

    def draw(rows: np.ndarray) -> list[int]:
        inputs = sampler_inputs(len(rows), 2000, noise_keys=row_keys[rows], top_p=0.95)
        return sampler.sample(logits[torch.from_numpy(rows)], inputs, FILTERED).tolist()

    together = draw(np.arange(NUM_ROWS))
    assert draw(np.arange(NUM_ROWS)[::-1].copy()) == together[::-1]
    assert [draw(np.array([row]))[0] for row in range(NUM_ROWS)] == together


def test_without_numba_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_engine.backends.cpu.sampler.find_spec", lambda name: None)
    assert type(make_sampler()) is ReferenceSampler
