"""The default number of threads never exceeds what the process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core_engine.backends.cpu.threads import default_threads
from core_engine.plugin import Probe


def machine(root: Path, files: dict[str, str]) -> Probe:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Probe(environment={}, root=root)


@pytest.fixture(autouse=True)
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)


def test_the_cores_that_the_process_is_bound_to_limit_it(tmp_path: Path) -> None:
    assert default_threads(machine(tmp_path, {})) == 6


@pytest.mark.parametrize(("quota", "threads"), [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 6)])
def test_a_version_2_quota_limits_it(tmp_path: Path, quota: str, threads: int) -> None:
    assert default_threads(machine(tmp_path, {"cpu.max": quota})) == threads


@pytest.mark.parametrize(("quota", "threads"), [("200000", 2), ("-1", 6)])
def test_a_version_1_quota_limits_it(tmp_path: Path, quota: str, threads: int) -> None:
    probe = machine(tmp_path, {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"})
    assert default_threads(probe) == threads


def test_fewer_threads_of_torch_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert default_threads(machine(tmp_path, {})) == 1


@pytest.mark.parametrize(("num_ranks", "threads"), [(1, 6), (2, 3), (4, 1), (8, 1)])
def test_ranks_divide_the_cores(tmp_path: Path, num_ranks: int, threads: int) -> None:
    assert default_threads(machine(tmp_path, {}), num_ranks) == threads


@pytest.mark.parametrize("part", ["attention:NumbaPagedAttention", "sampler:KernelSampler"])
def test_starting_numba_leaves_torchs_number_of_threads(part: str) -> None:
    module, name = part.split(":")
    program = (
        "import torch; torch.set_num_threads(1)\n"
        f"from core_engine.backends.cpu.{module} import {name}\n"
        f"part = {name}()\n"
        "import numba; print(torch.get_num_threads(), numba.get_num_threads())\n"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]
