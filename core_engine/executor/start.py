"""Choose the executor that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core_engine.backends.reference import make_refs
from core_engine.errors import ConfigError, UnsupportedFeature, did_you_mean
from core_engine.executor.in_process import InProcessExecutor
from core_engine.executor.process import ProcessExecutor
from core_engine.extensions.loading import find_extensions, requested_extensions

if TYPE_CHECKING:
    from core_engine.backends.backend import Backend
    from core_engine.executor.base import Executor
    from core_engine.worker.context import WorkerContext

__all__ = ["EXECUTORS", "create_executor"]

EXECUTORS = ("in-process", "process")


def create_executor(
    backend: Backend, contexts: tuple[WorkerContext, ...], environment: Mapping[str, str] | None = None
) -> Executor:
    """Build the worker of ``contexts`` where its ``config.executor`` says, with its extensions.

    The device is not opened yet: `Executor.init_device` comes first. ``environment`` (by default the
    process's) is where ``CORE_ENGINE_EXTENSIONS`` and ``CORE_ENGINE_PLUGINS`` are read. Raises
    `UnsupportedFeature` for more than one worker, and what loading the plugins raises.
    """
    variables = os.environ if environment is None else environment
    context = contexts[0]
    if len(contexts) != 1:
        raise UnsupportedFeature(
            f"backend {backend.name!r} plans {len(contexts)} workers, but this core-engine runs one: "
            "set tensor_parallel_size to 1"
        )
    kind = context.config.executor
    if kind not in EXECUTORS:
        raise ConfigError(
            f"executor is {kind!r}; it is one of {', '.join(EXECUTORS)}.{did_you_mean(kind, EXECUTORS)}"
        )
    extensions = find_extensions(requested_extensions(context.config, variables), variables)
    if kind == "in-process":
        return InProcessExecutor(backend, context, extensions)
    names = tuple(entry.name for entry in extensions)
    (ref,) = make_refs(backend, (context.plan,), context.devices, names)
    return ProcessExecutor(ref, context, extensions)
