"""SimPrograms: one compilation per program and signature, counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from core_engine.plugin.runtime import ProgramBuilder
from core_engine_sim.device import SimDevice
from core_engine_sim.errors import UnpreparedShapeError

__all__ = ["SimPrograms", "signature_of"]

F = TypeVar("F", bound=Callable[..., object])
Signature = tuple[object, ...]


class SimPrograms(ProgramBuilder):
    """Compiles on the first call with new shapes, as a static-shape compiler does.

    The functions it returns are the only way to compute on the device, so nothing runs outside a
    compiled signature. ``seal`` ends warm-up: a further compilation is counted and, with
    ``strict_shapes``, refused.
    """

    def __init__(self, device: SimDevice, *, strict_shapes: bool) -> None:
        self._device = device
        self._strict_shapes = strict_shapes
        self._compiled: dict[str, set[Signature]] = {}
        self._is_sealed = False

    def compile(self, name: str, fn: F) -> F:
        """Return ``fn`` as a program; its tensors must be the device's."""
        compiled = self._compiled.setdefault(name, set())

        @wraps(fn)
        def program(*args: Any) -> object:
            signature = signature_of(args)
            if signature not in compiled:
                self._check_may_compile(name, signature)
                compiled.add(signature)
            with self._device.executing():
                return fn(*args)

        return cast(F, program)

    def num_programs(self) -> int:
        """Count the compilations so far."""
        return sum(map(len, self._compiled.values()))

    def seal(self) -> None:
        """End warm-up: every shape that serving needs has been compiled."""
        self._is_sealed = True

    def _check_may_compile(self, name: str, signature: Signature) -> None:
        if self._is_sealed and self._strict_shapes:
            raise UnpreparedShapeError(
                f"program {name!r} was not prepared for {signature}; it is prepared for "
                f"{len(self._compiled[name])} other signatures. Add the shape to the warm-up, or allow "
                "compilation while serving with --backend-option strict_shapes=false"
            )


def signature_of(value: object) -> Any:
    """Describe an argument as a compiler sees it: tensors by dtype and shape, other values by themselves."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return tuple((key, signature_of(item)) for key, item in sorted(value.items()))
    if isinstance(value, tuple | list):
        return tuple(map(signature_of, value))
    return value
