"""The CPU's sampler: the reference's choices, made by numba kernels where numba is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from core_engine.plugin.runtime import ReferenceSampler, Sampler, SamplingKind

__all__ = ["KernelSampler", "make_sampler"]


def make_sampler() -> Sampler:
    """Return the kernel sampler where numba is installed, the reference otherwise."""
    return KernelSampler() if find_spec("numba") else ReferenceSampler()


class KernelSampler(ReferenceSampler):
    """Makes the reference's choices without sorting a row and without a second copy of the logits.

    The noise has the same bits. Logarithms and exponentials may differ from torch's in the last one, so
    a token can differ only where two scores, or a filter's bound and a logit, agree that far. Beside a large
    top_k, top_p may also end earlier by the probability of what cannot be drawn, less than V · e⁻²⁰.
    """

    def __init__(self) -> None:
        # Compiled, or loaded from the cache, before the first request rather than with it.
        self._choose_rows = _kernels().choose_rows
        import_module("core_engine.backends.cpu.numba_threads").share_threads()

    def choose(
        self, logits: torch.Tensor, inputs: Mapping[str, torch.Tensor], kind: SamplingKind
    ) -> torch.Tensor:
        """Take each row's token, int32 ``[R]``, from adjusted ``logits``; -1 where a row has none."""
        if logits.dtype not in (torch.float32, torch.bfloat16):
            logits = logits.to(torch.float32)
        token_ids = torch.empty(logits.shape[0], dtype=torch.int32)
        temperature = inputs["temperature"]
        self._choose_rows(
            logits.contiguous().view(torch.uint16).numpy(),
            logits.dtype == torch.float32,
            (torch.zeros_like(temperature) if kind.all_greedy else temperature).numpy(),
            *(inputs[name].numpy() for name in ("top_k", "top_p", "min_p")),
            inputs["noise_keys"].numpy().view("uint32"),
            token_ids.numpy(),
        )
        return token_ids


@cache
def _kernels() -> Any:
    from core_engine.backends.cpu.kernel_cache import kernel_cache

    with kernel_cache():
        return import_module("core_engine.backends.cpu.kernels.token_choice")
