"""Scheduler: decides which tokens each step computes. Torch-free; knows no device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.engine.messages import CoreOutput, CoreRequest
    from core_engine.kv_cache.manager import KVCacheManager
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.scheduler.output import SchedulerOutput
    from core_engine.worker.output import ModelRunnerOutput

__all__ = ["Scheduler", "SchedulerStats"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerStats:
    """A snapshot for logs and metrics."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_total_blocks: int
    num_preemptions: int
    #: Prompt tokens looked up in the prefix cache, and those found.
    prefix_cache_queries: int
    prefix_cache_hits: int
    #: Draft tokens that were verified, and those of them that became output.
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """The share of drafts that became output; 0 where there were none."""
        return self.num_accepted_tokens / max(self.num_draft_tokens, 1)


class Scheduler(ABC):
    """The contract between the engine core and a scheduler.

    The engine calls ``schedule`` and ``update`` in turn; several ``schedule`` calls may come before
    the ``update`` of the first, and updates come in the order of the steps. A step that failed is
    given to ``abandon`` instead. One that is left out altogether has failed too: when a later step is
    updated, what it held is released, and those of its requests that nobody has ended end with "error".

    A scheduler is built from its three arguments alone, never from a global. ``capabilities`` are the
    narrowed ones of the opened device.
    """

    #: Fields of `Capabilities` without which this scheduler cannot work; checked before it is built.
    requires: ClassVar[tuple[str, ...]] = ()
    #: Optional features that it makes use of where the backend offers them: "chunked_prefill",
    #: "prefix_caching", "draft_tokens", "lora".
    offers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __init__(self, config: EngineConfig, kv: KVCacheManager, capabilities: Capabilities) -> None:
        """Take the settled configuration, the pool and what the backend can do.

        Raises `ConfigError` for settings that this scheduler cannot work with.
        """

    @abstractmethod
    def add(self, request: CoreRequest) -> None:
        """Take a request into the queue.

        Raises `InvalidRequest` when it can never run: its prompt exceeds the context or the pool,
        or its id is in use.
        """

    @abstractmethod
    def finish(self, request_ids: Iterable[str], reason: str) -> list[CoreOutput]:
        """End requests from outside; unknown ids are ignored.

        ``reason`` is "abort", "stop" for a stop string, or "error": the step that computed them failed, and
        whatever their blocks hold must not be found by others.
        """

    @abstractmethod
    def schedule(self) -> SchedulerOutput | None:
        """Build the next step, or return None when there is nothing to compute and nothing to tell."""

    @abstractmethod
    def update(self, step: SchedulerOutput, output: ModelRunnerOutput) -> list[CoreOutput]:
        """Take a step's results and return what each of its requests gained."""

    def abandon(self, step: SchedulerOutput) -> list[CoreOutput]:
        """Take back a step that failed or never ran, and end its requests with "error"; see ``finish``.

        Its update will not come, so what it holds (blocks, slots) is free to be used again.
        """
        return self.finish(step.request_ids, "error")

    @abstractmethod
    def has_work(self) -> bool:
        """Say whether any request is unfinished or the runner still has to be told of an end."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; running requests go on, but others never find their blocks.

        Returns False when there were such requests; the cache is forgotten all the same.
        """

    @abstractmethod
    def stats(self) -> SchedulerStats:
        """Return a snapshot of the queues and the pool."""
