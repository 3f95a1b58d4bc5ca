"""Finds NVIDIA GPUs through the driver and says why one cannot be used; opens no CUDA context."""

from __future__ import annotations

import re
from pathlib import PurePath

from core_engine.plugin import Detection, DetectionState, DeviceInfo, Probe
from core_engine_cuda.nvml import LIBRARY, Driver, Gpu, NoGpus, ask_nvml
from core_engine_cuda.torch_build import software_refusal
from core_engine_cuda.visible_gpus import visible_gpus

__all__ = ["CAPABILITY", "LOWEST_CAPABILITY", "UUID", "detect_gpus"]

#: Keys of `DeviceInfo.details`.
CAPABILITY = "compute_capability"
UUID = "uuid"
#: Ampere: the first that multiplies bfloat16, and the oldest that the kernels are compiled for.
LOWEST_CAPABILITY = (8, 0)

_CONTROL_FILE = "/dev/nvidiactl"
#: Of the Windows Subsystem for Linux, which has no device files of its own for each GPU.
_WSL_FILE = "/dev/dxg"
_DRIVER_FILES = "/proc/driver/nvidia"


def detect_gpus(probe: Probe) -> Detection:
    """Ask NVML, or where that is missing read the driver's files; then look at what programs may see.

    ``CUDA_VISIBLE_DEVICES`` limits the GPUs (see `visible_gpus`). GPUs older than compute capability 8.0
    are left out and named.
    """
    try:
        driver, remark = _driver(probe)
        gpus = visible_gpus(driver.gpus, probe.environment.get("CUDA_VISIBLE_DEVICES"))
    except NoGpus as error:
        return _unavailable(str(error))
    usable = tuple(gpu for gpu in gpus if gpu.capability is None or gpu.capability >= LOWEST_CAPABILITY)
    if not usable:
        return _unavailable(
            f"{_count(gpus)} with compute capability {_version(gpus[0].capability)}; 8.0 or later is needed"
        )
    found = _count(usable)
    if (refusal := software_refusal(probe, driver.cuda_version)) is not None:
        return _unavailable(f"{found}, but {refusal}")
    left_out = [gpu for gpu in gpus if gpu not in usable]
    if left_out:
        remark += f"; {_count(tuple(left_out))} left out, older than compute capability 8.0"
    devices = tuple(_device(index, gpu) for index, gpu in enumerate(usable))
    return Detection(state=DetectionState.AVAILABLE, reason=found + remark, devices=devices)


def _driver(probe: Probe) -> tuple[Driver, str]:
    """Return the driver's GPUs, and what to remark on how they were found. Raises `NoGpus`."""
    library = probe.load_library(LIBRARY)
    is_loaded = probe.exists(_DRIVER_FILES)
    has_files = probe.exists(_CONTROL_FILE) or probe.exists(_WSL_FILE)
    if library is None and not has_files:
        if not is_loaded:
            raise NoGpus(f"no NVIDIA driver: there is neither {LIBRARY} nor {_CONTROL_FILE}")
        raise NoGpus(
            f"the NVIDIA driver is loaded, but {LIBRARY} and {_CONTROL_FILE} are not there: a container must "
            "be given its GPUs when it is started (docker run --gpus all)"
        )
    if library is None:
        driver = _driver_from_files(probe)
        return driver, f", found by the driver's files ({LIBRARY} is missing, so their memory is unknown)"
    try:
        driver = ask_nvml(library)
    except NoGpus as error:
        raise NoGpus(f"the NVIDIA driver answers: {error}") from error
    if not driver.gpus:
        raise NoGpus("the NVIDIA driver knows no GPU")
    if driver.cuda_version is None:
        raise NoGpus(
            f"{_count(driver.gpus)}, but the driver's library libcuda.so.1 is missing; a container needs "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    return driver, ""


def _driver_from_files(probe: Probe) -> Driver:
    """Read ``/proc/driver/nvidia``, which names the GPUs and little else."""
    gpus = []
    for path in probe.glob(f"{_DRIVER_FILES}/gpus/*/information"):
        # The folder is named after the address on the PCI bus, so the order is the bus's.
        text = probe.read_text(f"{_DRIVER_FILES}/gpus/{PurePath(path).parent.name}/information") or ""
        facts = dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", text, re.MULTILINE))
        if "GPU UUID" in facts:
            gpus.append(Gpu(uuid=facts["GPU UUID"], name=facts.get("Model", "NVIDIA GPU")))
    if not gpus and not probe.exists(_CONTROL_FILE):
        raise NoGpus(
            f"no NVIDIA driver: {_WSL_FILE} is there, as under every WSL, but {LIBRARY} is not; the driver "
            "for Windows brings it to /usr/lib/wsl/lib"
        )
    if not gpus:
        raise NoGpus(f"{_CONTROL_FILE} is there, but {LIBRARY} and {_DRIVER_FILES}/gpus are not")
    version = re.search(r"Module\s+(\d+(?:\.\d+)+)", probe.read_text(f"{_DRIVER_FILES}/version") or "")
    return Driver(version=version.group(1) if version else "", cuda_version=None, gpus=tuple(gpus))


def _device(index: int, gpu: Gpu) -> DeviceInfo:
    details = {UUID: gpu.uuid}
    if gpu.capability is not None:
        details[CAPABILITY] = _version(gpu.capability)
    return DeviceInfo(index=index, name=gpu.name, memory_bytes=gpu.memory_bytes, details=details)


def _count(gpus: tuple[Gpu, ...]) -> str:
    """Return "2 x NVIDIA H100, 1 x NVIDIA A100"."""
    names = dict.fromkeys(gpu.name for gpu in gpus)
    return ", ".join(f"{sum(gpu.name == name for gpu in gpus)} x {name}" for name in names)


def _version(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"


def _unavailable(reason: str) -> Detection:
    return Detection(state=DetectionState.UNAVAILABLE, reason=reason)
