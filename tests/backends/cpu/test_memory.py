"""The memory that counts is the machine's or the control group's, whichever is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core_engine.backends.cpu.memory import available_bytes, measure_peak, total_bytes
from core_engine.plugin import Probe

MIB = 1 << 20
MEMINFO = "MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: 6144 kB\nHugePages_Total: 0\n"


def machine(root: Path, files: dict[str, str]) -> Probe:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Probe(environment={}, root=root)


def test_without_a_control_group_it_is_the_machines(tmp_path: Path) -> None:
    probe = machine(tmp_path, {})
    assert (total_bytes(probe), available_bytes(probe)) == (8 * MIB, 6 * MIB)


def test_a_version_2_limit_counts_and_file_cache_is_free(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": str(4 * MIB),
            "sys/fs/cgroup/job/memory.current": str(3 * MIB),
            "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {1 * MIB}\n",
        },
    )
    assert (total_bytes(probe), available_bytes(probe)) == (4 * MIB, 2 * MIB)


def test_a_version_1_limit_counts(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * MIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(1 * MIB),
        },
    )
    assert (total_bytes(probe), available_bytes(probe)) == (2 * MIB, 1 * MIB)


def test_a_limit_of_a_parent_counts(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/memory.max": str(3 * MIB),
            "sys/fs/cgroup/outer/memory.current": "0",
            "sys/fs/cgroup/outer/inner/memory.max": "max",
            "sys/fs/cgroup/outer/inner/memory.current": "0",
        },
    )
    assert total_bytes(probe) == 3 * MIB


def test_a_container_that_sees_only_its_own_group_is_limited_by_it(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/host/path/that/is/not/mounted\n",
            "sys/fs/cgroup/memory.max": str(2 * MIB),
            "sys/fs/cgroup/memory.current": str(MIB),
        },
    )
    assert (total_bytes(probe), available_bytes(probe)) == (2 * MIB, MIB)


def test_the_kernels_number_for_unlimited_is_no_limit(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
        },
    )
    assert total_bytes(probe) == 8 * MIB


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    probe = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(MIB),
            "sys/fs/cgroup/memory.current": str(2 * MIB),
        },
    )
    assert available_bytes(probe) == 0


def test_a_system_that_tells_nothing_gives_none(tmp_path: Path) -> None:
    assert available_bytes(Probe(environment={}, root=tmp_path)) is None


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux resets the mark")
def test_the_peak_of_a_run_counts_what_it_gave_back() -> None:
    peak = measure_peak(lambda: torch.full((64 * MIB,), 1, dtype=torch.uint8).zero_())
    assert 60 * MIB <= peak < 200 * MIB
