"""Plugins that are asked for by name: find the one entry point, and load the object that it names.

Extensions, schedulers and scheduling policies take this path. What is asked for by name never fails
silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from core_engine.backends.allow_list import PLUGINS_VARIABLE, read_allow_list
from core_engine.backends.installed import InstalledPlugin, describe_entries, find_entries, noun_of
from core_engine.backends.plugin_code import describe_value
from core_engine.errors import (
    ApiVersionError,
    BackendLoadError,
    ConfigError,
    ContractError,
    PluginError,
    did_you_mean,
)
from core_engine.plugin._load_class import load_class
from core_engine.plugin._version import check_api_version

__all__ = ["find_named", "load_callable"]

_OWN_DISTRIBUTION = "core-engine"


def find_named(
    group: str,
    name: str,
    environment: Mapping[str, str],
    *,
    asked_by: str,
    builtin: Iterable[str] = (),
) -> InstalledPlugin:
    """Return the entry point ``name`` of ``group``; nothing is imported.

    ``asked_by`` says where the name may be taken back; ``builtin`` are names that need no entry point.
    Raises `ConfigError` for a name that is not installed or that ``CORE_ENGINE_PLUGINS`` leaves out
    (what core-engine itself ships is always allowed), `PluginError` when two plugins share a name.
    """
    noun = noun_of(group)
    installed = find_entries(group)
    entries = [entry for entry in installed if entry.name == name]
    if not entries:
        known = sorted({*builtin, *(entry.name for entry in installed)})
        raise ConfigError(
            f"{noun} {name!r} is not installed.{did_you_mean(name, known)} "
            f"Installed are {', '.join(known) or 'none'}"
        )
    if len({entry.identity for entry in entries}) > 1:
        raise PluginError(
            f"{noun} {name!r} is installed more than once: {describe_entries(entries)}. Uninstall all but one"
        )
    allowed = read_allow_list(environment)
    if entries[0].distribution != _OWN_DISTRIBUTION and not allowed.permits(name):
        raise ConfigError(
            f"{noun} {name!r} is asked for, but {PLUGINS_VARIABLE}={allowed} leaves it out: add it "
            f"there, or take it out of {asked_by}"
        )
    return entries[0]


def load_callable(path: str, subject: str, *, what: str) -> Callable[..., Any]:
    """Import the callable at ``path``, ``package.module:NAME``, after its module's API version.

    ``subject`` begins every message; ``what`` completes "a callable that takes …" or the like. Raises
    `BackendLoadError` when it does not import, `ApiVersionError` when it was written for another API,
    `ContractError` when it is none.
    """
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ContractError(f"{subject} names a module only: write '{module}:NAME', where NAME is {what}")
    try:
        loaded: object = load_class(path)
    except BackendLoadError as failure:
        raise BackendLoadError(f"{subject} failed to load: {failure}") from failure
    try:
        check_api_version(getattr(sys.modules[module], "CORE_ENGINE_API", None))
    except ApiVersionError as refusal:
        raise ApiVersionError(f"{subject} is refused: {refusal}") from None
    if not callable(loaded):
        raise ContractError(f"{subject} names {describe_value(loaded)}; it must be {what}")
    return cast("Callable[..., Any]", loaded)
