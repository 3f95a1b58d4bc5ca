"""Every variant compiles for three architectures without spilling, and what is launched is one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core_engine_cuda.kernels.ahead_of_time import Compiled
from core_engine_cuda.kernels.tiles import SHARED_MEMORY
from core_engine_cuda.kernels.variants import all_variants

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def run_compiling(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Python without Triton's interpreter, whose switch belongs to a process; return its JSON lines."""
    here = Path(__file__).parent
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environment["PYTHONPATH"] = os.pathsep.join([str(here), *sys.path])

    def run(*arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_every_variant_compiles_without_spilling(run_compiling: Run, arch: int) -> None:
    listed = run_compiling("-m", "core_engine_cuda.kernels.ahead_of_time", "--json", "--arch", str(arch))
    rows = [Compiled(**row) for row in listed]
    assert [(row.variant, row.arch) for row in rows] == [(v.name, arch) for v in all_variants(arch // 10)]
    assert [(row.variant, row.faults) for row in rows if row.faults] == []


def test_what_is_launched_is_what_was_compiled(run_compiling: Run) -> None:
    launches = run_compiling(str(Path(__file__).parent / "launch_process.py"))
    assert [launch["asked"] for launch in launches if launch["variant"] is None] == []
    attention = {"attend", "join", "write"}
    sampler = {"scan_rows", "gather_candidates", "find_limits", "draw_rows", "finish_rows"}
    assert {launch["kernel"] for launch in launches} == attention | sampler


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"stack_bytes": 8}, "8 bytes of each thread spill"),
        ({"shared_bytes": 90_000}, "the 2 programs of a multiprocessor ask for more than its 167936 bytes"),
        ({"shared_bytes": 110_000, "programs_per_sm": 1}, "asks for more than the 101376 bytes"),
        ({"registers": 255, "num_warps": 8}, "ask for more than its 65536 registers"),
    ],
)
def test_what_a_kernel_should_not_take_is_a_fault(change: dict[str, int], fault: str | None) -> None:
    row = {"arch": 80, "num_warps": 4, "programs_per_sm": 2, "registers": 128, "stack_bytes": 0}
    found = Compiled(variant="attend", **{**row, "shared_bytes": 70_000, **change}).faults
    assert len(found) == (fault is not None)
    assert fault is None or fault in found[0]
