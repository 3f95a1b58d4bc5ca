"""How the CPU worker divides the memory."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core_engine.backends.cpu import worker as module
from core_engine.backends.cpu.worker import CpuWorker, kv_cache_share
from core_engine.plugin import WorkerPlan
from core_engine.testing.fake_context import fake_worker_context
from core_engine.worker.reports import ProfileReport

GIB = 1 << 30


def test_the_kv_cache_takes_half_of_what_the_largest_step_leaves() -> None:
    share, rule = kv_cache_share(None, total=32 * GIB, free=10 * GIB, activation_bytes=2 * GIB)
    assert (share, rule) == (4 * GIB, "half of the free memory, at most 8 GiB")


def test_it_takes_no_more_than_8_gib() -> None:
    assert kv_cache_share(None, total=256 * GIB, free=200 * GIB, activation_bytes=0)[0] == 8 * GIB


def test_what_the_user_asks_for_wins() -> None:
    assert kv_cache_share(20 * GIB, total=32 * GIB, free=10 * GIB, activation_bytes=0) == (
        20 * GIB,
        "kv_cache_bytes",
    )


def test_no_memory_left_gives_nothing_rather_than_a_negative_number() -> None:
    assert kv_cache_share(None, total=GIB, free=GIB, activation_bytes=2 * GIB)[0] == 0


def test_where_the_system_tells_only_its_size_it_takes_a_quarter() -> None:
    assert kv_cache_share(None, total=16 * GIB, free=None, activation_bytes=0)[0] == 4 * GIB


def test_all_ranks_together_take_no_more_than_one() -> None:
    share, rule = kv_cache_share(None, total=32 * GIB, free=10 * GIB, activation_bytes=GIB, num_ranks=4)
    assert (4 * share, rule) == (3 * GIB, "half of the free memory, at most 8 GiB, over 4 ranks")
    largest, _ = kv_cache_share(None, total=256 * GIB, free=200 * GIB, activation_bytes=0, num_ranks=4)
    assert largest == 2 * GIB
    quarter, _ = kv_cache_share(None, total=16 * GIB, free=None, activation_bytes=0, num_ranks=2)
    assert quarter == 2 * GIB


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_takes_its_share_of_cores_and_memory(monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    threads: list[int] = []
    joined: list[str] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(module, "default_threads", lambda num_ranks: 8 // num_ranks)
    monkeypatch.setattr(module, "available_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(CpuWorker, "join_ranks", lambda self, kind: joined.append(kind))
    worker = CpuWorker(
        dataclasses.replace(
            fake_worker_context(options={"threads": None}),
            plan=WorkerPlan(rank=num_ranks - 1, device_indices=(0,)),
            world_size=num_ranks,
        )
    )
    runner: Any = SimpleNamespace(profile_run=lambda: ProfileReport(activation_bytes=GIB))

    worker.init_device()
    worker.attach_model_runner(runner)
    budget = worker.determine_available_memory()

    assert threads == [8 // num_ranks]
    assert joined == ["gloo"]
    assert budget.kv_cache_bytes == (8 - num_ranks) * GIB // 2 // num_ranks
