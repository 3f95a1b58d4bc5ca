"""From measured times to the figures that this field quotes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from core_engine.bench.measure import Measurement
from core_engine.scheduler.contract import SchedulerStats

__all__ = ["draft_figures", "latency_figures", "render", "throughput_figures"]


def throughput_figures(run: Measurement, input_len: int) -> dict[str, Any]:
    """Rates over the whole run, times to the first token and between tokens in milliseconds."""
    num_output = sum(len(request.token_s) for request in run.requests)
    num_input = input_len * len(run.requests)
    return {
        "num_requests": len(run.requests),
        "num_input_tokens": num_input,
        "num_output_tokens": num_output,
        "seconds": run.seconds,
        "num_steps": run.num_steps,
        "requests_per_s": len(run.requests) / run.seconds,
        "output_tokens_per_s": num_output / run.seconds,
        "total_tokens_per_s": (num_input + num_output) / run.seconds,
        "ttft_ms": _spread(request.ttft_s for request in run.requests),
        "inter_token_ms": _spread(gap for request in run.requests for gap in request.inter_token_s),
    }


def latency_figures(runs: list[Measurement], input_len: int) -> dict[str, Any]:
    """The same for runs of one batch after another, with the time of a whole batch."""
    merged = Measurement(
        [request for run in runs for request in run.requests],
        sum(run.seconds for run in runs),
        sum(run.num_steps for run in runs),
    )
    figures = throughput_figures(merged, input_len)
    figures["latency_ms"] = _spread(request.latency_s for request in merged.requests)
    return figures


def draft_figures(stats: SchedulerStats) -> dict[str, Any]:
    """Drafts since the engine started, and the share of them that became output."""
    return {
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "acceptance_rate": stats.acceptance_rate,
    }


def render(figures: dict[str, Any]) -> str:
    """Return the figures as lines of name and value."""
    lines = []
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        if isinstance(value, dict):
            shown = "  ".join(f"{key} {number:.2f}" for key, number in value.items())
        elif isinstance(value, float):
            shown = f"{value:.2f}"
        else:
            shown = str(value)
        lines.append(f"{name:<{width}}  {shown}")
    return "\n".join(lines)


def _spread(seconds: Iterable[float]) -> dict[str, float]:
    values = np.array(list(seconds)) * 1e3
    if not len(values):
        return {}
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "p99": float(np.percentile(values, 99)),
    }
