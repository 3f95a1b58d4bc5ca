"""A fake of NVIDIA's management library: the C functions that the plugin calls, over GPUs a test invents."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core_engine_cuda.nvml import Gpu

from core_engine.plugin import Probe

__all__ = ["SOFTWARE", "FakeNvml", "GpuMachine", "gpu"]

SUCCESS, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 0, 3, 6, 9, 12
TEXTS = {NOT_SUPPORTED: b"Not Supported", DRIVER_NOT_LOADED: b"Driver Not Loaded"}
#: Versions of what a GPU needs, and the line of torch/version.py.
SOFTWARE = {"torch": "2.9.1", "triton": "3.5.1"}
BUILT_FOR_CUDA = "__version__ = '2.9.1+cu128'\ncuda: Optional[str] = '12.8'\n"


def gpu(number: int, capability: tuple[int, int] = (9, 0), name: str = "NVIDIA H100", **facts: Any) -> Gpu:
    """Return a GPU of 80 GiB whose UUID tells its number."""
    return Gpu(
        uuid=f"GPU-{number}0000000-aaaa", name=name, memory_bytes=80 << 30, capability=capability, **facts
    )


class FakeNvml:
    """Behaves as the library does: a status is returned, answers are written through references."""

    def __init__(
        self,
        *gpus: Gpu,
        init_status: int = SUCCESS,
        cuda_version: int | None = 12080,
        knows_memory: bool = True,
        answers_after_s: float = 0.0,
    ) -> None:
        self.gpus = gpus
        self.cuda_version = cuda_version
        self.knows_memory = knows_memory
        #: How often the library was opened more than closed.
        self.num_open = 0
        self._init = init_status, answers_after_s
        # ctypes lets the type of a result be set on a function; so do functions, not methods.
        self.nvmlErrorString: Callable[[Any], bytes] = lambda status: TEXTS.get(
            status.value, b"Unknown Error"
        )

    def nvmlInit_v2(self) -> int:
        status, delay_s = self._init
        time.sleep(delay_s)
        self.num_open += status == SUCCESS
        return status

    def nvmlShutdown(self) -> int:
        self.num_open -= 1
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = b"570.86.15"
        return SUCCESS

    def nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> int:
        if self.cuda_version is None:
            return LIBRARY_NOT_FOUND
        number._obj.value = self.cuda_version
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = 100 * (index.value + 1)
        return SUCCESS

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self._gpu(handle).name.encode()
        return SUCCESS

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self._gpu(handle).uuid.encode()
        return SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = self._gpu(handle).memory_bytes or 0
        return SUCCESS if self.knows_memory else NOT_SUPPORTED

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._gpu(handle).capability or (0, 0)
        return SUCCESS

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        instances = self._gpu(handle).instances
        mode._obj.value = int(bool(instances))
        return SUCCESS if instances else NOT_SUPPORTED

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        count._obj.value = 7
        return SUCCESS

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, instance: Any) -> int:
        if index.value >= len(self._gpu(handle).instances):
            return NOT_FOUND
        instance._obj.value = handle.value + index.value + 1
        return SUCCESS

    def _gpu(self, handle: Any) -> Gpu:
        number, instance = divmod(handle.value, 100)
        found = self.gpus[number - 1]
        return found.instances[instance - 1] if instance else found


class GpuMachine(Probe):
    """A machine of which the test says what driver, software and variables it has."""

    def __init__(
        self,
        root: Path,
        nvml: FakeNvml | None,
        software: dict[str, str] | None = None,
        version_py: str | None = BUILT_FOR_CUDA,
        **environment: str,
    ) -> None:
        super().__init__(environment, root)
        self._nvml = nvml
        self._software = SOFTWARE if software is None else software
        self._version_py = version_py

    def load_library(self, file_name: str) -> Any:
        return self._nvml if file_name == "libnvidia-ml.so.1" else None

    def distribution_version(self, distribution: str) -> str | None:
        return self._software.get(distribution)

    def package_text(self, package: str, file_name: str) -> str | None:
        return self._version_py if (package, file_name) == ("torch", "version.py") else None

    def add_file(self, path: str, text: str = "") -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
