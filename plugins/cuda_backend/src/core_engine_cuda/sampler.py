"""TritonSampler: core's sampler in kernels that read a row a few times and sort nothing.

The noise is bit-equal to that of core's CPU kernels. Against the reference, logarithms and exponentials may
differ in the last bit, so a token can differ only where two scores, or a filter's bound and a probability,
agree that far. A row's token depends neither on the rows beside it nor on how rows are split.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind
from core_engine_cuda.kernels.token_choice import MAX_SPLITS
from core_engine_cuda.kernels.token_variants import (
    BLOCK,
    CAPACITY,
    UNITS,
    draw_variant,
    finish_variant,
    gather_variant,
    limits_variant,
    scan_variant,
)

__all__ = ["TritonSampler", "num_splits"]

Inputs = Mapping[str, torch.Tensor]
#: A number of each row or split, and the token id that it belongs to.
Found = tuple[torch.Tensor, torch.Tensor]

#: Rows are split until so many programs run: a few for each multiprocessor of the largest devices.
_PROGRAMS = 1024
_ALIGNMENT = 16


def num_splits(num_rows: int, vocab_size: int) -> int:
    """Return over how many programs each of ``num_rows`` rows is split."""
    num_blocks = -(-vocab_size // BLOCK)
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
        if logits.stride(1) != 1 or logits.data_ptr() % _ALIGNMENT:
            logits = logits.clone(memory_format=torch.contiguous_format)
        rows = _Rows(logits)
        best = rows.scan()
        if not kind.all_greedy:
            best = rows.draw(best, inputs, rows.limits(best, inputs) if kind.filters else None)
        return rows.finish(best)


class _Rows:
    """Launches the kernels over logits ``[R, V]``, float32 or bfloat16, whose columns are contiguous."""

    def __init__(self, logits: torch.Tensor) -> None:
        num_rows, vocab_size = logits.shape
        self._unit = next(unit for unit in UNITS if logits.stride(0) % unit == vocab_size % unit == 0)
        self._dtype = str(logits.dtype).removeprefix("torch.")
        splits = num_splits(num_rows, vocab_size)
        self._grid = (num_rows, splits)
        self._split = {
            "logits": logits,
            "row_units": logits.stride(0) // self._unit,
            "vocab_units": vocab_size // self._unit,
            "num_splits": splits,
            "split_blocks": -(-vocab_size // (splits * BLOCK)),
        }
        self._logits, self._device = logits, logits.device

    def scan(self) -> Found:
        """Find the most likely token of each split."""
        scores, ids = self._new_found(*self._grid)
        scan_variant(self._dtype, self._unit).launch(self._grid, **self._split, scores=scores, ids=ids)
        return scores, ids

    def limits(self, top: Found, inputs: Inputs) -> Found:
        """Find the last token that each row's top_k and top_p keep: its logit and its id."""
        num_rows = self._grid[0]
        limits, limit_ids = self._new_found(num_rows)
        shared = {
            "top_scores": top[0],
            "top_ids": top[1],
            "temperature": inputs["temperature"],
            "min_p": inputs["min_p"],
            "candidates": self._logits.new_empty((num_rows, CAPACITY)),
            "num_candidates": torch.zeros(num_rows, dtype=torch.int32, device=self._device),
        }
        gather_variant(self._dtype, self._unit).launch(self._grid, **self._split, **shared)
        limits_variant(self._dtype).launch(
            (num_rows,),
            logits=self._logits,
            **shared,
            row_stride=self._logits.stride(0),
            vocab_size=self._logits.shape[1],
            num_splits=self._grid[1],
            top_k=inputs["top_k"],
            top_p=inputs["top_p"],
            limits=limits,
            limit_ids=limit_ids,
        )
        return limits, limit_ids

    def draw(self, top: Found, inputs: Inputs, limits: Found | None) -> Found:
        """Find the largest score of each split, among what min_p and ``limits`` keep where they are given."""
        scores, ids = self._new_found(*self._grid)
        limit, limit_ids = limits or top  # without filters nothing reads them
        draw_variant(self._dtype, self._unit, filters=limits is not None).launch(
            self._grid,
            **self._split,
            top_scores=top[0],
            top_ids=top[1],
            temperature=inputs["temperature"],
            min_p=inputs["min_p"],
            noise_keys=inputs["noise_keys"],
            limits=limit,
            limit_ids=limit_ids,
            scores=scores,
            ids=ids,
        )
        return scores, ids

    def finish(self, best: Found) -> torch.Tensor:
        """Take each row's token from its splits."""
        num_rows, splits = self._grid
        token_ids = torch.empty(num_rows, dtype=torch.int32, device=self._device)
        finish_variant().launch(
            (num_rows,), scores=best[0], ids=best[1], token_ids=token_ids, num_splits=splits
        )
        return token_ids

    def _new_found(self, *shape: int) -> Found:
        return (
            torch.empty(shape, dtype=torch.float32, device=self._device),
            torch.empty(shape, dtype=torch.int32, device=self._device),
        )
