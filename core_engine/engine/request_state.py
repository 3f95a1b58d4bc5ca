"""The text side of one request: its sequences, their texts, and what has been handed out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from core_engine.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from core_engine.engine.stream_chunk import StreamChunk

if TYPE_CHECKING:
    from core_engine.engine.messages import CoreOutput
    from core_engine.engine.prompts import TokenizedPrompt
    from core_engine.engine.text_stream import TextStream
    from core_engine.engine.tokenizer import Tokenizer
    from core_engine.sampling.params import SamplingParams
    from core_engine.worker.output import LogprobRows

__all__ = ["LogprobFormatter", "RequestState"]


class LogprobFormatter:
    """Turns rows of log-probabilities into {token id: Logprob}."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = lru_cache(maxsize=65536)(tokenizer.decode_token)

    def rows(self, rows: LogprobRows, count: int, num_logprobs: int) -> list[Mapping[int, Logprob]]:
        """Format the first ``count`` rows with ``num_logprobs`` most likely tokens each."""
        width = 1 + num_logprobs
        ids = rows.token_ids[:count, :width].tolist()
        logprobs = rows.logprobs[:count, :width].tolist()
        return [
            self._row(row_ids, row_logprobs, rank)
            for row_ids, row_logprobs, rank in zip(ids, logprobs, rows.ranks[:count].tolist(), strict=True)
        ]

    def _row(self, ids: list[int], logprobs: list[float], rank: int) -> Mapping[int, Logprob]:
        row = {
            token_id: Logprob(logprob, place, self._decode(token_id))
            for place, (token_id, logprob) in enumerate(zip(ids[1:], logprobs[1:], strict=True), start=1)
        }
        # The token at hand comes first in the mapping, and once.
        row.pop(ids[0], None)
        return {ids[0]: Logprob(logprobs[0], rank, self._decode(ids[0])), **row}


class RequestState:
    """Collects what the engine core reports of one request's sequences."""

    def __init__(
        self,
        request_id: str,
        prompt: TokenizedPrompt,
        params: SamplingParams,
        streams: list[TextStream],
        formatter: LogprobFormatter,
        *,
        keep_chunks: bool,
        lora_id: int = 0,
    ) -> None:
        self.params = params
        self.lora_id = lora_id
        self.chunks: list[StreamChunk] = []
        self._streams = streams
        self._formatter = formatter
        self._keep_chunks = keep_chunks
        self._open = len(streams)
        wants_logprobs = params.logprobs is not None
        self.output = RequestOutput(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids,
            outputs=[
                CompletionOutput(
                    index,
                    "",
                    [],
                    logprobs=[] if wants_logprobs else None,
                    cumulative_logprob=0.0 if wants_logprobs else None,
                )
                for index in range(len(streams))
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
            metrics=RequestMetrics(arrival_s=time.monotonic()),
        )

    def take(self, index: int, core: CoreOutput) -> bool:
        """Add one step's result to sequence ``index``; returns True when its text ended it early.

        The engine core does not know texts, so it must then be told to finish that sequence.
        """
        output, completion = self.output, self.output.outputs[index]
        if completion.finish_reason is not None:
            return False
        # What may raise comes before anything is changed, so that `fail` finds a whole state.
        delta = self._streams[index].append(
            core.new_token_ids,
            finished=core.finish_reason is not None,
            ends_with_stop_token=core.finish_reason == "stop",
        )
        new_ids = list(core.new_token_ids[: delta.num_tokens])
        logprobs = None
        if core.logprobs is not None and completion.logprobs is not None:
            logprobs = self._formatter.rows(core.logprobs, len(new_ids), self.params.logprobs or 0)
        prompt_logprobs: list[Mapping[int, Logprob]] = []
        if core.prompt_logprobs is not None and index == 0 and output.prompt_logprobs is not None:
            rows = core.prompt_logprobs
            prompt_logprobs = self._formatter.rows(rows, len(rows.ranks), self.params.prompt_logprobs or 0)

        output.num_cached_tokens = max(output.num_cached_tokens, core.num_cached_tokens)
        if output.prompt_logprobs is not None:
            output.prompt_logprobs += prompt_logprobs
        completion.token_ids += new_ids
        completion.text += delta.text
        if logprobs is not None and completion.logprobs is not None:
            completion.logprobs += logprobs
            gained = sum(row[token_id].logprob for token_id, row in zip(new_ids, logprobs, strict=True))
            completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + gained
        if new_ids and output.metrics is not None:
            now = time.monotonic()
            output.metrics.first_token_s = output.metrics.first_token_s or now
            output.metrics.last_token_s = now
        stopped_by_text = delta.stop is not None
        if stopped_by_text:
            self._end(completion, "stop", delta.stop)
        elif core.finish_reason is not None:
            self._end(completion, core.finish_reason, core.stop_reason)
            completion.error = core.message if core.finish_reason == "error" else None
        if delta.text or new_ids or completion.finish_reason is not None:
            self._keep_chunk(completion, delta.text, new_ids, logprobs)
        return stopped_by_text and core.finish_reason is None

    def fail(self, index: int, error: str) -> None:
        """End sequence ``index`` with an error: what the engine core reported cannot be turned into text."""
        completion = self.output.outputs[index]
        if completion.finish_reason is None:
            self._end(completion, "error", None)
            completion.error = error
            self._keep_chunk(completion, "", [], None)

    def _end(self, completion: CompletionOutput, finish_reason: str, stop_reason: str | int | None) -> None:
        completion.finish_reason, completion.stop_reason = finish_reason, stop_reason
        self._open -= 1
        self.output.finished = self._open == 0

    def _keep_chunk(
        self,
        completion: CompletionOutput,
        text: str,
        new_ids: list[int],
        logprobs: list[Mapping[int, Logprob]] | None,
    ) -> None:
        if self._keep_chunks:
            self.chunks.append(
                StreamChunk(
                    request_id=self.output.request_id,
                    index=completion.index,
                    text=text,
                    token_ids=new_ids,
                    logprobs=logprobs,
                    finish_reason=completion.finish_reason,
                    stop_reason=completion.stop_reason,
                    error=completion.error,
                )
            )
