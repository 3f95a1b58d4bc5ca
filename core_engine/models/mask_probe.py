"""Reads what a model's attention mask means, by evaluating the rule that builds it.

transformers builds every mask from a rule ``rule(batch, head, query, key) -> bool``. During discovery
the engine registers a mask function of its own, which never builds a mask: it evaluates the rule at a
few queries and returns a placeholder tensor that carries the answer. A model that hands the placeholder
unchanged to its attention has told the engine everything; a model that computes with it (a position
bias, a chunk) hands over another tensor, which carries nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["MaskKind", "classify_mask", "kind_of", "probe_mask"]

#: Queries at which a rule is evaluated; the last one is farther than any window in use.
_QUERIES = (0, 7, 1000, 250_007, 2_000_003)
#: Keys after the query that must stay hidden.
_AHEAD = 64
_ATTRIBUTE = "core_engine_mask_kind"


@dataclass(frozen=True, slots=True)
class MaskKind:
    """What a query sees: all earlier positions, a window of them, or something else."""

    #: Positions that a query sees, itself included; None for all earlier ones.
    sliding_window: int | None = None
    #: Why the mask is neither causal nor a causal window; None when it is one of them.
    refusal: str | None = None


def probe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., torch.Tensor],
    dtype: torch.dtype = torch.bool,
    **_: Any,
) -> torch.Tensor:
    """Return a placeholder ``[batch, 1, q_length, kv_length]`` on the meta device that knows its kind.

    The signature is that of the functions in transformers' mask registry.
    """
    placeholder = torch.empty(batch_size, 1, q_length, kv_length, device="meta", dtype=dtype)
    setattr(placeholder, _ATTRIBUTE, classify_mask(mask_function))
    return placeholder


def kind_of(mask: object) -> MaskKind | None:
    """Return the kind that a placeholder carries, or None for any other object."""
    kind = getattr(mask, _ATTRIBUTE, None)
    return kind if isinstance(kind, MaskKind) else None


def classify_mask(rule: Callable[..., torch.Tensor]) -> MaskKind:
    """Evaluate ``rule`` and say what it means."""
    windows = set()
    with torch.device("cpu"):
        for query in _QUERIES:
            try:
                visible = _visible_keys(rule, query)
            except Exception as error:  # a rule may index tensors that do not exist here
                return MaskKind(refusal=f"its attention mask depends on the input ({type(error).__name__})")
            if len(visible) == 0 or int(visible[-1]) > query:
                return MaskKind(refusal="its attention is bidirectional: tokens see later tokens")
            count = query - int(visible[0]) + 1
            if int(visible[-1]) != query or len(visible) != count:
                return MaskKind(refusal="its attention mask has holes")
            windows.add((count, query + 1))
    if all(count == length for count, length in windows):
        return MaskKind()
    window = max(count for count, _ in windows)
    if any(count != min(window, length) for count, length in windows):
        return MaskKind(
            refusal="its attention is chunked: what a token sees depends on where its chunk starts"
        )
    return MaskKind(sliding_window=window)


def _visible_keys(rule: Callable[..., torch.Tensor], query: int) -> torch.Tensor:
    keys = torch.arange(query + 1 + _AHEAD)
    zero = torch.zeros((), dtype=torch.int64)
    allowed = rule(zero, zero, torch.tensor(query), keys)
    return keys[allowed.expand(keys.shape)]
