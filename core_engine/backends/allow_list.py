"""The operator's allow-list of plugins, applied before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from core_engine.errors import did_you_mean

__all__ = ["PLUGINS_VARIABLE", "AllowList", "read_allow_list"]

PLUGINS_VARIABLE = "CORE_ENGINE_PLUGINS"


@dataclass(frozen=True, slots=True)
class AllowList:
    """The names that may be imported; None allows all. What core itself ships is always allowed."""

    names: frozenset[str] | None = None

    def __str__(self) -> str:
        return ",".join(sorted(self.names or ()))

    def permits(self, name: str) -> bool:
        """Say whether the plugin ``name`` (backend, extension or scheduler) may be imported."""
        return self.names is None or name in self.names

    def warnings(self, known: Iterable[str]) -> tuple[str, ...]:
        """Return one line for each listed name that is not among the ``known`` plugins."""
        known = sorted(set(known))
        return tuple(
            f"{PLUGINS_VARIABLE} lists {name!r}, but no plugin of that name is installed."
            f"{did_you_mean(name, known)} Installed are {', '.join(known)}"
            for name in sorted(self.names or ())
            if name not in known
        )


def read_allow_list(environment: Mapping[str, str]) -> AllowList:
    """Read ``CORE_ENGINE_PLUGINS``, names separated by commas; unset or empty allows all."""
    names = frozenset(part.strip() for part in environment.get(PLUGINS_VARIABLE, "").split(","))
    return AllowList(names - {""} or None)
