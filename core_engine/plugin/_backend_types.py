"""The values that discovery hooks take and return: plain, frozen, torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """Who a backend is.

    ``name`` must equal the entry point's name. Among available backends the highest ``priority``
    wins; the built-in CPU backend has 0 and is the choice when nothing else is available.
    """

    name: str
    priority: int
    description: str
    #: Where users read more and report faults.
    url: str = ""


class DetectionState(StrEnum):
    """Whether a backend may be chosen."""

    #: The device is there; automatic choice may take it.
    AVAILABLE = "available"
    #: It works, but only when it is asked for by name (an emulator, a slow fallback).
    BY_NAME_ONLY = "by-name-only"
    #: It cannot be used here; the reason says why.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceInfo:
    """One device as detection saw it; ``index`` counts from 0 within the backend."""

    index: int
    name: str
    #: Bytes of device memory, or None where the driver does not tell.
    memory_bytes: int | None = None
    #: Facts for people and for `doctor`, e.g. {"compute_capability": "9.0"}.
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """The answer of `BackendSpec.detect`: the state, one line of reason, and the devices."""

    state: DetectionState
    reason: str
    devices: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendOption:
    """One option of a backend, given as ``--backend-option name=value``.

    ``type`` is one of "str", "int", "float", "bool"; core parses the text, checks ``choices`` and
    refuses names that no schema lists.
    """

    name: str
    help: str
    type: str = "str"
    default: str | int | float | bool | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigChange:
    """A setting that a backend must have otherwise; core applies it and logs old → new with the reason."""

    field: str
    value: str | int | float | bool | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """One worker process: its rank, the device indices it owns and the variables it needs."""

    rank: int
    device_indices: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
