from __future__ import annotations

import numpy as np

from core_engine.worker.token_counts import TokenCounts

VOCAB = 12


class Counted:
    """A `TokenCounts` over requests that live in rows of a token table."""

    def __init__(self) -> None:
        self.counts = TokenCounts(VOCAB)
        self.table = np.zeros((4, 60), dtype=np.int32)
        self.num_prompt = np.zeros(4, dtype=np.int32)
        self.num_tokens = np.zeros(4, dtype=np.int32)

    def add(self, row: int, prompt: list[int]) -> None:
        self.table[row, : len(prompt)] = prompt
        self.num_prompt[row] = self.num_tokens[row] = len(prompt)
        self.counts.add(row)

    def append(self, row: int, *token_ids: int) -> None:
        for token_id in token_ids:
            self.table[row, self.num_tokens[row]] = token_id
            self.num_tokens[row] += 1

    def build(self, *rows: int, padded: int | None = None) -> list[tuple[list[int], list[int]]]:
        """Return (ids of the prompt, count of each id in the output) of each row of the step."""
        mask, counts = self.counts.build(
            np.array(rows, dtype=np.int32), padded or len(rows), self.table, self.num_prompt, self.num_tokens
        )
        return [(np.flatnonzero(m).tolist(), c.tolist()) for m, c in zip(mask, counts, strict=True)]

    def expected(self, row: int) -> tuple[list[int], list[int]]:
        tokens = self.table[row, : self.num_tokens[row]]
        prompt, output = np.split(tokens, [self.num_prompt[row]])
        return sorted(set(prompt.tolist())), np.bincount(output, minlength=VOCAB).tolist()


NOTHING: tuple[list[int], list[int]] = ([], [0] * VOCAB)


def test_several_tokens_of_one_step_all_count() -> None:
    counted = Counted()
    counted.add(0, [1, 2])
    counted.build(0)
    counted.append(0, 3, 3, 4)
    assert counted.build(0) == [counted.expected(0)]


def test_rows_without_penalties_and_padding_are_zero() -> None:
    counted = Counted()
    counted.add(0, [1, 2])
    counted.num_tokens[1] = 5
    assert counted.build(1, 0, padded=3) == [NOTHING, counted.expected(0), NOTHING]


def test_case_20_a_request_may_change_its_place_and_come_back() -> None:
    counted = Counted()
    counted.add(0, [1])
    counted.add(1, [2])
    for step, rows in enumerate([(0, 1), (1, 0), (1,), (0, 1), (0,), (1, 0)]):
        for row in rows:
            counted.append(row, (3 * step + row) % VOCAB)
        assert counted.build(*rows) == [counted.expected(row) for row in rows]


def test_a_row_given_to_another_request_starts_anew() -> None:
    counted = Counted()
    counted.add(0, [1, 2])
    counted.append(0, 5, 6)
    counted.build(0)
    counted.counts.remove(0)
    counted.add(0, [3])
    counted.append(0, 7)
    assert counted.build(0) == [([3], counted.expected(0)[1])]


def test_a_row_is_cleared_when_its_request_has_gone() -> None:
    counted = Counted()
    counted.add(0, [1, 2])
    counted.build(0)
    counted.counts.remove(0)
    assert counted.build(0, padded=2) == [NOTHING, NOTHING]
