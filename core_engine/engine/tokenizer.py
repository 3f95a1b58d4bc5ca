"""The model's tokenizer and chat template, behind the few calls that the engine needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core_engine._text import error_line
from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.chat_messages import plain_messages
from core_engine.errors import ConfigError, InvalidRequest, ModelLoadError
from core_engine.models._quiet import quiet_transformers
from core_engine.models.causal_lm import require_gguf
from core_engine.models.locate import ModelFiles, locate_tokenizer

__all__ = ["Tokenizer"]


class Tokenizer:
    """Turns text into token ids and back; ``hf`` is transformers' own object.

    Raises `ModelNotFound` when ``config.tokenizer`` names no place, and `ModelLoadError` when the files
    there hold no tokenizer or a damaged one.
    """

    def __init__(self, config: EngineConfig, model: ModelConfig) -> None:
        from transformers import AutoTokenizer

        if config.tokenizer is None:
            files = ModelFiles(Path(model.directory), model.gguf_file)
        else:
            files = locate_tokenizer(config.tokenizer, config.revision)
        options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code, "local_files_only": True}
        if files.gguf_file is not None:
            require_gguf()
            options["gguf_file"] = files.gguf_file
        try:
            with quiet_transformers():
                self.hf: Any = AutoTokenizer.from_pretrained(files.directory, **options)
        # transformers raises OSError, ValueError, KeyError, JSON and Rust errors here, by the kind of damage.
        except Exception as error:
            raise ModelLoadError(
                f"cannot read the tokenizer in {str(files.directory)!r}: {error_line(error)}. "
                "Name another one with --tokenizer, or complete the model's folder"
            ) from error

    @property
    def num_tokens(self) -> int:
        """How many ids the tokenizer knows, added tokens included."""
        return len(self.hf)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with the special tokens that the model expects around a prompt.

        Raises `InvalidRequest` for text that is not valid Unicode.
        """
        check_unicode(text, "prompt")
        ids: list[int] = self.hf(text)["input_ids"]
        return ids

    def encode_fragment(self, text: str, param: str = "prompt") -> list[int]:
        """Return the ids of ``text`` without special tokens.

        Raises `InvalidRequest` naming ``param`` for text that is not valid Unicode.
        """
        check_unicode(text, param)
        ids: list[int] = self.hf(text, add_special_tokens=False)["input_ids"]
        return ids

    def encode_chat(self, messages: object) -> tuple[str, list[int]]:
        """Render ``messages`` through the model's chat template; return the text and its ids.

        What messages may hold is said by `core_engine.engine.chat_messages.plain_messages`.
        Raises `InvalidRequest` for messages of a wrong form or that the template refuses, and
        `ConfigError` when the model has no template.
        """
        plain = plain_messages(messages)
        if not self.hf.chat_template:
            raise ConfigError(
                "this model has no chat template; give the prompt as text (generate), or use a chat model"
            )
        try:
            text: str = self.hf.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        except Exception as error:
            raise InvalidRequest(
                f"the chat template refused the messages: {error_line(error)}", "messages"
            ) from error
        return text, self.encode_fragment(text, "messages")

    def decode_token(self, token_id: int) -> str:
        """Return the text of one token on its own, special tokens included."""
        text: str = self.hf.decode([token_id])
        return text


def check_unicode(text: str, param: str) -> None:
    """Raise `InvalidRequest` naming ``param`` for text that cannot be written as UTF-8.

    A shell argument in another encoding reaches Python as such text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{param} is not valid Unicode: character {error.start} is {text[error.start]!a}, half of a "
            "surrogate pair; give UTF-8 text",
            param,
        ) from None
