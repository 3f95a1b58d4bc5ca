"""LLM: the engine in the caller's process."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from tqdm import tqdm

from core_engine.config import EngineConfig
from core_engine.engine.engine import LLMEngine, place_error
from core_engine.engine.loras import LoRAChoice, loras_for
from core_engine.engine.outputs import RequestOutput
from core_engine.engine.prompts import Prompt, TokenizedPrompt
from core_engine.engine.request_stream import RequestStream
from core_engine.errors import ConfigError, EngineClosed, InvalidRequest, did_you_mean
from core_engine.lora.messages import LoRAInfo
from core_engine.lora.request import LoRARequest
from core_engine.sampling.params import SamplingParams

__all__ = ["LLM"]

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """Runs a model in this process.

    ``options`` are the fields of `core_engine.config.EngineConfig`, e.g. ``backend``, ``dtype``,
    ``max_model_len``. Use it as a context manager, or call ``close`` to give the memory back; what is
    dropped without it gives the memory back when Python collects it. Threads may share it: their requests
    are computed together.

    Raises `ConfigError`, `ModelError` or `PluginError` when the engine cannot start; nothing is left
    behind then.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._engine: LLMEngine | None = LLMEngine(make_config(model, options))
        self._ids = itertools.count(1)

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
        priority: int = 0,
        lora: LoRAChoice = None,
        cache_salt: str | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; outputs come in the order of the prompts.

        A prompt is text, a list of token ids, or {"prompt": …} / {"prompt_token_ids": …}. ``params``
        is one for all, a list as long as the prompts, or None for the model's own defaults.
        ``priority`` counts under ``scheduling_policy="priority"``: smaller runs first. ``lora`` is an adapter
        for all, or a list with one or None for each prompt; what is not loaded yet is loaded. Prompts
        under different ``cache_salt`` never share cached blocks. ``progress`` shows a bar on stderr; by
        default for several prompts on a terminal. All prompts are checked before the first one runs.
        Raises `InvalidRequest` naming the prompt that is wrong, `AdapterError` for an adapter that does
        not fit the model.
        """
        tokenized = _each(self.engine.prompts.tokenize, as_list(prompts))
        return self._run(tokenized, params, priority, lora, cache_salt, progress)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        lora: LoRAChoice = None,
        cache_salt: str | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template; as ``generate`` otherwise."""
        conversations: Any = messages if _are_conversations(messages) else [messages]
        return self._run(_each(self._render, conversations), params, priority, lora, cache_salt, progress)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        lora: LoRARequest | None = None,
        cache_salt: str | None = None,
    ) -> RequestStream:
        """Generate for one prompt and yield what each step adds; closing the stream aborts the request."""
        return self._stream(self.engine.prompts.tokenize(prompt), params, priority, lora, cache_salt)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        lora: LoRARequest | None = None,
        cache_salt: str | None = None,
    ) -> RequestStream:
        """Answer one conversation and yield what each step adds."""
        return self._stream(self._render(messages), params, priority, lora, cache_salt)

    def load_lora(self, lora: LoRARequest) -> LoRAInfo:
        """Load an adapter ahead of its first request. Raises `AdapterError` when it cannot be used."""
        return self.engine.load_lora(lora)

    def unload_lora(self, name: str) -> None:
        """Forget the adapter of that name. Raises `InvalidRequest` while unfinished requests use it."""
        self.engine.unload_lora(name)

    def list_loras(self) -> list[LoRAInfo]:
        """List the adapters that are loaded."""
        return self.engine.list_loras()

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
        return str(next(self._ids))

    def _run(
        self,
        prompts: list[TokenizedPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int,
        lora: LoRAChoice,
        cache_salt: str | None,
        progress: bool | None,
    ) -> list[RequestOutput]:
        engine = self.engine
        each = _params_for(len(prompts), engine.default_params if params is None else params)
        loras = loras_for(len(prompts), lora)
        ids = [self._new_id() for _ in prompts]
        show = len(prompts) > 1 and sys.stderr.isatty() if progress is None else progress
        outputs: dict[str, RequestOutput] = {}
        try:
            requests = zip(ids, prompts, each, strict=True)
            engine.add(requests, priority=priority, loras=loras, cache_salt=cache_salt)
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

    def _stream(
        self,
        prompt: TokenizedPrompt,
        params: SamplingParams | None,
        priority: int,
        lora: LoRARequest | None,
        cache_salt: str | None,
    ) -> RequestStream:
        engine, request_id = self.engine, self._new_id()
        (checked,) = _params_for(1, engine.default_params if params is None else params)
        request = (request_id, prompt, checked)
        loras = loras_for(1, lora)
        engine.add([request], priority=priority, stream=True, loras=loras, cache_salt=cache_salt)
        return RequestStream(engine, request_id)


def make_config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    """Check the options' names and types. Raises `ConfigError` naming the field and what it takes."""
    known = [field.name for field in fields(EngineConfig) if field.name != "model"]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"unknown option {name!r}.{did_you_mean(name, known)} Possible: {', '.join(sorted(known))}"
            )
    try:
        return msgspec.convert({"model": str(model), **options}, EngineConfig)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        raise ConfigError(f"{place.rstrip('`') or 'options'}: {what[0].lower()}{what[1:]}") from None


def _each(prepare: Callable[[Any], TokenizedPrompt], inputs: Sequence[Any]) -> list[TokenizedPrompt]:
    """Apply ``prepare`` to each; where there are several an error says which one is wrong."""
    prepared = []
    for place, one in enumerate(inputs):
        try:
            prepared.append(prepare(one))
        except InvalidRequest as error:
            raise place_error(error, place, len(inputs)) from None
    return prepared


def as_list(prompts: Any) -> list[Any]:
    """Tell one prompt from a list of prompts: a list of integers is one prompt."""
    if isinstance(prompts, str | Mapping | bytes | bytearray):
        return [prompts]
    try:
        listed = list(prompts)
    except TypeError:
        raise InvalidRequest(
            f"prompts must be text, token ids or a list of them, got {prompts!r}", "prompt"
        ) from None
    return [listed] if listed and isinstance(listed[0], int | np.integer) else listed


def _are_conversations(messages: Any) -> bool:
    """Tell a list of conversations from one conversation, whose items are messages."""
    return isinstance(messages, list | tuple) and any(isinstance(item, list | tuple) for item in messages)


def _params_for(count: int, params: SamplingParams | Sequence[SamplingParams]) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, list | tuple) or not all(isinstance(one, SamplingParams) for one in params):
        raise InvalidRequest("params must be a SamplingParams, or a list with one for each prompt", "params")
    if len(params) != count:
        raise InvalidRequest(
            f"{len(params)} sampling params for {count} prompts; give one or as many", "params"
        )
    return list(params)
