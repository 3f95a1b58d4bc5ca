"""From what the user gives to what the engine core takes: prompts checked, tokenised and fanned out."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core_engine.config import EngineConfig, ModelConfig
from core_engine.engine.messages import CoreRequest
from core_engine.engine.tokenizer import Tokenizer
from core_engine.errors import InvalidRequest
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.sampling.validate import check_against_model

__all__ = ["Prompt", "PromptProcessor", "TokenizedPrompt"]

#: Text, token ids, or {"prompt": text} / {"prompt_token_ids": ids}.
Prompt = str | Sequence[int] | Mapping[str, Any]

#: Tokens that an offline request may generate when it does not say.
DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt that passed all checks."""

    text: str | None
    token_ids: list[int]


class PromptProcessor:
    """Checks and tokenises prompts and makes one `CoreRequest` per sequence."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        capabilities: Capabilities,
        backend: str,
        tokenizer: Tokenizer,
    ) -> None:
        self._config = config
        self._model = model
        self._capabilities = capabilities
        self._backend = backend
        self._tokenizer = tokenizer
        self._seeds = random.Random(secrets.randbits(64) if config.seed is None else config.seed)

    def tokenize(self, prompt: Prompt) -> TokenizedPrompt:
        """Return the prompt's ids. Raises `InvalidRequest` for an empty, malformed or out-of-range prompt."""
        if isinstance(prompt, Mapping):
            return self._tokenize_object(prompt)
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidRequest("prompt is empty; give some text or token ids", "prompt")
            ids = self._tokenizer.encode(prompt)
            if not ids:
                raise InvalidRequest("prompt has no tokens after tokenisation; give some text", "prompt")
            return TokenizedPrompt(prompt, self._check_ids(ids))
        if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray):
            raise InvalidRequest(
                f"prompt must be text or a list of token ids, got {type(prompt).__name__}", "prompt"
            )
        if isinstance(prompt, np.ndarray) and prompt.ndim != 1:
            raise InvalidRequest(f"token ids must have one dimension, got shape {prompt.shape}", "prompt")
        return TokenizedPrompt(None, self._check_ids(list(prompt)))

    def _tokenize_object(self, prompt: Mapping[str, Any]) -> TokenizedPrompt:
        for key in prompt:
            if key not in ("prompt", "prompt_token_ids"):
                raise InvalidRequest(
                    f"unknown key {key!r} in a prompt; possible: prompt, prompt_token_ids", "prompt"
                )
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if not isinstance(text, str | None):
            raise InvalidRequest(f"'prompt' of a prompt must be text, got {type(text).__name__}", "prompt")
        if isinstance(ids, str | Mapping):
            raise InvalidRequest(
                f"'prompt_token_ids' of a prompt must be token ids, got {type(ids).__name__}", "prompt"
            )
        if ids is not None:
            # Token ids that come with their text are taken as they are.
            return TokenizedPrompt(text, self.tokenize(ids).token_ids)
        if text is not None:
            return self.tokenize(text)
        raise InvalidRequest("a prompt object needs 'prompt' (text) or 'prompt_token_ids'", "prompt")

    def requests(
        self, request_id: str, prompt: TokenizedPrompt, params: SamplingParams, priority: int = 0
    ) -> list[CoreRequest]:
        """Return the ``n`` requests of one prompt, ids ``request_id`` (n = 1) or ``request_id/index``.

        Raises `InvalidRequest` when prompt and parameters do not fit the model or its context, and
        `UnsupportedFeature` when the backend cannot serve them.
        """
        check_against_model(params, self._model.vocab_size, self._capabilities, self._backend)
        max_model_len = self._config.max_model_len
        assert max_model_len is not None  # settled at start-up
        room = max_model_len - len(prompt.token_ids)
        if room < 1:
            raise InvalidRequest(
                f"the prompt has {len(prompt.token_ids)} tokens; at most {max_model_len - 1} fit into the "
                f"context of {max_model_len} with one output token. Shorten it or raise max_model_len",
                "prompt",
            )
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        ids = np.array(prompt.token_ids, dtype=np.int32)
        bad_words = tuple(sequence for word in params.bad_words for sequence in self._bad_word_ids(word))
        arrival_s = time.monotonic()
        return [
            CoreRequest(
                request_id=request_id if params.n == 1 else f"{request_id}/{index}",
                prompt_token_ids=ids,
                params=params,
                max_tokens=min(DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens, room),
                seed=seed,
                stream=index,
                eos_token_ids=() if params.ignore_eos else self._model.eos_token_ids,
                bad_words_token_ids=bad_words,
                priority=priority,
                arrival_s=arrival_s,
            )
            for index in range(params.n)
        ]

    def _check_ids(self, ids: list[Any]) -> list[int]:
        if not ids:
            raise InvalidRequest("prompt is empty; give some text or token ids", "prompt")
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int | np.integer):
                raise InvalidRequest(f"token ids must be integers, got {token_id!r}", "prompt_token_ids")
            if not 0 <= token_id < self._model.vocab_size:
                raise InvalidRequest(
                    f"token id {token_id} is out of range; this model has ids 0 to "
                    f"{self._model.vocab_size - 1}",
                    "prompt_token_ids",
                )
        return [int(token_id) for token_id in ids]

    def _bad_word_ids(self, word: str) -> list[tuple[int, ...]]:
        # A word is tokenised differently at the start of a text and after a blank; forbid both.
        plain = tuple(self._tokenizer.encode_fragment(word, "bad_words"))
        spaced = tuple(self._tokenizer.encode_fragment(f" {word.lstrip()}", "bad_words"))
        return [sequence for sequence in dict.fromkeys((plain, spaced)) if sequence]
