"""The line that closes a generation: how fast it was."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_engine.scheduler.contract import SchedulerStats

__all__ = ["draft_note", "speed_line"]


def speed_line(num_tokens: int, started_s: float, first_token_s: float | None) -> str:
    """Return tokens, seconds and rate since ``started_s``, and the time to the first token if known."""
    now = time.perf_counter()
    tokens = "1 token" if num_tokens == 1 else f"{num_tokens} tokens"
    line = f"{tokens} in {now - started_s:.2f} s, {num_tokens / (now - started_s):.1f} tokens/s"
    if first_token_s is None:
        return line
    return f"{line}; first token after {first_token_s - started_s:.2f} s"


def draft_note(stats: SchedulerStats) -> str:
    """Return what to add to the line about drafts; nothing where there were none."""
    if not stats.num_draft_tokens:
        return ""
    return f"; {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted"
