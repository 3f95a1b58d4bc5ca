"""A scheduler over a fake runner, driven step by step; what the tests of this room share."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from draft_oracle import Plan, use_oracles

from core_engine.config import EngineConfig
from core_engine.engine.messages import CoreOutput, CoreRequest
from core_engine.kv_cache.hashing import ExtraKey
from core_engine.kv_cache.manager import KVCacheManager
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheGroup, KVCacheSpec
from core_engine.plugin import Capabilities
from core_engine.sampling.params import SamplingParams
from core_engine.scheduler.base import QueueScheduler
from core_engine.scheduler.check import StepChecker
from core_engine.scheduler.output import SchedulerOutput
from core_engine.scheduler.request import RequestState
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.testing.fake_model import FakeModel
from core_engine.testing.fake_runner import FakeRunner
from core_engine.worker.output import ModelRunnerOutput

ALL = Capabilities(
    chunked_prefill=True,
    mixed_batches=True,
    prefix_caching=True,
    max_logprobs=5,
    prompt_logprobs=True,
    draft_tokens=True,
    lora=True,
)
#: The fake model's end-of-sequence id; it comes about once in `MODEL.vocab_size` tokens.
EOS = 7
MODEL = FakeModel()
#: What `Engine` builds unless a test says otherwise; `both_schedulers` sets it.
default_scheduler: type[QueueScheduler] = UnifiedScheduler
#: Marks a test of what every scheduler must do: it runs once with each of the built-in ones.
both_schedulers = pytest.mark.parametrize(
    "scheduler_of_the_engine", [UnifiedScheduler, SimpleScheduler], indirect=True
)


def kv_config(
    num_blocks: int = 65,
    block_size: int = 4,
    max_model_len: int = 64,
    *,
    windows: Sequence[int | None] = (None,),
    max_step_tokens: int = 32,
) -> KVCacheConfig:
    """A pool for one group of layers per entry of ``windows``; None keeps all positions."""
    spec = KVCacheSpec(num_kv_heads=1, head_dim=8, head_dim_v=8, dtype="float32", page_bytes=256)
    return KVCacheConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        groups=tuple(
            KVCacheGroup(layers={f"layer.{index}": spec}, shared={}, sliding_window=window)
            for index, window in enumerate(windows)
        ),
        max_step_tokens=max_step_tokens,
    )


def prompt_of(length: int, start: int = 1) -> list[int]:
    """A prompt that differs from those of other ``start`` values from its first token on."""
    return [(start * 31 + i * 7) % MODEL.vocab_size for i in range(length)]


def request(
    name: str,
    prompt: int | Sequence[int] = 6,
    *,
    max_tokens: int = 8,
    eos: Sequence[int] = (),
    priority: int = 0,
    arrival_s: float = 0.0,
    stream: int = 0,
    seed: int = 1,
    lora_id: int = 0,
    **params: Any,
) -> CoreRequest:
    """A request; an int as the prompt stands for `prompt_of` that length, different by ``name``."""
    ids = prompt_of(prompt, sum(map(ord, name))) if isinstance(prompt, int) else prompt
    return CoreRequest(
        request_id=name,
        prompt_token_ids=np.array(ids, dtype=np.int32),
        params=SamplingParams(temperature=0.0, **params),
        max_tokens=max_tokens,
        seed=seed,
        stream=stream,
        eos_token_ids=tuple(eos),
        priority=priority,
        arrival_s=arrival_s,
        lora_id=lora_id,
        extra_keys=(ExtraKey("lora", bytes([lora_id])),) if lora_id else (),
    )


def expected_tokens(core_request: CoreRequest, max_model_len: int = 64) -> list[int]:
    """What any correct engine generates for a request that nothing cuts short."""
    prompt = core_request.prompt_token_ids.tolist()
    return MODEL.generate(
        prompt,
        core_request.params,
        min(core_request.max_tokens, max_model_len - len(prompt)),
        seed=core_request.seed,
        stream=core_request.stream,
        eos_token_ids=core_request.eos_token_ids,
        lora_id=core_request.lora_id,
    )


class Speechless(FakeModel):
    """Has no token to give for the request of ``seed`` from ``position`` on, as a row of NaN has none."""

    def __init__(self, position: int, seed: int = 13) -> None:
        super().__init__()
        self._position, self._seed = position, seed

    def choose(self, state: int, params: Any, *, seed: int, stream: int, position: int, **rest: Any) -> int:
        if seed == self._seed and position >= self._position:
            return -1
        return super().choose(state, params, seed=seed, stream=stream, position=position, **rest)


class Engine:
    """Scheduler, step checker and fake runner; ``results`` collects what came out for each id.

    With ``depth`` > 1 up to that many steps are in flight before the first is updated.
    """

    def __init__(
        self,
        kv: KVCacheConfig | None = None,
        *,
        depth: int = 1,
        capabilities: Capabilities = ALL,
        scheduler: Callable[[EngineConfig, KVCacheManager, Capabilities], QueueScheduler] | None = None,
        model: FakeModel = MODEL,
        **settings: Any,
    ) -> None:
        self.kv_config = kv or kv_config()
        make = scheduler or default_scheduler
        settings = {"max_num_batched_tokens": 32, "max_num_seqs": 8, **settings}
        if "chunked_prefill" not in getattr(make, "offers", ("chunked_prefill",)):
            # Prompts are computed whole; `settle_config` does the same.
            longest = self.kv_config.max_model_len
            settings["max_num_batched_tokens"] = max(settings["max_num_batched_tokens"], longest)
        self.config = config = EngineConfig(model="fake", **settings)
        self.kv = KVCacheManager(self.kv_config)
        self.scheduler = make(config, self.kv, capabilities)
        limits = {
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
        }
        self.checker = StepChecker(self.kv_config, **limits)
        self.runner = FakeRunner(self.kv_config, model, **limits, max_loras=config.max_loras)
        self.depth = depth
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self.steps: list[SchedulerOutput] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.outputs: dict[str, list[CoreOutput]] = defaultdict(list)

    def draft(self, plan: Plan) -> None:
        """Let requests that are added from now on draft what the model will say, by ``plan``."""

        def text_of(state: RequestState) -> list[int]:
            asked = state.request
            prompt = asked.prompt_token_ids.tolist()
            seeded = {"seed": asked.seed, "stream": asked.stream}
            return prompt + self.runner.model.generate(prompt, asked.params, state.max_total_tokens, **seeded)

        use_oracles(self.scheduler, plan, text_of)

    def add(self, *requests: CoreRequest) -> None:
        for each in requests:
            self.scheduler.add(each)

    def finish(self, *names: str, reason: str = "abort") -> list[CoreOutput]:
        return self.collect(self.scheduler.finish(names, reason))

    def schedule(self) -> SchedulerOutput | None:
        """Schedule, check and execute a step, and leave its results in flight."""
        step = self.scheduler.schedule()
        if step is not None:
            self.checker.check(step)
            self.steps.append(step)
            self.in_flight.append((step, self.runner.execute_model(step).result()))
        return step

    def update(self) -> list[CoreOutput]:
        """Give the scheduler the results of the oldest step in flight."""
        return self.collect(self.scheduler.update(*self.in_flight.popleft()))

    def collect(self, outputs: list[CoreOutput]) -> list[CoreOutput]:
        for output in outputs:
            self.outputs[output.request_id].append(output)
            self.tokens[output.request_id] += output.new_token_ids
        return outputs

    def step(self) -> SchedulerOutput | None:
        """Schedule once; update once as many steps as ``depth`` are in flight or nothing was scheduled."""
        step = self.schedule()
        if self.in_flight and (step is None or len(self.in_flight) >= self.depth):
            self.update()
        return step

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_work() and not self.in_flight:
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps: {self.scheduler.stats()}")

    def finish_reason(self, name: str) -> str | None:
        return self.outputs[name][-1].finish_reason

    def assert_clean(self) -> None:
        """Every block is free, and the runner has forgotten every request."""
        assert self.kv.pool.num_free == self.kv.pool.num_usable
        assert not self.runner.request_ids
