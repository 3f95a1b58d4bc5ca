"""Build small installed distributions, so that tests meet real entry points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

BACKENDS = "core_engine.backends"
EXTENSIONS = "core_engine.extensions"


def add_distribution(
    site: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    modules: Mapping[str, str] | None = None,
) -> None:
    """Write a distribution's metadata and modules (name → source) into ``site``, as an installer would."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, source in (modules or {}).items():
        (site / f"{module}.py").write_text(source)


def show_distribution(site: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what ``site`` names and ``sources`` holds installed, here and in child processes."""
    monkeypatch.syspath_prepend(site)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, filter(None, (site, sources, inherited)))))
