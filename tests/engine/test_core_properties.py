"""Whatever requests, callers, devices and schedulers do, every request ends once and with its own tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from engine.core_case import Core
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from scheduler.harness import EOS, Speechless, expected_tokens, kv_config, prompt_of, request

from core_engine.engine.messages import CoreOutput, CoreRequest
from core_engine.errors import ContractError, DeviceLost
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.unified import UnifiedScheduler

MAX_MODEL_LEN = 40
#: Requests with this seed have no token to give from this position on.
SPEECHLESS_SEED, SPEECHLESS_FROM = 13, 20
NAMES = [f"r{number}" for number in range(6)]

Spoil = Callable[[SchedulerOutput], SchedulerOutput]


@dataclass
class Life:
    """One request from ``add`` to its end; its id may be used again afterwards."""

    request: CoreRequest
    outputs: list[CoreOutput] = field(default_factory=list)
    #: Why it may have ended before its tokens were complete.
    cut: str | None = None

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.new_token_ids]

    @property
    def reasons(self) -> list[str]:
        return [output.finish_reason for output in self.outputs if output.finish_reason is not None]

    def check(self) -> None:
        expected = expected_tokens(self.request, MAX_MODEL_LEN)
        num_spoken = SPEECHLESS_FROM - len(self.request.prompt_token_ids)
        if self.cut is not None:
            assert self.reasons == [self.cut]
            assert self.tokens == expected[: len(self.tokens)]
        elif self.request.seed == SPEECHLESS_SEED and len(expected) > max(num_spoken, 0):
            assert self.reasons == ["error"]
            assert self.tokens == expected[: max(num_spoken, 0)]
        else:
            assert self.tokens == expected
            assert self.reasons in (["stop"], ["length"])


def wrong_steps() -> st.SearchStrategy[Spoil]:
    def skips(step: SchedulerOutput) -> SchedulerOutput:
        return replace(step, num_computed_tokens=step.num_computed_tokens + 1)

    def idles(step: SchedulerOutput) -> SchedulerOutput:
        return replace(step, num_scheduled_tokens=step.num_scheduled_tokens * 0)

    def repeats(step: SchedulerOutput) -> SchedulerOutput:
        return replace(step, request_ids=step.request_ids[:-1] + step.request_ids[:1])

    def ends_a_stranger(step: SchedulerOutput) -> SchedulerOutput:
        return replace(step, finished_request_ids=(*step.finished_request_ids, "stranger"))

    return st.sampled_from([skips, idles, repeats, ends_a_stranger])


class CoreMachine(RuleBasedStateMachine):
    """Adds, steps, fails, spoils, aborts, uses ids again, resets and closes in any order."""

    scheduler: ClassVar[type[QueueScheduler]] = UnifiedScheduler

    @initialize(
        num_blocks=st.integers(11, 24), max_num_seqs=st.integers(1, 6), budget=st.sampled_from([8, 40])
    )
    def start(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        whole = "chunked_prefill" not in self.scheduler.offers
        self.core = Core(
            kv_config(num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN),
            self.scheduler,
            model=Speechless(SPEECHLESS_FROM, SPEECHLESS_SEED),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=MAX_MODEL_LEN if whole else budget,
        )
        self.lives: list[Life] = []
        self.open: dict[str, Life] = {}

    @rule(
        name=st.sampled_from(NAMES),
        length=st.integers(1, MAX_MODEL_LEN - 1),
        start=st.integers(0, 2),
        max_tokens=st.integers(1, 40),
        seed=st.sampled_from([1, 1, SPEECHLESS_SEED]),
    )
    def add(self, name: str, length: int, start: int, max_tokens: int, seed: int) -> None:
        if name in self.open:
            return
        life = Life(request(name, prompt_of(length, start), max_tokens=max_tokens, eos=(EOS,), seed=seed))
        self.core.core.add(life.request)
        self.lives.append(life)
        self.open[name] = life

    def collect(self, outputs: list[CoreOutput], cut: str | None = None) -> None:
        for output in outputs:
            life = self.open[output.request_id]
            life.outputs.append(output)
            if output.finish_reason is not None:
                life.cut = cut
                del self.open[output.request_id]

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.collect(self.core.core.step())

    def expect(self, error: type[Exception]) -> None:
        """Make a step; when it fails as it should, those that it ends are cut."""
        try:
            self.collect(self.core.core.step())
        except error:
            self.collect(self.core.core.take_failed(), cut="error")

    @rule(before_the_runner=st.booleans(), preempting=st.booleans())
    def a_step_fails(self, before_the_runner: bool, preempting: bool) -> None:
        executor = self.core.executor
        executor.fails_before_the_runner = before_the_runner
        executor.fails_on = lambda step: bool(step.preempted_request_ids) or not preempting
        executor.fail_with = DeviceLost("gone")
        for _ in range(8 if preempting else 1):
            self.expect(DeviceLost)
        executor.fail_with = None

    @rule(spoil=wrong_steps())
    def a_step_is_wrong(self, spoil: Spoil) -> None:
        schedule = self.core.scheduler.schedule

        def wrong() -> Any:
            step = schedule()
            return step if step is None else spoil(step)

        self.core.scheduler.schedule = wrong
        try:
            self.expect(ContractError)
        finally:
            del self.core.scheduler.schedule
        self.steps(1)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def finish(self, data: st.DataObject, reason: str) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.open)), min_size=1, unique=True))
        self.collect(self.core.core.finish(names, reason), cut=reason)

    @rule()
    def reset(self) -> None:
        self.core.scheduler.reset_prefix_cache()

    def run(self) -> None:
        for _ in range(500):
            if not self.core.core.has_work():
                return
            self.collect(self.core.core.step())
        raise AssertionError("not done after 500 steps")

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.run()
        # Whatever the last steps that failed told, the next one tells the runner again.
        self.add("last", 5, 0, 2, 1)
        self.run()
        for life in self.lives:
            life.check()
        assert not self.open
        self.core.assert_clean()
        assert self.core.core.shutdown() == []


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class SimpleCoreMachine(CoreMachine):
    """The same under the simple scheduler."""

    scheduler = SimpleScheduler


TestSimpleCoreMachine = SimpleCoreMachine.TestCase
TestSimpleCoreMachine.settings = settings(TestCoreMachine.settings, max_examples=50)
