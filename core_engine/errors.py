"""Every error that core-engine raises on purpose.

Each message says what was asked, what is possible, and what to do::

    CoreEngineError
    ├── ConfigError                     a setting is wrong or cannot work (exit code 2)
    │   ├── InvalidRequest              one request's input is wrong; other requests go on
    │   │   └── AdapterError            a LoRA adapter cannot be used with this model
    │   ├── UnsupportedFeature          the chosen backend does not offer what was asked
    │   └── DoesNotFit                  the device has too little memory for the model or its cache
    ├── ModelError                      the model cannot be used
    │   ├── ModelNotFound               no model at that path or hub id
    │   ├── ModelLoadError              config, weights or tokenizer are damaged or incomplete
    │   └── UnsupportedModel            the architecture is refused, with the reason
    ├── PluginError                     a plugin cannot be used
    │   ├── BackendNotFound             no installed backend has that name
    │   ├── BackendUnavailable          the backend is installed, its device or driver is not there
    │   ├── BackendBlocked              the allow-list excludes the backend
    │   ├── BackendLoadError            importing or constructing the plugin failed
    │   ├── AmbiguousBackend            two backends share the highest priority, or one name
    │   ├── ApiVersionError             written for another version of the plugin API
    │   ├── ContractError               breaks the plugin API: signature, type or missing method
    │   └── PluginMismatch              a worker found another plugin than the one that was resolved
    └── EngineError                     a running engine failed
        ├── OutOfDeviceMemory           an allocation on the device failed
        ├── DeviceLost                  the device stopped answering
        ├── StepTimeout                 a step did not finish in the given time
        ├── WorkerDied                  a worker process ended while the engine was open
        └── EngineClosed                the engine was closed before the call
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "AdapterError",
    "AmbiguousBackend",
    "ApiVersionError",
    "BackendBlocked",
    "BackendLoadError",
    "BackendNotFound",
    "BackendUnavailable",
    "ConfigError",
    "ContractError",
    "CoreEngineError",
    "DeviceLost",
    "DoesNotFit",
    "EngineClosed",
    "EngineError",
    "InvalidRequest",
    "ModelError",
    "ModelLoadError",
    "ModelNotFound",
    "OutOfDeviceMemory",
    "PluginError",
    "PluginMismatch",
    "StepTimeout",
    "UnsupportedFeature",
    "UnsupportedModel",
    "WorkerDied",
    "did_you_mean",
]


class CoreEngineError(Exception):
    """The root of all errors that core-engine raises on purpose."""


class ConfigError(CoreEngineError):
    """A setting is wrong or cannot work together with the others."""


class InvalidRequest(ConfigError):
    """One request's input is wrong; ``param`` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class AdapterError(InvalidRequest):
    """A LoRA adapter is damaged, of a kind that is not served, or made for another model."""


class UnsupportedFeature(ConfigError):
    """The chosen backend does not offer a feature that was asked for by name."""


class DoesNotFit(ConfigError):
    """The device has too little memory for the model or its KV cache."""


class ModelError(CoreEngineError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """No model stands at the given path or hub id."""


class ModelLoadError(ModelError):
    """A file of the model is damaged, incomplete or of a refused kind."""


class UnsupportedModel(ModelError):
    """The architecture is refused before its weights are read."""


class PluginError(CoreEngineError):
    """A plugin cannot be used."""


class BackendNotFound(PluginError):
    """No installed backend has the requested name."""


class BackendUnavailable(PluginError):
    """The backend is installed, but its device or driver is not there."""


class BackendBlocked(PluginError):
    """``CORE_ENGINE_PLUGINS`` excludes the requested backend."""


class BackendLoadError(PluginError):
    """Importing or constructing a plugin failed."""


class AmbiguousBackend(PluginError):
    """Two available backends share the highest priority, or two plugins claim one name."""


class ApiVersionError(PluginError):
    """A plugin was written for a version of the plugin API that this core does not serve."""


class ContractError(PluginError):
    """A plugin breaks the plugin API: a signature, a return type or a missing method."""


class PluginMismatch(PluginError):
    """A worker process found another plugin than the one its parent resolved."""


class EngineError(CoreEngineError):
    """A running engine failed."""


class OutOfDeviceMemory(EngineError):
    """An allocation on the device failed; the backend stays usable."""


class DeviceLost(EngineError):
    """The device stopped answering; the engine must be started anew."""


class StepTimeout(EngineError):
    """A step did not finish within the given time."""


class WorkerDied(EngineError):
    """A worker process ended without being asked to, or its group had to be ended; start the engine anew."""


class EngineClosed(EngineError):
    """The engine was closed before this call."""


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known name, or an empty string.

    Case and a flag's dashes do not count; names that begin with what was asked come first.
    """
    names = {name.lstrip("-").casefold(): name for name in known}
    wanted = asked.strip().lstrip("-").casefold()
    longer = [name for name in names if wanted and name.startswith(wanted)]
    close = get_close_matches(wanted, longer or names, n=1, cutoff=0.0 if longer else 0.6)
    return f" Did you mean {names[close[0]]!r}?" if close else ""
