"""Compiled kernels are kept in a folder of their own version, where that is possible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from core_engine.backends.cpu.kernel_cache import kernel_cache

COMPILE = """
import logging
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
from core_engine.backends.cpu.attention import NumbaPagedAttention
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.testing.attention_case import AttentionCase
AttentionCase([(3, 1)]).run(NumbaPagedAttention(), CpuIO())
"""


def test_the_folder_is_versioned_and_numbas_setting_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with kernel_cache() as folder:
        assert folder is not None
        assert folder.parent == tmp_path / "core-engine" / "cpu-kernels"
        assert str(folder) == numba.config.CACHE_DIR
    assert str(tmp_path) == numba.config.CACHE_DIR


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(occupied))
    with kernel_cache() as folder:
        assert folder is None
        assert str(occupied) == numba.config.CACHE_DIR


def test_only_the_first_process_compiles(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    outputs = [
        subprocess.run(
            [sys.executable, "-c", "import sys" + COMPILE],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["compiling CPU kernels (attend_float32, once)\n", ""]
