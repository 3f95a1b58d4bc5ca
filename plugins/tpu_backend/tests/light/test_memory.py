from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from core_engine_tpu.memory import divide_memory, total_memory

from core_engine.plugin import DeviceInfo, DoesNotFit
from core_engine.testing.fake_context import fake_worker_context
from core_engine.worker.reports import MemoryBudget

MIB = 1 << 20
CONTEXT = fake_worker_context(options={"memory_bytes": 2048 * MIB})


class Device:
    def __init__(self, told: tuple[int, int] | None) -> None:
        self._told = told

    def memory(self) -> tuple[int, int] | None:
        return self._told


def devices(*sizes: int | None) -> tuple[DeviceInfo, ...]:
    return tuple(DeviceInfo(index=i, name="chip", memory_bytes=size) for i, size in enumerate(sizes))


def budget(**changes: Any) -> MemoryBudget:
    stated = {"total_bytes": 1000 * MIB, "weight_bytes": 300 * MIB, "activation_bytes": 100 * MIB}
    return MemoryBudget(**{**stated, "kv_cache_bytes": 0, "rule": "", **changes})


def test_the_device_itself_is_believed_first() -> None:
    context = replace(CONTEXT, devices=devices(7, 9))
    assert total_memory(Device((5, 1)), context) == (5, "its memory")  # type: ignore[arg-type]


def test_then_what_its_kind_of_chip_has() -> None:
    context = replace(CONTEXT, devices=devices(9, 7))
    assert total_memory(Device(None), context) == (7, "the memory of its kind of chip")  # type: ignore[arg-type]


def test_case_13_without_any_the_documented_option_is_the_whole() -> None:
    context = replace(CONTEXT, devices=devices(None))
    assert total_memory(Device(None), context) == (2048 * MIB, "memory_bytes")  # type: ignore[arg-type]


def test_the_cache_gets_what_weights_and_activations_leave() -> None:
    divided = divide_memory(budget(), share=0.9, source="memory_bytes")
    assert divided.kv_cache_bytes == 500 * MIB
    assert divided.rule == "90% of memory_bytes, less weights and activations"


def test_nothing_left_names_the_numbers_and_what_to_do() -> None:
    expected = (
        "on each device the weights take 900.0 MiB and the largest step 100.0 MiB, but 90% of memory_bytes "
        "is 900.0 MiB: nothing is left for the KV cache. Divide the model over more devices "
        "(tensor_parallel_size), lower max_num_batched_tokens, or raise device_memory_utilization or the "
        "option memory_bytes"
    )
    with pytest.raises(DoesNotFit, match=f"^{re.escape(expected)}$"):
        divide_memory(budget(weight_bytes=900 * MIB), share=0.9, source="memory_bytes")
