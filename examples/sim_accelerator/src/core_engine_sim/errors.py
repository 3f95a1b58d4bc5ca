"""What the simulated device refuses.

Each message says what was asked, what the device can do, and what to do instead::

    SimError (a core_engine.plugin.EngineError)
    ├── HostAccessError       the host reads device memory other than through SimIO
    ├── WrongDeviceError      a tensor of the host or of the other device enters a program
    ├── DynamicShapeError     a result's shape, or a Python value, would depend on data
    ├── MixedStepError        prefill and decode in one step, on a device that cannot mix them
    ├── OutsideProgramError   work on device tensors outside a compiled program
    └── UnpreparedShapeError  a program for new shapes after warm-up, under strict_shapes
"""

from __future__ import annotations

from core_engine.plugin import EngineError

__all__ = [
    "DynamicShapeError",
    "HostAccessError",
    "MixedStepError",
    "OutsideProgramError",
    "SimError",
    "UnpreparedShapeError",
    "WrongDeviceError",
]


class SimError(EngineError):
    """The simulated device refuses an operation."""


class HostAccessError(SimError):
    """The host reads device memory other than through `SimIO`."""


class WrongDeviceError(SimError):
    """A tensor that lives elsewhere enters a program."""


class DynamicShapeError(SimError):
    """A result's shape, or a Python value, would depend on what a tensor holds."""


class MixedStepError(SimError):
    """A step holds prefill and decode tokens, and the device cannot mix them."""


class OutsideProgramError(SimError):
    """Device tensors are computed with outside a compiled program."""


class UnpreparedShapeError(SimError):
    """A program for new shapes was asked for after warm-up, under ``strict_shapes``."""
