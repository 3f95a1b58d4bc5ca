"""What a worker and a model runner are built from; core makes them, vendors only read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core_engine.config import EngineConfig, ModelConfig
from core_engine.plugin._backend_types import DeviceInfo, WorkerPlan
from core_engine.plugin._capabilities import Capabilities

if TYPE_CHECKING:
    from core_engine.parallel.communicator import Communicator

__all__ = ["RunnerContext", "WorkerContext"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerContext:
    """The resolved settings, the model's facts and this worker's share of the devices."""

    config: EngineConfig
    model: ModelConfig
    capabilities: Capabilities
    plan: WorkerPlan
    #: The devices of ``plan``, in its order.
    devices: tuple[DeviceInfo, ...]
    #: Parsed values of the backend's options, defaults filled in.
    options: Mapping[str, str | int | float | bool | None]
    world_size: int = 1
    #: A file on this host through which the ranks find each other; empty for one rank.
    rendezvous: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerContext:
    """What a model runner needs: the worker's context and the device that the worker opened."""

    worker: WorkerContext
    #: Narrowed after ``init_device``.
    capabilities: Capabilities
    #: The ``torch.device`` (or a backend's own handle) that ``WorkerBase.device`` held after ``init_device``.
    device: Any
    #: What ``WorkerBase.communicator`` held then; a runner hands it on in `Seams.communicator`.
    communicator: Communicator | None = None

    @property
    def config(self) -> EngineConfig:
        """The resolved settings."""
        return self.worker.config

    @property
    def model(self) -> ModelConfig:
        """The model's facts."""
        return self.worker.model
