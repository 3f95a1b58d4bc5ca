"""SchedulerLimits: what the configuration and the backend's capabilities allow in one step."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.scheduler.features import find_gaps, is_on

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.scheduler.contract import Scheduler

__all__ = ["SchedulerLimits", "largest_step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerLimits:
    """The settled limits of a scheduler."""

    #: The most tokens of one step. Where steps are padded it is the largest step that costs at most the
    #: configured budget: any number of tokens up to it is padded to no more.
    max_num_batched_tokens: int
    #: At most one decode token each fits into a step, so no more requests run than there are tokens.
    max_num_running: int
    chunked_prefill: bool
    prefix_caching: bool
    #: The most draft tokens of one request in one step; 0 drafts nothing.
    num_draft_tokens: int = 0

    @classmethod
    def settle(
        cls,
        config: EngineConfig,
        capabilities: Capabilities,
        max_model_len: int,
        scheduler: type[Scheduler],
    ) -> SchedulerLimits:
        """Settle the limits of ``scheduler``; a switch that is left open (None) follows what is there.

        Without chunked prefill a prompt is computed in one step, and so is everything that a
        preempted request has lost: the budget must hold ``max_model_len`` tokens, padded. Raises
        `ConfigError` when it does not, and `UnsupportedFeature` for what was asked for and is not
        possible.
        """
        if gaps := find_gaps(scheduler, config, capabilities):
            raise UnsupportedFeature(f"{scheduler.__name__} cannot run here: {'; '.join(gaps)}")
        budget = largest_step(config.max_num_batched_tokens, capabilities.token_buckets)
        chunked = is_on("chunked_prefill", scheduler, config, capabilities)
        if not chunked and budget < max_model_len:
            padding = "" if budget == config.max_num_batched_tokens else f", {budget} without padding,"
            raise ConfigError(
                f"without chunked prefill a whole sequence must fit into one step: max_num_batched_tokens "
                f"{config.max_num_batched_tokens}{padding} is less than max_model_len {max_model_len}; raise "
                f"the former to {max_model_len} or lower the latter"
            )
        running = min(config.max_num_seqs, budget)
        return cls(
            max_num_batched_tokens=budget,
            max_num_running=min(running, capabilities.max_num_seqs or running),
            chunked_prefill=chunked,
            prefix_caching=is_on("prefix_caching", scheduler, config, capabilities),
            num_draft_tokens=config.num_draft_tokens,
        )


def largest_step(budget: int, buckets: tuple[int, ...]) -> int:
    """Return the most tokens that cost at most ``budget`` when padded. Raises `ConfigError` for none."""
    if not buckets:
        return budget
    if budget < buckets[0]:
        raise ConfigError(
            f"max_num_batched_tokens {budget} is less than the smallest step that the backend computes, "
            f"which has {buckets[0]} tokens; raise it to that or more"
        )
    return buckets[bisect_right(buckets, budget) - 1]
