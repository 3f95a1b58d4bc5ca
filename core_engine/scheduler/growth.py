"""Growth: blocks for the rows of a step, and preemption where the pool has too few."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from core_engine._ragged import IntArray
from core_engine.scheduler.policies import Policy, victim_of
from core_engine.scheduler.step_rows import StepRows

if TYPE_CHECKING:
    from core_engine.scheduler.roster import Roster

__all__ = ["grow_rows"]


def grow_rows(
    rows: StepRows,
    short: list[int],
    ends: IntArray,
    *,
    take_blocks: Callable[[StepRows, int, int], bool],
    roster: Roster,
    policy: Policy,
) -> None:
    """Give blocks to the ``short`` rows, in order, so that row ``i`` holds ``ends[i]`` tokens.

    Where the pool is dry the policy's victim, any row but the first, loses its blocks, those that it
    gained in this step included, and leaves the step. While steps in flight will free blocks nobody else
    is preempted: the row sits this step out.
    """
    alive = list(range(len(rows.requests)))
    for row in short:
        # A row that has become a victim is granted nothing any more.
        while rows.granted[row] and not take_blocks(rows, row, int(ends[row])):
            if roster.blocks_come_back(rows.slots):
                rows.granted[row] = 0
                break
            victim = alive.pop(victim_of(policy, [rows.requests[index] for index in alive]))
            rows.granted[victim] = 0
            rows.new_blocks.pop(victim, None)
            roster.preempt(rows.requests[victim])
