from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sampling_case import (
    FILTERED,
    GREEDY,
    KINDS,
    OPTIONS,
    assert_as_reference,
    keys,
    kind_of,
    logits_without_choice,
    penalties_and_bias,
    random_logits,
    sampler_inputs,
)

from core_engine.backends.cpu.sampler import KernelSampler, make_sampler
from core_engine.sampling.reference import ReferenceSampler
from core_engine.worker.shape_policy import SamplingKind

NUM_ROWS = 24
OURS = KernelSampler()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", ["flat", "peaked", "ties", "zeros"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_tokens_are_the_references(dtype: torch.dtype, shape: str, options: dict[str, Any]) -> None:
    assert_as_reference(OURS, random_logits(shape, NUM_ROWS, 5000).to(dtype), kind_of(options), **options)


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
@KINDS
def test_any_vocabulary_size_works(vocab_size: int, kind: SamplingKind) -> None:
    assert_as_reference(
        OURS, random_logits("flat", NUM_ROWS, vocab_size), kind, top_p=0.8 if kind.filters else 1.0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_greedy_takes_the_lowest_id_of_equal_logits(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 1000, dtype=dtype)
    logits[0, [300, 301, 900]] = 5
    logits[1] = -3
    assert_as_reference(OURS, logits, GREEDY)


def test_rows_of_different_options_do_not_disturb_each_other() -> None:
    columns = {
        "temperature": np.tile([0, 1, 0.5, 2], NUM_ROWS // 4),
        "top_k": np.tile([3000, 5, 3000], NUM_ROWS // 3),
        "top_p": np.tile([0.5, 1], NUM_ROWS // 2),
        "min_p": np.tile([0, 0, 0.1, 0], NUM_ROWS // 4),
    }
    assert_as_reference(OURS, random_logits("flat", NUM_ROWS, 3000), FILTERED, **columns)


@KINDS
def test_forbidden_tokens_are_never_taken(kind: SamplingKind) -> None:
    logits = random_logits("flat", NUM_ROWS, 1000)
    logits[:, 1::2] = -torch.inf
    logits[0] = -torch.inf
    assert_as_reference(OURS, logits, kind, top_p=0.9 if kind.filters else 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@KINDS
def test_rows_without_a_finite_choice_give_no_token(dtype: torch.dtype, kind: SamplingKind) -> None:
    logits, without = logits_without_choice(1000)
    logits, columns = logits.to(dtype), {"top_p": 0.9 if kind.filters else 1.0}
    assert_as_reference(OURS, logits, kind, **columns)
    tokens = OURS.sample(logits, sampler_inputs(8, 1000, **columns), kind)
    assert [row for row in range(8) if tokens[row] < 0] == without


def test_bias_and_penalties_come_first() -> None:
    kind = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
    logits = random_logits("flat", NUM_ROWS, 700).bfloat16()
    assert_as_reference(OURS, logits, kind, top_p=0.9, **penalties_and_bias(700))


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits, row_keys = random_logits("flat", NUM_ROWS, 2000), keys(NUM_ROWS)

    def draw(rows: np.ndarray) -> list[int]:
        inputs = sampler_inputs(len(rows), 2000, noise_keys=row_keys[rows], top_p=0.95)
        return OURS.sample(logits[torch.from_numpy(rows)], inputs, FILTERED).tolist()

    together = draw(np.arange(NUM_ROWS))
    assert draw(np.arange(NUM_ROWS)[::-1].copy()) == together[::-1]
    assert [draw(np.array([row]))[0] for row in range(NUM_ROWS)] == together


def test_several_threads_divide_the_rows() -> None:
    """In a process of its own: here numba has one thread."""
    program = """
import numba, torch
torch.set_num_threads(3)
from core_engine.backends.cpu.sampler import KernelSampler
from sampling_case import FILTERED, assert_as_reference, random_logits
sampler = KernelSampler()
print(numba.get_num_threads())
for shape in ("flat", "ties", "peaked"):
    for _ in range(10):
        assert_as_reference(sampler, random_logits(shape, 64, 3000), FILTERED, top_p=0.9, top_k=500)
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    variables = {**os.environ, "NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "3", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_without_numba_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_engine.backends.cpu.sampler.find_spec", lambda name: None)
    assert type(make_sampler()) is ReferenceSampler
