"""TritonSampler: core's sampler in kernels that read a row a few times and sort nothing.

The noise is bit-equal to that of core's CPU kernels. Against the reference, logarithms and exponentials may
differ in the last bit, so a token can differ only where two scores, or a filter's bound and a probability,
agree that far. A row's token depends neither on the rows beside it nor on how rows are split.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind
from core_engine_cuda.kernels.token_choice import MAX_SPLITS, draw_rows, finish_rows, scan_rows
from core_engine_cuda.kernels.token_filters import find_limits, gather_candidates

__all__ = ["TritonSampler", "num_splits"]

Inputs = Mapping[str, torch.Tensor]
Best = tuple[torch.Tensor, torch.Tensor]

#: Rows are split until so many programs run: a few for each multiprocessor of the largest devices.
_PROGRAMS = 1024
#: Tokens that a program reads at once.
_BLOCK = 1024
#: The same of the search, which has one program for a row, and its warps.
_SEARCH_BLOCK, _SEARCH_WARPS = 2048, 16
#: Logits of some weight that are gathered from a row; a row that has more is searched where it is.
_CAPACITY = 8192
#: Rows and vocabularies that are multiples of this are read in wide loads.
_UNIT = 16


def num_splits(num_rows: int, vocab_size: int) -> int:
    """Return over how many programs each of ``num_rows`` rows is split."""
    num_blocks = -(-vocab_size // _BLOCK)
    return min(max(1, _PROGRAMS // num_rows), num_blocks, int(MAX_SPLITS.value))


class TritonSampler(ReferenceSampler):
    """The reference with its choice in kernels; grids depend on shapes alone, nothing waits for the device.

    Bias and penalties come before it, and log-probabilities after it, by the reference's operations of torch,
    whose top-k sorts no row on a GPU either.
    """

    def choose(self, logits: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> torch.Tensor:
        """Take each row's token, int32 ``[R]``, from adjusted ``logits``; -1 where a row has none."""
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.to(torch.float32)
        rows = _Rows(logits if logits.stride(1) == 1 else logits.contiguous())
        best = rows.scan()
        if not kind.all_greedy:
            best = rows.draw(best, inputs, rows.limits(best, inputs) if kind.filters else None)
        return rows.finish(best)


class _Rows:
    """Launches the kernels over logits ``[R, V]``, float32 or bfloat16, whose columns are contiguous."""

    def __init__(self, logits: torch.Tensor) -> None:
        num_rows, vocab_size = logits.shape
        splits = num_splits(num_rows, vocab_size)
        unit = 1 if logits.stride(0) % _UNIT or vocab_size % _UNIT else _UNIT
        self._logits = logits
        self._grid = (num_rows, splits)
        self._sizes = (logits.stride(0) // unit, vocab_size // unit, splits)
        self._split_sizes = (*self._sizes, -(-vocab_size // (splits * _BLOCK)))
        # The noise is bit-equal only where no multiplication and addition become one.
        self._options = {"UNIT": unit, "enable_fp_fusion": False}

    def scan(self) -> Best:
        """Find the most likely token of each split."""
        best = self._new_best()
        scan_rows[self._grid](self._logits, *best, *self._split_sizes, BLOCK=_BLOCK, **self._options)
        return best

    def limits(self, top: Best, inputs: Inputs) -> Best:
        """Find the last token that each row's top_k and top_p keep: its logit and its id."""
        num_rows = self._grid[0]
        candidates = self._logits.new_empty((num_rows, _CAPACITY))
        num_candidates = self._logits.new_zeros(num_rows, dtype=torch.int32)
        limits = (self._new(torch.float32, num_rows), self._new(torch.int32, num_rows))
        gather_candidates[self._grid](
            self._logits,
            *top,
            inputs["temperature"],
            inputs["min_p"],
            candidates,
            num_candidates,
            *self._split_sizes,
            CAPACITY=_CAPACITY,
            BLOCK=_BLOCK,
            **self._options,
        )
        find_limits[(num_rows,)](
            self._logits,
            *top,
            *(inputs[name] for name in ("temperature", "top_k", "top_p", "min_p")),
            candidates,
            num_candidates,
            *limits,
            *self._sizes,
            CAPACITY=_CAPACITY,
            SHIFT=16 if self._logits.dtype == torch.bfloat16 else 0,
            BLOCK=_SEARCH_BLOCK,
            num_warps=_SEARCH_WARPS,
            **self._options,
        )
        return limits

    def draw(self, top: Best, inputs: Inputs, limits: Best | None) -> Best:
        """Find the largest score of each split, among what min_p and ``limits`` keep where they are given."""
        best = self._new_best()
        draw_rows[self._grid](
            self._logits,
            *top,
            *(inputs[name] for name in ("temperature", "min_p", "noise_keys")),
            *(limits or top),
            *best,
            *self._split_sizes,
            FILTERS=limits is not None,
            BLOCK=_BLOCK,
            **self._options,
        )
        return best

    def finish(self, best: Best) -> torch.Tensor:
        """Take each row's token from its splits."""
        token_ids = self._new(torch.int32, self._grid[0])
        finish_rows[(self._grid[0],)](*best, token_ids, self._grid[1], num_warps=1, enable_fp_fusion=False)
        return token_ids

    def _new_best(self) -> Best:
        return self._new(torch.float32, *self._grid), self._new(torch.int32, *self._grid)

    def _new(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self._logits.device)
