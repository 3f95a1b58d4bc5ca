"""The optional features of a step: who asks for them, who makes use of them, who offers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core_engine.config import EngineConfig
    from core_engine.plugin._capabilities import Capabilities
    from core_engine.scheduler.contract import Scheduler

__all__ = ["SETTING_OF", "find_gaps", "find_undeclared", "is_on", "wish"]

#: Feature (a field of `Capabilities`, a name in `Scheduler.offers`) → the setting that asks for it.
SETTING_OF: Mapping[str, str] = {
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "draft_tokens": "num_draft_tokens",
    "lora": "max_loras",
}


def wish(config: EngineConfig, feature: str) -> bool | None:
    """Say whether ``config`` asks for ``feature``; None where the engine decides."""
    value: bool | int | None = getattr(config, SETTING_OF[feature])
    return None if value is None else bool(value)


def is_on(feature: str, scheduler: type[Scheduler], config: EngineConfig, capabilities: Capabilities) -> bool:
    """Say whether ``feature`` takes part: asked for, or left open where both sides have it."""
    asked = wish(config, feature)
    if asked is None:
        return feature in scheduler.offers and bool(getattr(capabilities, feature))
    return asked


def find_undeclared(config: EngineConfig, capabilities: Capabilities) -> tuple[str, ...]:
    """Return what was asked for by name and the backend does not declare, as ``setting=value``."""
    return tuple(
        f"{setting}={getattr(config, setting)}"
        for feature, setting in SETTING_OF.items()
        if wish(config, feature) and not getattr(capabilities, feature)
    )


def find_gaps(
    scheduler: type[Scheduler], config: EngineConfig, capabilities: Capabilities
) -> tuple[str, ...]:
    """Return all that stands between ``scheduler`` and what is asked; empty where it can serve.

    That is what it requires of a backend and this one lacks, and each feature that was asked for by
    name and that one of the two does not have.
    """
    missing = [name for name in scheduler.requires if not getattr(capabilities, name)]
    return (
        *(f"it needs {name}, which the backend does not declare" for name in missing),
        *(
            f"{asked} was asked for, and the backend does not declare it"
            for asked in find_undeclared(config, capabilities)
        ),
        *(
            f"{setting}={getattr(config, setting)} was asked for, and the scheduler does without it"
            for feature, setting in SETTING_OF.items()
            if wish(config, feature) and getattr(capabilities, feature) and feature not in scheduler.offers
        ),
    )
