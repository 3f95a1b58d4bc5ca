"""The messages between an executor and a worker process, as msgpack.

Dataclasses travel as maps, numpy arrays as (dtype, shape, bytes). Nothing else than numbers, strings
and these can be sent: no pickle, no torch objects. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from core_engine.backends.installed import InstalledPlugin
from core_engine.errors import ContractError, EngineError, InvalidRequest
from core_engine.kv_cache.specs import KVCacheConfig, KVCacheSpec
from core_engine.lora.messages import LoRAAdapter, LoRAInfo
from core_engine.scheduler.output import SchedulerOutput
from core_engine.worker.context import WorkerContext
from core_engine.worker.output import ModelRunnerOutput
from core_engine.worker.reports import CaptureReport, DeviceReport, Health, LoadReport, MemoryBudget

__all__ = ["WORKER_CALLS", "Call", "CallSpec", "Reply", "Start", "decode", "encode"]

T = TypeVar("T")

#: Booleans, signed, unsigned and floating-point numbers.
_ARRAY_KINDS = "biuf"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSpec:
    """How one method of `WorkerApi` crosses: its only argument, if any, and the type of its answer."""

    result: Any
    argument: str | None = None
    argument_type: Any = None
    #: Whether the other ranks' answers are needed too; they answer without a result where not.
    of_every_rank: bool = True


#: Every method of `WorkerApi` that can cross a process boundary; a model cannot.
WORKER_CALLS: Mapping[str, CallSpec] = {
    "init_device": CallSpec(result=DeviceReport),
    "load_model": CallSpec(result=LoadReport),
    "get_kv_cache_spec": CallSpec(result=dict[str, KVCacheSpec | str]),
    "determine_available_memory": CallSpec(result=MemoryBudget),
    "initialize_cache": CallSpec(result=int, argument="kv_cache_config", argument_type=KVCacheConfig),
    "compile_or_warm_up_model": CallSpec(result=CaptureReport),
    "execute_model": CallSpec(
        result=ModelRunnerOutput,
        argument="scheduler_output",
        argument_type=SchedulerOutput,
        of_every_rank=False,
    ),
    "add_lora": CallSpec(result=LoRAInfo, argument="adapter", argument_type=LoRAAdapter),
    "remove_lora": CallSpec(result=bool, argument="lora_id", argument_type=int),
    "list_loras": CallSpec(result=tuple[LoRAInfo, ...]),
    "profile": CallSpec(result=str, argument="action", argument_type=str),
    "check_health": CallSpec(result=Health),
    "shutdown": CallSpec(result=bool),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The first frame to a worker process: what to load, and what to build it from.

    Both parts are encoded on their own, so that a worker of another version can read the reference
    and say so before it meets a context that it does not understand.
    """

    #: `core_engine.backends.reference.BackendRef` as msgpack.
    ref: bytes
    #: `WorkerContext` as msgpack.
    context: bytes
    #: The extensions that wrap the worker, as the parent resolved them.
    extensions: tuple[InstalledPlugin, ...] = ()
    #: The rank and the file of the context, which the process itself needs.
    rank: int = 0
    rendezvous: str = ""

    def worker_context(self) -> WorkerContext:
        """Decode the context."""
        return decode(self.context, WorkerContext)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call to the worker; ``argument`` is the encoded argument, empty when there is none."""

    call_id: int
    method: str
    argument: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer to a request: an encoded result, or what `core_engine.executor.remote_error` describes."""

    call_id: int
    result: bytes = b""
    #: Name of a class in `core_engine.errors`; empty for success.
    error: str = ""
    message: str = ""
    #: The field of an `InvalidRequest`.
    param: str | None = None
    traceback: str = ""


def encode(message: object) -> bytes:
    """Return ``message`` as msgpack. Raises `ContractError` for anything that may not be sent."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, OverflowError) as refusal:
        raise ContractError(f"{type(message).__name__} cannot be sent between processes: {refusal}") from None


def decode(data: bytes, message_type: type[T]) -> T:
    """Read a message of ``message_type``. Raises `EngineError` when ``data`` is not one."""
    try:
        return msgspec.msgpack.decode(data, type=message_type, dec_hook=_decode_array)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequest) as damage:
        name = getattr(message_type, "__name__", str(message_type))
        raise EngineError(f"{len(data)} bytes between executor and worker are no {name}: {damage}") from None


def _encode_array(value: object) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"it holds a {type(value).__module__}.{type(value).__qualname__}")
    if value.dtype.kind not in _ARRAY_KINDS:
        raise TypeError(f"it holds an array of dtype {value.dtype}")
    return (value.dtype.str, value.shape, value.tobytes())


def _decode_array(expected: Any, value: Any) -> Any:
    """Build the array that ``expected`` (``NDArray[scalar type]``) announces; it owns its memory."""
    name, shape, data = msgspec.convert(value, type=tuple[str, tuple[int, ...], bytes])
    dtype = np.dtype(name)
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"dtype {name!r} is not allowed")
    scalar = get_args(get_args(expected)[1])[0]
    if scalar is not Any and dtype != np.dtype(scalar):
        raise ValueError(f"array of {dtype} where {np.dtype(scalar)} is expected")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes do not fill {name} {list(shape)}")
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
