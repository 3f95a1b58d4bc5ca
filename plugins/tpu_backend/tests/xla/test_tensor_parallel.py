"""A model over several devices answers as on one (case 12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_process import Answer, answers_of, run_engine, run_in_process, start_engine
from tiny_adapter import make_adapter
from tiny_chat_model import make_tiny_chat_model

from core_engine.testing.oracle import Oracle

SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
FEATURES = {"max_loras": 1, "max_lora_rank": 8, "num_draft_tokens": 1}
FAMILIES = ("llama", "gemma2", "mixtral")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    odd = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96}
    made = {name: make_tiny_chat_model(folder / name, name, **SIZES) for name in FAMILIES}
    made["three KV heads"] = make_tiny_chat_model(folder / "odd", "llama", **SIZES | odd)
    made["no plan"] = make_tiny_chat_model(folder / "gpt2", "gpt2")
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def adapter(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("adapters") / "one"
    return str(make_adapter(folder, Oracle(Path(models["llama"])).model, ("q_proj", "down_proj"), seed=1))


@pytest.fixture(scope="module")
def results(models: dict[str, str], adapter: str) -> dict[str, dict[str, Any]]:
    """Results by model, all from one process with four devices; "adapter" is Llama with one, and drafts."""
    jobs = {name: {"model": model, "tensor_parallel_size": 4} for name, model in models.items()}
    jobs["adapter"] = {**jobs["llama"], **FEATURES, "adapter": adapter}
    return dict(zip(jobs, run_in_process(list(jobs.values()), num_devices=4), strict=True))


def largest_difference(left: list[Answer], right: list[Answer]) -> float:
    differences = [
        abs(row[token] - other[token])
        for one, two in zip(left, right, strict=True)
        for row, other in zip(one.logprobs, two.logprobs, strict=True)
        for token in row.keys() & other.keys()
    ]
    assert len(differences) > 200
    return max(differences)


@pytest.mark.parametrize("family", FAMILIES)
def test_case_12_four_devices_answer_as_the_cpu_backend(
    models: dict[str, str], results: dict[str, dict[str, Any]], family: str
) -> None:
    with start_engine(backend="cpu", model=models[family]) as llm:
        expected = run_engine(llm)
    assert "error" not in results[family], results[family]["error"]
    answers = answers_of(results[family])
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert largest_difference(answers, expected) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_no_graph_is_traced_again_while_serving(results: dict[str, dict[str, Any]], family: str) -> None:
    assert results[family]["new_traces"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_each_cache_is_donated_and_none_is_copied_to_bring_its_division_back(
    results: dict[str, dict[str, Any]], family: str
) -> None:
    result = results[family]
    assert not result["new_graphs"]
    assert result["most_aliases"] == result["num_caches"]
    assert result["synced_inputs"] == 0


def test_adapters_and_drafts_answer_as_on_the_cpu_backend(
    models: dict[str, str], adapter: str, results: dict[str, dict[str, Any]]
) -> None:
    with start_engine(backend="cpu", model=models["llama"], **FEATURES) as llm:
        expected = run_engine(llm, adapter)
    assert expected[2].token_ids != expected[1].token_ids
    answers = answers_of(results["adapter"])
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert largest_difference(answers, expected) < 1e-4
    assert not results["adapter"]["new_graphs"]
    # Every device holds the adapters whole.
    assert results["adapter"]["device_bytes"] > results["llama"]["device_bytes"]


def test_the_start_table_tells_the_bytes_of_each_device(results: dict[str, dict[str, Any]]) -> None:
    result = results["llama"]
    assert result["loaded_bytes"] / 4 < result["device_bytes"] < result["loaded_bytes"] / 3.9
    # A page of one layer on one device: keys and values of one head, 16 tokens, 16 floats.
    block_bytes = result["num_layers"] * 2 * 16 * 16 * 4
    assert result["kv_cache_bytes"] == (1 << 20) // block_bytes * block_bytes
    assert result["num_kv_tokens"] == ((1 << 20) // block_bytes - 1) * 16


def test_heads_that_four_devices_do_not_divide_are_refused(results: dict[str, dict[str, Any]]) -> None:
    error = results["three KV heads"]["error"]
    assert error.startswith("ConfigError: tensor_parallel_size 4 does not divide the 6 query heads and 3 K/V")
    assert error.endswith("these sizes do: 1, 3")


def test_a_model_without_a_plan_is_refused_before_its_weights_are_read(
    results: dict[str, dict[str, Any]],
) -> None:
    error = results["no plan"]["error"]
    assert error.startswith("UnsupportedFeature: tensor_parallel_size 4: transformers has no tensor-parallel")


def test_devices_that_are_not_there_are_refused(models: dict[str, str]) -> None:
    (result,) = run_in_process([{"model": models["llama"], "tensor_parallel_size": 4}], num_devices=2)
    assert result["error"].startswith("UnsupportedFeature: tensor_parallel_size 4 is not offered")
    assert "2" in result["error"]
