"""What an engine will be, settled before a device is opened or a weight is read; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core_engine.backends.backend import AppliedChange
from core_engine.backends.selection import Selection
from core_engine.config import LOAD_FORMATS, EngineConfig, ModelConfig
from core_engine.engine.feature_table import FeatureRow, FeatureTable
from core_engine.engine.settle import longest_sequence_rows, settle_config
from core_engine.errors import ConfigError, did_you_mean
from core_engine.models.config_reader import read_model_config
from core_engine.plugin import Capabilities
from core_engine.scheduler.features import SETTING_OF
from core_engine.scheduler.selection import choose_scheduler

__all__ = ["SettledEngine", "settle_engine"]


@dataclass(frozen=True, slots=True)
class SettledEngine:
    """The settled configuration of one model on one backend, and the table that explains it."""

    #: What the user asked for, and with it what the backend must have otherwise.
    asked: EngineConfig
    #: The same without open fields, ``max_model_len`` excepted.
    config: EngineConfig
    model: ModelConfig
    #: As the light module declares them; the opened device may narrow them.
    capabilities: Capabilities
    features: FeatureTable

    def over_processes(self, num_ranks: int) -> SettledEngine:
        """Return the same for ``num_ranks`` workers: whatever ``executor`` says, each has its own process."""
        row = FeatureRow("executor", "process", f"{num_ranks} ranks, each in a process of its own")
        config = replace(self.config, executor="process")
        return replace(self, config=config, features=self.features.replaced(row))


def settle_engine(config: EngineConfig, selection: Selection, *, weights: bool = True) -> SettledEngine:
    """Read the model's facts, and settle ``config`` for the backend that ``selection`` chose.

    With ``weights=False``, or where they are random, the model need not have any.
    Raises `ModelError` for the model's files, `ConfigError` for settings that cannot work, and
    `PluginError` when a plugin fails.
    """
    backend, devices = selection.backend, selection.detection.devices
    if config.load_format not in LOAD_FORMATS:
        raise ConfigError(
            f"load_format must be {' or '.join(LOAD_FORMATS)}, got {config.load_format!r}."
            f"{did_you_mean(config.load_format, LOAD_FORMATS)}"
        )
    model = read_model_config(config, weights=weights and config.load_format != "dummy")
    capabilities = backend.capabilities(devices, config, model)
    settled, features = settle_config(config, model, capabilities, backend.name)
    settled, changes = backend.check_config(settled, model, devices)
    features = features.replaced(*map(_row, changes))
    # The backend has the last word, so what it changed must still do.
    choose_scheduler(settled, capabilities, backend.name)
    features = features.replaced(*longest_sequence_rows(settled, model, capabilities))
    asked = replace(config, **{change.field: change.new for change in changes})
    return SettledEngine(asked, settled, model, capabilities, features)


def _row(change: AppliedChange) -> FeatureRow:
    feature = {setting: feature for feature, setting in SETTING_OF.items()}.get(change.field, change.field)
    state = ("on" if change.new else "off") if isinstance(change.new, bool) else str(change.new)
    return FeatureRow(feature, state, change.explanation)
