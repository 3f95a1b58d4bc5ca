from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.conftest import Shell

from core_engine.bench.figures import render

SIZES = ("--input-len", "5", "--output-len", "4", "--num-prompts", "3")

Run = Callable[..., Shell]


@pytest.fixture
def bench(shell: Shell, tiny_model: object) -> Run:
    def run(*arguments: str) -> Shell:
        return shell("bench", *arguments, "--backend", "cpu", "--kv-cache-bytes", "4M")

    return run


def test_throughput_reports_rates_and_times(bench: Run, tiny_model: object) -> None:
    figures = bench("throughput", str(tiny_model), *SIZES, "--json").json
    assert figures["num_requests"] == 3
    assert figures["num_input_tokens"] == 15
    assert figures["num_output_tokens"] == 12
    assert figures["output_tokens_per_s"] * figures["seconds"] == pytest.approx(12)
    assert figures["total_tokens_per_s"] * figures["seconds"] == pytest.approx(27)
    for name in ("ttft_ms", "inter_token_ms"):
        assert set(figures[name]) == {"mean", "median", "p99"}
    assert set(figures["scheduler_us_per_step"]) == {"1", "64", "256", "512"}


def test_latency_runs_one_request_after_another(bench: Run, tiny_model: object) -> None:
    figures = bench("latency", str(tiny_model), *SIZES, "--json").json
    assert figures["num_requests"] == 3
    assert figures["num_steps"] >= 12
    assert figures["latency_ms"]["mean"] >= figures["ttft_ms"]["mean"]


def test_an_unknown_mode_and_a_size_of_nothing_are_refused(bench: Run, tiny_model: object) -> None:
    assert "Did you mean 'throughput'" in bench("thruput", str(tiny_model)).err
    assert "--num-prompts must be at least 1" in bench("latency", str(tiny_model), "--num-prompts", "0").err


def test_drafts_are_counted_where_they_are_on(bench: Run, tiny_model: object) -> None:
    sizes = ("--input-len", "5", "--output-len", "40", "--num-prompts", "2")
    plain = bench("latency", str(tiny_model), *SIZES, "--json").json
    figures = bench("latency", str(tiny_model), *sizes, "--num-draft-tokens", "4", "--json").json
    assert "num_draft_tokens" not in plain
    drafts, accepted = figures["num_draft_tokens"], figures["num_accepted_tokens"]
    assert 0 < accepted <= drafts
    assert figures["acceptance_rate"] == pytest.approx(accepted / drafts)


def test_figures_stand_in_columns() -> None:
    lines = render({"seconds": 1.0, "scheduler_us_per_request": 0.5}).splitlines()
    assert lines == ["seconds                   1.00", "scheduler_us_per_request  0.50"]
