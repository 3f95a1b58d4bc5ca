"""What goes wrong with one request ends that request alone, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core_engine import LLM, SamplingParams
from core_engine.engine.request_state import LogprobFormatter
from core_engine.engine.text_stream import TextStream
from core_engine.errors import CoreEngineError

EIGHT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
ODD, FINE = [9, 9, 9], [1, 2, 3]


def tokens(llm: LLM, prompt: list[int]) -> list[int]:
    return llm.generate([prompt], EIGHT)[0].outputs[0].token_ids


def assert_engine_is_clean(llm: LLM) -> None:
    stats = llm.engine.core.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    llm.generate([FINE], EIGHT)  # the next step tells the runner, and brings blocks in flight back
    stats = llm.engine.core.scheduler.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


@pytest.fixture
def nan_for_odd(llm: LLM) -> Iterator[None]:
    """Make the hidden rows of token 9 NaN, and with them the logits of a prompt that ends with it."""
    model = llm.engine.core.executor.get_model()
    weight = model.get_input_embeddings().weight
    before = weight[9].clone()
    with torch.no_grad():
        weight[9] = torch.nan
    yield
    with torch.no_grad():
        weight[9] = before


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9}])
def test_logits_that_are_not_numbers_end_their_request_and_no_other(
    llm: LLM, nan_for_odd: None, temperature: float, filters: dict[str, Any]
) -> None:
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=8, ignore_eos=True, logprobs=1, **filters
    )
    (alone,) = llm.generate([FINE], params)

    odd, fine = llm.generate([ODD, FINE], params)

    (sequence,) = odd.outputs
    assert odd.finished
    assert (sequence.finish_reason, sequence.token_ids, sequence.text) == ("error", [], "")
    assert "its logits are not numbers" in str(sequence.error)
    assert fine.outputs[0].token_ids == alone.outputs[0].token_ids
    assert fine.outputs[0].error is None
    assert_engine_is_clean(llm)


def test_a_row_that_forbids_every_token_ends_its_request_and_no_other(llm: LLM) -> None:
    vocab_size = llm.engine.started.model.vocab_size
    banned = SamplingParams(
        temperature=0.0, max_tokens=8, ignore_eos=True, stop_token_ids=list(range(vocab_size)), min_tokens=4
    )
    expected = tokens(llm, FINE)

    odd, fine = llm.generate([ODD, FINE], [banned, EIGHT])

    assert odd.outputs[0].finish_reason == "error"
    assert "min_tokens forbid every one" in str(odd.outputs[0].error)
    assert fine.outputs[0].token_ids == expected
    assert_engine_is_clean(llm)


def test_a_stream_ends_with_the_error(llm: LLM, nan_for_odd: None) -> None:
    (chunk,) = llm.stream(ODD, EIGHT)
    assert (chunk.finish_reason, chunk.token_ids, chunk.text) == ("error", [], "")
    assert "the model gave no token" in str(chunk.error)


def test_only_the_sequence_of_n_that_fails_ends_with_an_error(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = TextStream.append
    streams: list[TextStream] = []

    def break_the_second(self: TextStream, *args: Any, **kwargs: Any) -> Any:
        if self not in streams:
            streams.append(self)
        if len(streams) > 1 and self is streams[1]:
            raise UnicodeError("half a character")
        return append(self, *args, **kwargs)

    params = SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True)
    (expected,) = llm.generate([FINE], params)
    monkeypatch.setattr(TextStream, "append", break_the_second)

    (output,) = llm.generate([FINE], params)

    assert output.finished
    assert [s.finish_reason for s in output.outputs] == ["length", "error", "length"]
    assert "UnicodeError: half a character" in str(output.outputs[1].error)
    assert [s.token_ids for s in output.outputs[::2]] == [s.token_ids for s in expected.outputs[::2]]
    assert_engine_is_clean(llm)


def test_text_that_cannot_be_made_ends_its_request_with_what_there_was(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = TextStream.append, []

    def break_the_fourth(self: TextStream, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        if self is calls[0] and calls.count(self) == 4:
            raise KeyError("no such piece")
        return append(self, *args, **kwargs)

    expected = [tokens(llm, ODD), tokens(llm, FINE)]
    monkeypatch.setattr(TextStream, "append", break_the_fourth)

    odd, fine = llm.generate([ODD, FINE], EIGHT)

    assert odd.outputs[0].finish_reason == "error"
    assert odd.outputs[0].token_ids == expected[0][:3]
    assert "could not be turned into text: KeyError: no such piece" in str(odd.outputs[0].error)
    assert fine.outputs[0].token_ids == expected[1]
    assert_engine_is_clean(llm)


def test_log_probabilities_that_cannot_be_shown_end_their_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: LogprobFormatter, *arguments: Any) -> Any:
        raise ValueError("no such token")

    monkeypatch.setattr(LogprobFormatter, "rows", fail)
    params = [SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2), EIGHT]

    odd, fine = llm.generate([ODD, FINE], params)

    assert odd.outputs[0].finish_reason == "error"
    assert odd.outputs[0].logprobs == []
    assert fine.outputs[0].finish_reason == "length"
    assert_engine_is_clean(llm)


def test_a_failed_step_says_why_on_every_output_that_it_took(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = llm.stream(FINE, EIGHT)
    next(stream)

    def fail(step: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("the kernel failed")

    monkeypatch.setattr(llm.engine.core.executor, "execute_model", fail)
    with pytest.raises(RuntimeError):
        llm.generate([ODD], EIGHT)

    (chunk,) = list(stream)
    assert (chunk.finish_reason, chunk.error) == ("error", "its step failed: RuntimeError: the kernel failed")


def test_a_wrong_step_of_a_scheduler_is_raised_and_the_engine_goes_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = llm.engine.core.scheduler
    schedule = scheduler.schedule

    def wrong() -> Any:
        step = schedule()
        step.num_computed_tokens[:] += 1
        return step

    expected = tokens(llm, FINE)
    monkeypatch.setattr(scheduler, "schedule", wrong)
    stream = llm.stream(FINE, EIGHT)
    with pytest.raises(CoreEngineError):
        next(stream)
    monkeypatch.undo()

    assert [chunk.finish_reason for chunk in stream] == ["error"]
    assert tokens(llm, FINE) == expected
    assert_engine_is_clean(llm)


def test_case_27_an_abort_of_several_sequences_reaches_them_all(llm: LLM) -> None:
    stream = llm.stream(FINE, SamplingParams(n=3, max_tokens=60, ignore_eos=True))
    next(stream)
    assert llm.engine.core.scheduler.stats().num_running == 3

    stream.close()

    assert_engine_is_clean(llm)


def test_case_27_an_id_that_was_aborted_can_be_used_at_once(llm: LLM) -> None:
    engine = llm.engine
    prompts = {name: engine.prompts.tokenize(ids) for name, ids in (("odd", ODD), ("fine", FINE))}
    expected = tokens(llm, FINE)
    engine.add([("x", prompts["odd"], EIGHT)])
    engine.step()
    engine.discard(["x"])
    engine.add([("x", prompts["fine"], EIGHT)])
    outputs: list[Any] = []
    while not outputs:
        engine.step()
        outputs = engine.take_finished(["x"])

    assert outputs[0].outputs[0].token_ids == expected
    assert_engine_is_clean(llm)


def test_closing_with_open_requests(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20)
    stream = llm.stream(FINE, EIGHT)
    next(stream)
    core = llm.engine.core

    llm.close()

    stats = core.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert core.shutdown() == []
