"""What requests add to their logits: logit_bias, ends held back by min_tokens, and bad words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_engine._ragged import FloatArray, IntArray
from core_engine.scheduler.output import NewRequest

__all__ = ["LogitBias"]


@dataclass(frozen=True, slots=True)
class _BadWords:
    """Sequences of equal length: ``starts`` int32 ``[N, length - 1]`` and what must not follow, ``[N]``."""

    starts: IntArray
    last_ids: IntArray

    def forbidden(self, token_ids: IntArray) -> IntArray:
        """Return the ids that would complete a bad word after ``token_ids``."""
        width = self.starts.shape[1]
        if len(token_ids) < width:
            return self.last_ids[:0]
        forbidden: IntArray = self.last_ids[(self.starts == token_ids[len(token_ids) - width :]).all(axis=1)]
        return forbidden


@dataclass(frozen=True, slots=True)
class _RowBias:
    """One request's additions."""

    ids: IntArray
    values: FloatArray
    #: Ids that end the request, forbidden before ``min_tokens``.
    end_ids: IntArray
    min_tokens: int
    bad_words: tuple[_BadWords, ...]

    def entries(self, token_ids: IntArray, num_prompt_tokens: int) -> tuple[IntArray, FloatArray]:
        """Return ids and what is added to them for the token after ``token_ids``; later entries win."""
        forbidden = [words.forbidden(token_ids) for words in self.bad_words]
        if len(token_ids) - num_prompt_tokens < self.min_tokens:
            forbidden.append(self.end_ids)
        ids = np.concatenate([self.ids, *forbidden])
        values = np.full(len(ids), -np.inf, dtype=np.float32)
        values[: len(self.ids)] = self.values
        return ids, values


class LogitBias:
    """Keeps the additions by batch row and lays those of a step out as one dense array."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[int, _RowBias] = {}
        self._dense: FloatArray = np.zeros((0, vocab_size), dtype=np.float32)
        # Entries of the dense array that the last step set: (row of the step, ids).
        self._touched: list[tuple[int, IntArray]] = []

    def add(self, row: int, request: NewRequest) -> None:
        """Keep what the request of batch row ``row`` adds; a request that adds nothing costs nothing.

        Ids outside the vocabulary, which no step can sample, are left out.
        """
        params = request.sampling_params
        bias = {i: v for i, v in (params.logit_bias or {}).items() if i < self._vocab_size}
        ends = self._in_vocabulary((*request.eos_token_ids, *params.stop_token_ids))
        by_length: dict[int, list[tuple[int, ...]]] = {}
        for sequence in request.bad_words_token_ids:
            if sequence and max(sequence) < self._vocab_size:
                by_length.setdefault(len(sequence), []).append(sequence)
        min_tokens = params.min_tokens if len(ends) else 0
        if bias or min_tokens or by_length:
            self._rows[row] = _RowBias(
                ids=np.array(list(bias), dtype=np.int32),
                values=np.array(list(bias.values()), dtype=np.float32),
                end_ids=ends,
                min_tokens=min_tokens,
                bad_words=tuple(_bad_words(sequences) for sequences in by_length.values()),
            )

    def remove(self, row: int) -> None:
        """Forget the request of ``row``; a row without additions is ignored."""
        self._rows.pop(row, None)

    def build(
        self,
        rows: IntArray,
        padded_rows: int,
        token_table: IntArray,
        num_prompt_tokens: IntArray,
        num_tokens: IntArray,
    ) -> FloatArray | None:
        """Return the step's additions, float32 ``[padded_rows, vocab_size]``; None where there are none."""
        if not self._rows:
            return None
        additions: list[tuple[int, IntArray, FloatArray]] = []
        for index, row in enumerate(rows.tolist()):
            row_bias = self._rows.get(row)
            if row_bias is not None:
                token_ids = token_table[row, : num_tokens[row]]
                ids, values = row_bias.entries(token_ids, int(num_prompt_tokens[row]))
                if len(ids):
                    additions.append((index, ids, values))
        if not additions:
            return None
        dense = self.neutral(padded_rows)
        for index, ids, values in additions:
            dense[index, ids] = values
            self._touched.append((index, ids))
        return dense

    def neutral(self, padded_rows: int) -> FloatArray:
        """Return an array that adds nothing, float32 ``[padded_rows, vocab_size]``."""
        for index, ids in self._touched:
            self._dense[index, ids] = 0
        self._touched.clear()
        if len(self._dense) < padded_rows:
            self._dense = np.zeros((padded_rows, self._vocab_size), dtype=np.float32)
        return self._dense[:padded_rows]

    def _in_vocabulary(self, token_ids: tuple[int, ...]) -> IntArray:
        return np.array([i for i in token_ids if i < self._vocab_size], dtype=np.int32)


def _bad_words(sequences: list[tuple[int, ...]]) -> _BadWords:
    table = np.array(sequences, dtype=np.int32)
    return _BadWords(starts=table[:, :-1], last_ids=table[:, -1])
