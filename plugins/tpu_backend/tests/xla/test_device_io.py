"""What crosses between host and device, and what must not happen on the way (case 8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from core_engine_tpu.device_io import TpuIO
from core_engine_tpu.runtime import XlaRuntime
from request_mix import draw_requests, tokens
from xla_engine import runner_of

from core_engine import LLM
from core_engine.errors import CoreEngineError
from core_engine.plugin.runtime import Array


def test_case_08_inputs_are_prepared_without_running_anything(
    tpu: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(tpu)
    prepared = 0
    upload = runner.seams.io.upload

    def upload_and_count(step: object) -> object:
        nonlocal prepared
        prepared += 1
        with runner.device.forbid_execution():
            return upload(step)

    monkeypatch.setattr(runner.seams.io, "upload", upload_and_count)
    tokens(tpu, *draw_requests(6))
    assert prepared > 6


def test_case_08_device_work_in_the_preparation_is_caught(tpu: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload_and_slice(self: TpuIO, array: Array) -> torch.Tensor:
        tensor = self._runtime.upload(torch.from_numpy(np.ascontiguousarray(array)))
        return tensor[: tensor.shape[0]].cpu()

    monkeypatch.setattr(TpuIO, "_upload_array", upload_and_slice)
    with pytest.raises(CoreEngineError, match="execution"):
        tokens(tpu, *draw_requests(1))


def test_execution_is_allowed_again_after_it_was_forbidden(runtime: XlaRuntime) -> None:
    with runtime.forbid_execution():
        tensor = runtime.upload(torch.ones(3))
    assert (tensor + 1).cpu().tolist() == [2.0] * 3


def test_downloads_are_whole_arrays(runtime: XlaRuntime) -> None:
    tensor = torch.arange(6.0).view(2, 3)
    arrays = TpuIO(runtime).download({"a": runtime.upload(tensor)}).arrays()
    np.testing.assert_array_equal(arrays["a"], tensor.numpy())


def test_allocated_memory_is_zero_and_on_the_device(runtime: XlaRuntime) -> None:
    tensor = TpuIO(runtime).allocate((2, 5), torch.bfloat16)
    assert tensor.device.type == "xla"
    assert tensor.cpu().tolist() == [[0.0] * 5] * 2
