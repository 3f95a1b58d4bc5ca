"""How many threads compute."""

from __future__ import annotations

import torch

from core_engine.backends.cpu.cores import usable_cores
from core_engine.plugin import Probe

__all__ = ["default_threads"]


def default_threads(probe: Probe | None = None, num_ranks: int = 1) -> int:
    """Return torch's own number (one per core, or ``OMP_NUM_THREADS``), less where that is too many.

    A process that is bound to fewer cores, or whose control group grants less computing time, would
    spend its time waiting at barriers. Ranks of one model share the cores, one for each at least.
    """
    return min(torch.get_num_threads(), max(1, usable_cores(probe or Probe()) // num_ranks))
