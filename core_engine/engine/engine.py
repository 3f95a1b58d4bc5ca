"""LLMEngine: prompts in, texts out, around an engine core; drives it step by step."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from core_engine.config import EngineConfig
from core_engine.engine.outputs import RequestOutput
from core_engine.engine.prompts import PromptProcessor, TokenizedPrompt
from core_engine.engine.request_state import LogprobFormatter, RequestState
from core_engine.engine.start import start_engine
from core_engine.engine.stream_chunk import StreamChunk
from core_engine.engine.text_stream import TextStream
from core_engine.engine.tokenizer import Tokenizer
from core_engine.errors import InvalidRequest
from core_engine.models.generation_defaults import read_generation_defaults
from core_engine.sampling.params import SamplingParams

__all__ = ["LLMEngine"]

logger = logging.getLogger(__name__)


class LLMEngine:
    """One started engine with its text side; a caller adds requests and steps until they are finished.

    Raises what `core_engine.engine.start.start_engine` raises.
    """

    def __init__(self, config: EngineConfig) -> None:
        started = start_engine(config)
        self.started = started
        self.config = started.config
        self.core = started.core
        try:
            self.tokenizer = Tokenizer(self.config, started.model)
            self.default_params = self._read_defaults()
        except BaseException:
            self.core.shutdown()
            raise
        self.prompts = PromptProcessor(
            self.config, started.model, started.capabilities, started.selection.backend.name, self.tokenizer
        )
        self._formatter = LogprobFormatter(self.tokenizer)
        self._states: dict[str, RequestState] = {}
        # A sequence's id in the core → its request and its index.
        self._sequences: dict[str, tuple[RequestState, int]] = {}

    def add(
        self, requests: Iterable[tuple[str, TokenizedPrompt, SamplingParams]], *, stream: bool = False
    ) -> None:
        """Queue requests (id, prompt, parameters); all are checked before the first is queued.

        Raises `InvalidRequest` or `UnsupportedFeature`, naming the prompt's place when there are
        several; then none of them is queued. With ``stream`` each step's gain is kept for ``take_chunks``.
        """
        backend = self.started.selection.backend
        checked = []
        for place, (request_id, prompt, params) in enumerate(requests):
            try:
                if request_id in self._states:
                    raise InvalidRequest(f"request id {request_id!r} is in use", "request_id")
                backend.validate_request(params, len(prompt.token_ids), self.config)
                checked.append(
                    (request_id, prompt, params, self.prompts.requests(request_id, prompt, params))
                )
            except InvalidRequest as error:
                raise InvalidRequest(
                    f"prompt {place}: {error}" if place else str(error), error.param
                ) from None
        added: list[str] = []
        try:
            for request_id, prompt, params, sequences in checked:
                streams = [TextStream(self.tokenizer.hf, prompt.token_ids, params) for _ in sequences]
                state = RequestState(request_id, prompt, params, streams, self._formatter, keep_chunks=stream)
                self._states[request_id] = state
                added.append(request_id)
                for index, sequence in enumerate(sequences):
                    self.core.add(sequence)
                    self._sequences[sequence.request_id] = (state, index)
        except BaseException:
            self.discard(added)
            raise

    def step(self) -> None:
        """Compute one step and hand its results to the requests."""
        stopped = []
        for core_output in self.core.step():
            place = self._sequences.get(core_output.request_id)
            if place is None:
                continue
            state, index = place
            if state.take(index, core_output):
                stopped.append(core_output.request_id)
            if core_output.message is not None:
                logger.warning("request %s: %s", core_output.request_id, core_output.message)
            if state.output.outputs[index].finish_reason is not None:
                del self._sequences[core_output.request_id]
        if stopped:
            self.core.finish(stopped, "stop")

    def take_finished(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Return those of ``request_ids`` that have finished, each once."""
        return [
            self._states.pop(request_id).output
            for request_id in request_ids
            if request_id in self._states and self._states[request_id].output.finished
        ]

    def take_chunks(self, request_id: str) -> list[StreamChunk]:
        """Return what a streamed request has gained since the last call."""
        state = self._states[request_id]
        chunks, state.chunks = state.chunks, []
        return chunks

    def discard(self, request_ids: Iterable[str]) -> None:
        """Forget requests; those that still run are aborted. Unknown ids are ignored."""
        states = [state for request_id in request_ids if (state := self._states.pop(request_id, None))]
        gone = [name for name, (state, _) in self._sequences.items() if state in states] if states else []
        for name in gone:
            del self._sequences[name]
        if gone:
            self.core.finish(gone, "abort")

    def shutdown(self) -> None:
        """End the engine; safe to call twice."""
        self._states.clear()
        self._sequences.clear()
        self.core.shutdown()

    def _read_defaults(self) -> SamplingParams:
        if not self.config.use_generation_config:
            return SamplingParams()
        defaults = read_generation_defaults(self.started.model)
        if defaults:
            shown = ", ".join(f"{name}={value}" for name, value in defaults.items())
            logger.info("sampling defaults from generation_config.json: %s", shown)
        return replace(SamplingParams(), **defaults)
