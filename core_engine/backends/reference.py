"""BackendRef: what a worker process is told about the backend, so that it never detects again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

import core_engine
from core_engine.backends.backend import Backend
from core_engine.backends.installed import BACKEND_GROUP, builtin_entries, find_entries
from core_engine.backends.loading import load_backend
from core_engine.errors import PluginMismatch
from core_engine.plugin._backend_types import DeviceInfo, WorkerPlan

__all__ = ["BackendRef", "decode_ref", "encode_ref", "make_refs", "resolve_ref"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRef:
    """One worker's share of a resolved backend: numbers and strings only, ready for msgpack."""

    #: The entry point's name, which is the backend's.
    backend: str
    #: The entry point's value: the light module's path.
    entry_point: str
    #: The distribution that brought it, and that distribution's version.
    distribution: str
    version: str
    #: The version of core-engine that made this reference.
    core_version: str
    #: This worker's rank, its device indices and its variables.
    plan: WorkerPlan
    #: The devices of ``plan`` as the parent detected them, in its order.
    devices: tuple[DeviceInfo, ...]
    world_size: int = 1
    #: Names of the extensions that wrap this worker and its runner.
    extensions: tuple[str, ...] = ()


def make_refs(
    backend: Backend,
    plans: tuple[WorkerPlan, ...],
    devices: Iterable[DeviceInfo],
    extensions: tuple[str, ...] = (),
) -> tuple[BackendRef, ...]:
    """Return one reference per plan, rank 0 first; ``devices`` are all that detection found."""
    by_index = {device.index: device for device in devices}
    return tuple(
        BackendRef(
            backend=backend.name,
            entry_point=backend.entry.value,
            distribution=backend.entry.distribution,
            version=backend.entry.version,
            core_version=core_engine.__version__,
            plan=plan,
            devices=tuple(by_index[index] for index in plan.device_indices),
            world_size=len(plans),
            extensions=extensions,
        )
        for plan in plans
    )


def encode_ref(ref: BackendRef) -> bytes:
    """Return ``ref`` as msgpack."""
    return msgspec.msgpack.encode(ref)


def decode_ref(data: bytes) -> BackendRef:
    """Read what `encode_ref` wrote. Raises `PluginMismatch` for the message of another core-engine."""
    try:
        return msgspec.msgpack.decode(data, type=BackendRef)
    except msgspec.DecodeError as error:
        raise PluginMismatch(
            f"the worker cannot read its parent's backend reference ({error}). Start both from "
            f"environments with the same core-engine; the worker's is {core_engine.__version__}"
        ) from error


def resolve_ref(ref: BackendRef) -> Backend:
    """Load exactly the entry point that the parent resolved, without any detection.

    Raises `PluginMismatch` when this process sees another core-engine, another version,
    distribution or entry point, or more than one; otherwise what `load_backend` raises.
    """
    wanted = (ref.distribution, ref.version, ref.entry_point)
    if ref.core_version != core_engine.__version__:
        raise PluginMismatch(
            f"the parent process runs core-engine {ref.core_version}, this worker "
            f"{core_engine.__version__}. Start both from environments with the same core-engine"
        )
    entries = [
        entry for entry in (*builtin_entries(), *find_entries(BACKEND_GROUP)) if entry.name == ref.backend
    ]
    builtin = [entry for entry in entries if entry.builtin]
    found = builtin or entries
    identities = sorted({entry.identity for entry in found})
    if identities != [wanted]:
        seen = "; ".join(str(entry) for entry in found) or "nothing of that name"
        raise PluginMismatch(
            f"the parent process resolved backend {ref.backend!r} to {ref.distribution} {ref.version} "
            f"({ref.entry_point}), but this worker sees {seen}. Make the worker's environment the same "
            "as the parent's (`core-engine doctor` there lists what is installed)"
        )
    return load_backend(found[0])
