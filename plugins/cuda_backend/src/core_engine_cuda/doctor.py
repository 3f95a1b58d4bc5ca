"""What ``core-engine doctor`` tells of NVIDIA GPUs, read without importing torch."""

from __future__ import annotations

from core_engine.plugin import Probe
from core_engine_cuda.nvml import LIBRARY, NoGpus, ask_nvml
from core_engine_cuda.toolchain import c_compiler, python_headers

__all__ = ["cuda_facts"]

_DISTRIBUTIONS = ("torch", "triton")
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "NCCL_SOCKET_IFNAME",
    "TRITON_INTERPRET",
)


def cuda_facts(probe: Probe) -> tuple[tuple[str, str], ...]:
    """Return the (fact, value) pairs that a report of a fault should contain."""
    return (
        ("driver", _driver(probe)),
        *((name, probe.distribution_version(name) or "not installed") for name in _DISTRIBUTIONS),
        ("C compiler", c_compiler(probe.environment) or "not found; Triton needs one"),
        ("Python.h", python_headers() or "not found; Triton needs it"),
        *((name, probe.environment.get(name, "(unset)")) for name in _VARIABLES),
    )


def _driver(probe: Probe) -> str:
    library = probe.load_library(LIBRARY)
    if library is None:
        return f"{LIBRARY} not found"
    try:
        driver = ask_nvml(library)
    except NoGpus as error:
        return str(error)
    if driver.cuda_version is None:
        return f"{driver.version}, without libcuda.so.1"
    return f"{driver.version}, CUDA up to {driver.cuda_version[0]}.{driver.cuda_version[1]}"
