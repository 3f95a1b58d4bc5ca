"""The whole engine over a dense kernel: the tokens of paged attention, wherever prompts are split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mixed_requests import PARAMS, PROMPTS, ROOMY, all_logprobs, engine, tokens
from tiny_chat_model import make_tiny_chat_model

from core_engine.backends.cpu import runner
from core_engine.engine.outputs import RequestOutput
from core_engine.errors import UnsupportedFeature
from core_engine.worker.seams import Seams


@pytest.fixture(autouse=True, params=[False, True], ids=["mixed steps", "divided steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runner divide mixed steps or not, as a device would need that cannot mix."""
    build = runner.CpuModelRunner.build_seams

    def build_seams(self: runner.CpuModelRunner) -> Seams:
        return replace(build(self), splits_mixed_steps=request.param)

    monkeypatch.setattr(runner.CpuModelRunner, "build_seams", build_seams)


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[RequestOutput]:
    with engine(tiny_model, "reference", enable_prefix_caching=False) as llm:
        return llm.generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("budget", [4, 7, 16, 37])
def test_every_budget_gives_the_same_tokens_and_logprobs(
    tiny_model: Path, expected: list[RequestOutput], budget: int
) -> None:
    with engine(tiny_model, "dense", max_num_batched_tokens=budget) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    assert tokens(outputs) == tokens(expected)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(expected), abs=1e-4)


def test_cached_prefixes_give_the_same_tokens(tiny_model: Path, expected: list[RequestOutput]) -> None:
    with engine(tiny_model, "dense", max_num_batched_tokens=23) as llm:
        llm.generate(PROMPTS, PARAMS)
        outputs = llm.generate(PROMPTS, PARAMS)
    assert sum(output.num_cached_tokens for output in outputs) >= 64
    assert tokens(outputs) == tokens(expected)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(expected), abs=1e-4)


def test_preempted_requests_give_the_same_tokens(tiny_model: Path, expected: list[RequestOutput]) -> None:
    with engine(tiny_model, "dense") as llm:
        num_blocks = llm.engine.core.scheduler.stats().num_total_blocks + 1
    with engine(tiny_model, "dense", max_model_len=64, kv_cache_bytes=7 * ROOMY // num_blocks) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        assert llm.engine.core.scheduler.stats().num_preemptions > 0
    assert tokens(outputs) == tokens(expected)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(expected), abs=1e-4)


def test_blocks_freed_behind_a_window_are_not_missed(tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path / "mistral", "mistral")
    with engine(model, "reference", enable_prefix_caching=False) as llm:
        whole = llm.generate(PROMPTS, PARAMS)
    with engine(model, "dense", max_num_batched_tokens=16) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    assert tokens(outputs) == tokens(whole)
    assert all_logprobs(outputs) == pytest.approx(all_logprobs(whole), abs=1e-4)


def test_a_model_with_sinks_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = make_tiny_chat_model(tmp_path / "gpt_oss", "gpt_oss")
    with (
        pytest.raises(UnsupportedFeature, match="torch's scaled_dot_product_attention has no sinks"),
        engine(model, "dense"),
    ):
        pass
