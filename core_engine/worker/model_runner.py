"""ModelRunnerBase: the RFC's model runner, with nothing decided about how a step is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core_engine.errors import EngineError
from core_engine.hookspecs.model_runner import ModelRunnerApi

if TYPE_CHECKING:
    from core_engine.kv_cache.specs import KVCacheSpec
    from core_engine.worker.context import RunnerContext

__all__ = ["ModelRunnerBase"]


class ModelRunnerBase(ModelRunnerApi):
    """Holds the common configuration, the model and the cache specs.

    Subclasses implement ``load_model`` (which sets ``self.model`` and ``self.kv_cache_spec``),
    ``initialize_kv_cache``, ``execute_model``, ``dummy_run``, ``profile_run`` and ``capture_model``.
    Most backends derive from `core_engine.worker.step_runner.StepModelRunner` instead, which
    implements them over six seams.
    """

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.config = context.config
        self.capabilities = context.capabilities
        self.device: Any = context.device
        self.model: Any = None
        self.kv_cache_spec: dict[str, KVCacheSpec | str] = {}

    def get_model(self) -> Any:
        """Return the model. Raises `EngineError` before ``load_model``."""
        if self.model is None:
            raise EngineError("no model is loaded yet: call load_model first")
        return self.model

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec | str]:
        """Return the specs of the loaded model's attention layers."""
        self.get_model()
        return self.kv_cache_spec
