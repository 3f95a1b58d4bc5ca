"""Which plugins are installed: read from distribution metadata, nothing imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import importlib_metadata

import core_engine

__all__ = [
    "BACKEND_GROUP",
    "BUILTIN_BACKENDS",
    "EXTENSION_GROUP",
    "POLICY_GROUP",
    "SCHEDULER_GROUP",
    "InstalledPlugin",
    "builtin_entries",
    "describe_entries",
    "find_entries",
    "noun_of",
]

BACKEND_GROUP = "core_engine.backends"
EXTENSION_GROUP = "core_engine.extensions"
SCHEDULER_GROUP = "core_engine.schedulers"
POLICY_GROUP = "core_engine.scheduling_policies"

#: Backends that core ships: (name, light module). They take the same path as a vendor's.
BUILTIN_BACKENDS = (("cpu", "core_engine.backends.cpu.plugin"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledPlugin:
    """One entry point of one distribution."""

    group: str
    name: str
    #: ``package.module`` or ``package.module:attribute``.
    value: str
    distribution: str
    version: str
    #: The folder whose metadata names it; empty for core's own.
    location: str = ""
    builtin: bool = False

    @property
    def identity(self) -> tuple[str, str, str]:
        """Distribution, version and value: entries that agree on these are the same plugin."""
        return (self.distribution, self.version, self.value)

    @property
    def subject(self) -> str:
        """The words that messages about this plugin begin with."""
        return f"{noun_of(self.group)} {self.name!r} of {self}"

    def without_subject(self, message: str) -> str:
        """Return ``message`` without `subject` in front, for tables that name the plugin anyway."""
        return message.removeprefix(self.subject).lstrip(": ")

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.value})"


def noun_of(group: str) -> str:
    """Return what one plugin of ``group`` is called: "backend", "scheduling policy" …"""
    plural = group.rpartition(".")[2].replace("_", " ")
    return f"{plural[:-3]}y" if plural.endswith("ies") else plural.removesuffix("s")


def builtin_entries() -> tuple[InstalledPlugin, ...]:
    """Return core's own backends as entry points of the distribution core-engine."""
    return tuple(
        InstalledPlugin(
            group=BACKEND_GROUP,
            name=name,
            value=value,
            distribution="core-engine",
            version=core_engine.__version__,
            builtin=True,
        )
        for name, value in BUILTIN_BACKENDS
    )


def find_entries(group: str) -> tuple[InstalledPlugin, ...]:
    """Return every entry point of ``group`` on ``sys.path``, sorted, whatever the path's order.

    All distributions are read, also those that another one with the same name hides from
    `importlib.metadata.entry_points` (a stale ``dist-info``). Metadata that cannot be read is
    passed over: it must not keep the others from loading.
    """
    found = set()
    for distribution in importlib_metadata.distributions():
        try:
            found.update(_entries_of(cast(importlib_metadata.Distribution, distribution), group))
        except Exception:  # any damage to somebody's metadata files
            continue
    return tuple(sorted(found, key=lambda entry: (entry.name, *entry.identity, entry.location)))


def describe_entries(entries: Iterable[InstalledPlugin]) -> str:
    """List entries with the folders that they were found in, for messages about duplicates."""
    return "; ".join(f"{entry} in {entry.location}" for entry in entries)


def _entries_of(distribution: importlib_metadata.Distribution, group: str) -> list[InstalledPlugin]:
    text = distribution.read_text("entry_points.txt")
    if text is None or f"[{group}]" not in text:
        return []
    return [
        InstalledPlugin(
            group=group,
            name=entry.name,
            value=entry.value,
            distribution=re.sub(r"[-_.]+", "-", distribution.name).lower(),
            version=distribution.version,
            location=str(Path(str(distribution.locate_file(""))).resolve()),
        )
        for entry in distribution.entry_points.select(group=group)
    ]
