"""Sampler: from logits to token ids, on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from core_engine.worker.step import SamplingKind

__all__ = ["Sampler"]


class Sampler(ABC):
    """Chooses one token per row, and reports log-probabilities of tokens where they are asked for.

    The order is: bias, penalties, temperature, min_p, top_k, top_p; then the largest of logit plus
    Gumbel noise. The noise of a token depends on (seed, stream, position, token id) alone, so a draw
    does not depend on the batch; `core_engine.sampling.reference` is the definition.
    """

    @abstractmethod
    def sample(
        self, logits: torch.Tensor, inputs: Mapping[str, torch.Tensor], kind: SamplingKind
    ) -> torch.Tensor:
        """Sample from ``logits`` (``[R, vocab_size]``, any float dtype; not changed).

        ``inputs`` are the arrays of `core_engine.worker.step.HostSampling` as device tensors. Returns token
        ids, int32 ``[R]``. A row whose chosen logit is not finite has no token to give and gets -1: the
        model's logits are not numbers, or every token is forbidden.
        """

    @abstractmethod
    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, num_logprobs: int
    ) -> dict[str, torch.Tensor]:
        """Report the model's own distribution at given tokens: sampled ones, or those of a prompt.

        ``logits`` are as for ``sample``; ``token_ids`` is int32 ``[R]``, none of them negative. Returns
        ``logprob_ids`` int32 ``[R, 1 + k]``, ``logprobs`` float32 ``[R, 1 + k]`` (column 0 is the given
        token) and ``ranks`` int32 ``[R]``. A row of logits that are not numbers has results of no meaning.
        """
