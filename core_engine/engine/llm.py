"""LLM: the engine in the caller's process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from core_engine.config import EngineConfig
from core_engine.engine.engine import LLMEngine
from core_engine.engine.outputs import RequestOutput
from core_engine.engine.prompts import Prompt, TokenizedPrompt
from core_engine.engine.stream_chunk import StreamChunk
from core_engine.errors import ConfigError, EngineClosed, InvalidRequest, did_you_mean
from core_engine.sampling.params import SamplingParams

__all__ = ["LLM"]

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """Runs a model in this process.

    ``options`` are the fields of `core_engine.config.EngineConfig`, e.g. ``backend``, ``dtype``,
    ``max_model_len``. Use it as a context manager, or call ``close`` to give the memory back. One
    thread at a time.

    Raises `ConfigError`, `ModelError` or `PluginError` when the engine cannot start; nothing is left
    behind then.
    """

    def __init__(self, model: str, **options: Any) -> None:
        known = {field.name for field in fields(EngineConfig)}
        for name in options:
            if name not in known:
                raise ConfigError(
                    f"unknown option {name!r} for LLM.{did_you_mean(name, known)} "
                    f"Possible: {', '.join(sorted(known))}"
                )
        if isinstance(options.get("extensions"), list):
            options["extensions"] = tuple(options["extensions"])
        self._engine: LLMEngine | None = LLMEngine(EngineConfig(model=str(model), **options))
        self._next_id = 0

    @property
    def engine(self) -> LLMEngine:
        """The running engine. Raises `EngineClosed` after ``close``."""
        if self._engine is None:
            raise EngineClosed("this LLM was closed; build a new one")
        return self._engine

    def default_params(self, **changes: Any) -> SamplingParams:
        """Return the model's own sampling defaults (generation_config.json) with ``changes`` applied."""
        return replace(self.engine.default_params, **changes)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; outputs come in the order of the prompts.

        A prompt is text, a list of token ids, or {"prompt": …} / {"prompt_token_ids": …}. ``params``
        is one for all, a list as long as the prompts, or None for the model's own defaults.
        ``progress`` shows a bar on stderr; by default for several prompts on a terminal. All prompts
        are checked before the first one runs. Raises `InvalidRequest` naming the prompt that is wrong.
        """
        tokenize = self.engine.prompts.tokenize
        return self._run([tokenize(prompt) for prompt in _as_list(prompts)], params, progress)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template; as ``generate`` otherwise."""
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self._run([self._render(conversation) for conversation in conversations], params, progress)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamChunk]:
        """Generate for one prompt and yield what each step adds; leaving the loop aborts the request."""
        return self._stream(self.engine.prompts.tokenize(prompt), params)

    def stream_chat(self, messages: Messages, params: SamplingParams | None = None) -> Iterator[StreamChunk]:
        """Answer one conversation and yield what each step adds."""
        return self._stream(self._render(messages), params)

    def close(self) -> None:
        """End the engine and give its memory back; safe to call twice."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _render(self, messages: Messages) -> TokenizedPrompt:
        text, token_ids = self.engine.tokenizer.encode_chat(messages)
        return replace(self.engine.prompts.tokenize(token_ids), text=text)

    def _new_id(self) -> str:
        self._next_id += 1
        return str(self._next_id)

    def _run(
        self,
        prompts: list[TokenizedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool | None,
    ) -> list[RequestOutput]:
        engine = self.engine
        each = _params_for(prompts, engine.default_params if params is None else params)
        ids = [self._new_id() for _ in prompts]
        show = len(prompts) > 1 and sys.stderr.isatty() if progress is None else progress
        outputs: dict[str, RequestOutput] = {}
        try:
            engine.add(zip(ids, prompts, each, strict=True))
            with tqdm(total=len(ids), desc="requests", unit="req", disable=not show, file=sys.stderr) as bar:
                num_tokens = 0
                while len(outputs) < len(ids):
                    engine.step()
                    for output in engine.take_finished(ids):
                        outputs[output.request_id] = output
                        num_tokens += sum(len(sequence.token_ids) for sequence in output.outputs)
                        bar.set_postfix_str(f"{num_tokens} tokens", refresh=False)
                        bar.update()
        finally:
            engine.discard(ids)
        return [outputs[request_id] for request_id in ids]

    def _stream(self, prompt: TokenizedPrompt, params: SamplingParams | None) -> Iterator[StreamChunk]:
        # Not a generator itself, so that a wrong request is refused here and not at the first chunk.
        engine, request_id = self.engine, self._new_id()
        engine.add([(request_id, prompt, params or engine.default_params)], stream=True)
        return _chunks(engine, request_id)


def _chunks(engine: LLMEngine, request_id: str) -> Iterator[StreamChunk]:
    try:
        while True:
            yield from engine.take_chunks(request_id)
            if engine.take_finished([request_id]):
                return
            engine.step()
    finally:
        engine.discard([request_id])


def _as_list(prompts: Any) -> list[Any]:
    """Tell one prompt from a list of prompts: a list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise InvalidRequest(f"prompts must be text, token ids or a list of them, got {prompts!r}", "prompt")
    listed = list(prompts)
    if not listed:
        return []
    return [listed] if isinstance(listed[0], int) else listed


def _params_for(
    prompts: list[TokenizedPrompt], params: SamplingParams | Sequence[SamplingParams]
) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    listed = list(params)
    if len(listed) != len(prompts):
        raise InvalidRequest(f"{len(listed)} sampling params for {len(prompts)} prompts; give one or as many")
    return listed
