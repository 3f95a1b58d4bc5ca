"""The sampler's definition, in plain torch: static shapes, no host synchronisation, no branch on data.

A row's token is the largest of logit + temperature · noise among the tokens that the filters keep. With
Gumbel noise that draws from softmax(logit / temperature), with temperature 0 it is the most likely
token, and no division can overflow. Of equal tokens the one with the lowest id counts as the larger,
in the choice and in the filters' order. A row whose chosen logit is not finite has no token to give: NaN
counts as the largest, so one is enough, and -inf is chosen only where every token is forbidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from core_engine.sampling.base import Sampler
from core_engine.sampling.torch_noise import gumbel

if TYPE_CHECKING:
    from core_engine.worker.shape_policy import SamplingKind

__all__ = ["Inputs", "ReferenceSampler", "adjust_logits"]

Inputs = Mapping[str, torch.Tensor]


class ReferenceSampler(Sampler):
    """Bias, penalties, temperature, min_p, top_k, top_p, then Gumbel-max."""

    def sample(self, logits: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> torch.Tensor:
        """Sample as `Sampler.sample` says."""
        return self.choose(adjust_logits(logits, inputs, kind), inputs, kind)

    def choose(self, logits: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> torch.Tensor:
        """Take each row's token, int32 ``[R]``, from adjusted ``logits``; -1 where a row has none."""
        if kind.all_greedy:
            return _chosen(logits, torch.argmax(logits, dim=-1, keepdim=True))
        logits = logits.to(torch.float32)
        temperature, keys = inputs["temperature"][:, None], inputs["noise_keys"]
        if not kind.filters:
            ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)[None]
            scores = logits + temperature * gumbel(keys, ids)
            return _chosen(logits, torch.argmax(scores, dim=-1, keepdim=True))
        values, order = torch.sort(logits, dim=-1, descending=True, stable=True)
        ids = order.to(torch.int32)
        scores = values + temperature * gumbel(keys, ids)
        scores = torch.where(_kept(values, inputs), scores, float("-inf"))
        return _chosen(logits, torch.gather(order, 1, torch.argmax(scores, dim=-1, keepdim=True)))

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int
    ) -> dict[str, torch.Tensor]:
        """Report as `Sampler.logprobs` says; a rank is 1 plus the number of more likely tokens."""
        logits = logits.to(torch.float32)
        own_ids = token_ids.to(torch.int64)[:, None]
        own = torch.gather(logits, 1, own_ids)
        top, top_ids = self.most_likely(logits, num_logprobs)
        total = torch.logsumexp(logits, dim=-1, keepdim=True)
        return {
            "logprob_ids": torch.cat([own_ids, top_ids], dim=1).to(torch.int32),
            "logprobs": torch.cat([own, top], dim=1) - total,
            "ranks": (logits > own).sum(dim=-1).to(torch.int32) + 1,
        }

    def most_likely(self, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each row's ``count`` largest, falling, and their ids: float32 and int64 ``[R, count]``."""
        top, top_ids = torch.topk(logits, count, dim=-1)
        return top, top_ids


def adjust_logits(logits: torch.Tensor, inputs: Inputs, kind: SamplingKind) -> torch.Tensor:
    """Return ``logits`` with bias and penalties in float32; the same tensor when ``kind`` has neither."""
    if kind.bias:
        logits = logits.to(torch.float32) + inputs["bias"]
    if kind.penalties:
        logits = logits.to(torch.float32)
        repetition, presence, frequency = (column[:, None] for column in inputs["penalties"].unbind(1))
        counts = inputs["output_counts"]
        in_output = counts > 0
        seen = in_output | inputs["prompt_mask"]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, repeated, logits)
        logits = logits - frequency * counts - presence * in_output
    return logits


def _chosen(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the ids ``[R, 1]`` as int32 ``[R]``, -1 in place of those whose logit is not finite."""
    is_finite = torch.isfinite(torch.gather(logits, 1, token_ids))
    return torch.where(is_finite, token_ids.to(torch.int32), -1)[:, 0]


def _kept(values: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Say which of a row's ``values``, sorted in falling order, pass min_p, top_k and top_p; bool ``[R, V]``.

    min_p is a share of the most likely token's probability; top_p a share of what min_p and top_k left.
    """
    temperature = inputs["temperature"][:, None]
    divisor = torch.where(temperature > 0, temperature, 1.0)
    # The clamp keeps a row of nothing but -inf from becoming NaN.
    largest = torch.clamp(values[:, :1], min=torch.finfo(torch.float32).min)
    distance = (values - largest) / divisor
    # The clamp stands for "keep all": no noise lifts a token over a distance of 87.
    kept = distance >= torch.log(torch.clamp(inputs["min_p"], min=1e-38))[:, None]
    rank = torch.arange(values.shape[-1], dtype=torch.int32, device=values.device)[None]
    kept = kept & (rank < inputs["top_k"][:, None])
    weights = torch.where(kept, torch.exp(distance), 0.0)
    top_p = inputs["top_p"][:, None]
    mass_before = torch.cumsum(weights, dim=-1) - weights
    in_nucleus = mass_before < top_p * weights.sum(dim=-1, keepdim=True)
    # Rounding in the sums must not drop a tail that nobody asked to drop.
    return kept & (in_nucleus | (top_p >= 1))
