"""The model's tokenizer and chat template, behind the few calls that the engine needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import ConfigError, InvalidRequest, ModelLoadError

__all__ = ["Tokenizer"]


class Tokenizer:
    """Turns text into token ids and back; ``hf`` is transformers' own object."""

    def __init__(self, config: EngineConfig, model: ModelConfig) -> None:
        from transformers import AutoTokenizer

        source = config.tokenizer or model.directory
        options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
        if config.tokenizer is None and model.gguf_file is not None:
            options["gguf_file"] = model.gguf_file
        if config.tokenizer is not None and not os.path.isdir(source):
            options["revision"] = config.revision
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(source, **options)
        # transformers raises OSError, ValueError, KeyError, JSON and Rust errors here, by the kind of damage.
        except Exception as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelLoadError(
                f"cannot read the tokenizer in {source!r}: {first_line}. "
                f"Name another one with --tokenizer, or complete the model's folder"
            ) from error

    @property
    def num_tokens(self) -> int:
        """How many ids the tokenizer knows, added tokens included."""
        return len(self.hf)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with the special tokens that the model expects around a prompt."""
        ids: list[int] = self.hf(text)["input_ids"]
        return ids

    def encode_fragment(self, text: str) -> list[int]:
        """Return the ids of ``text`` without special tokens."""
        ids: list[int] = self.hf(text, add_special_tokens=False)["input_ids"]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[int]]:
        """Render ``messages`` through the model's chat template; return the text and its ids.

        Raises `InvalidRequest` for messages of a wrong form or that the template refuses, and
        `ConfigError` when the model has no template.
        """
        check_messages(messages)
        if not self.hf.chat_template:
            raise ConfigError(
                "this model has no chat template; give the prompt as text (generate), or use a chat model"
            )
        try:
            text: str = self.hf.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", "messages") from error
        return text, self.encode_fragment(text)

    def decode_token(self, token_id: int) -> str:
        """Return the text of one token on its own, special tokens included."""
        text: str = self.hf.decode([token_id])
        return text


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise `InvalidRequest` unless ``messages`` is a list of roles and contents with text only."""
    if not messages or isinstance(messages, str | Mapping):
        raise InvalidRequest('messages must be a list of {"role": …, "content": …}, at least one', "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{index}] must be an object with a 'role'", "messages")
        content = message.get("content")
        if isinstance(content, list) and any(
            isinstance(part, Mapping) and part.get("type") != "text" for part in content
        ):
            kinds = sorted({str(part.get("type")) for part in content if isinstance(part, Mapping)})
            raise InvalidRequest(
                f"messages[{index}] holds {', '.join(kinds)}; only text is possible", "messages"
            )
        if not isinstance(content, str | list):
            shown = json.dumps(content, default=str)[:40]
            raise InvalidRequest(f"messages[{index}].content must be text, got {shown}", "messages")
