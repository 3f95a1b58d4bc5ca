"""Random requests of every kind, asked alone or thrown together, and what their answers are compared by."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from core_engine import LLM, LoRARequest, RequestOutput, SamplingParams

__all__ = ["Asked", "ask_alone", "ask_together", "assert_same", "known_texts", "make_requests", "with_stops"]

#: Bytes of the tokenizer of `tiny_chat_model`; every prompt is a few of them.
_NUM_BYTES = 256


@dataclass(frozen=True)
class Asked:
    """One request: what is asked, and how it comes and goes when asked together with others."""

    name: str
    prompt: list[int]
    params: SamplingParams
    lora: LoRARequest | None = None
    salt: str | None = None
    priority: int = 0
    #: The step before which it comes in, and how many steps later it is aborted.
    arrival: int = 0
    aborted_after: int | None = None


def make_requests(seed: int, loras: Sequence[LoRARequest], count: int) -> list[Asked]:
    """Draw requests that share prefixes, adapters and salts in many ways; nothing stops them early."""
    draw = random.Random(seed)
    texts = [draw.choices(range(_NUM_BYTES), k=length) for length in (3, 16, 39, 39, 57)]
    return [
        Asked(
            name=f"r{number}",
            prompt=draw.choice(texts) + draw.choices(range(_NUM_BYTES), k=draw.choice((0, 0, 1, 16))),
            params=_make_params(draw),
            lora=draw.choice((None, None, *loras)),
            salt=draw.choice((None, None, None, None, "salt")),
            priority=draw.randint(0, 2),
            arrival=draw.choice((0, 0, draw.randint(0, 30))),
            aborted_after=draw.choice((None, None, None, None, draw.randint(0, 20))),
        )
        for number in range(count)
    ]


def _make_params(draw: random.Random) -> SamplingParams:
    options: dict[str, Any] = {"temperature": 0.0}
    if draw.random() < 0.6:
        options = {"temperature": draw.choice((0.6, 1.0)), "seed": draw.getrandbits(40)}
        options |= draw.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.02}))
    if draw.random() < 0.2:
        options |= draw.choice(
            ({"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}, {"logit_bias": {7: 3.0}})
        )
    if draw.random() < 0.4:
        options["logprobs"] = draw.randint(0, 3)
    if draw.random() < 0.3:
        options["prompt_logprobs"] = draw.randint(0, 2)
    return SamplingParams(
        n=draw.choice((1, 1, 1, 3)),
        max_tokens=draw.choice((1, 12, 24, 32)),
        ignore_eos=draw.random() < 0.5,
        **options,
    )


def with_stops(seed: int, asked: Sequence[Asked], answers: Sequence[RequestOutput]) -> list[Asked]:
    """Let some of the requests stop somewhere in what they answered, at a text or a token."""
    draw, stopped = random.Random(seed), []
    for one, answer in zip(asked, answers, strict=True):
        sequence = draw.choice(answer.outputs)
        options: dict[str, Any] = {}
        match draw.randint(0, 3):
            case 0 if sequence.text:
                start = draw.randrange(len(sequence.text))
                options["stop"] = sequence.text[start : start + draw.randint(1, 3)]
                options["include_stop_str_in_output"] = draw.random() < 0.5
            case 1:
                options["stop_token_ids"] = [draw.choice(sequence.token_ids)]
        if draw.random() < 0.3:
            options["min_tokens"] = draw.randint(0, one.params.max_tokens or 0)
        stopped.append(replace(one, params=replace(one.params, **options)))
    return stopped


def ask_alone(llm: LLM, asked: Sequence[Asked]) -> list[RequestOutput]:
    """Ask one after the other."""
    return [
        llm.generate(one.prompt, one.params, lora=one.lora, cache_salt=one.salt)[0]  # type: ignore[arg-type]
        for one in asked
    ]


def ask_together(llm: LLM, asked: Sequence[Asked], max_steps: int = 3000) -> dict[str, RequestOutput]:
    """Let all come and go as they say; returns those that were not aborted, by name."""
    engine, answers = llm.engine, {}
    waiting, open_names, aborts = list(asked), set[str](), dict[str, int]()
    for step in range(max_steps):
        for one in [one for one in waiting if one.arrival <= step]:
            waiting.remove(one)
            prompt = engine.prompts.tokenize(one.prompt)
            engine.add(
                [(one.name, prompt, one.params)], priority=one.priority, loras=[one.lora], cache_salt=one.salt
            )
            open_names.add(one.name)
            if one.aborted_after is not None:
                aborts[one.name] = step + one.aborted_after
        gone = {name for name in open_names if aborts.get(name) == step}
        engine.discard(gone)
        open_names -= gone
        engine.step()
        for answer in engine.take_finished(tuple(open_names)):
            open_names.remove(answer.request_id)
            answers[answer.request_id] = answer
        if not waiting and not open_names:
            return answers
    raise AssertionError(f"not done after {max_steps} steps: {open_names}")


def known_texts(asked: Sequence[Asked], answers: Sequence[RequestOutput]) -> dict[str, list[int]]:
    """Return prompt and answer of every sequence by the id that it has in the engine core."""
    return {
        one.name if len(answer.outputs) == 1 else f"{one.name}/{index}": [*one.prompt, *sequence.token_ids]
        for one, answer in zip(asked, answers, strict=True)
        for index, sequence in enumerate(answer.outputs)
    }


def assert_same(found: RequestOutput, expected: RequestOutput, tolerance: float = 2e-4) -> None:
    """Compare tokens, texts and ends exactly, and log-probabilities within ``tolerance``."""
    __tracebackhide__ = True
    assert [(s.token_ids, s.text, s.finish_reason, s.stop_reason, s.error) for s in found.outputs] == [
        (s.token_ids, s.text, s.finish_reason, s.stop_reason, s.error) for s in expected.outputs
    ]
    pairs = [(found.prompt_logprobs, expected.prompt_logprobs)]
    pairs += [(a.logprobs, b.logprobs) for a, b in zip(found.outputs, expected.outputs, strict=True)]  # type: ignore[misc]
    for rows, wanted_rows in pairs:
        assert (rows is None) == (wanted_rows is None)
        for row, wanted in zip(rows or (), wanted_rows or (), strict=True):
            assert (row and list(row)) == (wanted and list(wanted))
            for token_id, logprob in (row or {}).items():
                assert wanted is not None
                assert logprob.logprob == pytest.approx(wanted[token_id].logprob, abs=tolerance)
                assert logprob.rank == wanted[token_id].rank
