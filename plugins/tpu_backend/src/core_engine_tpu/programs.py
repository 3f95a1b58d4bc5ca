"""TpuPrograms: graphs by shape, and the guard that no graph is compiled while serving."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from core_engine.plugin import EngineError
from core_engine.plugin.runtime import ProgramBuilder
from core_engine_tpu.faults import typed_fault
from core_engine_tpu.runtime import XlaRuntime

__all__ = ["TpuPrograms"]

logger = logging.getLogger("core_engine.backends.tpu")

F = TypeVar("F", bound=Callable[..., object])


class TpuPrograms(ProgramBuilder):
    """Compiles on first use of a shape; ``seal`` ends warm-up, and a compilation after that is a fault."""

    def __init__(self, runtime: XlaRuntime, *, fail_on_compilation: bool) -> None:
        self._runtime = runtime
        self._fails = fail_on_compilation
        self._is_sealed = False

    def compile(self, name: str, fn: F) -> F:
        """Return ``fn`` compiled by XLA."""
        compiled = cast(Any, self._runtime.compile(fn))

        @wraps(fn)
        def program(*args: Any) -> object:
            if not self._is_sealed:
                return _run(name, compiled, args)
            # Read anew each time: another engine of this process may have warmed up since.
            before = self._counts()
            result = _run(name, compiled, args)
            if self._counts() != before:
                self._tell(name, args)
            return result

        return cast(F, program)

    def without_gradients(self) -> AbstractContextManager[object]:
        """Return `torch.no_grad`: the bridge to XLA cannot take inference tensors."""
        return torch.no_grad()

    def num_programs(self) -> int:
        """Count the compiled graphs."""
        return self._runtime.num_graphs()

    def seal(self) -> None:
        """End warm-up: from now on both counters are read around each call."""
        self._is_sealed = True

    def _counts(self) -> tuple[int, int]:
        return self._runtime.num_graphs(), self._runtime.num_compilations()

    def _tell(self, name: str, args: tuple[Any, ...]) -> None:
        text = (
            f"graph {name!r} was compiled while serving, for {_shapes(args)}: warm-up did not prepare that "
            "shape"
        )
        if self._fails:
            raise EngineError(text)
        logger.warning("%s", text)


def _run(name: str, compiled: Callable[..., object], args: tuple[Any, ...]) -> object:
    """Call a graph. Raises `OutOfDeviceMemory` or `DeviceLost` where compiling or running it says so."""
    try:
        return compiled(*args)
    except RuntimeError as error:
        typed = typed_fault(error, f"graph {name!r} for {_shapes(args)}")
        if typed is None:
            raise
        raise typed from error


def _shapes(args: tuple[Any, ...]) -> str:
    return ", ".join(str(list(arg.shape)) for arg in args if hasattr(arg, "shape"))
