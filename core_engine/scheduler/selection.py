"""Selection: which scheduler an engine uses, and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core_engine.backends.selection import is_strict
from core_engine.errors import CoreEngineError, UnsupportedFeature
from core_engine.scheduler.features import find_gaps, find_undeclared
from core_engine.scheduler.plugins import load_scheduler

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.scheduler.contract import Scheduler

__all__ = ["SchedulerChoice", "choose_scheduler"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """A scheduler that can do what was asked, by the name that `load_scheduler` knows it by."""

    name: str
    scheduler: type[Scheduler]
    #: Why this one, in a few words.
    reason: str


def choose_scheduler(
    config: EngineConfig,
    capabilities: Capabilities,
    backend: str,
    environment: Mapping[str, str] | None = None,
) -> SchedulerChoice:
    """Choose the user's scheduler, else the backend's preference, else unified, else simple.

    One is taken only where the backend has all that it requires and the two have each feature that was
    asked for by name. A preference that cannot be taken is passed over, and the reason says so (one that
    does not load is an error under ``CORE_ENGINE_STRICT_PLUGINS``); the user's choice is an error then.

    Raises `UnsupportedFeature`, listing all gaps at once, and what `load_scheduler` raises for the
    user's choice.
    """
    if config.scheduler is not None:
        scheduler = load_scheduler(config.scheduler, environment)
        if gaps := find_gaps(scheduler, config, capabilities):
            raise UnsupportedFeature(
                f"scheduler {config.scheduler!r} was asked for, but it cannot serve this on backend "
                f"{backend!r}: {'; '.join(gaps)}. Leave one of the two open"
            )
        return SchedulerChoice(config.scheduler, scheduler, "asked for")
    if undeclared := find_undeclared(config, capabilities):
        raise UnsupportedFeature(
            f"{', '.join(undeclared)}: asked for, but not offered by backend {backend!r}; leave it off"
        )
    passed_over: list[str] = []
    preferred = capabilities.preferred_scheduler
    for name in dict.fromkeys((*([preferred] if preferred else []), "unified", "simple")):
        try:
            scheduler = load_scheduler(name, environment)
        except CoreEngineError as failure:
            if is_strict(os.environ if environment is None else environment):
                raise
            logger.warning("backend %s prefers scheduler %s: %s", backend, name, failure)
            passed_over.append(f"{name} does not load")
            continue
        gaps = find_gaps(scheduler, config, capabilities)
        if not gaps:
            own = f"preferred by {backend}" if name == preferred else "the default"
            return SchedulerChoice(name, scheduler, "; ".join(passed_over) or own)
        passed_over.append(f"not {name}: {' and '.join(gaps)}")
    raise UnsupportedFeature(
        f"no scheduler can do on backend {backend!r} what was asked for: {'; '.join(passed_over)}"
    )
