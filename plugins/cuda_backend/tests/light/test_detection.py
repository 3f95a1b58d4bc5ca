"""Detection: the state and its reason, from the driver's answers, installed packages and variables alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_engine_cuda.detection import detect_gpus
from core_engine_cuda.nvml import Gpu
from fake_nvml import BUILT_FOR_CUDA, DRIVER_NOT_LOADED, SOFTWARE, FakeNvml, GpuMachine, gpu

from core_engine.plugin import DetectionState

AVAILABLE, UNAVAILABLE = DetectionState.AVAILABLE, DetectionState.UNAVAILABLE
INFORMATION = (
    "Model: \t\t NVIDIA L4\nIRQ:   \t 32\nGPU UUID: \t GPU-10000000-aaaa\nBus Location: \t 0000:00:03.0\n"
)


def test_gpus_are_told_by_the_driver(tmp_path: Path) -> None:
    nvml = FakeNvml(gpu(0), gpu(1))

    detection = detect_gpus(GpuMachine(tmp_path, nvml))

    assert (detection.state, detection.reason) == (AVAILABLE, "2 x NVIDIA H100")
    assert [device.index for device in detection.devices] == [0, 1]
    assert detection.devices[1].memory_bytes == 80 << 30
    assert detection.devices[1].details == {"uuid": "GPU-10000000-aaaa", "compute_capability": "9.0"}
    assert nvml.num_open == 0


def test_kinds_are_counted_apart(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, FakeNvml(gpu(0), gpu(1, name="NVIDIA L4"), gpu(2)))
    assert detect_gpus(machine).reason == "2 x NVIDIA H100, 1 x NVIDIA L4"


def test_without_a_driver_it_is_unavailable(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, None))
    assert detection.state is UNAVAILABLE
    assert detection.reason == "no NVIDIA driver: there is neither libnvidia-ml.so.1 nor /dev/nvidiactl"


def test_a_container_without_its_gpus_is_told_how_to_get_them(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, None)
    machine.add_file("/proc/driver/nvidia/version")
    detection = detect_gpus(machine)
    assert detection.state is UNAVAILABLE
    assert "docker run --gpus all" in detection.reason


def test_a_container_without_the_compute_library_is_told(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0), cuda_version=None)))
    assert detection.state is UNAVAILABLE
    assert "libcuda.so.1 is missing" in detection.reason


def test_the_drivers_refusal_is_told_in_its_own_words(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(init_status=DRIVER_NOT_LOADED)))
    assert (detection.state, detection.reason) == (
        UNAVAILABLE,
        "the NVIDIA driver answers: Driver Not Loaded",
    )


def test_a_library_of_another_kind_is_told(tmp_path: Path) -> None:
    nvml = FakeNvml(gpu(0))
    del nvml.nvmlErrorString
    detection = detect_gpus(GpuMachine(tmp_path, nvml))
    assert detection.state is UNAVAILABLE
    assert "libnvidia-ml.so.1 cannot be asked: AttributeError" in detection.reason


def test_a_driver_that_hangs_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core_engine_cuda.nvml.ask_nvml.__defaults__", (0.05,))
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0), answers_after_s=1.0)))
    assert detection.state is UNAVAILABLE
    assert detection.reason == "the NVIDIA driver answers: nothing within 0 s"


def test_no_gpu_behind_the_driver_is_told(tmp_path: Path) -> None:
    assert detect_gpus(GpuMachine(tmp_path, FakeNvml())).reason == "the NVIDIA driver knows no GPU"


def test_without_the_library_the_drivers_files_are_read(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, None)
    machine.add_file("/dev/nvidiactl")
    machine.add_file("/proc/driver/nvidia/gpus/0000:00:03.0/information", INFORMATION)
    detection = detect_gpus(machine)
    assert detection.state is AVAILABLE
    assert detection.reason.startswith("1 x NVIDIA L4, found by the driver's files")
    (device,) = detection.devices
    assert (device.memory_bytes, device.details) == (None, {"uuid": "GPU-10000000-aaaa"})


def test_device_files_without_anything_that_names_a_gpu_are_told(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, None)
    machine.add_file("/dev/nvidiactl")
    detection = detect_gpus(machine)
    assert detection.state is UNAVAILABLE
    assert "/proc/driver/nvidia/gpus" in detection.reason


def test_wsl_without_the_library_is_told(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, None)
    machine.add_file("/dev/dxg")
    detection = detect_gpus(machine)
    assert detection.state is UNAVAILABLE
    assert detection.reason.startswith("no NVIDIA driver: /dev/dxg is there")


def test_memory_that_the_driver_does_not_tell_is_unknown(tmp_path: Path) -> None:
    (device,) = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0), knows_memory=False))).devices
    assert device.memory_bytes is None


def test_visible_devices_are_honoured(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, FakeNvml(gpu(0), gpu(1), gpu(2)), CUDA_VISIBLE_DEVICES="2,0")
    devices = detect_gpus(machine).devices
    assert [device.details["uuid"] for device in devices] == ["GPU-20000000-aaaa", "GPU-00000000-aaaa"]
    assert [device.index for device in devices] == [0, 1]


def test_a_variable_that_hides_all_is_the_reason(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0)), CUDA_VISIBLE_DEVICES=""))
    assert (detection.state, detection.reason) == (UNAVAILABLE, "CUDA_VISIBLE_DEVICES='' hides every GPU")


def test_old_gpus_are_refused_by_their_capability(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0, (7, 5), "Tesla T4"))))
    assert (detection.state, detection.reason) == (
        UNAVAILABLE,
        "1 x Tesla T4 with compute capability 7.5; 8.0 or later is needed",
    )


def test_the_oldest_gpu_that_is_served_is_served(tmp_path: Path) -> None:
    assert detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0, (8, 0), "NVIDIA A100")))).state is AVAILABLE


def test_old_gpus_beside_newer_ones_are_left_out(tmp_path: Path) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0, (7, 5), "Tesla T4"), gpu(1))))
    assert detection.reason == "1 x NVIDIA H100; 1 x Tesla T4 left out, older than compute capability 8.0"
    assert [device.index for device in detection.devices] == [0]
    assert detection.devices[0].details["uuid"] == "GPU-10000000-aaaa"


def test_an_instance_stands_for_a_divided_gpu(tmp_path: Path) -> None:
    instance = Gpu(uuid="MIG-1", name="NVIDIA H100 MIG 1g.10gb", memory_bytes=10 << 30)
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0, instances=(instance,)))))
    assert detection.reason == "1 x NVIDIA H100 MIG 1g.10gb"
    (device,) = detection.devices
    assert (device.details["uuid"], device.details["compute_capability"]) == ("MIG-1", "9.0")
    assert device.memory_bytes == 10 << 30


@pytest.mark.parametrize(
    ("software", "version_py", "reason"),
    [
        ({}, None, "torch is not installed: pip install 'core-engine[cuda]'"),
        ({"torch": "2.13.0+cpu"}, None, "torch 2.13.0+cpu is not built for CUDA"),
        # A build for the CPU from an index of its own need not say so in its version.
        ({"torch": "2.13.0"}, "cuda: Optional[str] = None\n", "torch 2.13.0 is not built for CUDA"),
        ({"torch": "2.9.1"}, BUILT_FOR_CUDA, "triton is not installed: pip install 'core-engine[cuda]'"),
    ],
)
def test_missing_software_is_named_beside_the_gpu(
    tmp_path: Path, software: dict[str, str], version_py: str | None, reason: str
) -> None:
    detection = detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0)), software, version_py))
    assert detection.state is UNAVAILABLE
    assert detection.reason.startswith(f"1 x NVIDIA H100, but {reason}")


def test_a_driver_too_old_for_torch_is_told_with_both_versions(tmp_path: Path) -> None:
    machine = GpuMachine(tmp_path, FakeNvml(gpu(0), cuda_version=12040), version_py="cuda = '13.0'\n")
    reason = detect_gpus(machine).reason
    assert "torch 2.9.1 is built for CUDA 13.0, and the driver serves CUDA up to 12.4" in reason


@pytest.mark.parametrize("cuda_version", [12000, 13000])
def test_a_driver_of_the_same_major_version_or_a_later_one_serves(tmp_path: Path, cuda_version: int) -> None:
    machine = GpuMachine(tmp_path, FakeNvml(gpu(0), cuda_version=cuda_version))
    assert detect_gpus(machine).state is AVAILABLE


def test_a_torch_that_does_not_say_what_it_was_built_for_is_tried(tmp_path: Path) -> None:
    assert detect_gpus(GpuMachine(tmp_path, FakeNvml(gpu(0)), SOFTWARE, None)).state is AVAILABLE
