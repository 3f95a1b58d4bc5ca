"""Choose the executor that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from core_engine.backends.reference import make_refs
from core_engine.errors import ConfigError, did_you_mean
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
    """Build the workers of ``contexts``, rank 0 first, with their extensions.

    One lives where its ``config.executor`` says; of several each has a process of its own. The devices
    are not opened yet: `Executor.init_device` comes first. ``environment`` (by default the process's) is
    where ``CORE_ENGINE_EXTENSIONS`` and ``CORE_ENGINE_PLUGINS`` are read. Raises what loading the plugins
    raises.
    """
    variables = os.environ if environment is None else environment
    config = contexts[0].config
    kind = config.executor
    if kind not in EXECUTORS:
        raise ConfigError(
            f"executor is {kind!r}; it is one of {', '.join(EXECUTORS)}.{did_you_mean(kind, EXECUTORS)}"
        )
    extensions = find_extensions(requested_extensions(config, variables), variables)
    if kind == "in-process" and len(contexts) == 1:
        return InProcessExecutor(backend, contexts[0], extensions)
    names = tuple(entry.name for entry in extensions)
    devices = [device for context in contexts for device in context.devices]
    refs = make_refs(backend, tuple(context.plan for context in contexts), devices, names)
    return ProcessExecutor(refs, contexts, extensions)
