"""Which tokens the penalised requests of a step have seen, as dense arrays that follow the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core_engine._ragged import Array, IntArray

__all__ = ["TokenCounts"]


@dataclass(slots=True)
class _Filled:
    """What one row of the dense arrays holds: a request (by its ticket) up to a number of tokens."""

    ticket: int
    num_tokens: int


class TokenCounts:
    """Prompt masks and output counts, brought up to date by the tokens that came since the last step.

    A dense row is counted anew only when another request takes its place in the step.
    """

    def __init__(self, vocab_size: int) -> None:
        self._prompt_mask: Array = np.zeros((0, vocab_size), dtype=np.bool_)
        self._output_counts: IntArray = np.zeros((0, vocab_size), dtype=np.int32)
        self._filled: list[_Filled | None] = []
        # batch row → ticket; a row that is given to another request gets another ticket.
        self._tickets: dict[int, int] = {}
        self._next_ticket = 0

    def add(self, row: int) -> None:
        """Count for the request that took batch row ``row``."""
        self._tickets[row] = self._next_ticket
        self._next_ticket += 1

    def remove(self, row: int) -> None:
        """Stop counting for ``row``; a row that was not counted is ignored."""
        self._tickets.pop(row, None)

    def build(
        self,
        rows: IntArray,
        padded_rows: int,
        token_table: IntArray,
        num_prompt_tokens: IntArray,
        num_tokens: IntArray,
    ) -> tuple[Array, IntArray]:
        """Return a step's prompt mask (bool) and output counts (int32), ``[padded_rows, vocab_size]``.

        Rows of padding and of requests without penalties are zero.
        """
        self._grow(padded_rows)
        tickets = [self._tickets.get(row) for row in rows.tolist()]
        tickets += [None] * (padded_rows - len(tickets))
        for index, ticket in enumerate(tickets):
            filled = self._filled[index]
            if filled is not None and filled.ticket != ticket:
                self._prompt_mask[index] = False
                self._output_counts[index] = 0
                filled = self._filled[index] = None
            if ticket is None:
                continue
            row = rows[index]
            num_prompt, total = int(num_prompt_tokens[row]), int(num_tokens[row])
            if filled is None:
                self._prompt_mask[index, token_table[row, :num_prompt]] = True
                filled = self._filled[index] = _Filled(ticket, num_prompt)
            if filled.num_tokens < total:
                np.add.at(self._output_counts[index], token_table[row, filled.num_tokens : total], 1)
                filled.num_tokens = total
        return self._prompt_mask[:padded_rows], self._output_counts[:padded_rows]

    def _grow(self, num_rows: int) -> None:
        missing = num_rows - len(self._filled)
        if missing > 0:
            self._prompt_mask = np.pad(self._prompt_mask, ((0, missing), (0, 0)))
            self._output_counts = np.pad(self._output_counts, ((0, missing), (0, 0)))
            self._filled += [None] * missing
