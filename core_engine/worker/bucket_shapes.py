"""BucketShapes: powers of two, so that few compiled programs serve every step. Torch-free."""

from __future__ import annotations

from bisect import bisect_left

from core_engine.worker.shape_policy import SamplingKind, ShapePolicy, StepKind, StepShape

__all__ = [
    "MIN_MIXED_TOKENS",
    "BucketShapes",
    "buckets_up_to",
    "next_power_of_two",
    "power_of_two_buckets",
]

#: Smaller mixed steps are padded to this many tokens.
MIN_MIXED_TOKENS = 16


class BucketShapes(ShapePolicy):
    """Decode steps pad their requests, mixed steps their tokens; the other number follows.

    A decode step of n requests becomes one of b ≥ n requests and as many tokens. A mixed step of n
    tokens becomes one of b ≥ n tokens and of as many requests as could share it: b, or all of them.
    So there are as many shapes as buckets, not their product.

    ``token_buckets`` and ``request_buckets`` take the place of the powers of two, in rising order; those
    that do not lie below the limit are left out, and the limit itself is always the last.
    """

    def __init__(
        self,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_logprobs: int,
        token_buckets: tuple[int, ...] | None = None,
        request_buckets: tuple[int, ...] | None = None,
    ) -> None:
        self.max_num_reqs = min(max_num_seqs, max_num_batched_tokens)
        self.request_buckets = (
            power_of_two_buckets(1, self.max_num_reqs)
            if request_buckets is None
            else buckets_up_to(self.max_num_reqs, request_buckets)
        )
        self.token_buckets = (
            power_of_two_buckets(MIN_MIXED_TOKENS, max_num_batched_tokens)
            if token_buckets is None
            else buckets_up_to(max_num_batched_tokens, token_buckets)
        )
        self._greedy = SamplingKind(all_greedy=True)
        self._random = SamplingKind(all_greedy=False, filters=True)
        self._everything = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)
        self._max_logprobs = max_logprobs

    def pad(self, num_tokens: int, num_reqs: int, kind: StepKind) -> StepShape:
        """Return the smallest prepared shape that holds the step."""
        if num_reqs > self.max_num_reqs:
            raise ValueError(
                f"no prepared shape holds {num_reqs} requests; the largest has {self.max_num_reqs}"
            )
        if num_tokens > self.token_buckets[-1]:
            raise ValueError(
                f"no prepared shape holds {num_tokens} tokens; the largest has {self.token_buckets[-1]}"
            )
        if kind is StepKind.DECODE:
            return self._decode(_at_least(self.request_buckets, max(num_tokens, num_reqs)))
        return self._mixed(_at_least(self.token_buckets, max(num_tokens, num_reqs)))

    def warm_up_shapes(self) -> tuple[StepShape, ...]:
        """List one shape per bucket."""
        return (*map(self._decode, self.request_buckets), *map(self._mixed, self.token_buckets))

    def widen(self, kind: SamplingKind) -> SamplingKind:
        """Return one of three prepared samplers: greedy, random with filters, or everything.

        The last serves every mixture; the others are shorter ways for steps without penalties and bias.
        """
        if kind.penalties or kind.bias:
            return self._everything
        return self._greedy if kind.all_greedy and not kind.filters else self._random

    def warm_up_sampling_kinds(self) -> tuple[SamplingKind, ...]:
        """List the three samplers."""
        return (self._greedy, self._random, self._everything)

    def widen_logprobs(self, num_logprobs: int) -> int:
        """Return ``max_logprobs``, whatever was asked for."""
        return self._max_logprobs

    def _decode(self, num_reqs: int) -> StepShape:
        return StepShape(num_reqs, num_reqs, StepKind.DECODE)

    def _mixed(self, num_tokens: int) -> StepShape:
        return StepShape(num_tokens, min(num_tokens, self.max_num_reqs), StepKind.MIXED)


def buckets_up_to(limit: int, buckets: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ``buckets`` below ``limit``, in their rising order, and ``limit`` itself."""
    return (*(size for size in buckets if size < limit), limit)


def _at_least(buckets: tuple[int, ...], size: int) -> int:
    return buckets[bisect_left(buckets, size)]


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``, which is at least 1."""
    return 1 << (number - 1).bit_length()


def power_of_two_buckets(smallest: int, limit: int) -> tuple[int, ...]:
    """Return ``smallest``, its doubles below ``limit``, and ``limit`` itself, in rising order."""
    powers = tuple(smallest << doublings for doublings in range(limit.bit_length()))
    return buckets_up_to(limit, powers)
