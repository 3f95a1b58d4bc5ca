"""Typed errors for what torch reports as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from core_engine.plugin import CoreEngineError, DeviceLost, EngineError, OutOfDeviceMemory

__all__ = ["Faults", "is_capture_refusal"]

#: Of torch's allocator, the CUDA runtime, cuBLAS and NCCL.
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED|cudaErrorMemoryAllocation", re.IGNORECASE)
#: A fault on the device. It stays: every later call of the process reports it too.
_LOST = re.compile(
    r"CUDA error|CUDA driver error|device-side assert|cudaError[A-Z]|CUBLAS_STATUS_|CUDNN_STATUS_|NCCL error"
    r"|ncclUnhandledCudaError|ncclSystemError|illegal memory access|Triton Error \[CUDA\]",
)
#: Of a GPU that is newer, or older, than those a library was compiled for.
_NO_CODE = re.compile(r"no kernel image is available")
#: What a graph cannot hold: an operation that waits for the device, or an allocation outside of its pool.
_CAPTURE = re.compile(r"captur|synchronizing CUDA operation", re.IGNORECASE)
_MAX_TEXT = 400

_ADVICE = (
    "Lower kv_cache_bytes, device_memory_utilization, max_num_batched_tokens or max_num_seqs, or divide the "
    "model over more GPUs (tensor_parallel_size)"
)


class Faults:
    """Turns the errors of one device into `OutOfDeviceMemory` and `DeviceLost`, and remembers a loss.

    ``describe_memory`` tells what is free, and ``release`` gives cached memory back; both are called
    after an allocation failed, and neither after a loss.
    """

    def __init__(self, describe_memory: Callable[[], str], release: Callable[[], None]) -> None:
        self._describe_memory = describe_memory
        self._release = release
        #: Why the device is lost; empty while it is not.
        self.lost = ""

    def check(self) -> None:
        """Raise `DeviceLost` once the device was lost: its memory and its context are of no use any more."""
        if self.lost:
            raise DeviceLost(self.lost)

    @contextmanager
    def typed(self, doing: str) -> Iterator[None]:
        """Raise the typed error where an error within the block says so; others pass.

        An error is looked at with its causes: who reads a model's weights wraps what happens on the way.
        """
        self.check()
        try:
            yield
        except (RuntimeError, CoreEngineError) as error:
            typed = self._typed(error, doing)
            if typed is None or isinstance(error, EngineError):
                raise
            raise typed from error

    def _typed(self, error: BaseException, doing: str) -> EngineError | None:
        for cause in _chain(error):
            if not isinstance(cause, RuntimeError):
                continue
            text = " ".join(str(cause).split())[:_MAX_TEXT]
            if isinstance(cause, torch.OutOfMemoryError) or _OUT_OF_MEMORY.search(text):
                _drop_frames(error)
                with suppress(RuntimeError):  # what is to be told is the first error
                    self._release()
                state = self._describe_memory()
                return OutOfDeviceMemory(
                    f"the GPU has too little memory for {doing}: {text} ({state}). {_ADVICE}"
                )
            if _NO_CODE.search(text):
                return EngineError(
                    f"torch {torch.__version__} holds no code for this GPU ({text}): install a build of "
                    "torch that names its compute capability"
                )
            if _LOST.search(text) and not _CAPTURE.search(text):
                self.lost = f"the GPU failed during {doing}: {text}. Start the engine anew, in a new process"
                return DeviceLost(self.lost)
        return None


def is_capture_refusal(error: RuntimeError) -> bool:
    """Tell whether an error says that something cannot be captured as a graph.

    A capture that ends for lack of memory says so too, but only as what followed from that.
    """
    too_little = any(isinstance(cause, torch.OutOfMemoryError) for cause in _chain(error))
    return not too_little and _CAPTURE.search(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _drop_frames(error: BaseException) -> None:
    """Forget where an error and its causes came from: the variables of those frames hold memory."""
    for cause in _chain(error):
        cause.__traceback__ = None
