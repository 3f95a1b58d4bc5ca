"""WorkerBase: what every worker shares; a backend adds the device."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.dynamic_module_utils import init_hf_modules

from core_engine.errors import ConfigError, EngineError
from core_engine.hookspecs.worker import WorkerApi
from core_engine.worker.reports import CaptureReport, Health

if TYPE_CHECKING:
    from core_engine.hookspecs.model_runner import ModelRunnerApi
    from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
    from core_engine.lora.messages import LoRAAdapter, LoRAInfo
    from core_engine.parallel.communicator import Communicator
    from core_engine.worker.context import WorkerContext
    from core_engine.worker.reports import LoadReport

__all__ = ["WorkerBase"]


class WorkerBase(WorkerApi):
    """Delegates to the model runner and leaves three methods to the device.

    Subclasses implement ``init_device`` (which sets ``self.device`` and, where several ranks share a model,
    ``self.communicator``), ``determine_available_memory`` and ``execute_model``. The runner is reached
    through the typed façade only, so that extensions around its hooks always fire.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.config = context.config
        #: Set by ``init_device``: the ``torch.device``, or a backend's own handle.
        self.device: Any = None
        #: Set by ``init_device`` where ``context.world_size`` is more than 1; closed by ``shutdown``.
        self.communicator: Communicator | None = None
        #: Bytes of the loaded weights; 0 before ``load_model``.
        self.weight_bytes = 0
        self._model_runner: ModelRunnerApi | None = None
        self._profiler: torch.profiler.profile | None = None
        if self.config.trust_remote_code:
            # The folder of remote modules must be importable before a model names one.
            init_hf_modules()

    @property
    def model_runner(self) -> ModelRunnerApi:
        """The façade of this worker's model runner. Raises `EngineError` before it is attached."""
        if self._model_runner is None:
            raise EngineError("this worker has no model runner: it was shut down or never initialised")
        return self._model_runner

    def join_ranks(self, kind: str) -> None:
        """Meet the other ranks and set ``communicator``; does nothing where there is one rank.

        For ``init_device``, once ``self.device`` is set; ``kind`` and errors are `TorchCommunicator`'s.
        """
        if self.context.world_size > 1:
            from core_engine.parallel.torch_communicator import TorchCommunicator

            self.communicator = TorchCommunicator(
                kind,
                self.context.rendezvous,
                self.context.plan.rank,
                self.context.world_size,
                device=self.device,
            )

    def attach_model_runner(self, runner: ModelRunnerApi) -> None:
        """Take the façade of the runner that was built for the opened device."""
        self._model_runner = runner

    def load_model(self) -> LoadReport:
        """Load the model through the runner."""
        report = self.model_runner.load_model()
        self.weight_bytes = report.weight_bytes
        return report

    def get_model(self) -> Any:
        """Return the runner's model."""
        return self.model_runner.get_model()

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Return the runner's KV cache specs."""
        return self.model_runner.get_kv_cache_spec()

    def initialize_cache(self, kv_cache_config: KVCacheConfig) -> int:
        """Allocate and bind the KV cache through the runner."""
        return self.model_runner.initialize_kv_cache(kv_cache_config)

    def compile_or_warm_up_model(self) -> CaptureReport:
        """Capture the model unless ``enforce_eager``, then set the random seed."""
        if self.config.enforce_eager:
            report = CaptureReport(num_programs=0, seconds=0.0)
        else:
            report = self.model_runner.capture_model()
        torch.manual_seed(self.config.seed or 0)
        return report

    def add_lora(self, adapter: LoRAAdapter) -> LoRAInfo:
        """Load a LoRA adapter through the runner."""
        return self.model_runner.add_lora(adapter)

    def remove_lora(self, lora_id: int) -> bool:
        """Forget a LoRA adapter through the runner."""
        return self.model_runner.remove_lora(lora_id)

    def list_loras(self) -> tuple[LoRAInfo, ...]:
        """List the runner's LoRA adapters."""
        return self.model_runner.list_loras()

    def profile(self, action: str) -> str:
        """Start or stop the torch profiler; the trace is a Chrome trace in a temporary folder."""
        if action == "start":
            if self._profiler is not None:
                raise ConfigError("the profiler is already running: stop it first")
            self._profiler = torch.profiler.profile()
            self._profiler.start()
            return ""
        if action == "stop":
            if self._profiler is None:
                raise ConfigError("the profiler is not running: start it first")
            profiler, self._profiler = self._profiler, None
            profiler.stop()
            folder = Path(tempfile.mkdtemp(prefix="core-engine-profile-"))
            path = folder / f"rank{self.context.plan.rank}.json"
            profiler.export_chrome_trace(str(path))
            return str(path)
        raise ConfigError(f"profile action must be 'start' or 'stop', got {action!r}")

    def check_health(self) -> Health:
        """Report healthy; a device that can hang overrides this and asks it."""
        return Health(healthy=self._model_runner is not None)

    def shutdown(self) -> bool:
        """Drop the runner with its model and caches; returns False when that had been done before."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        released = self._model_runner is not None
        if released:
            self._model_runner = None
            gc.collect()
        # Last: recorded programs of the runner may hold its operations.
        if self.communicator is not None:
            self.communicator.close()
            self.communicator = None
        return released
