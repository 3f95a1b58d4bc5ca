"""A budget where the device does not tell its memory, and errors where there is too little (case 13)."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_process import run_in_process
from xla_engine import BLOCK_BYTES, StartEngine

from core_engine.errors import DoesNotFit

MIB = 1 << 20


def test_case_13_the_option_memory_bytes_gives_an_exact_number_of_blocks(start: StartEngine) -> None:
    options = {"memory_bytes": str(10 * MIB)}
    llm = start(kv_cache_bytes=None, enforce_eager=True, backend_options=options)
    table = llm.engine.started.table
    left = int(10 * MIB * 0.9) - table.weight_bytes
    assert table.kv_cache_bytes == left // BLOCK_BYTES * BLOCK_BYTES
    assert table.num_kv_tokens == (left // BLOCK_BYTES - 1) * 16
    assert table.kv_cache_rule == "90% of memory_bytes, less weights and activations"


def test_case_13_less_than_one_request_needs_is_refused_with_the_numbers(start: StartEngine) -> None:
    with pytest.raises(DoesNotFit, match=r"max_model_len 96 needs .* \(7 blocks of .*: \d+ bytes too few"):
        start(kv_cache_bytes=6 * BLOCK_BYTES, enforce_eager=True)


def test_case_13_memory_for_less_than_the_weights_is_refused_with_the_numbers(start: StartEngine) -> None:
    with pytest.raises(DoesNotFit, match=r"the weights take .* but 90% of memory_bytes is 0\.\d MiB"):
        start(kv_cache_bytes=None, enforce_eager=True, backend_options={"memory_bytes": "100000"})


def test_a_cache_that_the_device_cannot_hold_is_told_and_the_process_can_go_on(tiny_model: Path) -> None:
    fits = {"model": str(tiny_model), "enforce_eager": True}
    absurd, after = run_in_process([fits | {"kv_cache_bytes": 1 << 53}, fits], num_devices=1)
    assert absurd["error"].startswith("OutOfDeviceMemory: the device has too little memory for a tensor [")
    assert "Out of memory allocating" in absurd["error"]
    assert "error" not in after
