from __future__ import annotations

import pytest
from scheduler import harness


@pytest.fixture(autouse=True)
def scheduler_of_the_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `harness.Engine` builds; see `harness.both_schedulers`."""
    chosen = getattr(request, "param", None)
    if chosen is not None:
        monkeypatch.setattr(harness, "default_scheduler", chosen)
