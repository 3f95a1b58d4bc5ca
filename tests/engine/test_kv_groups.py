"""Models with windows through the whole engine: groups change the blocks that are used, never the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from models.test_families_paged import save_tokenizer
from tiny_distribution import BACKENDS, add_distribution

from core_engine import LLM, SamplingParams
from core_engine.models._quiet import quiet_transformers
from core_engine.scheduler.unified import UnifiedScheduler
from core_engine.testing.model_check import random_prompts
from core_engine.testing.oracle import Oracle
from core_engine.testing.tiny_models import SLIDING_WINDOW, make_tiny_config, save_tiny_model

NUM_TOKENS = 48
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
#: Windows of 7 tokens, blocks of 16, chunks of 32.
PROMPTS = random_prompts((101, 70, 80, 90))
#: A page of one layer's cache: 16 tokens, 2 heads of 16 numbers, keys and values in float32.
PAGE_BYTES = 16 * 2 * (16 + 16) * 4


@dataclass(frozen=True)
class Case:
    """A tiny model, the windows of the groups that its layers form, and a pool too small for four prompts.

    Where all layers have windows a pool of 5 blocks is enough for requests to take turns.
    """

    model_type: str
    windows: tuple[int | None, ...]
    num_pages: int
    changes: dict[str, Any]
    num_layers: int = 4


SLIDING, FULL = "sliding_attention", "full_attention"
CASES = {
    "two groups": Case("gpt_oss", (None, SLIDING_WINDOW), num_pages=2 * 26, changes={}),
    "three groups": Case(
        "gemma3_text",
        (None, SLIDING_WINDOW, SLIDING_WINDOW),
        num_pages=2 * 26,
        changes={"num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL]},
        num_layers=5,
    ),
    "windows alone": Case("mistral", (SLIDING_WINDOW,), num_pages=4 * 6, changes={}),
}


@dataclass(frozen=True)
class Model:
    case: Case
    directory: Path
    oracle: Oracle
    expected: list[list[int]]


@dataclass(frozen=True)
class Started:
    model: Model
    llm: LLM

    def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.llm.generate(prompts, PARAMS)]

    @property
    def scheduler(self) -> UnifiedScheduler:
        scheduler = self.llm.engine.core.scheduler
        assert isinstance(scheduler, UnifiedScheduler)
        return scheduler


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("sim-site")
    add_distribution(site, "core-engine-sim", {BACKENDS: {"sim": "core_engine_sim.backend"}}, version="0.1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    case = CASES[request.param]
    directory = tmp_path_factory.mktemp("models") / case.model_type
    with quiet_transformers():
        save_tiny_model(make_tiny_config(case.model_type, **case.changes), directory)
        save_tokenizer(directory)
        oracle = Oracle(directory)
    return Model(case, directory, oracle, [oracle.greedy(prompt, NUM_TOKENS)[0] for prompt in PROMPTS])


@pytest.fixture(scope="module", params=["cpu", "sim"])
def started(request: pytest.FixtureRequest, model: Model, installed: None) -> Iterator[Started]:
    settings: dict[str, Any] = {
        "dtype": "float32",
        "block_size": 16,
        "max_model_len": 192,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "kv_cache_bytes": model.case.num_pages * PAGE_BYTES,
    }
    with LLM(str(model.directory), backend=request.param, **settings) as llm:
        yield Started(model, llm)


def test_layers_are_grouped_by_what_they_keep(started: Started) -> None:
    groups = started.scheduler.kv.config.groups
    assert tuple(group.sliding_window for group in groups) == started.model.case.windows


def test_tokens_alone_in_chunks_are_those_of_transformers(started: Started) -> None:
    assert [started.answers([prompt])[0] for prompt in PROMPTS] == started.model.expected


def test_tokens_of_a_batch_that_outgrows_the_pool_are_those_of_transformers(started: Started) -> None:
    before = started.scheduler.stats().num_preemptions

    assert started.answers(PROMPTS) == started.model.expected

    stats = started.scheduler.stats()
    assert stats.num_preemptions > before or None not in started.model.case.windows
    assert stats.num_free_blocks == stats.num_total_blocks


def test_tokens_after_a_cached_prefix_are_those_of_transformers(started: Started) -> None:
    (answer,) = started.answers(PROMPTS[:1])
    # A second turn of the conversation.
    turn = [*PROMPTS[0], *answer[:30], *random_prompts((9,), seed=1)[0]]

    (output,) = started.llm.generate([turn], PARAMS)

    assert list(output.outputs[0].token_ids) == started.model.oracle.greedy(turn, NUM_TOKENS)[0]
    assert output.num_cached_tokens == (101 + 30) // 16 * 16


def test_a_sequence_takes_fewer_pages_than_one_group_would(started: Started) -> None:
    scheduler = started.scheduler
    least_free, take = [scheduler.kv.pool.num_usable], scheduler.take_blocks

    def take_and_count(*arguments: Any, **options: Any) -> bool:
        taken = take(*arguments, **options)
        least_free.append(scheduler.kv.pool.num_free)
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "take_blocks", take_and_count)
        started.answers(PROMPTS[:1])

    config = scheduler.kv.config
    num_tokens = len(PROMPTS[0]) + NUM_TOKENS - 1  # the last one needs no place
    pages_per_block = max(len(group.layers) for group in config.groups)
    used = scheduler.kv.pool.num_usable - min(least_free)
    assert used <= config.peak_blocks(num_tokens)
    assert used * pages_per_block < 0.75 * started.model.case.num_layers * -(-num_tokens // 16)
