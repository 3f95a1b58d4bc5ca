"""SortFreeSampler: core's sampler without a sort, which TPUs are slow to run and XLA is slow to compile.

A row is cut at a threshold instead, which is found bit by bit over integers of the logits' order. Logits and
thresholds are compared exactly, so the tokens that are kept are those of the reference, ties included; sums
of probabilities differ from its in their rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from core_engine.plugin.runtime import ReferenceSampler, SamplingKind, gumbel
from core_engine_tpu.runtime_search import float_order, largest_ids, largest_threshold

__all__ = ["SortFreeSampler"]

Inputs = Mapping[str, torch.Tensor]


class SortFreeSampler(ReferenceSampler):
    """The reference with thresholds in place of its sort, and repeated maxima in place of top-k."""

    def choose(self, logits: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> torch.Tensor:
        """Take each row's token as `ReferenceSampler.choose` does."""
        if not kind.filters or kind.all_greedy:
            return super().choose(logits, inputs, kind)
        logits = logits.to(torch.float32)
        ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)[None]
        scores = logits + inputs["temperature"][:, None] * gumbel(inputs["noise_keys"], ids)
        scores = torch.where(_kept(logits, inputs), scores, float("-inf"))
        chosen = torch.argmax(scores, dim=-1, keepdim=True)
        is_token = torch.isfinite(torch.gather(scores, 1, chosen))[:, 0] & ~torch.isnan(logits).any(dim=-1)
        return torch.where(is_token, chosen[:, 0].to(torch.int32), -1)

    def most_likely(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ``count`` largest logits of each row and their ids, falling; see `ReferenceSampler`."""
        top_ids = largest_ids(float_order(logits), count).to(torch.int64)
        return torch.gather(logits, 1, top_ids), top_ids


def _kept(logits: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Say which of a row's logits pass min_p, top_k and top_p, as the reference does; bool ``[R, V]``."""
    temperature = inputs["temperature"][:, None]
    divisor = torch.where(temperature > 0, temperature, 1.0)
    largest = torch.clamp(logits.amax(-1, keepdim=True), min=torch.finfo(torch.float32).min)
    distance = (logits - largest) / divisor
    order = float_order(logits)

    kept = _leading(order, torch.ones_like(logits), inputs["top_k"].to(torch.float32))
    kept = kept & (distance >= torch.log(torch.clamp(inputs["min_p"], min=1e-38))[:, None])
    weights = torch.where(kept, torch.exp(distance), 0.0)
    # Below this a product with the sum may vanish, and with it the most likely token.
    top_p = torch.clamp(inputs["top_p"], min=1e-30)
    in_nucleus = _leading(order, weights, top_p * weights.sum(-1))
    return kept & (in_nucleus | (top_p[:, None] >= 1))


def _leading(order: torch.Tensor, weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Say which tokens, from the largest down and of equals the first, reach ``target``; bool ``[R, V]``.

    Arguments as in `largest_threshold`; the token whose weight reaches the target belongs to them.
    """
    threshold = largest_threshold(order, weights, target)[:, None]
    is_above, is_tied = order > threshold, order == threshold
    missing = target - torch.where(is_above, weights, 0.0).sum(-1)
    from_the_first = -torch.arange(order.shape[-1], dtype=torch.int32, device=order.device)[None]
    from_the_first = from_the_first.expand(order.shape)
    last = largest_threshold(from_the_first, torch.where(is_tied, weights, 0.0), missing)[:, None]
    return is_above | (is_tied & (from_the_first >= last))
