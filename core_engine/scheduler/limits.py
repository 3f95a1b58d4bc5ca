"""SchedulerLimits: what the configuration and the backend's capabilities allow in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_engine.errors import ConfigError, UnsupportedFeature

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.plugin._capabilities import Capabilities

__all__ = ["SchedulerLimits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerLimits:
    """The settled limits of a scheduler that mixes prefill and decode tokens in one step."""

    max_num_batched_tokens: int
    #: At most one decode token each fits into a step, so no more requests run than there are tokens.
    max_num_running: int
    chunked_prefill: bool
    prefix_caching: bool

    @classmethod
    def settle(cls, config: EngineConfig, capabilities: Capabilities, max_model_len: int) -> SchedulerLimits:
        """Settle the limits; a switch that is left open (None) follows the capabilities.

        Without chunked prefill a prompt is computed in one step, and so is everything that a
        preempted request has lost: the budget must hold ``max_model_len`` tokens. Raises
        `ConfigError` when it does not, and `UnsupportedFeature` for what was asked for and the
        backend does not offer.
        """
        if not capabilities.mixed_batches:
            raise UnsupportedFeature(
                "the unified scheduler puts prefill and decode tokens into one step (mixed_batches), "
                "which this backend does not offer"
            )
        chunked = _switch(
            "enable_chunked_prefill", config.enable_chunked_prefill, capabilities.chunked_prefill
        )
        if not chunked and config.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"without chunked prefill a whole sequence must fit into one step: max_num_batched_tokens "
                f"{config.max_num_batched_tokens} is less than max_model_len {max_model_len}; raise the "
                f"former to {max_model_len} or lower the latter"
            )
        running = min(config.max_num_seqs, config.max_num_batched_tokens)
        return cls(
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_running=min(running, capabilities.max_num_seqs or running),
            chunked_prefill=chunked,
            prefix_caching=_switch(
                "enable_prefix_caching", config.enable_prefix_caching, capabilities.prefix_caching
            ),
        )


def _switch(name: str, asked: bool | None, offered: bool) -> bool:
    if asked and not offered:
        raise UnsupportedFeature(f"{name} was asked for, but this backend does not offer it; leave it off")
    return offered if asked is None else asked
