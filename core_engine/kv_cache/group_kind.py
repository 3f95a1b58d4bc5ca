"""GroupKind: what the layers of one KV-cache group keep of a sequence.

The seam for caches of other kinds. The pool, the block tables and the scheduler ask a kind three
questions and know nothing else of it: the most blocks that a sequence holds at once, when a block is
of no more use, and where a cached prefix may end. docs/explanation/kv-cache.md says what a state-space
cache would answer. Torch-free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["NEVER", "FullAttention", "GroupKind", "SlidingWindow"]

#: A number of tokens that no sequence reaches: the largest int32.
NEVER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class GroupKind(ABC):
    """Answers for sequences in blocks of ``block_size`` tokens; block ``i`` holds the tokens from
    ``i * block_size`` on.
    """

    block_size: int

    @abstractmethod
    def peak_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """Return the most blocks that a sequence holds at once until it has ``num_tokens`` tokens.

        No step computes more than ``step_tokens`` of them, and what is of no more use is given back
        after every step. Grows with both arguments.
        """

    @abstractmethod
    def freed_at(self, index: int) -> int:
        """Return after how many processed tokens no later one reads block ``index``; `NEVER` for a kept one.

        A token is processed when its step's results are known, so that no step under way reads for an
        earlier one. Grows with ``index``, and is at least the number of tokens up to the block's end.
        """

    @abstractmethod
    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> range:
        """Return the blocks to take over for the longest cached prefix of at most ``most`` blocks.

        ``is_cached`` says of a block whether the pool has it. The prefix ends where the range stops;
        the blocks before the range are not needed from there on, and the range may be empty. A
        prefix of no block is always possible.
        """


@dataclass(frozen=True, slots=True)
class FullAttention(GroupKind):
    """Every token reads all tokens before it: all blocks stay."""

    def peak_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """Return the blocks of all tokens."""
        return -(-num_tokens // self.block_size)

    def freed_at(self, index: int) -> int:
        """Return `NEVER`."""
        return NEVER

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> range:
        """Stop before the first block that is missing."""
        for index in range(most):
            if not is_cached(index):
                return range(index)
        return range(most)


@dataclass(frozen=True, slots=True)
class SlidingWindow(GroupKind):
    """A token reads the ``window - 1`` tokens before it: what lies further back is given back."""

    window: int

    def peak_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """Return the most blocks that a whole step and the window before its first token can touch."""
        in_reach = self.window - 1 + step_tokens
        return min(-(-num_tokens // self.block_size), -(-(in_reach - 1) // self.block_size) + 1)

    def freed_at(self, index: int) -> int:
        """Return the first length whose next token sees nothing of the block."""
        return (index + 1) * self.block_size + self.window - 1

    def longest_hit(self, is_cached: Callable[[int], bool], most: int) -> range:
        """Search backwards for as many blocks in a row as a token behind them sees."""
        stop = index = most
        while index > self._first_seen(stop):
            index -= 1
            if not is_cached(index):
                stop = index
        return range(index, stop)

    def _first_seen(self, num_blocks: int) -> int:
        """Return the first block that the token after ``num_blocks`` blocks sees."""
        return max(0, num_blocks * self.block_size - self.window + 1) // self.block_size
