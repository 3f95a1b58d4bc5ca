"""The example distribution: found by name, and the engine gives the same tokens with it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from scheduler.harness import Engine, expected_tokens, kv_config, request
from tiny_distribution import add_distribution

from core_engine import LLM, SamplingParams
from core_engine.scheduler.plugins import load_policy, load_scheduler

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "custom_scheduler"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example as its ``pyproject.toml`` says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    add_distribution(tmp_path, project["name"], project["entry-points"], version=project["version"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE / "src")


def generate(model: Path, **settings: Any) -> list[list[int]]:
    with LLM(str(model), backend="cpu", dtype="float32", kv_cache_bytes=4 << 20, **settings) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def test_both_are_used_by_name_and_change_no_token(tiny_model: Path) -> None:
    expected = generate(tiny_model)

    assert generate(tiny_model, scheduling_policy="short-answers-first") == expected
    assert generate(tiny_model, scheduler="one-at-a-time", max_model_len=128) == expected


def test_one_request_runs_at_a_time() -> None:
    scheduler: Any = load_scheduler("one-at-a-time")
    engine = Engine(scheduler=scheduler)
    requests = [request(f"r{n}", 6 + n, max_tokens=4) for n in range(3)]
    engine.add(*requests)

    engine.run()

    assert [len(step.request_ids) for step in engine.steps if step.request_ids] == [1] * 12
    assert [engine.tokens[r.request_id] for r in requests] == [expected_tokens(r) for r in requests]
    engine.assert_clean()


def test_short_answers_come_first_and_the_least_work_is_lost() -> None:
    engine = Engine(kv_config(num_blocks=13, max_model_len=48), max_num_batched_tokens=48)
    engine.scheduler.policy = load_policy("short-answers-first")
    engine.add(
        request("long", 10, max_tokens=20), request("longest", 20, max_tokens=24), request("short", 12)
    )

    first = engine.step()
    engine.run()

    assert first is not None
    assert first.request_ids == ("short", "long", "longest")
    preempted = [name for step in engine.steps for name in step.preempted_request_ids]
    assert preempted[0] == "long"
    assert "short" not in preempted
    engine.assert_clean()
