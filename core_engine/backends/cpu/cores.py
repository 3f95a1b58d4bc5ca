"""How many cores this process may use: the machine's, or less where its binding or a control group limits it.

Torch-free: the backend's light module tells it to ``core-engine doctor``.
"""

from __future__ import annotations

import os

from core_engine.plugin import Probe

__all__ = ["usable_cores"]


def usable_cores(probe: Probe) -> int:
    """Return the cores that the process is bound to, or what its control group grants of them if less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _cgroup_share(probe)
    return max(1, min(bound, -(-quota // period))) if quota > 0 and period > 0 else bound


def _cgroup_share(probe: Probe) -> tuple[int, int]:
    """Return (microseconds of computing time, per microseconds of real time); quota 0 for no limit."""
    words = (probe.read_text("/sys/fs/cgroup/cpu.max") or "").split()  # version 2: "max 100000"
    if len(words) != 2:  # version 1
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [probe.read_text(f"/sys/fs/cgroup/cpu/{name}") or "" for name in names]
    quota, period = words
    return (int(quota), int(period)) if quota.isdecimal() and period.isdecimal() else (0, 1)
