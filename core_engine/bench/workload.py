"""Synthetic requests of exact lengths."""

from __future__ import annotations

import random

from core_engine.errors import ConfigError
from core_engine.sampling.params import SamplingParams

__all__ = ["Workload"]


class Workload:
    """``num_prompts`` prompts of ``input_len`` random token ids, each answered by ``output_len`` tokens.

    The ids are drawn from the vocabulary's first ``vocab_size`` with a fixed seed; answers are greedy
    and go on past end-of-sequence ids.
    """

    def __init__(
        self, num_prompts: int, input_len: int, output_len: int, vocab_size: int, seed: int = 0
    ) -> None:
        for name, value in (
            ("num-prompts", num_prompts),
            ("input-len", input_len),
            ("output-len", output_len),
        ):
            if value < 1:
                raise ConfigError(f"--{name} must be at least 1, got {value}")
        draw = random.Random(seed)
        self.input_len = input_len
        self.output_len = output_len
        self.prompts = [[draw.randrange(vocab_size) for _ in range(input_len)] for _ in range(num_prompts)]
        self.params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
