from __future__ import annotations

import dataclasses

import pytest

from core_engine.errors import ContractError
from core_engine.executor.rank_reports import merge_reports
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.plugin import Capabilities
from core_engine.worker.reports import (
    CaptureReport,
    DeviceReport,
    Health,
    LoadReport,
    MemoryBudget,
    MemoryInfo,
)

SPEC = KVCacheSpec(num_kv_heads=2, head_dim=8, head_dim_v=8, dtype="float32")
DEVICE = DeviceReport(
    device="chip 0", capabilities=Capabilities(), memory=MemoryInfo(total_bytes=8, free_bytes=8)
)
WELL = Health(healthy=True)


def budget(kv_cache_bytes: int, weight_bytes: int) -> MemoryBudget:
    return MemoryBudget(
        total_bytes=1000,
        weight_bytes=weight_bytes,
        activation_bytes=1,
        kv_cache_bytes=kv_cache_bytes,
        rule="the rest",
    )


@pytest.mark.parametrize("method", ["execute_model", "profile", "initialize_cache", "add_lora"])
def test_rank_0_answers(method: str) -> None:
    assert merge_reports(method, ["of rank 0", "of rank 1"]) == "of rank 0"


def test_the_smallest_cache_counts_with_the_weights_beside_it() -> None:
    assert merge_reports(
        "determine_available_memory", [budget(500, 10), budget(300, 20), budget(400, 30)]
    ) == budget(300, 20)


def test_loading_and_warm_up_take_as_long_as_the_slowest() -> None:
    loads = [LoadReport(weight_bytes=7, seconds=seconds) for seconds in (1.0, 3.0, 2.0)]
    assert merge_reports("load_model", loads) == LoadReport(weight_bytes=7, seconds=3.0)
    captures = [CaptureReport(num_programs=4, seconds=seconds) for seconds in (1.0, 3.0)]
    assert merge_reports("compile_or_warm_up_model", captures).seconds == 3.0


def test_equal_caches_are_the_cache_of_all() -> None:
    specs: dict[str, KVCacheSpec | str] = {"layer.0": SPEC, "layer.1": "layer.0"}
    assert merge_reports("get_kv_cache_spec", [specs, dict(specs)]) == specs


@pytest.mark.parametrize(
    "other", [{"layer.0": dataclasses.replace(SPEC, num_kv_heads=1)}, {}, {"layer.0": SPEC, "layer.1": SPEC}]
)
def test_another_cache_of_one_rank_is_refused(other: dict[str, KVCacheSpec | str]) -> None:
    with pytest.raises(
        ContractError, match=r"rank 1 needs another KV cache than rank 0.*layer 'layer\.[01]'"
    ):
        merge_reports("get_kv_cache_spec", [{"layer.0": SPEC}, other])


def test_other_capabilities_of_one_rank_are_refused() -> None:
    other = dataclasses.replace(DEVICE, device="chip 1", capabilities=Capabilities(lora=True))
    assert merge_reports("init_device", [DEVICE, DEVICE]) == DEVICE
    with pytest.raises(
        ContractError, match=r"rank 1 \(chip 1\) has other capabilities than rank 0 \(chip 0\)"
    ):
        merge_reports("init_device", [DEVICE, other])


def test_one_rank_that_is_ill_makes_all_ill_and_is_named() -> None:
    assert merge_reports("check_health", [WELL, WELL]) == WELL
    ill = Health(healthy=False, detail="too hot")
    assert merge_reports("check_health", [WELL, ill, Health(healthy=False)]) == Health(
        healthy=False, detail="rank 1: too hot; rank 2"
    )
