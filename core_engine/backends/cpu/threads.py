"""How many threads compute."""

from __future__ import annotations

import os

import torch

from core_engine.plugin import Probe

__all__ = ["default_threads"]


def default_threads(probe: Probe | None = None) -> int:
    """Return torch's own number (one per core, or ``OMP_NUM_THREADS``), less where that is too many.

    A process that is bound to fewer cores, or whose control group grants less computing time, would
    spend its time waiting at barriers.
    """
    probe = probe or Probe()
    limits = [torch.get_num_threads()]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    quota, period = _cgroup_share(probe)
    if quota > 0:
        limits.append(-(-quota // period))
    return max(1, min(limits))


def _cgroup_share(probe: Probe) -> tuple[int, int]:
    """Return (microseconds of computing time, per microseconds of real time); quota 0 for no limit."""
    words = (probe.read_text("/sys/fs/cgroup/cpu.max") or "").split()  # version 2: "max 100000"
    if len(words) != 2:  # version 1
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [probe.read_text(f"/sys/fs/cgroup/cpu/{name}") or "" for name in names]
    quota, period = words
    return (int(quota), int(period)) if quota.isdecimal() and period.isdecimal() else (0, 1)
