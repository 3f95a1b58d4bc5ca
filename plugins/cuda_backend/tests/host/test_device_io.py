"""What crosses to the GPU and back: complete, in one copy each way, and never overwritten on its way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from core_engine_cuda.device_io import CudaIO
from host_runtime import HostRuntime, LateRuntime

from core_engine.plugin import OutOfDeviceMemory, StepTimeout
from core_engine.plugin.runtime import HostStep, SamplingKind, StepKind, StepShape
from core_engine.worker.dummy_step import dummy_step

VOCABULARY = 50
GREEDY = SamplingKind(all_greedy=True)
EVERYTHING = SamplingKind(all_greedy=False, penalties=True, bias=True, filters=True)


def make_step(num_tokens: int = 4, num_reqs: int = 4, kind: SamplingKind = GREEDY, **parts: Any) -> HostStep:
    """Return a step of random tokens with attention metadata for two groups."""
    step = dummy_step(
        StepShape(num_tokens, num_reqs, StepKind.MIXED),
        kind,
        num_groups=2,
        max_blocks_per_request=3,
        vocab_size=VOCABULARY,
        lora=True,
    )
    draw = np.random.default_rng(num_tokens)
    attention = tuple({"slots": table, "tables": table[:, :1]} for table in step.block_tables)
    token_ids = draw.integers(0, VOCABULARY, num_tokens).astype(np.int32)
    return replace(step, **{"attention": attention, "token_ids": token_ids, **parts})


def addresses(io: CudaIO, step: HostStep) -> dict[str, int]:
    device = io.upload(step)
    parts = {"token_ids": device.token_ids, "positions": device.positions, "rows": device.logits_rows}
    parts |= {name: device.sampling[name] for name in ("temperature", "noise_keys")}
    parts |= {f"slots{index}": group["slots"] for index, group in enumerate(device.attention)}
    return {name: tensor.data_ptr() for name, tensor in parts.items()}


def test_a_step_arrives_whole() -> None:
    rows = (np.array([1, 0, 2, 2], np.int32),)
    step = make_step(kind=EVERYTHING, prompt_rows=rows, prompt_targets=rows)
    device = CudaIO(HostRuntime()).upload(step)
    np.testing.assert_array_equal(device.token_ids.numpy(), step.token_ids)
    np.testing.assert_array_equal(device.positions.numpy(), step.positions)
    np.testing.assert_array_equal(device.prompt_rows[0].numpy(), rows[0])
    assert device.sampling["prompt_mask"].dtype == torch.bool
    for name, tensor in device.sampling.items():
        np.testing.assert_array_equal(tensor.numpy(), getattr(step.sampling, name))
    for group, on_device in zip(step.attention, device.attention, strict=True):
        for name, array in group.items():
            np.testing.assert_array_equal(on_device[name].numpy(), array)
    assert device.lora_slots is not None
    np.testing.assert_array_equal(device.lora_slots.numpy(), step.lora_slots)


def test_a_step_is_one_copy_and_its_rare_parts_another() -> None:
    runtime = LateRuntime()
    io = CudaIO(runtime)
    io.upload(make_step())
    runtime.synchronize()
    assert runtime.num_done == 1
    io.upload(make_step(kind=EVERYTHING))
    runtime.synchronize()
    assert runtime.num_done == 3


def test_steps_of_one_shape_lie_at_the_same_addresses() -> None:
    io = CudaIO(HostRuntime())
    first = addresses(io, make_step())
    addresses(io, make_step(num_tokens=9))
    addresses(io, make_step(num_tokens=2000))
    assert addresses(io, make_step()) == first


def test_what_only_some_steps_have_moves_nothing_else() -> None:
    io = CudaIO(HostRuntime())
    rows = (np.zeros(4, np.int32),)
    plain = addresses(io, make_step())
    assert addresses(io, make_step(kind=EVERYTHING)) == plain
    assert addresses(io, make_step(prompt_rows=rows, prompt_targets=rows)) == plain


def test_many_shapes_forget_the_oldest_but_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core_engine_cuda.device_io._MAX_LAYOUTS", 2)
    io = CudaIO(HostRuntime())
    first = addresses(io, make_step())
    for num_tokens in range(5, 9):
        addresses(io, make_step(num_tokens))
    assert addresses(io, make_step()) == first


def test_a_step_is_not_overwritten_before_it_was_copied() -> None:
    runtime = LateRuntime()
    io = CudaIO(runtime)
    arrived = []
    for number in range(7):
        device = io.upload(make_step(token_ids=np.full(4, number, np.int32)))
        # The program of a step comes before the next step's copy: here, a copy of what it reads.
        arrived.append(torch.empty(4, dtype=torch.int32))
        runtime.copy(arrived[-1], device.token_ids)
    runtime.synchronize()
    assert [tensor.tolist() for tensor in arrived] == [[number] * 4 for number in range(7)]


def test_host_arrays_may_be_reused_once_upload_returns() -> None:
    runtime = LateRuntime()
    io = CudaIO(runtime)
    step = make_step()
    expected = step.token_ids.copy()
    device = io.upload(step)
    step.token_ids[:] = 0
    runtime.synchronize()
    np.testing.assert_array_equal(device.token_ids.numpy(), expected)


def test_results_come_back_by_one_copy_to_the_host() -> None:
    runtime = LateRuntime()
    io = CudaIO(runtime)
    tensors = {
        "token_ids": torch.arange(3, dtype=torch.int32),
        "logprobs": torch.rand(3, 5),
        "ranks": torch.arange(6, dtype=torch.int32)[::2],
    }
    download = io.download(tensors)
    arrays = download.arrays()
    # Three into the packed buffer, one to the host.
    assert runtime.num_done == 4
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())
    assert download.arrays() is arrays


def test_one_result_needs_no_packing() -> None:
    runtime = LateRuntime()
    arrays = CudaIO(runtime).download({"token_ids": torch.arange(3, dtype=torch.int32)}).arrays()
    assert runtime.num_done == 1
    np.testing.assert_array_equal(arrays["token_ids"], [0, 1, 2])


def test_a_step_without_results_downloads_nothing() -> None:
    assert CudaIO(HostRuntime()).download({}).arrays() == {}


def test_a_download_in_flight_keeps_its_buffer() -> None:
    runtime = LateRuntime()
    io = CudaIO(runtime)
    downloads = [io.download({"token_ids": torch.full((2,), number)}) for number in range(4)]
    assert [download.arrays()["token_ids"].tolist() for download in reversed(downloads)] == [
        [3, 3],
        [2, 2],
        [1, 1],
        [0, 0],
    ]


def test_downloads_that_were_read_lend_their_buffer_to_the_next() -> None:
    runtime = HostRuntime()
    io = CudaIO(runtime)
    for number in range(5):
        assert io.download({"token_ids": torch.full((2,), number)}).arrays()["token_ids"][0] == number
    assert runtime.num_pinned == 1


def test_results_that_do_not_come_in_time_may_come_later() -> None:
    runtime = LateRuntime()
    download = CudaIO(runtime).download({"token_ids": torch.ones(2, dtype=torch.int32)})
    with pytest.raises(StepTimeout, match=r"within 0\.5 s"):
        download.arrays(0.5)
    assert download.arrays()["token_ids"].tolist() == [1, 1]


def test_an_allocation_that_fails_tells_what_was_asked_and_what_is_free() -> None:
    runtime = HostRuntime()
    runtime.allocations_left = 0
    with pytest.raises(OutOfDeviceMemory, match=r"\[1024, 1024\].*4\.0 MiB.*Tried to allocate.*are free"):
        CudaIO(runtime).allocate((1024, 1024), torch.float32)
    assert runtime.num_released == 1


def test_weights_go_straight_to_the_gpu_where_accelerate_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    io = CudaIO(HostRuntime())
    io._runtime.device = torch.device("cuda", 0)
    assert io.weight_device == "cuda:0"
    monkeypatch.setattr("core_engine_cuda.device_io.find_spec", lambda name: None)
    assert io.weight_device == "cpu"
