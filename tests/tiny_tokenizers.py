"""Tokenizers made in memory, one for each way in which models spell bytes."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

SPECIAL = "<|end|>"


def byte_level() -> Any:
    """Return a tokenizer whose tokens are single bytes and merges of some, as GPT-2's and Llama 3's are.

    Ids 0 to 255 are the bytes. Merges cross characters: one token ends with the first half of an emoji.
    """
    # GPT-2's printable stand-ins: bytes that have no printable character get those from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    stand_in = [chr(b) if b in printable else chr(next(others)) for b in range(256)]

    def spell(data: bytes) -> str:
        return "".join(stand_in[b] for b in data)

    vocabulary = {stand_in[b]: b for b in range(256)}
    for data in (" \U0001f600".encode()[:3], b"th", "é".encode(), "\u0e2a".encode()[:2]):
        vocabulary[spell(data)] = len(vocabulary)
    merges = [(" ", "\xf0"), (" \xf0", "\x9f"), ("t", "h"), ("\xc3", "\xa9"), ("\xe0", "\xb8")]
    vocabulary[spell(b" \xf0")] = len(vocabulary)
    spelled = [(spell(a.encode("latin-1")), spell(b.encode("latin-1"))) for a, b in merges]
    rust = Tokenizer(models.BPE(vocabulary, spelled))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=rust)


def byte_fallback() -> Any:
    """Return a tokenizer of words, with byte tokens for the rest, as Llama 2's and Gemma's are.

    Ids 0 to 255 are the bytes.
    """
    vocabulary = {f"<0x{b:02X}>": b for b in range(256)}
    for word in ("▁Hello", "▁the", "▁", "a", "b", ","):
        vocabulary[word] = len(vocabulary)
    rust = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    rust.add_special_tokens([AddedToken(SPECIAL, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=rust)


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python alone: words that carry their blank, and one special token."""

    def __init__(self) -> None:
        self._words = ["Hello", " world", "!", "\ufffd"]
        super().__init__(eos_token=SPECIAL)

    @property
    def vocab_size(self) -> int:
        """Count the words."""
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        """Return word → id."""
        return {**{word: i for i, word in enumerate(self._words)}, **self.added_tokens_encoder}

    def _convert_token_to_id(self, token: str) -> int:
        return self._words.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join words."""
        return "".join(tokens)
