"""LLMEngine: prompts in, texts out, around an engine core; drives it step by step."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from core_engine._text import error_line
from core_engine.config import EngineConfig
from core_engine.engine.loras import AdapterRegistry, extra_keys
from core_engine.engine.messages import CoreOutput
from core_engine.engine.outputs import RequestOutput
from core_engine.engine.prompts import PromptProcessor, TokenizedPrompt
from core_engine.engine.request_state import LogprobFormatter, RequestState
from core_engine.engine.start import PreparedEngine, prepare_engine, start_engine
from core_engine.engine.stream_chunk import StreamChunk
from core_engine.engine.text_stream import TextStream
from core_engine.engine.tokenizer import Tokenizer
from core_engine.errors import EngineClosed, EngineError, InvalidRequest
from core_engine.lora.messages import LoRAInfo
from core_engine.lora.request import LoRARequest
from core_engine.models.generation_defaults import read_generation_defaults
from core_engine.sampling.params import SamplingParams

__all__ = ["LLMEngine"]

logger = logging.getLogger(__name__)


class LLMEngine:
    """One started engine with its text side; a caller adds requests and steps until they are finished.

    Threads may share it: one call at a time changes its state, and a step computes for all of them. Within a
    call of the same thread, where a signal handler or a collector of garbage may come, the engine can be shut
    down, which happens when that call ends, and requests be discarded, which happens with the next one.
    Tokenizer and sampling defaults are read before any weight. Raises what `prepare_engine` and
    `start_engine` raise.
    """

    def __init__(self, config: EngineConfig) -> None:
        prepared = prepare_engine(config)
        self.tokenizer = Tokenizer(prepared.config, prepared.model)
        self.default_params = _read_defaults(prepared)
        self.started = started = start_engine(prepared)
        self.config = started.config
        self.core = started.core
        try:
            self.prompts = PromptProcessor(
                self.config,
                started.model,
                started.capabilities,
                started.selection.backend.name,
                self.tokenizer,
            )
            self.loras = AdapterRegistry(self.core.executor, self.config.max_loras, self._uses_lora)
            self._formatter = LogprobFormatter(self.tokenizer)
        except BaseException:  # an interrupt, say: nobody else knows of the workers yet
            self.core.shutdown()
            raise
        self._states: dict[str, RequestState] = {}
        # A sequence's id in the core → its request and its index.
        self._sequences: dict[str, tuple[RequestState, int]] = {}
        self._closed = self._has_ended = False
        self._lock = threading.RLock()
        #: A call changes the state. The lock alone would let the same thread in a second time.
        self._is_busy = False
        self._abandoned: deque[str] = deque()

    def add(
        self,
        requests: Iterable[tuple[str, TokenizedPrompt, SamplingParams]],
        *,
        priority: int = 0,
        stream: bool = False,
        loras: Sequence[LoRARequest | None] | None = None,
        cache_salt: str | None = None,
    ) -> None:
        """Queue requests (id, prompt, parameters); smaller priorities run first under that policy.

        All are checked before the first is queued: raises `InvalidRequest` or `UnsupportedFeature`,
        naming the prompt's place when there are several, and then none of them is queued. With
        ``stream`` each step's gain is kept for ``take_chunks``. ``loras`` has one entry per request.
        Requests share cached blocks only under the same ``cache_salt``.
        """
        if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**63) <= priority < 2**63:
            raise InvalidRequest(f"priority must be an integer of 64 bits, got {priority!r}", "priority")
        with self._call():
            self._add(list(requests), priority, stream, loras, cache_salt)

    def _add(
        self,
        listed: list[tuple[str, TokenizedPrompt, SamplingParams]],
        priority: int,
        stream: bool,
        loras: Sequence[LoRARequest | None] | None,
        cache_salt: str | None,
    ) -> None:
        self._discard_abandoned()
        backend, checked = self.started.selection.backend, []
        for place, (request_id, prompt, params) in enumerate(listed):
            try:
                if request_id in self._states:
                    raise InvalidRequest(f"request id {request_id!r} is in use", "request_id")
                backend.validate_request(params, len(prompt.token_ids), self.config)
                sequences = self.prompts.requests(request_id, prompt, params, priority)
                lora_id, digest = self._load_lora(loras[place] if loras else None)
                keys = extra_keys(digest, cache_salt)
                if keys:
                    sequences = [replace(s, lora_id=lora_id, extra_keys=keys) for s in sequences]
            except InvalidRequest as error:
                raise place_error(error, place, len(listed)) from None
            checked.append((request_id, prompt, params, sequences))
        added: list[str] = []
        try:
            for request_id, prompt, params, sequences in checked:
                streams = [TextStream(self.tokenizer.hf, prompt.token_ids, params) for _ in sequences]
                state = RequestState(
                    request_id,
                    prompt,
                    params,
                    streams,
                    self._formatter,
                    keep_chunks=stream,
                    lora_id=sequences[0].lora_id,
                )
                self._states[request_id] = state
                added.append(request_id)
                for index, sequence in enumerate(sequences):
                    self.core.add(sequence)
                    self._sequences[sequence.request_id] = (state, index)
        except BaseException:
            self._discard(added)
            raise
        self.loras.sweep()

    def load_lora(self, request: LoRARequest) -> LoRAInfo:
        """Load an adapter ahead of its first request. Raises what `AdapterRegistry.load` raises."""
        with self._call():
            self.check_open()
            self.loras.load(request)
            self.loras.sweep()
            return next(info for info in self.loras.infos() if info.name == request.name)

    def unload_lora(self, name: str) -> None:
        """Forget an adapter. Raises what `AdapterRegistry.unload` raises."""
        with self._call():
            self.check_open()
            self.loras.unload(name)

    def list_loras(self) -> list[LoRAInfo]:
        """List the adapters that have a name."""
        with self._call():
            self.check_open()
            return self.loras.infos()

    def step(self) -> None:
        """Compute one step and hand its results to the requests.

        Raises `EngineClosed` after ``shutdown``, and the failure of a step, whose requests then end with
        "error".
        """
        with self._call():
            self.check_open()
            self._discard_abandoned()
            try:
                self._take(self.core.step())
            except BaseException:
                self._take(self.core.take_failed(), log=False)  # what is raised says it once for all
                raise

    def take_finished(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Return those of ``request_ids`` that have finished, each once."""
        with self._call():
            return [
                self._states.pop(request_id).output
                for request_id in request_ids
                if request_id in self._states and self._states[request_id].output.finished
            ]

    def take_chunks(self, request_id: str) -> list[StreamChunk]:
        """Return what a streamed request has gained since the last call; nothing for an unknown one."""
        with self._call():
            state = self._states.get(request_id)
            if state is None:
                return []
            chunks, state.chunks = state.chunks, []
            return chunks

    def is_open(self, request_id: str) -> bool:
        """Say whether a request is known and unfinished."""
        state = self._states.get(request_id)
        return state is not None and not state.output.finished

    def discard(self, request_ids: Iterable[str]) -> None:
        """Forget requests; those that still run are aborted. Unknown ids are ignored."""
        self._abandoned.extend(request_ids)
        self._sweep(wait=True)

    def abandon(self, request_id: str) -> None:
        """Discard a request at once, or with the next call where one is in progress.

        For collectors of garbage, which may come in the midst of this very engine's step.
        """
        self._abandoned.append(request_id)
        self._sweep(wait=False)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Keep other threads out, and at the end shut down if that was asked for meanwhile."""
        with self._lock:
            if self._is_busy:
                raise EngineError(
                    "the engine was called within a call of the same thread (by a signal handler?); there it "
                    "can only be closed and requests be discarded"
                )
            self._is_busy = True
            try:
                yield
            finally:
                self._is_busy = False
                if self._closed:
                    self._end()

    def _sweep(self, *, wait: bool) -> None:
        if self._lock.acquire(blocking=wait):
            try:
                if not self._is_busy:
                    with self._call():
                        self._discard_abandoned()
            finally:
                self._lock.release()

    def _discard_abandoned(self) -> None:
        while self._abandoned:
            self._discard([self._abandoned.popleft()])

    def _discard(self, request_ids: Iterable[str]) -> None:
        states = [state for request_id in request_ids if (state := self._states.pop(request_id, None))]
        gone = [name for name, (state, _) in self._sequences.items() if state in states] if states else []
        for name in gone:
            del self._sequences[name]
        if gone:
            self.core.finish(gone, "abort")

    def check_open(self) -> None:
        """Raise `EngineClosed` after ``shutdown``."""
        if self._closed:
            raise EngineClosed("this engine was closed; build a new one")

    def shutdown(self) -> None:
        """End the engine; safe to call twice."""
        self._closed = True
        with self._lock:
            if not self._is_busy:
                self._end()

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._states.clear()
            self._sequences.clear()
            self.core.shutdown()

    def _load_lora(self, request: LoRARequest | None) -> tuple[int, str | None]:
        return (0, None) if request is None else self.loras.load(request)

    def _uses_lora(self, lora_id: int) -> bool:
        return any(s.lora_id == lora_id and not s.output.finished for s in self._states.values())

    def _take(self, core_outputs: Iterable[CoreOutput], *, log: bool = True) -> None:
        """Hand results to their requests; what goes wrong with one of them ends that one with an error."""
        stopped, broken = [], []
        for core_output in core_outputs:
            place = self._sequences.get(core_output.request_id)
            if place is None:
                continue
            state, index = place
            try:
                if state.take(index, core_output):
                    stopped.append(core_output.request_id)
            except Exception as error:
                logger.exception(
                    "request %s: its tokens could not be turned into text", core_output.request_id
                )
                what = f"{type(error).__name__}: {error_line(error)}"
                state.fail(index, f"its tokens could not be turned into text: {what}")
                broken.append(core_output.request_id)
            if log and core_output.message is not None:
                logger.warning("request %s: %s", core_output.request_id, core_output.message)
            if state.output.outputs[index].finish_reason is not None:
                del self._sequences[core_output.request_id]
        if stopped:
            self.core.finish(stopped, "stop")
        if broken:
            self.core.finish(broken, "abort")


def place_error(error: InvalidRequest, place: int, count: int) -> InvalidRequest:
    """Return ``error`` with the prompt's place in front, where there are several."""
    return type(error)(f"prompt {place}: {error}", error.param) if count > 1 else error


def _read_defaults(prepared: PreparedEngine) -> SamplingParams:
    if not prepared.config.use_generation_config:
        return SamplingParams()
    defaults = read_generation_defaults(prepared.model)
    if defaults:
        shown = ", ".join(f"{name}={value}" for name, value in defaults.items())
        logger.info("sampling defaults from generation_config.json: %s", shown)
    return replace(SamplingParams(), **defaults)
