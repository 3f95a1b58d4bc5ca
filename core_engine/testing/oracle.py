"""What transformers itself computes, and how an engine's answers are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Comparison", "EngineRun", "Oracle", "compare"]

#: ``(prompts) -> logits [prompt length, vocab_size] of each``: all prompts in one call of the engine.
EngineRun = Callable[[Sequence[Sequence[int]]], list[torch.Tensor]]


class Oracle:
    """transformers' own forward of a checkpoint in float32, with its plain ("eager") attention."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()

    @torch.no_grad()
    def logits(self, prompt: Sequence[int]) -> torch.Tensor:
        """Return the logits ``[len(prompt), vocab_size]`` of a whole prompt."""
        result: torch.Tensor = self.model(input_ids=torch.tensor([list(prompt)]), use_cache=False).logits[0]
        return result

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
        """Return the most likely continuation and the smallest gap between its top two logits."""
        tokens, margin = list(prompt), float("inf")
        for _ in range(num_tokens):
            best = self.logits(tokens)[-1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
        return tokens[len(prompt) :], margin


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far an engine is from the oracle."""

    #: Largest absolute difference of a logit over all prompts, computed alone.
    alone: float
    #: The same with all prompts in one batch.
    batched: float
    #: Standard deviation of the oracle's logits: differences mean nothing when it is tiny.
    spread: float
    #: Every greedy token agrees.
    tokens_equal: bool
    #: Smallest gap between the top two logits along the greedy paths.
    margin: float

    def agrees(self, tolerance: float = 1e-4) -> bool:
        """Say whether logits lie within ``tolerance`` and tokens are equal (ties within it excused)."""
        near = max(self.alone, self.batched) <= tolerance
        return near and (self.tokens_equal or self.margin <= tolerance)


def compare(
    oracle: Oracle, run: EngineRun, prompts: Sequence[Sequence[int]], num_tokens: int = 32
) -> Comparison:
    """Compare per-token logits, alone and batched, and ``num_tokens`` greedy tokens of each prompt."""
    expected = [oracle.logits(prompt) for prompt in prompts]
    alone = [run([prompt])[0] for prompt in prompts]
    batched = run(prompts)
    wanted = [oracle.greedy(prompt, num_tokens) for prompt in prompts]
    return Comparison(
        alone=_largest_difference(expected, alone),
        batched=_largest_difference(expected, batched),
        spread=min(float(logits.std()) for logits in expected),
        tokens_equal=_greedy(run, prompts, num_tokens) == [tokens for tokens, _ in wanted],
        margin=min(margin for _, margin in wanted),
    )


def _largest_difference(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> float:
    pairs = zip(expected, found, strict=True)
    # A NaN must not pass as a small difference.
    return max(float((a - b).abs().max().nan_to_num(nan=torch.inf)) for a, b in pairs)


def _greedy(run: EngineRun, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    tokens = [list(prompt) for prompt in prompts]
    for _ in range(num_tokens):
        for row, logits in zip(tokens, run(tokens), strict=True):
            row.append(int(logits[-1].argmax()))
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]
