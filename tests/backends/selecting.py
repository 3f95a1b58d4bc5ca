"""A selection among the backends of a test's site, and what it says of the others."""

from __future__ import annotations

from core_engine.backends.discovery import FindingState
from core_engine.backends.selection import Selection, select_backend

__all__ = ["select", "states"]


def select(flag: str | None = None, *, serve: bool = False, **environment: str) -> Selection:
    """Select with the flag ``--backend`` and the variables of ``environment`` alone."""
    return select_backend(flag, environment, serve=serve)


def states(selection: Selection) -> dict[str, FindingState]:
    """Return the state of each backend that was passed over."""
    return {other.name: other.state for other in selection.passed_over}
