"""What workers and model runners report while an engine starts; numbers and strings only."""

from __future__ import annotations

from dataclasses import dataclass

from core_engine.plugin._capabilities import Capabilities

__all__ = [
    "CaptureReport",
    "DeviceReport",
    "Health",
    "LoadReport",
    "MemoryBudget",
    "MemoryInfo",
    "ProfileReport",
    "ProgramGroup",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryInfo:
    """Memory of one device in bytes; None where the device does not tell."""

    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReport:
    """The device a worker holds after ``init_device``, and the narrowed capabilities."""

    device: str
    capabilities: Capabilities
    memory: MemoryInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """What loading the model took."""

    #: Bytes on one device.
    weight_bytes: int
    seconds: float
    #: Which share of the model's parameters is divided over the devices, from 0 to 1.
    divided_share: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileReport:
    """The largest step's cost, measured with no KV cache bound."""

    activation_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """How the device's memory is divided; ``kv_cache_bytes`` is what the pool may take."""

    total_bytes: int | None
    weight_bytes: int
    activation_bytes: int
    kv_cache_bytes: int
    #: How ``kv_cache_bytes`` was found, for the start table.
    rule: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramGroup:
    """The programs of one function ("backbone", "logits", …) that a start prepared, and the time."""

    name: str
    num_programs: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureReport:
    """What warm-up compiled or captured: programs in all, and the time."""

    num_programs: int
    seconds: float
    #: The same by function, the profile run's programs included; empty where nothing is prepared.
    groups: tuple[ProgramGroup, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """A worker's answer to ``check_health``."""

    healthy: bool
    detail: str = ""
