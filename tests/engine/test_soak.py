"""Many requests, one after another: nothing grows, nothing is lost, nothing comes out of order."""

from __future__ import annotations

import gc
import random
import sys

from engine.core_case import Core
from scheduler.harness import MODEL, kv_config, prompt_of, request

from core_engine.engine.messages import CoreRequest
from core_engine.scheduler.output import SchedulerOutput

NUM_REQUESTS, NUM_WARM_UP = 20_000, 4_000
MAX_MODEL_LEN = 64
#: How many requests are under way at a time, most of them waiting.
NUM_OPEN = 60
#: Python's memory blocks that may be in use at the end beyond those after the warm-up: one for ten requests.
MAX_GROWTH = (NUM_REQUESTS - NUM_WARM_UP) // 10


def random_request(number: int, rng: random.Random) -> CoreRequest:
    prompt = prompt_of(rng.randint(1, 24), rng.randint(0, 9))  # prompts come again, so that prefixes hit
    return request(
        f"r{number}",
        prompt,
        max_tokens=rng.randint(1, 12),
        eos=(7,),
        priority=rng.randint(0, 3),
        seed=rng.randint(0, 5),
        min_tokens=rng.choice([0, 0, 1]),
    )


class Soak:
    """Keeps ``NUM_OPEN`` requests under way until all have been through; now and then one is aborted."""

    def __init__(self) -> None:
        # 24 blocks of 4 for up to 8 requests of up to 36 tokens: preemption is common.
        config = kv_config(num_blocks=25, max_model_len=MAX_MODEL_LEN)
        self.engine = Core(config, max_num_seqs=8, max_num_batched_tokens=48, scheduling_policy="priority")
        self.rng = random.Random(0)
        self.open: dict[str, tuple[CoreRequest, list[int]]] = {}
        self.num_added = self.num_ended = self.num_aborted = 0
        self.last_admitted = [-1] * 4
        self.engine.executor.fails_on = self.check_order

    def check_order(self, step: SchedulerOutput) -> bool:
        """Within a priority the requests come in as they arrived; no step fails."""
        for new in step.new_requests:
            (added, _), number = self.open[new.request_id], int(new.request_id[1:])
            assert number > self.last_admitted[added.priority]
            self.last_admitted[added.priority] = number
        return False

    def run_until(self, num_ended: int) -> None:
        core = self.engine.core
        while self.num_ended < num_ended:
            while len(self.open) < NUM_OPEN and self.num_added < NUM_REQUESTS:
                added = random_request(self.num_added, self.rng)
                self.num_added += 1
                core.add(added)
                self.open[added.request_id] = (added, [])
            if self.rng.random() < 0.02:
                (output,) = core.finish([self.rng.choice(list(self.open))], "abort")
                self.check_end(output.request_id, "abort")
                self.num_aborted += 1
            for output in core.step():
                _, tokens = self.open[output.request_id]
                tokens += output.new_token_ids
                if output.finish_reason is not None:
                    self.check_end(output.request_id, output.finish_reason)

    def check_end(self, name: str, reason: str) -> None:
        """Each token is that of its place, and all are there unless the request was aborted."""
        ended, tokens = self.open.pop(name)
        self.num_ended += 1
        expected = MODEL.generate(
            ended.prompt_token_ids.tolist(), ended.params, ended.max_tokens, eos_token_ids=ended.eos_token_ids
        )
        assert tokens == (expected[: len(tokens)] if reason == "abort" else expected)


def test_twenty_thousand_requests_leave_nothing_behind() -> None:
    soak = Soak()
    soak.run_until(NUM_WARM_UP)
    gc.collect()
    before = sys.getallocatedblocks()

    soak.run_until(NUM_REQUESTS - NUM_OPEN)
    gc.collect()
    growth = sys.getallocatedblocks() - before

    assert growth < MAX_GROWTH
    soak.run_until(NUM_REQUESTS)
    while soak.engine.core.has_work():
        soak.engine.step()
    soak.engine.assert_clean()
    stats = soak.engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    # The paths that the soak is to wear out were taken.
    assert stats.num_preemptions > 1000
    assert stats.prefix_cache_hits > 10_000
    assert soak.num_aborted > 200
