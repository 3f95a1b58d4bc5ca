"""Asks NVIDIA's management library (NVML) what GPUs there are. Light: ctypes alone.

NVML answers without initialising CUDA, so nothing that is asked here is in the way of a later fork, and no
memory of a GPU is taken. Function names and structures are those of NVIDIA's NVML API reference,
https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any

__all__ = ["ANSWER_TIMEOUT_S", "LIBRARY", "Driver", "Gpu", "NoGpus", "ask_nvml"]

LIBRARY = "libnvidia-ml.so.1"
#: Without persistence mode the driver starts every GPU for the question, which takes seconds.
ANSWER_TIMEOUT_S = 30.0

_SUCCESS = 0
_LIBRARY_NOT_FOUND = 12
_TEXT_BYTES = 96
_MIG_ON = 1


class NoGpus(Exception):
    """No GPU can be used; the message says why, where NVML refused in NVML's own words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, or one of the instances into which a GPU in MIG mode is divided."""

    #: "GPU-…" or "MIG-…", as ``nvidia-smi -L`` shows it and CUDA_VISIBLE_DEVICES takes it.
    uuid: str
    name: str
    #: None where the driver does not tell (memory shared with the host).
    memory_bytes: int | None = None
    #: (major, minor) compute capability; None where only the driver's files were read.
    capability: tuple[int, int] | None = None
    #: The instances of a GPU in MIG mode; programs see these in its place.
    instances: tuple[Gpu, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The driver and its GPUs in the order of the PCI bus."""

    version: str
    #: (major, minor) of the newest CUDA that the driver serves; None where libcuda.so.1 is missing.
    cuda_version: tuple[int, int] | None
    gpus: tuple[Gpu, ...]


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def ask_nvml(library: Any, timeout_s: float = ANSWER_TIMEOUT_S) -> Driver:
    """Return what NVML tells; ``library`` is the loaded ``libnvidia-ml.so.1``.

    Raises `NoGpus`, also when no answer came in time: for a driver that hangs a thread waits for ever, and
    the caller ``timeout_s``.
    """
    answers: list[Driver | BaseException] = []

    def ask() -> None:
        try:
            answers.append(_Questions(library).ask())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        raise NoGpus(f"nothing within {timeout_s:.0f} s")
    (answer,) = answers
    if isinstance(answer, NoGpus):
        raise answer
    if isinstance(answer, BaseException):
        raise NoGpus(f"{LIBRARY} cannot be asked: {type(answer).__name__}: {answer}") from answer
    return answer


class _Questions:
    """The calls of the C library, with their status turned into `NoGpus`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p

    def ask(self) -> Driver:
        """Open the library, ask everything, close it again."""
        self._call("nvmlInit_v2")
        try:
            count = ctypes.c_uint()
            self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
            return Driver(
                version=self._text("nvmlSystemGetDriverVersion"),
                cuda_version=self._cuda_version(),
                gpus=tuple(self._gpu(index) for index in range(count.value)),
            )
        finally:
            self._library.nvmlShutdown()

    def _cuda_version(self) -> tuple[int, int] | None:
        number = ctypes.c_int()
        status = self._library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number))
        if status == _LIBRARY_NOT_FOUND:
            return None
        self._check(status)
        return number.value // 1000, number.value % 1000 // 10

    def _gpu(self, index: int) -> Gpu:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        capability = (major.value, minor.value)
        return self._device(handle, capability, self._instances(handle, capability))

    def _instances(self, handle: ctypes.c_void_p, capability: tuple[int, int]) -> tuple[Gpu, ...]:
        """Return the instances of a GPU in MIG mode; most GPUs know no such mode."""
        mode, pending, count = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        status = self._library.nvmlDeviceGetMigMode(handle, ctypes.byref(mode), ctypes.byref(pending))
        if status != _SUCCESS or mode.value != _MIG_ON:
            return ()
        self._call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(count))
        instances = []
        for index in range(count.value):
            instance = ctypes.c_void_p()
            status = self._library.nvmlDeviceGetMigDeviceHandleByIndex(
                handle, ctypes.c_uint(index), ctypes.byref(instance)
            )
            if status == _SUCCESS:  # places may be empty
                instances.append(self._device(instance, capability, ()))
        return tuple(instances)

    def _device(
        self, handle: ctypes.c_void_p, capability: tuple[int, int], instances: tuple[Gpu, ...]
    ) -> Gpu:
        memory = _Memory()
        status = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return Gpu(
            uuid=self._text("nvmlDeviceGetUUID", handle),
            name=self._text("nvmlDeviceGetName", handle),
            memory_bytes=memory.total if status == _SUCCESS else None,
            capability=capability,
            instances=instances,
        )

    def _text(self, function: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def _call(self, function: str, *arguments: Any) -> None:
        self._check(getattr(self._library, function)(*arguments))

    def _check(self, status: int) -> None:
        if status != _SUCCESS:
            text = self._library.nvmlErrorString(ctypes.c_int(status))
            raise NoGpus(text.decode(errors="replace") if text else f"NVML error {status}")
