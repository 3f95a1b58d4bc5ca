"""One engine, several schedulers: who is chosen, what it tells, and that the tokens are the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core_engine import LLM, SamplingParams
from core_engine.backends.cpu.worker import CpuWorker
from core_engine.errors import UnsupportedFeature
from core_engine.plugin.runtime import DeviceReport
from core_engine.scheduler.simple import SimpleScheduler

PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18, [150, 2], list(range(100, 190))]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=1),
    SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=16, ignore_eos=True, n=2),
]
SETTINGS: dict[str, Any] = {
    "backend": "cpu",
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "kv_cache_bytes": 8 << 20,
}


def tokens(llm: LLM) -> list[list[int]]:
    return [
        list(completion.token_ids)
        for params in PARAMS
        for output in llm.generate(PROMPTS, params)
        for completion in output.outputs
    ]


def test_case_32_tokens_are_the_same_under_both_schedulers(tiny_model: Path) -> None:
    with LLM(str(tiny_model), max_num_batched_tokens=16, **SETTINGS) as unified:
        expected = tokens(unified)
    with LLM(str(tiny_model), scheduler="simple", **SETTINGS) as simple:
        assert isinstance(simple.engine.core.scheduler, SimpleScheduler)
        assert tokens(simple) == expected


def narrow(monkeypatch: pytest.MonkeyPatch, **capabilities: Any) -> None:
    """Let the opened device offer less than the light module declared."""
    init_device = CpuWorker.init_device

    def narrowed(self: CpuWorker) -> DeviceReport:
        report = init_device(self)
        return replace(report, capabilities=replace(report.capabilities, **capabilities))

    monkeypatch.setattr(CpuWorker, "init_device", narrowed)


def test_a_device_that_offers_less_gets_another_scheduler_and_the_change_is_logged(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    narrow(monkeypatch, mixed_batches=False)
    with caplog.at_level(logging.INFO), LLM(str(tiny_model), **SETTINGS) as llm:
        features = llm.engine.started.features
        assert features["scheduler"].state == llm.engine.config.scheduler == "simple"
        assert features["prefix_caching"].reason == "scheduler simple does without it"
        assert features["dtype"].state == "float32"
        assert isinstance(llm.engine.core.scheduler, SimpleScheduler)
        assert len(llm.generate([PROMPTS[0]], PARAMS[0])) == 1
    lines = [line.split() for line in caplog.messages]
    assert ["chunked_prefill", "on"] in lines
    assert ["chunked_prefill", "off", "scheduler", "simple", "does", "without", "it"] in lines


def test_a_worker_keeps_its_largest_step_when_the_device_offers_less(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch, mixed_batches=False)
    settings = {**SETTINGS, "max_model_len": None, "max_num_batched_tokens": 16}
    with LLM(str(tiny_model), **settings) as llm:
        config, features = llm.engine.config, llm.engine.started.features
        assert (config.max_num_batched_tokens, config.max_model_len) == (16, 16)
        assert features["max_model_len"].state == "16"
        assert "max_num_batched_tokens" not in [row.feature for row in features.rows]


def test_what_was_asked_for_by_name_is_refused_when_the_opened_device_lacks_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(monkeypatch, prefix_caching=False)
    with pytest.raises(UnsupportedFeature, match="enable_prefix_caching=True"):
        LLM(str(tiny_model), enable_prefix_caching=True, **SETTINGS)


def test_the_table_of_features_is_logged_once_at_start(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), LLM(str(tiny_model), **SETTINGS) as llm:
        lines = llm.engine.started.features.lines()
    assert [message for message in caplog.messages if message in lines] == lines
    assert {line.split()[0] for line in lines} >= {"scheduler", "chunked_prefill", "lora", "dtype"}
