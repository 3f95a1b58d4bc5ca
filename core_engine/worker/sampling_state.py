"""The sampling options of all requests that hold a batch row, and the sampler's inputs of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from core_engine._ragged import FloatArray, IntArray
from core_engine.sampling.noise import noise_keys
from core_engine.scheduler.output import NewRequest
from core_engine.worker.logit_bias import LogitBias
from core_engine.worker.shape_policy import SamplingKind
from core_engine.worker.step import HostSampling
from core_engine.worker.token_counts import TokenCounts

__all__ = ["MAX_ROWS", "SamplingState"]

#: Key words are made for this many positions at once: one call's overhead serves many steps.
_KEYS_AHEAD = 32
#: The most rows of one request in a step.
MAX_ROWS = _KEYS_AHEAD


@dataclass(frozen=True, slots=True)
class _Columns:
    """What a step takes from the options alone; valid while its rows stay the same."""

    rows: IntArray
    kind: SamplingKind
    temperature: FloatArray
    top_k: IntArray
    top_p: FloatArray
    min_p: FloatArray
    penalties: FloatArray


class SamplingState:
    """One entry per batch row, written when a request takes the row and gathered by each step.

    Arrays in the `HostSampling` that ``build`` returns belong to this object: the next ``build`` may
    write them.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature: FloatArray = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self._top_p: FloatArray = np.zeros(max_num_seqs, dtype=np.float32)
        self._min_p: FloatArray = np.zeros(max_num_seqs, dtype=np.float32)
        self._penalties: FloatArray = np.zeros((max_num_seqs, 3), dtype=np.float32)
        self._num_logprobs: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self._seeds = np.zeros(max_num_seqs, dtype=np.uint64)
        self._streams: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self._keys: IntArray = np.zeros((max_num_seqs, _KEYS_AHEAD, 2), dtype=np.int32)
        self._first_key: IntArray = np.zeros(max_num_seqs, dtype=np.int32)
        self._counts = TokenCounts(vocab_size)
        self._bias = LogitBias(vocab_size)
        self._columns: _Columns | None = None

    def add(self, row: int, request: NewRequest) -> None:
        """Give ``row`` to ``request``, new or resumed."""
        params = request.sampling_params
        # One candidate leaves no choice: such a row needs neither noise nor filters.
        greedy = params.temperature == 0 or params.top_k == 1
        self._temperature[row] = 0 if greedy else params.temperature
        keeps_all = greedy or params.top_k == 0
        self._top_k[row] = self._vocab_size if keeps_all else min(params.top_k, self._vocab_size)
        self._top_p[row] = 1 if greedy else params.top_p
        self._min_p[row] = 0 if greedy else params.min_p
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self._penalties[row] = penalties
        self._num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self._seeds[row], self._streams[row] = request.seed, request.stream
        self._first_key[row] = -_KEYS_AHEAD
        if penalties != (1, 0, 0):
            self._counts.add(row)
        self._bias.add(row, request)
        self._columns = None

    def remove(self, row: int) -> None:
        """Forget the request of ``row``."""
        self._counts.remove(row)
        self._bias.remove(row)

    def num_logprobs(self, rows: IntArray) -> int | None:
        """Return the most log-probabilities that a request in ``rows`` asks for; None when none does."""
        most = int(self._num_logprobs[rows].max(initial=-1))
        return None if most < 0 else most

    def build(
        self,
        rows: IntArray,
        padded_rows: int,
        token_table: IntArray,
        num_prompt_tokens: IntArray,
        num_tokens: IntArray,
        widen: Callable[[SamplingKind], SamplingKind],
        nth: IntArray | None = None,
    ) -> HostSampling:
        """Return the sampler's inputs for the requests in ``rows`` (int32 ``[num_reqs]``).

        A request may stand in several rows, one after the other, if it neither has penalties nor adds to
        its logits: ``nth`` (int32 ``[num_reqs]``, less than ``MAX_ROWS``) then says how many positions
        after its known tokens each row samples.

        ``token_table`` is int32 ``[max_num_seqs, max_model_len]``; ``num_prompt_tokens`` and ``num_tokens``
        are int32 ``[max_num_seqs]``. ``widen`` names the prepared sampler that serves the step; inputs
        that only it needs are neutral, and so are the ``padded_rows - num_reqs`` rows of padding.
        """
        columns = self._columns
        if (
            columns is None
            or len(columns.temperature) != padded_rows
            or not np.array_equal(columns.rows, rows)
        ):
            columns = self._columns = self._gather(rows, padded_rows)
        bias = self._bias.build(rows, padded_rows, token_table, num_prompt_tokens, num_tokens)
        kind = widen(columns.kind if bias is None else replace(columns.kind, bias=True))
        if kind.bias and bias is None:
            bias = self._bias.neutral(padded_rows)
        counts = None
        if kind.penalties:
            counts = self._counts.build(rows, padded_rows, token_table, num_prompt_tokens, num_tokens)
        return HostSampling(
            kind=kind,
            temperature=columns.temperature,
            top_k=columns.top_k,
            top_p=columns.top_p,
            min_p=columns.min_p,
            noise_keys=self._noise_keys(
                rows, padded_rows, num_tokens, nth, needed=not columns.kind.all_greedy
            ),
            penalties=columns.penalties if kind.penalties else None,
            prompt_mask=counts[0] if counts else None,
            output_counts=counts[1] if counts else None,
            bias=bias,
        )

    def _gather(self, rows: IntArray, padded_rows: int) -> _Columns:
        num_reqs = len(rows)
        temperature = np.zeros(padded_rows, dtype=np.float32)
        top_k = np.full(padded_rows, self._vocab_size, dtype=np.int32)
        top_p, min_p = np.ones(padded_rows, dtype=np.float32), np.zeros(padded_rows, dtype=np.float32)
        penalties = np.zeros((padded_rows, 3), dtype=np.float32)
        penalties[:, 0] = 1
        temperature[:num_reqs] = self._temperature[rows]
        top_k[:num_reqs] = self._top_k[rows]
        top_p[:num_reqs] = self._top_p[rows]
        min_p[:num_reqs] = self._min_p[rows]
        penalties[:num_reqs] = self._penalties[rows]
        kind = SamplingKind(
            all_greedy=not temperature.any(),
            penalties=bool((penalties != (1, 0, 0)).any()),
            filters=bool((top_k < self._vocab_size).any() or (top_p < 1).any() or min_p.any()),
        )
        return _Columns(rows.copy(), kind, temperature, top_k, top_p, min_p, penalties)

    def _noise_keys(
        self,
        rows: IntArray,
        padded_rows: int,
        num_tokens: IntArray,
        nth: IntArray | None,
        *,
        needed: bool,
    ) -> IntArray:
        keys: IntArray = np.zeros((padded_rows, 2), dtype=np.int32)
        if needed:
            positions = num_tokens[rows]
            if nth is not None:
                positions += nth
            offsets = positions - self._first_key[rows]
            stale = (offsets < 0) | (offsets >= _KEYS_AHEAD)
            if stale.any():
                stale_rows = np.unique(rows[stale])
                self._make_keys(stale_rows, num_tokens[stale_rows])
                offsets = positions - self._first_key[rows]
            keys[: len(rows)] = self._keys[rows, offsets]
        return keys

    def _make_keys(self, rows: IntArray, positions: IntArray) -> None:
        ahead = (positions[:, None] + np.arange(_KEYS_AHEAD)).astype(np.int32)
        seeds, streams = (
            np.repeat(self._seeds[rows], _KEYS_AHEAD),
            np.repeat(self._streams[rows], _KEYS_AHEAD),
        )
        self._keys[rows] = noise_keys(seeds, streams, ahead.ravel()).reshape(-1, _KEYS_AHEAD, 2)
        self._first_key[rows] = positions
