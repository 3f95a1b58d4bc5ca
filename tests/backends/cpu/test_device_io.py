"""On the CPU nothing is copied, and an allocation that cannot be is a typed error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core_engine.backends.cpu.device_io import CpuIO
from core_engine.errors import OutOfDeviceMemory
from core_engine.worker.dummy_step import dummy_step
from core_engine.worker.shape_policy import SamplingKind, StepKind, StepShape


def test_uploaded_arrays_are_seen_not_copied() -> None:
    step = dummy_step(
        StepShape(4, 4, StepKind.DECODE),
        SamplingKind(all_greedy=True),
        num_groups=0,
        max_blocks_per_request=1,
        vocab_size=8,
    )
    uploaded = CpuIO().upload(step)
    step.token_ids[2] = 5
    assert uploaded.token_ids.tolist() == [0, 0, 5, 0]
    assert uploaded.token_ids.dtype is torch.int32


def test_read_only_arrays_are_taken_without_a_warning() -> None:
    step = dummy_step(
        StepShape(1, 1, StepKind.DECODE),
        SamplingKind(all_greedy=True),
        num_groups=0,
        max_blocks_per_request=1,
        vocab_size=8,
    )
    step.token_ids.flags.writeable = False
    assert CpuIO().upload(step).token_ids.tolist() == [0]


def test_downloads_have_arrived() -> None:
    arrays = CpuIO().download({"token_ids": torch.tensor([1, 2], dtype=torch.int32)}).arrays(timeout_s=0.0)
    np.testing.assert_array_equal(arrays["token_ids"], [1, 2])


def test_allocated_memory_is_zero() -> None:
    assert not CpuIO().allocate((3, 5), torch.bfloat16).any()


def test_more_than_there_is_is_refused_with_what_was_asked_and_what_is_free() -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"asked for 1048576 MiB .* MiB are free.*kv_cache_bytes"):
        CpuIO().allocate((1 << 40,), torch.uint8)


def test_memory_is_reported() -> None:
    info = CpuIO().memory_info()
    assert info.total_bytes is not None
    assert info.free_bytes is not None
    assert 0 < info.free_bytes <= info.total_bytes
