"""The hooks of the light module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from core_engine_cuda import plugin
from fake_nvml import DRIVER_NOT_LOADED, FakeNvml, GpuMachine, gpu

from core_engine.plugin import DeviceInfo, EngineConfig, UnsupportedFeature
from core_engine.testing.fake_context import fake_model_config

DEVICES = tuple(
    DeviceInfo(index=index, name="NVIDIA H100", details={"uuid": f"GPU-{index}"}) for index in range(2)
)


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(model="m", **settings)


def test_each_worker_sees_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    plans = plugin.plan_workers(config(tensor_parallel_size=2), DEVICES)
    assert [(plan.rank, plan.device_indices) for plan in plans] == [(0, (0,)), (1, (1,))]
    assert [dict(plan.environment) for plan in plans] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-0", "NCCL_SOCKET_IFNAME": "lo"},
        {"CUDA_VISIBLE_DEVICES": "GPU-1", "NCCL_SOCKET_IFNAME": "lo"},
    ]


def test_an_interface_that_was_chosen_for_nccl_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    plans = plugin.plan_workers(config(tensor_parallel_size=2), DEVICES)
    assert all("NCCL_SOCKET_IFNAME" not in plan.environment for plan in plans)


def test_one_worker_takes_the_first_gpu() -> None:
    (plan,) = plugin.plan_workers(config(), DEVICES)
    assert dict(plan.environment) == {"CUDA_VISIBLE_DEVICES": "GPU-0"}


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="tensor_parallel_size 3 needs 3 GPUs"):
        plugin.plan_workers(config(tensor_parallel_size=3), DEVICES)


def test_capabilities_follow_devices_and_model() -> None:
    capabilities = plugin.capabilities(DEVICES, config(), fake_model_config(vocab_size=12))
    assert capabilities.max_tensor_parallel_size == 2
    assert capabilities.max_logprobs == 12
    assert capabilities.lora
    assert capabilities.token_buckets == ()


def test_doctor_tells_the_driver(tmp_path: Path) -> None:
    rows = dict(plugin.doctor_rows(GpuMachine(tmp_path, FakeNvml(gpu(0)), CUDA_VISIBLE_DEVICES="0")))
    assert rows["driver"] == "570.86.15, CUDA up to 12.8"
    assert (rows["triton"], rows["CUDA_VISIBLE_DEVICES"]) == ("3.5.1", "0")
    assert rows["NCCL_SOCKET_IFNAME"] == "(unset)"


@pytest.mark.parametrize(
    ("nvml", "text"),
    [
        (None, "libnvidia-ml.so.1 not found"),
        (FakeNvml(init_status=DRIVER_NOT_LOADED), "Driver Not Loaded"),
        (FakeNvml(gpu(0), cuda_version=None), "570.86.15, without libcuda.so.1"),
    ],
)
def test_doctor_tells_a_driver_that_cannot_be_used(tmp_path: Path, nvml: FakeNvml | None, text: str) -> None:
    assert dict(plugin.doctor_rows(GpuMachine(tmp_path, nvml)))["driver"] == text


def test_discovery_loads_neither_torch_nor_triton() -> None:
    program = (
        "import sys\n"
        "from core_engine_cuda import plugin\n"
        "plugin.detect(plugin.Probe())\n"
        "print(sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
    )
    assert result.stdout == "[]\n", result.stderr
