"""StepBudget: divides the tokens of one step among requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from core_engine._ragged import IntArray

__all__ = ["ShortDemand", "StepBudget"]

#: Says how many tokens, up to its argument, short prompts want that still wait for admission.
ShortDemand: TypeAlias = Callable[[int], int]


class StepBudget:
    """The token budget of one step, given out in this order: decodes, then prompts as they come.

    A *long* prompt wants more than a whole step. While shorter ones want tokens too, all long ones
    together take at most half of what the decodes leave, so that a prompt of 100,000 tokens does
    not make the short ones behind it wait until it is through.
    """

    def __init__(self, num_tokens: int, *, chunked: bool) -> None:
        self.size = num_tokens
        self.left = num_tokens
        self._chunked = chunked
        self._short_in_divide = 0
        self._left_for_long: int | None = None

    def divide(self, wanted: IntArray, short_demand: ShortDemand) -> IntArray:
        """Return how many of the ``wanted`` tokens each of the running requests gets; int32."""
        if not len(wanted):
            return wanted
        # Nearly always all decode: counting them takes a quarter of the time of a sum.
        only_decodes = int(wanted[wanted.argmax()]) <= 1
        total = int(np.count_nonzero(wanted) if only_decodes else np.add.reduce(wanted))
        if total <= self.left:
            self.left -= total
            return wanted
        granted: IntArray = (wanted == 1).astype(np.int32)
        self.left -= int(granted.sum())
        self._short_in_divide = int(wanted[(wanted > 1) & (wanted <= self.size)].sum())
        for row in np.flatnonzero(wanted > 1).tolist():
            if self.left == 0:
                break
            granted[row] = share = self.take(int(wanted[row]), short_demand)
            if wanted[row] <= self.size:
                self._short_in_divide -= share
        return granted

    def take(self, wanted: int, short_demand: ShortDemand) -> int:
        """Return how many of ``wanted`` tokens a prompt gets; 0 when it has to wait."""
        if wanted > self.size:
            if self._left_for_long is None:
                half = self.left // 2
                self._left_for_long = self.left - min(half, self._short_in_divide + short_demand(half))
            granted = min(self.left, self._left_for_long)
            self._left_for_long -= granted
        elif wanted <= self.left or self._chunked:
            granted = min(wanted, self.left)
        else:
            granted = 0
        self.left -= granted
        return granted
