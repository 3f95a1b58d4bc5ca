"""A language model without weights: the next token is a function of all tokens before it.

Every position has a *state*, a 64-bit digest of the tokens up to and including it. A fake KV cache
holds states in place of keys and values, so a step that reads a wrong, stale or unwritten block is
seen at once. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from core_engine.sampling.params import SamplingParams
from core_engine.worker.output import LogprobRows

__all__ = ["EMPTY_STATE", "FakeModel"]

_MASK = (1 << 64) - 1
#: The state before the first token.
EMPTY_STATE = 0x243F6A8885A308D3
#: How many of the most likely tokens a sampled (not greedy) draw chooses from.
_SAMPLED_CHOICES = 8


def _mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class FakeModel:
    """Deterministic logits over ``vocab_size`` tokens.

    At a state, the token of rank ``r`` (from 1) is ``(top + r - 1) % vocab_size`` with log-probability
    ``-r·ln 2``, where ``top`` comes from the state.
    """

    def __init__(self, vocab_size: int = 97) -> None:
        self.vocab_size = vocab_size

    def next_state(self, state: int, token: int) -> int:
        """Return the state after ``token``; never 0, so that an unwritten cache slot matches nothing."""
        return _mix(state ^ _mix(token)) or 1

    def first_state(self, lora_id: int) -> int:
        """Return the state before the first token under an adapter (0 for none)."""
        return _mix(EMPTY_STATE ^ lora_id) if lora_id else EMPTY_STATE

    def states(self, tokens: Iterable[int], state: int = EMPTY_STATE) -> list[int]:
        """Return the state at each of ``tokens``, which follow on ``state``."""
        result: list[int] = []
        for token in tokens:
            state = self.next_state(state, token)
            result.append(state)
        return result

    def choose(
        self,
        state: int,
        params: SamplingParams,
        *,
        seed: int,
        stream: int,
        position: int,
        forbidden: Iterable[int] = (),
    ) -> int:
        """Choose the token at ``position``: the top one when greedy, else by (seed, stream, position).

        A forbidden token gives way to the one of the next rank.
        """
        shift = 0
        if params.temperature > 0:
            shift = _mix(_mix(_mix(seed) ^ stream) ^ position) % min(_SAMPLED_CHOICES, self.vocab_size)
        barred = set(forbidden)
        token = (state + shift) % self.vocab_size
        while token in barred:
            token = (token + 1) % self.vocab_size
        return token

    def logprobs(self, states: Sequence[int], token_ids: Sequence[int], k: int) -> LogprobRows:
        """Return one row per state: the given token, then the ``k`` most likely."""
        tops = np.array([state % self.vocab_size for state in states], dtype=np.int64)[:, None]
        given = np.array(token_ids, dtype=np.int64)[:, None]
        likely = (tops + np.arange(k)) % self.vocab_size
        tokens = np.concatenate([given, likely], axis=1)
        ranks = (tokens - tops) % self.vocab_size + 1
        return LogprobRows(
            token_ids=tokens.astype(np.int32),
            logprobs=(ranks * -np.log(2.0)).astype(np.float32),
            ranks=ranks[:, 0].astype(np.int32),
        )

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        num_tokens: int,
        *,
        seed: int = 0,
        stream: int = 0,
        eos_token_ids: Iterable[int] = (),
        lora_id: int = 0,
    ) -> list[int]:
        """Return what any correct engine generates: up to ``num_tokens``, ending with a stop token."""
        stops = {*eos_token_ids, *params.stop_token_ids}
        state = self.states(prompt, self.first_state(lora_id))[-1]
        output: list[int] = []
        while len(output) < num_tokens:
            early = len(output) < params.min_tokens
            token = self.choose(
                state,
                params,
                seed=seed,
                stream=stream,
                position=len(prompt) + len(output),
                forbidden=stops if early else (),
            )
            output.append(token)
            if token in stops:
                break
            state = self.next_state(state, token)
        return output
