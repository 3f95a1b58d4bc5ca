"""Faults that real engines had in sampling, batches and outputs, each as one test of the whole engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core_engine import LLM, SamplingParams
from core_engine.attention.layer import PagedAttention

Start = Callable[..., LLM]

PROMPTS = [[number, 7, *range(20 + number, 40 + 3 * number)] for number in range(6)]
#: Greedy and sampled, with filters, penalties and bias, so that batches are mixed.
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(temperature=0.9, seed=1, max_tokens=12, ignore_eos=True, top_k=30, top_p=0.9),
    SamplingParams(temperature=1.0, seed=2, max_tokens=25, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True),
    SamplingParams(temperature=1.2, seed=3, max_tokens=9, ignore_eos=True, frequency_penalty=1.5),
    SamplingParams(temperature=0.7, seed=4, max_tokens=30, ignore_eos=True, logit_bias={40: 5.0, 41: -5.0}),
]


@pytest.fixture(scope="module")
def start(tiny_model: Path) -> Iterator[Start]:
    """Start an engine in float32; it is closed when the module is done."""
    running: list[LLM] = []

    def build(**options: Any) -> LLM:
        options = {"dtype": "float32", "kv_cache_bytes": 4 << 20, **options}
        running.append(LLM(str(tiny_model), backend="cpu", **options))
        return running[-1]

    yield build
    for llm in running:
        llm.close()


@pytest.fixture(scope="module")
def roomy(start: Start) -> LLM:
    return start()


def tokens(llm: LLM, order: list[int] | None = None) -> list[list[int]]:
    """What each of the requests gets, when they are given in ``order`` (all of them by default)."""
    order = list(range(len(PROMPTS))) if order is None else order
    outputs = llm.generate([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
    return [output.outputs[0].token_ids for _, output in sorted(zip(order, outputs, strict=True))]


@pytest.fixture(scope="module")
def alone(roomy: LLM) -> list[list[int]]:
    return [tokens(roomy, [number])[0] for number in range(len(PROMPTS))]


def test_case_22_batched(roomy: LLM, alone: list[list[int]]) -> None:
    assert tokens(roomy) == alone


def test_case_22_reordered(roomy: LLM, alone: list[list[int]]) -> None:
    assert tokens(roomy, [4, 0, 5, 2, 1, 3]) == alone


@pytest.mark.parametrize("budget", [1, 5, 16])
def test_case_22_chunked(start: Start, alone: list[list[int]], budget: int) -> None:
    assert tokens(start(max_num_batched_tokens=budget)) == alone


def bytes_of(llm: LLM, num_blocks: int) -> int:
    """Bytes of a pool of ``num_blocks`` blocks, the null block included."""
    started = llm.engine.started
    return started.table.kv_cache_bytes // (started.table.num_kv_tokens // 16 + 1) * num_blocks


def test_case_22_preempted(start: Start, roomy: LLM, alone: list[list[int]]) -> None:
    llm = start(max_model_len=80, kv_cache_bytes=bytes_of(roomy, 14))

    assert tokens(llm) == alone
    assert llm.engine.core.scheduler.stats().num_preemptions > 0


def test_case_15_free_blocks_full_of_nan_change_nothing(
    start: Start, roomy: LLM, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = start(
        max_model_len=80,
        kv_cache_bytes=bytes_of(roomy, 14),
        enable_prefix_caching=False,
        backend_options={"attention": "reference"},
    )
    core = llm.engine.core
    pool = core.scheduler.kv.pool
    caches = [
        attention.cache
        for module in core.executor.get_model().modules()
        for attention in vars(module).values()
        if isinstance(attention, PagedAttention)
    ]
    assert caches
    execute_model = core.executor.execute_model

    def poison_first(step: Any) -> Any:
        free = torch.tensor(list(pool._free), dtype=torch.int64)
        for cache in caches:
            for half in cache:
                half[free] = torch.nan
        return execute_model(step)

    monkeypatch.setattr(core.executor, "execute_model", poison_first)

    assert tokens(llm) == alone
    assert core.scheduler.stats().num_preemptions > 0


def test_case_18_a_penalised_request_that_joins_later_disturbs_nobody(
    roomy: LLM, alone: list[list[int]]
) -> None:
    plain = roomy.stream(PROMPTS[3], PARAMS[3])
    ids = [token for _ in range(4) for token in next(plain).token_ids]
    penalised = roomy.stream(PROMPTS[0], PARAMS[0])

    later = [token for chunk in penalised for token in chunk.token_ids]
    ids += [token for chunk in plain for token in chunk.token_ids]

    assert (later, ids) == (alone[0], alone[3])


def test_case_18_a_bad_word_sees_the_last_token(roomy: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    free = roomy.generate([PROMPTS[1]], greedy)[0].outputs[0]
    tokenizer = roomy.engine.tokenizer
    pair = next(
        text
        for left, right in zip(free.token_ids, free.token_ids[1:], strict=False)
        if tokenizer.encode(text := tokenizer.hf.decode([left, right])) == [left, right]
    )

    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, bad_words=[pair])
    (sequence,) = roomy.generate([PROMPTS[1]], params)[0].outputs

    assert pair in free.text
    assert pair not in sequence.text


def test_case_19_four_sequences_of_one_seed_differ_and_repeat(roomy: LLM) -> None:
    params = SamplingParams(n=4, seed=11, max_tokens=10, ignore_eos=True)

    first, again = (
        [sequence.token_ids for sequence in roomy.generate([PROMPTS[2]], params)[0].outputs] for _ in range(2)
    )

    assert first == again
    assert len({tuple(ids) for ids in first}) == 4


def test_case_20_state_stays_with_its_request_while_others_come_and_go(
    roomy: LLM, alone: list[list[int]]
) -> None:
    # Requests of different lengths end one by one, and new ones take their rows.
    order = [number % len(PROMPTS) for number in range(24)]
    outputs = roomy.generate([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
    assert [output.outputs[0].token_ids for output in outputs] == [alone[i] for i in order]


def letters(llm: LLM, **changes: Any) -> SamplingParams:
    """Greedy parameters under which every token is one lower-case letter."""
    bias = {llm.engine.tokenizer.encode(letter)[0]: 100.0 for letter in "abcdefghijklmnopqrstuvwxyz"}
    options = {"max_tokens": 16, "frequency_penalty": 2.0, "logit_bias": bias, "logprobs": 1, **changes}
    return SamplingParams(temperature=0.0, ignore_eos=True, **options)


@pytest.mark.parametrize("min_tokens", [0, 9])
def test_case_21_no_stop_string_counts_before_min_tokens(roomy: LLM, min_tokens: int) -> None:
    (free,) = roomy.generate([PROMPTS[3]], letters(roomy))[0].outputs
    stop = free.text[2]
    ends = [place + 1 for place, letter in enumerate(free.text) if letter == stop and place + 1 >= min_tokens]

    (sequence,) = roomy.generate([PROMPTS[3]], letters(roomy, stop=[stop], min_tokens=min_tokens))[0].outputs

    assert len(sequence.token_ids) == (ends[0] if ends else 16)


def test_case_21_log_probabilities_end_with_the_tokens(roomy: LLM) -> None:
    (free,) = roomy.generate([PROMPTS[3]], letters(roomy))[0].outputs
    stop = free.text[4:6]

    (sequence,) = roomy.generate([PROMPTS[3]], letters(roomy, stop=[stop]))[0].outputs

    num_tokens = free.text.index(stop) + 2
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop)
    assert sequence.text == free.text[: num_tokens - 2]
    assert sequence.token_ids == free.token_ids[:num_tokens]
    assert sequence.logprobs is not None
    assert [next(iter(row)) for row in sequence.logprobs] == sequence.token_ids
    total = sum(row[token].logprob for token, row in zip(sequence.token_ids, sequence.logprobs, strict=True))
    assert sequence.cumulative_logprob == pytest.approx(total)


def test_case_21_a_stop_inside_the_budget_beats_the_cap(roomy: LLM) -> None:
    (free,) = roomy.generate([PROMPTS[3]], PARAMS[3])[0].outputs
    last = free.token_ids[4]
    params = SamplingParams(
        temperature=0.0,
        max_tokens=free.token_ids.index(last) + 1,
        ignore_eos=True,
        stop_token_ids=[last],
    )

    (sequence,) = roomy.generate([PROMPTS[3]], params)[0].outputs

    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", last)


def test_case_28_a_slow_reader_misses_no_token_and_no_log_probability(roomy: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=15, ignore_eos=True, logprobs=1)
    (whole,) = roomy.generate([PROMPTS[4]], params)[0].outputs
    stream = roomy.stream(PROMPTS[4], params)
    chunks = [next(stream)]

    # Another caller makes all the steps; the reader comes back when everything is over.
    roomy.generate([PROMPTS[5]], PARAMS[5])
    chunks += stream

    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert "".join(chunk.text for chunk in chunks) == whole.text
    rows = [row for chunk in chunks for row in chunk.logprobs or []]
    assert whole.logprobs is not None
    assert [list(row) for row in rows] == [list(row) for row in whole.logprobs]


def test_case_29_a_second_generate_keeps_the_order(roomy: LLM, alone: list[list[int]]) -> None:
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
        outputs = roomy.generate([PROMPTS[i] for i in order], [PARAMS[i] for i in order])
        assert [output.prompt_token_ids for output in outputs] == [PROMPTS[i] for i in order]
        assert [output.outputs[0].token_ids for output in outputs] == [alone[i] for i in order]


def test_case_17_prompt_log_probabilities_with_a_warm_cache_are_those_of_a_cold_one(start: Start) -> None:
    llm = start()
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    prompt = list(range(3, 60))

    cold = llm.generate([prompt], params)[0].prompt_logprobs
    llm.generate([prompt], PARAMS[3])
    warm = llm.generate([prompt], params)[0].prompt_logprobs

    assert cold is not None
    assert warm is not None
    assert len(warm) == len(prompt)
    for before, after in zip(cold[1:], warm[1:], strict=True):
        assert before is not None
        assert after is not None
        assert list(before) == list(after)
        assert np.allclose(
            [c.logprob for c in before.values()], [c.logprob for c in after.values()], atol=1e-5
        )
