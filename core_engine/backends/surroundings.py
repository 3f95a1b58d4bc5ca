"""What stands around the backends: extensions, variables, versions; read without importing any of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import core_engine
from core_engine._text import one_line
from core_engine._torch_autoload import AUTOLOAD_VARIABLE
from core_engine.backends.allow_list import PLUGINS_VARIABLE, read_allow_list
from core_engine.backends.installed import (
    BACKEND_GROUP,
    EXTENSION_GROUP,
    POLICY_GROUP,
    SCHEDULER_GROUP,
    InstalledPlugin,
    describe_entries,
    find_entries,
)
from core_engine.backends.selection import BACKEND_VARIABLE, STRICT_VARIABLE
from core_engine.plugin._probe import Probe
from core_engine.plugin._version import API_VERSION

__all__ = [
    "ExtensionRow",
    "TorchExtensionRow",
    "Variable",
    "find_duplicates",
    "find_extensions",
    "installed_versions",
    "read_variables",
    "try_torch_extensions",
]

EXTENSIONS_VARIABLE = "CORE_ENGINE_EXTENSIONS"
TORCH_EXTENSION_GROUP = "torch.backends"

_VARIABLES = (BACKEND_VARIABLE, PLUGINS_VARIABLE, STRICT_VARIABLE, EXTENSIONS_VARIABLE, AUTOLOAD_VARIABLE)
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_DISTRIBUTIONS = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "numba",
    "pluggy",
    "msgspec",
    "importlib-metadata",
)

#: Does with one extension, in a process of its own, what ``import torch`` would do.
_TRY_TORCH_EXTENSION = """
import importlib, json, operator, sys
sys.path[:] = json.loads(sys.argv[1])
import torch
module, _, attribute = sys.argv[2].partition(":")
target = importlib.import_module(module)
(operator.attrgetter(attribute)(target) if attribute else target)()
"""
_TRY_TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtensionRow:
    """One extension of core-engine, installed or asked for."""

    name: str
    #: Whether ``CORE_ENGINE_EXTENSIONS`` turns it on.
    requested: bool
    #: "installed", "blocked" (by the allow-list), "duplicate" or "missing".
    state: str
    distribution: str
    version: str
    entry_point: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchExtensionRow:
    """One extension that torch would load by itself."""

    name: str
    distribution: str
    version: str
    entry_point: str
    #: Why it fails, in one line, or None.
    problem: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A variable that counts; the origin is "environment" or "default"."""

    name: str
    value: str | None
    origin: str


def find_extensions(environment: Mapping[str, str]) -> tuple[ExtensionRow, ...]:
    """Return the installed extensions and those that ``CORE_ENGINE_EXTENSIONS`` asks for, by name."""
    allow_list = read_allow_list(environment)
    asked = {part.strip() for part in environment.get(EXTENSIONS_VARIABLE, "").split(",")} - {""}
    by_name = _by_name(EXTENSION_GROUP)
    rows = []
    for name in sorted(asked | set(by_name)):
        entries = by_name.get(name, [])
        if not entries:
            state = "missing"
        elif not allow_list.permits(name) and entries[0].distribution != "core-engine":
            state = "blocked"
        elif len({entry.identity for entry in entries}) > 1:
            state = "duplicate"
        else:
            state = "installed"
        rows.append(
            ExtensionRow(
                name=name,
                requested=name in asked,
                state=state,
                distribution=entries[0].distribution if entries else "",
                version=entries[0].version if entries else "",
                entry_point=entries[0].value if entries else "",
            )
        )
    return tuple(rows)


def try_torch_extensions() -> tuple[TorchExtensionRow, ...]:
    """Try each installed ``torch.backends`` extension in a process of its own."""
    return tuple(
        TorchExtensionRow(
            name=entry.name,
            distribution=entry.distribution,
            version=entry.version,
            entry_point=entry.value,
            problem=_try_torch_extension(entry),
        )
        for entry in find_entries(TORCH_EXTENSION_GROUP)
    )


def read_variables(environment: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the variables that steer plugins, and every other of core-engine's that is set.

    The values of variables that look like secrets are not shown.
    """
    others = sorted(
        name for name in environment if name.startswith("CORE_ENGINE_") and name not in _VARIABLES
    )
    return tuple(
        Variable(
            name=name,
            value=_masked(name, environment.get(name)),
            origin="environment" if name in environment else "default",
        )
        for name in (*_VARIABLES, *others)
    )


def installed_versions(probe: Probe) -> dict[str, str | None]:
    """Return the versions of core-engine, its plugin API, Python, the system and the main dependencies."""
    return {
        "core-engine": core_engine.__version__,
        "plugin API": API_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: probe.distribution_version(name) for name in _DISTRIBUTIONS},
    }


def find_duplicates() -> tuple[str, ...]:
    """Describe each plugin name that more than one folder or distribution brings."""
    return tuple(
        f"{group} {name!r}: {describe_entries(entries)}"
        for group in (BACKEND_GROUP, EXTENSION_GROUP, SCHEDULER_GROUP, POLICY_GROUP)
        for name, entries in _by_name(group).items()
        if len(entries) > 1
    )


def _by_name(group: str) -> dict[str, list[InstalledPlugin]]:
    by_name: dict[str, list[InstalledPlugin]] = {}
    for entry in find_entries(group):
        by_name.setdefault(entry.name, []).append(entry)
    return by_name


def _try_torch_extension(entry: InstalledPlugin) -> str | None:
    command = [sys.executable, "-c", _TRY_TORCH_EXTENSION, json.dumps(sys.path), entry.value]
    try:
        tried = subprocess.run(
            command,
            env={**os.environ, AUTOLOAD_VARIABLE: "0"},
            capture_output=True,
            text=True,
            timeout=_TRY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not load within {_TRY_TIMEOUT_S} s"
    if tried.returncode == 0:
        return None
    return one_line((tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1])


def _masked(name: str, value: str | None) -> str | None:
    secret = value and any(word in name for word in _SECRET_WORDS)
    return "(set, not shown)" if secret else value
