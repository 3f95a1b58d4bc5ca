"""Whatever happens to requests, the pool stays sound and everyone gets exactly their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from draft_oracle import draft_at_random
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_cache.integrity import assert_pool_is_sound
from scheduler.harness import EOS, Engine, expected_tokens, kv_config, prompt_of, request

from core_engine.engine.messages import CoreRequest
from core_engine.kv_cache.specs import KVCacheConfig
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.unified import UnifiedScheduler

MAX_MODEL_LEN = 40


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps, aborts and resets in any order over a pool small enough for preemption.

    A subclass names another scheduler, other policies, or what else `Engine` takes.
    """

    scheduler: ClassVar[type[QueueScheduler]] = UnifiedScheduler
    policies: ClassVar[tuple[str, ...]] = (
        "fcfs",
        "priority",
        "shortest-prompt-first",
        "scheduler.odd_policy:AnyVictim",
    )
    #: Further arguments of `Engine`.
    options: ClassVar[dict[str, Any]] = {}

    #: The windows of the groups of layers, one choice per run; None keeps all positions.
    windows: ClassVar[tuple[tuple[int | None, ...], ...]] = ((None,),)

    def kv_config(self, num_blocks: int, windows: tuple[int | None, ...], budget: int) -> KVCacheConfig:
        """The pool: ``num_blocks`` per group, and the null block."""
        return kv_config(
            num_blocks=num_blocks * len(windows) + 1,
            max_model_len=MAX_MODEL_LEN,
            windows=windows,
            max_step_tokens=budget,
        )

    @initialize(
        num_blocks=st.integers(10, 23),
        max_num_seqs=st.integers(1, 6),
        budget=st.sampled_from([3, 8, 40]),
        depth=st.integers(1, 3),
        prefix_caching=st.booleans(),
        data=st.data(),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        depth: int,
        prefix_caching: bool,
        data: st.DataObject,
    ) -> None:
        chunks = "chunked_prefill" in self.scheduler.offers
        budget = budget if chunks else MAX_MODEL_LEN
        drafts = "draft_tokens" in self.scheduler.offers and data.draw(st.booleans())
        self.engine = Engine(
            self.kv_config(num_blocks, data.draw(st.sampled_from(self.windows)), budget),
            depth=depth,
            scheduler=self.scheduler,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            scheduling_policy=data.draw(st.sampled_from(self.policies)),
            enable_prefix_caching=prefix_caching and "prefix_caching" in self.scheduler.offers,
            enable_chunked_prefill=chunks and (budget < MAX_MODEL_LEN or data.draw(st.booleans())),
            num_draft_tokens=7 if drafts else 0,
            max_loras=data.draw(st.sampled_from([0, 0, 1, 2])),
            **self.options,
        )
        if drafts:
            self.engine.draft(draft_at_random(data.draw(st.integers(0, 999))))
        self.added: dict[str, CoreRequest] = {}
        self.ended_from_outside: set[str] = set()

    @rule(
        length=st.integers(1, MAX_MODEL_LEN - 1),
        start=st.integers(0, 2),
        max_tokens=st.integers(1, 40),
        priority=st.integers(0, 1),
        prompt_logprobs=st.sampled_from([None, None, 1]),
        adapter=st.integers(0, 3),
    )
    def add(
        self,
        length: int,
        start: int,
        max_tokens: int,
        priority: int,
        prompt_logprobs: int | None,
        adapter: int,
    ) -> None:
        added = request(
            f"r{len(self.added)}",
            prompt_of(length, start),
            max_tokens=max_tokens,
            eos=(EOS,),
            priority=priority,
            prompt_logprobs=prompt_logprobs,
            lora_id=adapter if self.engine.config.max_loras else 0,
        )
        self.added[added.request_id] = added
        self.engine.add(added)

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @rule()
    def schedule_ahead(self) -> None:
        if len(self.engine.in_flight) < 4:
            self.engine.schedule()

    @precondition(lambda self: self.added)
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def finish(self, data: st.DataObject, reason: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.added)))
        if self.engine.finish(name, reason=reason):
            self.ended_from_outside.add(name)

    @precondition(lambda self: self.engine.in_flight)
    @rule()
    def a_step_fails(self) -> None:
        step, _ = self.engine.in_flight.popleft()
        ended = self.engine.collect(self.engine.scheduler.abandon(step))
        assert all(output.finish_reason == "error" for output in ended)
        self.ended_from_outside |= {output.request_id for output in ended}

    @rule()
    def reset(self) -> None:
        self.engine.scheduler.reset_prefix_cache()

    @invariant()
    def the_pool_is_sound(self) -> None:
        if not hasattr(self, "engine"):
            return
        roster = self.engine.scheduler.roster
        holders = {id(r): r for r in roster.requests.values() if r.slot >= 0}
        # Those that ended are held by their steps in flight.
        for record in self.engine.scheduler._in_flight:
            holders |= {id(r): r for r in record.requests if r.slot >= 0}
        assert_pool_is_sound(self.engine.kv.pool, [r.blocks for r in holders.values()])
        draining = [r for r in holders.values() if r not in list(roster.running)]
        assert roster.num_draining_blocks == sum(r.blocks.num_held for r in draining)
        assert roster.columns.num_free == 2 * self.engine.scheduler.limits.max_num_running - len(holders)

    @invariant()
    def a_step_has_no_more_adapters_than_slots(self) -> None:
        if hasattr(self, "engine") and self.engine.steps:
            adapters = {self.added[name].lora_id for name in self.engine.steps[-1].request_ids} - {0}
            assert len(adapters) <= self.engine.config.max_loras

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        for name, added in self.added.items():
            tokens, expected = self.engine.tokens[name], expected_tokens(added, MAX_MODEL_LEN)
            if name in self.ended_from_outside:
                assert tokens == expected[: len(tokens)]
            else:
                assert tokens == expected
            reasons = [output.finish_reason for output in self.engine.outputs[name]]
            assert reasons[-1] is not None
            assert set(reasons[:-1]) <= {None}
        self.engine.assert_clean()
        stats = self.engine.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class WindowMachine(SchedulerMachine):
    """The same over groups with windows, which give blocks back before their requests end."""

    windows = ((5,), (None, 6), (None, 1, 9), (2, 13))

    def kv_config(self, num_blocks: int, windows: tuple[int | None, ...], budget: int) -> KVCacheConfig:
        """A pool that holds the longest sequence alone, as an engine's does, and at most as much again."""
        roomy = super().kv_config(num_blocks, windows, budget)
        least = roomy.peak_blocks(MAX_MODEL_LEN) + 1
        return replace(roomy, num_blocks=least * num_blocks // 10)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = TestSchedulerMachine.settings
