"""How many threads compute."""

from __future__ import annotations

import torch

from core_engine.backends.cpu.cores import usable_cores
from core_engine.plugin import Probe

__all__ = ["default_threads"]


def default_threads(probe: Probe | None = None) -> int:
    """Return torch's own number (one per core, or ``OMP_NUM_THREADS``), less where that is too many.

    A process that is bound to fewer cores, or whose control group grants less computing time, would
    spend its time waiting at barriers.
    """
    return min(torch.get_num_threads(), usable_cores(probe or Probe()))
