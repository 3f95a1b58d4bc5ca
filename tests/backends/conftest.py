from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core_engine.testing.plugin_site import PluginSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PluginSite]:
    """A site of real distributions; while the test runs, this process sees no others."""
    site = PluginSite(tmp_path / "site")
    with site.visible():
        yield site
