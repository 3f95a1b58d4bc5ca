"""The tokenizer is found where its name says, and takes valid text only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core_engine import LLM, SamplingParams
from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.tokenizer import Tokenizer
from core_engine.errors import InvalidRequest, ModelLoadError, ModelNotFound
from core_engine.models.config_reader import read_model_config


@pytest.fixture(scope="module")
def facts(tiny_model: Path) -> ModelConfig:
    return read_model_config(EngineConfig(model=str(tiny_model)))


@pytest.fixture(scope="module")
def tokenizer(facts: ModelConfig) -> Tokenizer:
    return Tokenizer(EngineConfig(model=facts.path), facts)


def open_tokenizer(facts: ModelConfig, name: str) -> Tokenizer:
    return Tokenizer(EngineConfig(model=facts.path, tokenizer=name), facts)


def test_a_tokenizer_may_lie_elsewhere(tiny_model: Path, tmp_path: Path) -> None:
    nowhere = read_model_config(EngineConfig(model=str(tiny_model)))

    assert open_tokenizer(nowhere, str(tiny_model)).encode("a") == Tokenizer(
        EngineConfig(model=nowhere.path), nowhere
    ).encode("a")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/nope", "no tokenizer at '/nope'"),
        ("nope/nope", "no directory 'nope/nope' here and no tokenizer of that name in the local cache"),
        ("", "the tokenizer's name is empty"),
    ],
)
def test_a_tokenizer_that_is_nowhere_is_not_found_in_one_line(
    facts: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    reason: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(ModelNotFound, match=reason) as caught:
        open_tokenizer(facts, name)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_directory_without_a_tokenizer_is_named_in_one_line(
    facts: ModelConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelLoadError, match="cannot read the tokenizer in") as caught:
        open_tokenizer(facts, str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["\ud800", "caf\udce9", "a\udfff\ud800"])
@pytest.mark.parametrize(
    ("encode", "param"),
    [
        (Tokenizer.encode, "prompt"),
        (Tokenizer.encode_fragment, "prompt"),
        (lambda tokenizer, text: tokenizer.encode_fragment(text, "bad_words"), "bad_words"),
        (lambda tokenizer, text: tokenizer.encode_chat([{"role": "user", "content": text}]), "messages"),
    ],
    ids=["text", "fragment", "named fragment", "chat"],
)
def test_text_that_is_not_valid_unicode_is_refused_by_the_name_of_its_field(
    tokenizer: Tokenizer, encode: Callable[[Tokenizer, str], object], param: str, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"{param} is not valid Unicode") as caught:
        encode(tokenizer, text)
    assert caught.value.param == param
    str(caught.value).encode()


def test_text_outside_the_basic_plane_is_valid(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("😀")) == 4


def test_text_parts_render_like_their_text(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "hi"}]

    assert tokenizer.encode_chat([{"role": "user", "content": parts}]) == tokenizer.encode_chat(
        [{"role": "user", "content": "hi"}]
    )


def test_a_template_that_refuses_is_told_in_one_line(facts: ModelConfig) -> None:
    own = Tokenizer(EngineConfig(model=facts.path), facts)
    own.hf.chat_template = "{{ raise_exception('roles must\nalternate') }}"

    with pytest.raises(InvalidRequest, match="the chat template refused the messages: roles must alternate"):
        own.encode_chat([{"role": "user", "content": "hi"}])


def test_bad_words_that_are_not_valid_unicode_are_refused_by_their_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="bad_words is not valid Unicode"):
        llm.generate("hi", SamplingParams(bad_words=["\ud800"], max_tokens=1))
