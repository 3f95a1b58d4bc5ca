"""What the ranks of one engine report, told as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core_engine.errors import ContractError
from core_engine.kv_cache.specs import KVCacheSpec
from core_engine.worker.reports import CaptureReport, DeviceReport, Health, LoadReport, MemoryBudget

__all__ = ["merge_reports"]


def merge_reports(method: str, reports: Sequence[Any]) -> Any:
    """Return one answer to the call ``method`` from those of all ranks, rank 0 first.

    It is rank 0's, except: the most seconds of loading and warm-up; the memory budget of the rank with the
    smallest KV cache, since all allocate the same number of blocks; unhealthy where one rank is. Raises
    `ContractError` where the ranks report different capabilities or KV caches.
    """
    merge = _MERGES.get(method)
    return reports[0] if merge is None or len(reports) == 1 else merge(reports)


def _devices(reports: Sequence[DeviceReport]) -> DeviceReport:
    for rank, report in enumerate(reports):
        if report.capabilities != reports[0].capabilities:
            raise ContractError(
                f"rank {rank} ({report.device}) has other capabilities than rank 0 "
                f"({reports[0].device}), but the devices of one model must offer the same: "
                f"{report.capabilities} against {reports[0].capabilities}"
            )
    return reports[0]


def _loads(reports: Sequence[LoadReport]) -> LoadReport:
    return replace(reports[0], seconds=max(report.seconds for report in reports))


def _specs(reports: Sequence[dict[str, KVCacheSpec | str]]) -> dict[str, KVCacheSpec | str]:
    first = reports[0]
    for rank, specs in enumerate(reports):
        if specs == first:
            continue
        names = [name for name in {**first, **specs} if specs.get(name) != first.get(name)]
        raise ContractError(
            f"rank {rank} needs another KV cache than rank 0, but all share one block table: layer "
            f"{names[0]!r} has {specs.get(names[0])} against {first.get(names[0])}"
        )
    return first


def _budgets(reports: Sequence[MemoryBudget]) -> MemoryBudget:
    return min(reports, key=lambda report: report.kv_cache_bytes)


def _captures(reports: Sequence[CaptureReport]) -> CaptureReport:
    return replace(reports[0], seconds=max(report.seconds for report in reports))


def _healths(reports: Sequence[Health]) -> Health:
    ill = [
        f"rank {rank}: {report.detail}".rstrip(": ")
        for rank, report in enumerate(reports)
        if not report.healthy
    ]
    return Health(healthy=False, detail="; ".join(ill)) if ill else reports[0]


_MERGES: Mapping[str, Callable[[Any], Any]] = {
    "init_device": _devices,
    "load_model": _loads,
    "get_kv_cache_spec": _specs,
    "determine_available_memory": _budgets,
    "compile_or_warm_up_model": _captures,
    "check_health": _healths,
}
