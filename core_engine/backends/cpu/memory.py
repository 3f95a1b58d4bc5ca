"""How much memory this process may use: the machine's, or less where a control group limits it.

Torch-free: the backend's light module reads it during detection.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from core_engine.plugin import Probe

__all__ = ["available_bytes", "measure_peak", "return_freed_pages", "total_bytes"]

#: Larger limits are the kernel's way of saying "no limit".
_NO_LIMIT = 1 << 60


def total_bytes(probe: Probe | None = None) -> int | None:
    """Return the memory of the machine or of the tightest control group, None where neither tells."""
    probe = probe or Probe()
    limits = [limit for limit, _ in _cgroups(probe)]
    machine = _meminfo(probe).get("MemTotal") or _physical_bytes()
    return min(limits + ([machine] if machine else []), default=None)


def available_bytes(probe: Probe | None = None) -> int | None:
    """Return what can still be allocated without swapping, None where the system does not tell.

    File cache that the kernel gives back on demand counts as free.
    """
    probe = probe or Probe()
    free = [max(0, limit - used) for limit, used in _cgroups(probe)]
    machine = _meminfo(probe).get("MemAvailable")
    return min(free + ([machine] if machine is not None else []), default=None)


def measure_peak(run: Callable[[], None]) -> int:
    """Call ``run`` and return by how many bytes the resident memory rose at its highest.

    Returns 0 where the kernel keeps no mark that can be reset (anything but Linux).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        run()
        return 0
    status = Path("/proc/self/status")
    before = _sizes(status.read_text())["VmRSS"]
    run()
    return max(0, _sizes(status.read_text())["VmHWM"] - before)


def return_freed_pages() -> None:
    """Give freed heap pages back to the system, where the C library can (glibc keeps them otherwise)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _meminfo(probe: Probe) -> dict[str, int]:
    """Return the sizes in /proc/meminfo in bytes; empty where there is none."""
    return _sizes(probe.read_text("/proc/meminfo") or "")


def _sizes(text: str) -> dict[str, int]:
    """Read lines such as ``MemTotal:  24 kB``; other lines are left out."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[2:] == ["kB"]}


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _cgroups(probe: Probe) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use that cannot be given back) of each group that limits this process.

    A limit of any ancestor counts. In a container the path that the kernel states may not exist
    under the mount; the mount's root is then the container's own group.
    """
    for line in (probe.read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit_file, usage_file = "/sys/fs/cgroup", "memory.max", "memory.current"
            reclaimable_field = "inactive_file"
        elif "memory" in controllers.split(","):
            mount = "/sys/fs/cgroup/memory"
            limit_file, usage_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable_field = "total_inactive_file"
        else:
            continue
        group = PurePosixPath(path)
        for ancestor in (group, *group.parents):
            folder = mount + str(ancestor).rstrip("/")
            limit = _number(probe.read_text(f"{folder}/{limit_file}"))
            usage = _number(probe.read_text(f"{folder}/{usage_file}"))
            if limit is None or usage is None or limit >= _NO_LIMIT:
                continue
            statistics = (probe.read_text(f"{folder}/memory.stat") or "").split()
            fields = dict(zip(statistics[::2], statistics[1::2], strict=False))
            yield limit, max(0, usage - (_number(fields.get(reclaimable_field)) or 0))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
