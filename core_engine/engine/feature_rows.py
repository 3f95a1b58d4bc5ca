"""The optional features of an engine as rows of its table: on or off, and why."""

from __future__ import annotations

from core_engine.config import EngineConfig
from core_engine.engine.feature_table import FeatureRow
from core_engine.plugin import Capabilities
from core_engine.scheduler.features import SETTING_OF, is_on
from core_engine.scheduler.selection import SchedulerChoice

__all__ = ["feature_rows"]


def feature_rows(
    config: EngineConfig, choice: SchedulerChoice, capabilities: Capabilities, backend: str
) -> list[FeatureRow]:
    """Return the rows of scheduler and policy, of each feature that it may use, and the backend's own."""
    rows = [
        FeatureRow("scheduler", choice.name, choice.reason),
        FeatureRow("policy", config.scheduling_policy, "scheduling_policy"),
    ]
    for feature, setting in SETTING_OF.items():
        asked = f"{setting}={getattr(config, setting)}"
        if is_on(feature, choice.scheduler, config, capabilities):
            rows.append(FeatureRow(feature, "on", "" if getattr(config, setting) is None else asked))
        elif not getattr(capabilities, feature):
            rows.append(FeatureRow(feature, "off", _not_offered(config, backend)))
        elif feature not in choice.scheduler.offers:
            rows.append(FeatureRow(feature, "off", f"scheduler {choice.name} does without it"))
        else:
            rows.append(FeatureRow(feature, "off", asked))
    for feature, offered, reason in (
        ("logprobs", capabilities.max_logprobs > 0, f"up to {capabilities.max_logprobs} a token"),
        ("prompt_logprobs", capabilities.prompt_logprobs, ""),
        ("sliding_window", capabilities.sliding_window, ""),
    ):
        state = "on" if offered else "off"
        rows.append(FeatureRow(feature, state, reason if offered else _not_offered(config, backend)))
    return rows


def _not_offered(config: EngineConfig, backend: str) -> str:
    size = config.tensor_parallel_size
    return f"{backend} does not offer it" + (f" with tensor_parallel_size {size}" if size > 1 else "")
