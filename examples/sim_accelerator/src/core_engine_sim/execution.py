"""Execution: runs a program's torch operations and kernels on one simulated device.

Operations compute on the host tensors behind `SimTensor`, but only what a static-shape compiler
could have compiled is allowed: no result whose shape depends on data, nothing from another device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)

from core_engine_sim.errors import (
    DynamicShapeError,
    HostAccessError,
    OutsideProgramError,
    WrongDeviceError,
)
from core_engine_sim.tensor import SimTensor

if TYPE_CHECKING:
    from core_engine_sim.device import SimDevice

__all__ = ["Execution", "launch"]

_aten = torch.ops.aten
_HOST = torch.device("cpu")
#: Depend on data, although torch does not tag them so: they are made of other operations.
_UNTAGGED = frozenset(
    {
        _aten.is_nonzero.default,
        _aten.nonzero_numpy.default,
        _aten.repeat_interleave.self_Tensor,
        _aten.where.default,
    }
)
_DATA_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class Execution(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own, untyped
    """The context in which a program runs; new tensors are allocated on ``device``."""

    def __init__(self, device: SimDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sim_device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation. Raises a `SimError` for what the device refuses, `OutOfDeviceMemory`."""
        if _depends_on_data(func):
            _check_static(func, args)
        operands = _Operands(self.sim_device, func)
        host_args = [operands.to_contents(arg) for arg in args]
        host_kwargs = {name: operands.to_contents(value) for name, value in kwargs.items()} if kwargs else {}
        if operands.names_host and operands.tensors:
            raise HostAccessError(
                f"{func} would copy device memory to the host inside a program; return the tensor and "
                "download it through SimIO"
            )
        return operands.from_contents(func(*host_args, **host_kwargs))


def launch(device: SimDevice, kernel: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """Run ``kernel`` as one operation of the program under way and return its result.

    A kernel is code of the device's own: it gets the contents of the tensors in ``args``, may read
    them and may write in place, but the shape of its result must follow from the shapes it got.
    """
    if not isinstance(_get_current_dispatch_mode(), Execution):
        raise OutsideProgramError(f"kernel {kernel.__name__!r} was launched outside a program")
    operands = _Operands(device, kernel.__name__)
    contents = [operands.to_contents(arg) for arg in args]
    with _disable_current_modes():
        result = kernel(*contents)
    tensor: torch.Tensor = operands.from_contents(result)
    return tensor


class _Operands:
    """The device tensors of one operation: inputs first, then its results."""

    __slots__ = ("device", "func", "names_host", "tensors")

    def __init__(self, device: SimDevice, func: Any) -> None:
        self.device = device
        self.func = func
        self.tensors: list[SimTensor] = []
        #: Whether an argument asks for the host as device; without tensors that is torch's default.
        self.names_host = False

    def to_contents(self, value: Any) -> Any:
        """Return an argument with each device tensor replaced by its contents."""
        if isinstance(value, SimTensor):
            if value.sim_device is not self.device:
                raise WrongDeviceError(
                    f"{self.func} on {self.device} got {value!r}: a program reads its own device only"
                )
            self.tensors.append(value)
            return value.contents
        if isinstance(value, list | tuple):
            return [self.to_contents(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.to_contents(item) for key, item in value.items()}
        if isinstance(value, torch.device):
            self.names_host = self.names_host or value.type == "cpu"
            return _HOST
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        return value

    def from_contents(self, result: Any) -> Any:
        """Return a result with each host tensor replaced by a device tensor; views share their memory."""
        if isinstance(result, torch.Tensor):
            return self._device_tensor(result)
        if isinstance(result, list | tuple):
            return [self.from_contents(item) for item in result]
        return result

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Accept what a compiler would embed: a number, and the list in ``torch.tensor([...])``."""
        if tensor.device == _HOST and (tensor.dim() == 0 or self.func is _aten.lift_fresh.default):
            return tensor.clone()
        raise WrongDeviceError(
            f"{self.func} on {self.device} got a tensor {list(tensor.shape)} of device {tensor.device}: "
            "upload it through SimIO, or keep it in the model that place_model brings to the device"
        )

    def _device_tensor(self, contents: torch.Tensor) -> SimTensor:
        storage = contents.untyped_storage()
        for operand in self.tensors:
            if operand.contents is contents:
                return operand
            if operand.contents.untyped_storage()._cdata == storage._cdata:
                return SimTensor(contents, self.device, operand.allocation)
        tensor = SimTensor(contents, self.device, self.device.memory.allocate(storage.nbytes()))
        self.tensors.append(tensor)
        return tensor


@cache
def _depends_on_data(func: Any) -> bool:
    return func in _UNTAGGED or not _DATA_TAGS.isdisjoint(func.tags) or func is _aten.index_put_.default


def _check_static(func: Any, args: tuple[Any, ...]) -> None:
    """Raise `DynamicShapeError` unless these arguments of a suspicious operation make it static."""
    if func is _aten.index.Tensor or func is _aten.index_put_.default:
        if all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1]):
            return
        raise DynamicShapeError(f"{func} with a mask: its size depends on data; use torch.where")
    if func is _aten.one_hot.default and len(args) > 1 and args[1] >= 0:
        return
    raise DynamicShapeError(
        f"{func}: its result depends on what a tensor holds, and a program is compiled before that is known"
    )
