"""The engine's three contracts with a backend: discovery, worker and model runner."""

from core_engine.hookspecs.backend import REQUIRED_HOOKS, BackendSpec
from core_engine.hookspecs.model_runner import ModelRunnerApi
from core_engine.hookspecs.worker import WorkerApi

__all__ = ["REQUIRED_HOOKS", "BackendSpec", "ModelRunnerApi", "WorkerApi"]
