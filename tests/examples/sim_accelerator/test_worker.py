"""The simulated accelerator runs a real model class through worker and runner, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core_engine_sim.errors import UnpreparedShapeError
from sim_driver import SimDriver, started

from core_engine.plugin import ConfigError, OutOfDeviceMemory
from core_engine.testing.oracle import Oracle
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [150, 2]]
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(make_tiny_config("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    oracle = Oracle(model)
    answers = [oracle.greedy(prompt, NUM_TOKENS) for prompt in PROMPTS]
    assert all(margin > 1e-4 for _, margin in answers), "a tie would make the comparison mean nothing"
    return [tokens for tokens, _ in answers]


@pytest.fixture(scope="module")
def driver(model: Path) -> Iterator[SimDriver]:
    with started(model) as driver:
        yield driver


@pytest.fixture
def fresh(driver: SimDriver) -> Iterator[SimDriver]:
    """The module's driver with an empty pool; the test must not compile anything."""
    driver.allocate(65)
    before = driver.programs.num_programs()
    yield driver
    assert driver.programs.num_programs() == before


def test_greedy_tokens_are_those_of_transformers(fresh: SimDriver, expected: list[list[int]]) -> None:
    for index, prompt in enumerate(PROMPTS):
        fresh.add(str(index), prompt)
        assert fresh.generate(str(index), NUM_TOKENS) == expected[index]


def test_together_they_give_the_same_tokens(fresh: SimDriver, expected: list[list[int]]) -> None:
    for index, prompt in enumerate(PROMPTS):
        fresh.add(str(index), prompt)
    fresh.step({str(index): len(prompt) for index, prompt in enumerate(PROMPTS)})
    for _ in range(NUM_TOKENS - 1):
        fresh.step({str(index): 1 for index in range(len(PROMPTS))})
    assert [fresh.requests[str(i)].tokens[len(p) :] for i, p in enumerate(PROMPTS)] == expected


def test_chunks_beside_a_decode_give_the_same_tokens(fresh: SimDriver, expected: list[list[int]]) -> None:
    fresh.add("short", PROMPTS[0])
    fresh.add("long", PROMPTS[1])
    fresh.step({"short": len(PROMPTS[0])})
    for start in range(0, len(PROMPTS[1]), 5):
        fresh.step({"short": 1, "long": min(5, len(PROMPTS[1]) - start)})
    assert fresh.requests["long"].tokens[-1] == expected[1][0]
    assert fresh.requests["short"].tokens[len(PROMPTS[0]) :] == expected[0][:9]


def test_every_sampler_is_prepared(fresh: SimDriver) -> None:
    fresh.add("random", PROMPTS[0], temperature=0.8, top_p=0.9, seed=1)
    fresh.add("penalty", PROMPTS[1], repetition_penalty=1.3)
    fresh.add("bias", PROMPTS[2], logit_bias={3: 5.0})
    fresh.step({"random": 4})
    fresh.step({"random": 1, "penalty": len(PROMPTS[1])})
    fresh.step({"random": 1, "penalty": 1, "bias": len(PROMPTS[2])})


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 1}, {"repetition_penalty": 1.3}]
)
def test_every_sampler_serves_requests_with_log_probabilities(
    fresh: SimDriver, params: dict[str, Any]
) -> None:
    fresh.add("with", PROMPTS[0], logprobs=1, **params)
    fresh.add("without", PROMPTS[0], **params)
    scored = fresh.step({"with": len(PROMPTS[0])})
    plain = fresh.step({"without": len(PROMPTS[0])})
    assert scored.logprobs is not None
    assert scored.logprobs.token_ids[:, 0].tolist() == scored.sampled_token_ids.values.tolist()
    assert scored.sampled_token_ids.values.tolist() == plain.sampled_token_ids.values.tolist()


def test_a_seeded_draw_does_not_depend_on_its_neighbours(fresh: SimDriver) -> None:
    fresh.add("alone", PROMPTS[0], temperature=1.0, seed=5)
    alone = fresh.generate("alone", 6)
    fresh.add("again", PROMPTS[0], temperature=1.0, seed=5)
    fresh.add("neighbour", PROMPTS[1], repetition_penalty=1.5, logprobs=2)
    fresh.step({"neighbour": len(PROMPTS[1]), "again": len(PROMPTS[0])})
    for _ in range(5):
        fresh.step({"again": 1, "neighbour": 1})
    assert fresh.requests["again"].tokens[-6:] == alone


def test_logprobs_come_as_many_as_asked_although_the_device_computes_more(
    fresh: SimDriver, model: Path
) -> None:
    fresh.add("three", PROMPTS[0], logprobs=3)
    fresh.add("none", PROMPTS[2])
    output = fresh.step({"three": len(PROMPTS[0])})
    wanted = torch.log_softmax(Oracle(model).logits(PROMPTS[0])[-1], dim=-1)
    assert output.logprobs is not None
    assert output.logprobs.token_ids.shape == (1, 4)
    np.testing.assert_allclose(output.logprobs.logprobs[0, 1:], wanted.topk(3).values, atol=1e-5)
    assert fresh.step({"none": len(PROMPTS[2])}).logprobs is None


def test_a_penalty_without_logprobs_reports_none(fresh: SimDriver) -> None:
    fresh.add("penalty", PROMPTS[0], repetition_penalty=1.3)
    assert fresh.step({"penalty": len(PROMPTS[0])}).logprobs is None


def test_prompt_logprobs_are_the_models(fresh: SimDriver, model: Path) -> None:
    prompt = PROMPTS[1]
    fresh.add("scored", prompt, prompt_logprobs=2)
    parts = [
        fresh.step({"scored": size}).prompt_logprobs["scored"].logprobs for size in (20, len(prompt) - 20)
    ]
    found = np.concatenate(parts)
    wanted = torch.log_softmax(Oracle(model).logits(prompt)[:-1], dim=-1)
    assert found.shape == (len(prompt) - 1, 3)
    np.testing.assert_allclose(found[:, 0], wanted[range(len(prompt) - 1), prompt[1:]], atol=1e-5)
    np.testing.assert_allclose(found[:, 1:], wanted.topk(2).values, atol=1e-5)


def test_after_warm_up_nothing_more_is_compiled(fresh: SimDriver) -> None:
    program = fresh.programs.compile("new", torch.neg)
    with torch.inference_mode(), pytest.raises(UnpreparedShapeError, match="'new'"):
        program(fresh.device.zeros((3,), torch.float32))


def test_warm_up_compiles_each_shape_once(model: Path) -> None:
    driver = SimDriver(model)
    _, report = driver.start()
    # 4 request buckets and 3 token buckets: a backbone and a logits program each; a scorer and three
    # samplers for each request count; one more backbone for the profile run, which has no cache bound.
    assert report.num_programs == 7 + 7 + 4 + 4 * 3 + 1
    driver.worker.shutdown()


def test_the_budget_adds_up(model: Path) -> None:
    driver = SimDriver(model, options={"memory_bytes": 64 << 20})
    budget, _ = driver.start()
    assert budget.total_bytes == 64 << 20
    assert budget.weight_bytes + budget.activation_bytes + budget.kv_cache_bytes == int(0.9 * (64 << 20))
    driver.worker.shutdown()


def test_the_pool_that_the_budget_names_fits(model: Path) -> None:
    driver = SimDriver(model, options={"memory_bytes": 64 << 20})
    driver.worker.load_model()
    budget = driver.worker.determine_available_memory()
    spec = driver.worker.get_kv_cache_spec()
    block_bytes = sum(layer.page_bytes for layer in spec.values() if not isinstance(layer, str))
    before = driver.device.memory.used_bytes
    num_bytes = driver.allocate(budget.kv_cache_bytes // block_bytes)
    assert driver.device.memory.used_bytes - before == num_bytes
    driver.worker.compile_or_warm_up_model()
    driver.worker.shutdown()


def test_allocating_again_replaces_the_pool(driver: SimDriver) -> None:
    driver.allocate(65)
    used = driver.device.memory.used_bytes
    driver.allocate(65)
    assert driver.device.memory.used_bytes == used


def test_a_device_too_small_for_the_weights_says_so_and_is_empty_afterwards(model: Path) -> None:
    driver = SimDriver(model, options={"memory_bytes": 100_000})
    with pytest.raises(OutOfDeviceMemory, match="100000 bytes are in use"):
        driver.worker.load_model()
    driver.worker.shutdown()
    assert driver.device.memory.used_bytes == 0


def test_a_pool_too_large_is_refused_and_a_smaller_one_still_works(
    model: Path, expected: list[list[int]]
) -> None:
    driver = SimDriver(model, options={"memory_bytes": 64 << 20})
    driver.start()
    with pytest.raises(OutOfDeviceMemory):
        driver.allocate(1_000_000)
    driver.allocate(65)
    driver.add("0", PROMPTS[0])
    assert driver.generate("0", NUM_TOKENS) == expected[0]
    driver.worker.shutdown()


def test_shutdown_gives_everything_back_every_time(model: Path) -> None:
    for _ in range(3):
        driver = SimDriver(model)
        driver.start()
        driver.add("0", PROMPTS[0])
        driver.generate("0", 2)
        assert driver.worker.shutdown() is True
        assert driver.device.memory.used_bytes == 0
        assert driver.worker.shutdown() is False


def test_the_two_devices_do_not_see_each_other(model: Path, expected: list[list[int]]) -> None:
    with started(model) as first, started(model, options={"device": 1}) as second:
        assert (str(first.device), str(second.device)) == ("sim:0", "sim:1")
        before = second.device.memory.used_bytes
        first.allocate(129)
        assert second.device.memory.used_bytes == before
        for driver in (first, second):
            driver.add("0", PROMPTS[0])
            assert driver.generate("0", NUM_TOKENS) == expected[0]


def test_bfloat16_runs(model: Path) -> None:
    with started(model, dtype="bfloat16") as driver:
        driver.add("0", PROMPTS[0])
        assert len(driver.generate("0", 3)) == 3


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "mixtral"])
def test_soft_caps_windows_sinks_and_experts_compile_too(model_type: str, tmp_path: Path) -> None:
    folder, prompt = save_tiny_model(make_tiny_config(model_type), tmp_path), PROMPTS[1][:20]
    expected, margin = Oracle(folder).greedy(prompt, 6)
    assert margin > 1e-4
    with started(folder, max_num_seqs=2, max_num_batched_tokens=32, max_model_len=64) as driver:
        driver.add("0", prompt)
        driver.step({"0": 9})
        assert driver.generate("0", 6) == expected


def test_a_device_that_is_not_there_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="there is no device 2"):
        SimDriver(model, options={"device": 2})
