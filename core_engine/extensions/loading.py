"""Find and load extensions: wrappers around worker and runner hooks, opt-in by name.

An extension is an entry point of the group ``core_engine.extensions`` whose value is a callable; it
takes the `WorkerContext` and returns an object with marked wrappers. Its module states
``CORE_ENGINE_API`` as a backend's does. One that was asked for never fails silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from core_engine.backends.installed import (
    EXTENSION_GROUP,
    InstalledPlugin,
    describe_entries,
    find_entries,
)
from core_engine.backends.named_plugin import find_named, load_callable
from core_engine.backends.plugin_code import describe_failure, describe_value, prints_to_stderr
from core_engine.errors import BackendLoadError, ContractError, CoreEngineError, PluginMismatch
from core_engine.plugin._markers import RUNNER_PROJECT, WORKER_PROJECT

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.worker.context import WorkerContext

__all__ = ["EXTENSIONS_VARIABLE", "find_extensions", "load_extension", "requested_extensions"]

EXTENSIONS_VARIABLE = "CORE_ENGINE_EXTENSIONS"


def requested_extensions(config: EngineConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names to turn on: the configuration's, else those of ``CORE_ENGINE_EXTENSIONS``."""
    names = config.extensions or tuple(environment.get(EXTENSIONS_VARIABLE, "").split(","))
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def find_extensions(names: tuple[str, ...], environment: Mapping[str, str]) -> tuple[InstalledPlugin, ...]:
    """Return the entry point of each name; nothing is imported.

    Raises `ConfigError` for a name that is not installed or that ``CORE_ENGINE_PLUGINS`` leaves out
    (what core-engine itself ships is always allowed), `PluginError` when two plugins share a name.
    """
    asked_by = f"the extensions ({EXTENSIONS_VARIABLE})"
    return tuple(find_named(EXTENSION_GROUP, name, environment, asked_by=asked_by) for name in names)


def load_extension(entry: InstalledPlugin, context: WorkerContext) -> object:
    """Import the extension that ``entry`` names and create it for ``context``.

    Raises `PluginMismatch` when this process does not see that very entry point,
    `BackendLoadError` when it does not import or cannot be created, `ApiVersionError` when it was
    written for another API, `ContractError` when it is no callable or wraps nothing. What it prints
    meanwhile goes to stderr.
    """
    subject = entry.subject
    seen = [other for other in find_entries(EXTENSION_GROUP) if other.name == entry.name]
    if {other.identity for other in seen} != {entry.identity}:
        raise PluginMismatch(
            f"{subject} was resolved by the parent process, but this one sees "
            f"{describe_entries(seen) or 'nothing of that name'}. Make the environments the same"
        )
    try:
        with prints_to_stderr():
            factory = load_callable(entry.value, subject, what="a callable that takes the WorkerContext")
            extension: object = factory(context)
            wraps = _has_wrapper(extension)
    except CoreEngineError as failure:
        if subject not in str(failure):
            failure.add_note(f"while loading {subject}")
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        raise BackendLoadError(f"{subject} failed: {describe_failure(failure)}") from failure
    if not wraps:
        raise ContractError(
            f"{subject} returned {describe_value(extension)}, which wraps nothing: mark methods with "
            "worker_hookimpl(wrapper=True) or runner_hookimpl(wrapper=True) of core_engine.plugin"
        )
    return extension


def _has_wrapper(extension: object) -> bool:
    markers = [f"{project}_impl" for project in (WORKER_PROJECT, RUNNER_PROJECT)]
    return any(
        hasattr(value, marker)
        for cls in type(extension).__mro__
        for value in vars(cls).values()
        for marker in markers
    )
