"""A device with a dense kernel only, which cannot mix prefill and decode, serves chunks and mixed steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from core_engine_sim.errors import MixedStepError
from draft_oracle import draft_at_random
from engine.draft_answers import answers, drafted_answers
from mixed_requests import PARAMS, PROMPTS, ROOMY, all_logprobs, engine, tokens
from sim_driver import SimDriver, started

from core_engine.engine.outputs import RequestOutput
from core_engine.scheduler.simple import SimpleScheduler
from core_engine.testing.oracle import Oracle
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

PROMPT, OTHER = list(range(20, 57)), [7, 3, 100, 42]
NUM_TOKENS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(make_tiny_config("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    tokens, margin = Oracle(model).greedy(PROMPT, NUM_TOKENS)
    assert margin > 1e-4, "a tie would make the comparison mean nothing"
    return tokens


@pytest.fixture(scope="module")
def dense(model: Path) -> Iterator[SimDriver]:
    with started(model, options={"attention": "dense"}) as driver:
        yield driver


def test_every_split_point_gives_the_tokens_of_transformers(dense: SimDriver, expected: list[int]) -> None:
    for split in range(1, len(PROMPT)):
        dense.allocate(17)
        dense.add("a", PROMPT)
        dense.step({"a": split})
        assert dense.generate("a", NUM_TOKENS) == expected


def test_every_split_point_beside_a_decode(dense: SimDriver, expected: list[int]) -> None:
    for split in range(1, len(PROMPT)):
        dense.allocate(17)
        dense.add("decode", OTHER)
        dense.step({"decode": len(OTHER)})
        dense.add("a", PROMPT)
        dense.step({"decode": 1, "a": split})
        dense.step({"decode": 1, "a": len(PROMPT) - split})
        assert dense.requests["a"].tokens[len(PROMPT) :] == expected[:1]


def test_mixed_steps_compile_nothing_after_warm_up(dense: SimDriver) -> None:
    dense.allocate(17)
    before = dense.programs.num_programs()
    dense.add("decode", OTHER, logprobs=2, temperature=0.5, seed=1)
    dense.step({"decode": len(OTHER)})
    dense.add("a", PROMPT, prompt_logprobs=1)
    dense.step({"a": 20, "decode": 1})
    dense.step({"a": 17, "decode": 1})
    assert dense.programs.num_programs() == before


@pytest.mark.parametrize("attention", ["paged", "dense"])
def test_the_device_itself_refuses_a_mixed_step(model: Path, attention: str) -> None:
    options = {"attention": attention, "mixed_batches": False}
    with started(model, options=options) as driver:
        driver.add("decode", OTHER)
        driver.add("short", OTHER[:1])
        driver.add("a", PROMPT)
        driver.step({"decode": len(OTHER), "short": 1})
        with pytest.raises(MixedStepError, match="1 decodes and 1 prefills"):
            driver.step({"decode": 1, "a": len(PROMPT)})


@pytest.fixture(scope="module")
def paged(tiny_model: Path) -> list[RequestOutput]:
    """The answers of the cpu backend's paged attention."""
    with engine(tiny_model, "reference", enable_prefix_caching=False) as llm:
        return llm.generate(PROMPTS, PARAMS)


# Strict shapes: whatever warm-up did not prepare is an error.
@pytest.mark.usefixtures("sim_installed")
@pytest.mark.parametrize("budget", [4, 16, 32])
def test_every_budget_gives_the_tokens_and_logprobs_of_the_cpu_backend(
    tiny_model: Path, paged: list[RequestOutput], budget: int
) -> None:
    with engine(tiny_model, "dense", backend="sim", max_num_batched_tokens=budget) as llm:
        for _ in range(2):  # the second time with cached prefixes
            outputs = llm.generate(PROMPTS, PARAMS)
            assert tokens(outputs) == tokens(paged)
            assert all_logprobs(outputs) == pytest.approx(all_logprobs(paged), abs=1e-4)
    assert sum(output.num_cached_tokens for output in outputs) >= 64


@pytest.mark.usefixtures("sim_installed")
def test_preempted_requests_give_the_same_tokens(tiny_model: Path, paged: list[RequestOutput]) -> None:
    settings = {"backend": "sim", "max_num_batched_tokens": 64, "max_model_len": 64}
    with engine(tiny_model, "dense", **settings) as llm:
        num_blocks = llm.engine.core.scheduler.stats().num_total_blocks + 1
    with engine(tiny_model, "dense", **settings, kv_cache_bytes=7 * ROOMY // num_blocks) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm.engine.core.scheduler.stats().num_preemptions > 0
    assert tokens(outputs) == tokens(paged)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(paged), abs=1e-4)


@pytest.mark.usefixtures("sim_installed")
def test_drafts_beside_decodes_change_no_token(tiny_model: Path) -> None:
    settings = {"max_num_seqs": 16, "max_num_batched_tokens": 32}
    with engine(tiny_model, "reference", **settings) as cpu:
        expected = answers(cpu)
    with engine(tiny_model, "dense", backend="sim", num_draft_tokens=5, **settings) as sim:
        assert drafted_answers(sim, expected, draft_at_random(1)) == expected
        assert sim.engine.core.scheduler.stats().num_accepted_tokens > 0


@pytest.mark.usefixtures("sim_installed")
@pytest.mark.parametrize("attention", ["paged", "dense"])
def test_without_chunks_and_mixed_steps_prompts_are_computed_whole(
    tiny_model: Path, paged: list[RequestOutput], attention: str
) -> None:
    options = {"mixed_batches": "false"}
    with engine(tiny_model, attention, backend="sim", backend_options=options) as llm:
        assert isinstance(llm.engine.core.scheduler, SimpleScheduler)
        outputs = llm.generate(PROMPTS, PARAMS)
    assert tokens(outputs) == tokens(paged)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(paged), abs=1e-4)
