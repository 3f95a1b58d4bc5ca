"""SimTensor: a tensor in the memory of a simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from core_engine_sim.errors import HostAccessError, OutsideProgramError

if TYPE_CHECKING:
    from core_engine_sim.device import SimDevice
    from core_engine_sim.memory import Allocation

__all__ = ["SimTensor"]


class SimTensor(torch.Tensor):
    """A shape and a dtype that the host can see, and contents that it cannot.

    To torch it is a meta tensor, the one device type that torch itself expects to hold no data. The
    contents are a host tensor that only `Execution` and `SimIO` touch. Tensors that view the same
    memory share one `Allocation`, which is freed with the last of them.
    """

    contents: torch.Tensor
    sim_device: SimDevice
    allocation: Allocation

    __slots__ = ("allocation", "contents", "sim_device")

    # Nothing is overridden on the level of torch functions, so that their cost is saved.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, contents: torch.Tensor, sim_device: SimDevice, allocation: Allocation) -> SimTensor:
        """Wrap ``contents``, which must lie in the memory that ``allocation`` accounts for."""
        tensor: SimTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            contents.shape,
            strides=contents.stride(),
            storage_offset=contents.storage_offset(),
            dtype=contents.dtype,
            device=torch.device("meta"),
        )
        tensor.contents = contents
        tensor.sim_device = sim_device
        tensor.allocation = allocation
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch declares it as an instance method
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse work outside a program; torch needs ``detach`` to make a parameter of a tensor."""
        if func is torch.ops.aten.detach.default:
            tensor = args[0]
            return cls(tensor.contents.detach(), tensor.sim_device, tensor.allocation)
        if any(getattr(device, "type", None) == "cpu" for device in (*args, *(kwargs or {}).values())):
            raise HostAccessError(f"{func} would copy device memory to the host: download it through SimIO")
        raise OutsideProgramError(
            f"{func} on a tensor of a simulated device: it computes only within functions that "
            "SimPrograms.compile returned"
        )

    def _refuse_host_access(self, *_: object, **__: object) -> NoReturn:
        raise HostAccessError(
            f"the host cannot read {self!r}: its memory belongs to the device. Download it through SimIO"
        )

    # Everything through which Python takes a value out of a tensor.
    cpu = item = numpy = tolist = _refuse_host_access
    __array__ = __bool__ = __float__ = __index__ = __int__ = _refuse_host_access

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # torch says Any
        shape, dtype = list(self.shape), str(self.dtype).removeprefix("torch.")
        return f"SimTensor({shape}, {dtype}, {self.sim_device})"
