"""A model divided over two processes answers as one in the caller's process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_engine import LLM, RequestOutput, SamplingParams

PROMPTS = [[1, 2, 3], list(range(40, 100)), [7, 8] * 20]
CASES: dict[str, SamplingParams] = {
    "greedy, with log-probabilities": SamplingParams(
        temperature=0.0, max_tokens=16, logprobs=3, prompt_logprobs=2, ignore_eos=True
    ),
    "drawn": SamplingParams(temperature=0.8, top_p=0.9, seed=11, max_tokens=16, ignore_eos=True),
    "penalties": SamplingParams(temperature=0.0, frequency_penalty=0.5, max_tokens=16, ignore_eos=True),
}
#: Small steps and a small pool: prompts are computed in chunks, and requests give way to each other.
TIGHT = {"max_num_batched_tokens": 24, "block_size": 16}


def start(model: Path, num_ranks: int) -> LLM:
    settings: dict[str, Any] = {"dtype": "float32", "kv_cache_bytes": 4 << 20, "num_draft_tokens": 3, **TIGHT}
    return LLM(str(model), backend="cpu", tensor_parallel_size=num_ranks, **settings)


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> dict[str, list[RequestOutput]]:
    with start(tiny_model, 1) as llm:
        return {name: llm.generate(PROMPTS, params) for name, params in CASES.items()}


@pytest.fixture(scope="module")
def two_ranks(tiny_model: Path) -> Iterator[LLM]:
    with start(tiny_model, 2) as llm:
        yield llm


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_give_the_same_tokens_and_log_probabilities(
    two_ranks: LLM, expected: dict[str, list[RequestOutput]], case: str
) -> None:
    for ours, theirs in zip(two_ranks.generate(PROMPTS, CASES[case]), expected[case], strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        if CASES[case].logprobs is not None:
            assert ours.outputs[0].cumulative_logprob == pytest.approx(
                theirs.outputs[0].cumulative_logprob, abs=1e-3
            )
            assert [sorted(row or {}) for row in ours.prompt_logprobs or []] == [
                sorted(row or {}) for row in theirs.prompt_logprobs or []
            ]


def test_cached_prefixes_are_found(two_ranks: LLM, expected: dict[str, list[RequestOutput]]) -> None:
    params = CASES["drawn"]
    two_ranks.generate(PROMPTS[1], params)
    (again,) = two_ranks.generate(PROMPTS[1], params)
    assert again.num_cached_tokens > 0
    assert again.outputs[0].token_ids == expected["drawn"][1].outputs[0].token_ids


def test_the_start_tells_of_the_processes_and_what_is_divided(two_ranks: LLM) -> None:
    row = two_ranks.engine.started.features["executor"]
    assert (row.state, row.reason) == ("process", "2 ranks, each in a process of its own")
    assert any("divided over 2 devices" in line for line in two_ranks.engine.started.table.lines())


def test_an_interrupt_from_the_terminal_ends_the_command_and_its_ranks(tiny_model: Path) -> None:
    """The terminal sends it to all processes of the foreground group at once."""
    command = [
        "generate",
        str(tiny_model),
        "--backend",
        "cpu",
        "--tensor-parallel-size",
        "2",
        "--prompt",
        "hello",
    ]
    running = subprocess.Popen(
        [sys.executable, "-m", "core_engine", *command, "--kv-cache-bytes", "4M", "--max-tokens", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.read(1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert len(children) == 2
    os.killpg(running.pid, signal.SIGINT)
    _, printed = running.communicate(timeout=120)
    assert running.returncode == 130, printed.decode()
    assert b"Traceback" not in printed
    assert not any(Path(f"/proc/{child}").exists() for child in children)
