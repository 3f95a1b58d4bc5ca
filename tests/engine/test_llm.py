"""The Python door, on a tiny random model and the CPU backend."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from core_engine import LLM, SamplingParams
from core_engine.errors import ConfigError, EngineClosed, InvalidRequest, ModelNotFound, UnsupportedFeature

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def tokens(llm: LLM, prompt: object, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate(prompt, params)[0].outputs[0].token_ids  # type: ignore[arg-type]


def test_an_output_has_the_shape_that_users_of_the_field_know(llm: LLM) -> None:
    (output,) = llm.generate("hello", GREEDY)
    assert output.finished
    assert output.prompt == "hello"
    assert output.prompt_token_ids == llm.engine.tokenizer.encode("hello")
    (sequence,) = output.outputs
    assert sequence.index == 0
    assert len(sequence.token_ids) == 8
    assert sequence.text == llm.engine.tokenizer.hf.decode(sequence.token_ids)
    assert sequence.finish_reason == "length"
    assert sequence.logprobs is None


def test_case_29_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a", "bb", "ccc", "dd", "e"]
    lengths = [5, 1, 9, 2, 7]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_text_token_ids_and_objects_name_the_same_prompt(llm: LLM) -> None:
    ids = llm.engine.tokenizer.encode("hello")
    expected = tokens(llm, "hello")
    assert tokens(llm, ids) == expected
    assert tokens(llm, {"prompt": "hello"}) == expected
    assert tokens(llm, {"prompt_token_ids": ids}) == expected
    assert tokens(llm, np.array(ids)) == expected
    (both,) = llm.generate({"prompt": "hello", "prompt_token_ids": ids}, GREEDY)
    assert (both.prompt, both.outputs[0].token_ids) == ("hello", expected)


def test_no_prompts_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_a_chat_goes_through_the_template(llm: LLM) -> None:
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert output.outputs[0].token_ids == tokens(llm, output.prompt)


def test_several_chats_at_once(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("hi", "ho")]
    outputs = llm.chat(chats, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [
        llm.chat(chat, GREEDY)[0].outputs[0].token_ids for chat in chats
    ]


def test_the_chunks_of_a_stream_join_to_the_whole(llm: LLM) -> None:
    (whole,) = llm.generate("hello", GREEDY)
    chunks = list(llm.stream("hello", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == whole.outputs[0].text
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == whole.outputs[0].token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"


def test_two_streams_may_be_read_in_turn(llm: LLM) -> None:
    pairs = list(zip(llm.stream("hello", GREEDY), llm.stream("world", GREEDY), strict=False))
    assert [t for first, _ in pairs for t in first.token_ids] == tokens(llm, "hello")[: len(pairs)]
    assert [t for _, second in pairs for t in second.token_ids] == tokens(llm, "world")[: len(pairs)]


def test_leaving_a_stream_ends_its_request_and_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("hello", SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
    next(stream)
    stream.close()
    tokens(llm, "other")
    stats = llm.engine.core.scheduler.stats()
    assert stats.num_running == 0
    assert stats.num_free_blocks == stats.num_total_blocks


def test_several_sequences_of_one_prompt(llm: LLM) -> None:
    (output,) = llm.generate("hello", SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True))
    assert [sequence.index for sequence in output.outputs] == [0, 1, 2]
    assert len({tuple(sequence.token_ids) for sequence in output.outputs}) == 3


def test_a_stop_string_ends_the_text_before_it(llm: LLM) -> None:
    (free,) = llm.generate("hello", SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    text = free.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=[stop])
    (sequence,) = llm.generate("hello", params)[0].outputs
    assert sequence.text == text[: text.index(stop)]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop)


def test_a_stop_token_ends_the_sequence(llm: LLM) -> None:
    third = tokens(llm, "hello")[2]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop_token_ids=[third])
    (sequence,) = llm.generate("hello", params)[0].outputs
    assert sequence.token_ids == tokens(llm, "hello")[: tokens(llm, "hello").index(third) + 1]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", third)


def test_logprobs_hold_the_token_and_the_most_likely(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=2)
    (sequence,) = llm.generate("hello", params)[0].outputs
    assert sequence.logprobs is not None
    assert len(sequence.logprobs) == 5
    for token_id, row in zip(sequence.token_ids, sequence.logprobs, strict=True):
        assert next(iter(row)) == token_id
        assert row[token_id].rank == 1
        assert len(row) == 2
    total = sum(row[t].logprob for t, row in zip(sequence.token_ids, sequence.logprobs, strict=True))
    assert sequence.cumulative_logprob == pytest.approx(total, abs=1e-5)


def test_prompt_logprobs_cover_every_prompt_token_but_the_first_also_from_a_warm_cache(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    prompt = "the same prompt of more than one block of sixteen tokens"
    cold = llm.generate(prompt, params)[0]
    warm = llm.generate(prompt, params)[0]
    assert cold.prompt_logprobs is not None
    assert len(cold.prompt_logprobs) == len(cold.prompt_token_ids)
    assert cold.prompt_logprobs[0] is None
    assert all(
        row and t in row for t, row in zip(cold.prompt_token_ids[1:], cold.prompt_logprobs[1:], strict=True)
    )
    assert warm.prompt_logprobs == cold.prompt_logprobs


def test_a_repeated_prompt_reads_its_prefix_from_the_cache(llm: LLM) -> None:
    prompt = "a prompt that fills several blocks of sixteen tokens and is asked twice"
    first = llm.generate(prompt, GREEDY)[0]
    second = llm.generate(prompt, GREEDY)[0]
    assert second.num_cached_tokens >= 48
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "prompt is empty"),
        ([], None),
        ([[]], "prompt is empty"),
        ([5, -1], "token id -1 is out of range"),
        ([5, 10**6], "out of range; this model has ids 0 to"),
        ([[5, "six"]], "token ids must be integers"),
        (["fine", 3.5], "must be text or a list of token ids"),
        ({"text": "hello"}, "unknown key 'text'"),
        ({1: "hello", "text": "hello"}, "unknown key 1"),
        ({"prompt": 5, "prompt_token_ids": [1]}, "'prompt' of a prompt must be text, got int"),
        ({"prompt": {"prompt": "hello"}}, "'prompt' of a prompt must be text, got dict"),
        ({"prompt_token_ids": "hello"}, "'prompt_token_ids' of a prompt must be token ids, got str"),
        ({}, "a prompt object needs 'prompt'"),
        (7, "prompts must be text"),
        (b"hello", "must be text or a list of token ids, got bytes"),
        ([b"hello"], "must be text or a list of token ids, got bytes"),
        (np.zeros((2, 2), dtype=np.int64)[None], "one dimension"),
        ("x" * 300, "the prompt has 300 tokens; at most 255 fit into the context of 256"),
    ],
)
def test_a_wrong_prompt_is_refused_with_the_reason(llm: LLM, prompt: object, said: str | None) -> None:
    if said is None:
        assert llm.generate(prompt, GREEDY) == []  # type: ignore[arg-type]
        return
    with pytest.raises(InvalidRequest) as refusal:
        llm.generate(prompt, GREEDY)  # type: ignore[arg-type]
    assert said in str(refusal.value)


def test_one_wrong_prompt_among_many_starts_none_and_the_engine_goes_on(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="prompt 1"):
        llm.generate(["fine", "x" * 300, "fine"], GREEDY)
    stats = llm.engine.core.scheduler.stats()
    assert (stats.num_waiting, stats.num_running) == (0, 0)
    assert len(tokens(llm, "hello")) == 8


def test_more_logprobs_than_the_backend_offers_name_the_backend(llm: LLM) -> None:
    with pytest.raises(UnsupportedFeature, match="cpu"):
        llm.generate("hello", SamplingParams(logprobs=10_000))


@pytest.mark.parametrize("params", [{"temperature": 0}, "x", 3, SamplingParams, [GREEDY, None]])
def test_params_of_another_type_are_refused(llm: LLM, params: object) -> None:
    with pytest.raises(InvalidRequest, match="params must be a SamplingParams"):
        llm.generate(["a", "b"], params)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        llm.stream("a", params)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", ["high", None, True, 1.0, 2**63])
def test_a_priority_is_an_integer(llm: LLM, priority: object) -> None:
    with pytest.raises(InvalidRequest, match="priority must be an integer of 64 bits"):
        llm.generate("a", GREEDY, priority=priority)  # type: ignore[arg-type]


def test_under_the_priority_policy_the_smaller_number_runs_first(tiny_model: Path) -> None:
    options = {"backend": "cpu", "kv_cache_bytes": 4 << 20, "max_num_seqs": 1}
    with LLM(str(tiny_model), scheduling_policy="priority", **options) as llm:
        late = llm.stream("a", GREEDY, priority=5)
        early = llm.stream("b", GREEDY, priority=1)
        next(early)
        assert llm.engine.take_chunks("1") == []
        assert len(list(late)) == 8


def test_params_as_many_as_prompts(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="2 sampling params for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one"),
        ([{"content": "hi"}], "role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url; only text"),
        ([{"role": "user", "content": None}], "content must be text"),
    ],
)
def test_wrong_messages_are_refused(llm: LLM, messages: list[dict[str, object]], said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        list(llm.stream_chat(messages))
    assert said in str(refusal.value)


def test_an_unknown_option_names_the_nearest(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'max_model_len'"):
        LLM(str(tiny_model), max_model_length=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trust_remote_code": "no"}, "trust_remote_code: expected `bool`, got `str`"),
        ({"enable_prefix_caching": "off"}, "enable_prefix_caching"),
        ({"max_model_len": "100"}, "max_model_len: expected `int | null`, got `str`"),
        ({"max_num_seqs": 2.5}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"dtype": None}, "dtype"),
        ({"backend_options": None}, "backend_options"),
        ({"extensions": "step-tracer"}, "extensions"),
        ({"backend": 3}, "backend"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(
    tiny_model: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        LLM(str(tiny_model), **options)
    assert said in str(refusal.value)


def test_an_unknown_policy_is_refused_before_any_weight_is_read(tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="scheduling policy 'luck' is not installed"):
        LLM(str(model), backend="cpu", scheduling_policy="luck")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(str(tmp_path / "nowhere"), backend="cpu")


def test_a_closed_engine_says_so(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20)
    llm.close()
    llm.close()
    with pytest.raises(EngineClosed):
        llm.generate("hello")


def test_the_worker_may_live_in_a_process_of_its_own(llm: LLM, tiny_model: Path) -> None:
    with LLM(str(tiny_model), backend="cpu", executor="process", kv_cache_bytes=4 << 20) as remote:
        assert tokens(remote, "hello") == tokens(llm, "hello")
