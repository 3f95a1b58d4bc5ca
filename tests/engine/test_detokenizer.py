from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import SPECIAL, SlowTokenizer, byte_fallback, byte_level

from core_engine.engine.detokenizer import Detokenizer, TokenDecoder

REPLACEMENT = "\ufffd"
BYTES = byte_level()
FALLBACK = byte_fallback()
EMOJI = list("\U0001f600".encode())
TEXTS = [
    "plain text, with the usual signs",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family \U0001f600\U0001f601 end",
    "สวัสดีครับ ยินดีที่ได้รู้จัก",
    "مرحبا بالعالم, שלום עולם",
    "漢字かな交じり文 — naïve café",
    "\n\n  def f(x):\n\treturn x  \n",
]


def deltas(
    tokenizer: Any, token_ids: Sequence[int], prompt: Sequence[int] = (), *, skip_special_tokens: bool = True
) -> list[str]:
    """Return what each token adds, and at last what the end adds."""
    detokenizer = Detokenizer(TokenDecoder(tokenizer), prompt, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_case_25_deltas_are_whole_characters_and_join_to_the_text(text: str) -> None:
    parts = deltas(BYTES, BYTES(text)["input_ids"])
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


def test_case_25_an_emoji_comes_with_its_last_byte() -> None:
    assert deltas(BYTES, EMOJI) == ["", "", "", "\U0001f600", ""]


def test_text_before_half_a_character_does_not_wait_for_it() -> None:
    # Id 256 is a blank and the first two bytes of the emoji.
    assert deltas(BYTES, [97, 256, *EMOJI[2:]]) == ["a", " ", "", "\U0001f600", ""]


def test_half_a_character_at_the_end_is_flushed_once() -> None:
    detokenizer = Detokenizer(TokenDecoder(BYTES), [], skip_special_tokens=True)
    assert [detokenizer.push(i) for i in EMOJI[:3]] == ["", "", ""]
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("seed", range(20))
def test_case_26_random_bytes_join_to_what_the_tokenizer_decodes(seed: int) -> None:
    generator = random.Random(seed)
    ids = [generator.choice([*range(120, 261), *EMOJI]) for _ in range(400)]
    assert "".join(deltas(BYTES, ids)) == BYTES.decode(ids)


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte level", "byte fallback"])
@pytest.mark.parametrize("run", [[0x80], EMOJI[:3], [0xC3, 0xC3, 0xA9], EMOJI], ids=str)
def test_case_26_output_of_bytes_alone_holds_little_text_and_few_tokens(
    tokenizer: Any, run: list[int]
) -> None:
    decoder = TokenDecoder(tokenizer)
    longest = 0

    class Watched(TokenDecoder):
        def decode(self, token_ids: list[int]) -> str:
            nonlocal longest
            longest = max(longest, len(token_ids))
            return decoder.decode(token_ids)

    detokenizer = Detokenizer(Watched(tokenizer), [], skip_special_tokens=True)
    parts = [detokenizer.push(token_id) for token_id in run * 500]
    assert longest <= 13
    assert len(detokenizer.flush()) <= 3
    assert max(map(len, parts)) <= 4


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte level", "byte fallback"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_does_not_leak(tokenizer: Any, cut: int) -> None:
    word = 257
    text = "".join(deltas(tokenizer, [*EMOJI[cut:], word], prompt=[98, *EMOJI[:cut]]))
    assert text.strip(REPLACEMENT) == tokenizer.decode([98, word])[-2 if tokenizer is BYTES else -4 :]


def test_the_prompts_text_gives_the_first_token_its_blank() -> None:
    hello, the = 256, 257
    assert deltas(FALLBACK, [the], prompt=[hello]) == [" the", ""]
    assert deltas(FALLBACK, [the]) == ["the", ""]


def test_byte_tokens_after_a_shown_character_do_not_take_it_back() -> None:
    # This decoder judges a run of byte tokens as a whole: one stray byte would spoil the emoji.
    parts = deltas(FALLBACK, [*EMOJI, 0x80, 257, *EMOJI])
    assert "".join(parts) == f"\U0001f600{REPLACEMENT} the\U0001f600"


def test_case_26_an_id_that_is_no_token_adds_nothing() -> None:
    ids = [*b"ab", 10_000, -1, 2**31, 2**40, *b"c"]
    assert "".join(deltas(BYTES, ids, prompt=[10_000, 98])) == "abc"


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    ids = [97, BYTES.convert_tokens_to_ids(SPECIAL), 98]
    assert "".join(deltas(BYTES, ids)) == "ab"
    assert "".join(deltas(BYTES, ids, skip_special_tokens=False)) == f"a{SPECIAL}b"


def test_a_left_out_special_token_does_not_cost_the_next_blank() -> None:
    ids = [256, FALLBACK.convert_tokens_to_ids(SPECIAL), 257]
    assert "".join(deltas(FALLBACK, ids)) == "Hello the"


def test_a_tokenizer_in_python_works() -> None:
    tokenizer = SlowTokenizer()
    assert deltas(tokenizer, [0, 1, 99, 4, 2]) == ["Hello", " world", "", "", "!", ""]


def test_a_replacement_character_that_the_model_meant_is_kept() -> None:
    assert "".join(deltas(SlowTokenizer(), [0, 3, 1])) == f"Hello{REPLACEMENT} world"


@pytest.mark.real_model
@pytest.mark.parametrize("text", TEXTS)
def test_the_real_tokenizers_deltas_join_to_the_text(smollm2: Path, text: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    parts = deltas(
        tokenizer, tokenizer(text)["input_ids"], prompt=tokenizer("<|im_start|>user\n")["input_ids"]
    )
    assert "".join(parts) == text
    assert not any(REPLACEMENT in part for part in parts)


@pytest.mark.real_model
def test_any_ids_of_the_real_tokenizer_join_to_what_it_decodes(smollm2: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    generator = random.Random(0)
    broken = [i for i in range(len(tokenizer)) if REPLACEMENT in tokenizer.decode([i])]
    ids = [
        generator.choice(broken) if generator.random() < 0.7 else generator.randrange(len(tokenizer))
        for _ in range(5000)
    ]
    assert "".join(deltas(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)
