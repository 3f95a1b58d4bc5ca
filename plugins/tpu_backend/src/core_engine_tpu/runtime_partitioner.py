"""Operators by which a graph talks to XLA's partitioner; for `XlaRuntime`.

``divided`` tells it how a tensor is to be divided. Between ``local_part`` and ``whole_of`` it has no say: a
graph is written for one device there, and every device runs it on its part of the tensors. That is the only
way to call a kernel that the partitioner cannot look into.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["divided", "local_part", "whole_of"]

_NAMESPACE = "core_engine_tpu"
_AXIS = "tensor"

_library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("divided(Tensor tensor, int? dim, int num_devices) -> Tensor")
_library.define("local_part(Tensor tensor, int? dim, int num_devices) -> Tensor")
_library.define("whole_of(Tensor part, int? dim, int num_devices) -> Tensor")

#: ``torch.ops.core_engine_tpu.divided``: the same tensor, divided along ``dim`` or whole everywhere (None).
divided: Any = torch.ops.core_engine_tpu.divided
#: ``torch.ops.core_engine_tpu.local_part``: each device's part along ``dim``, or all of the tensor (None).
local_part: Any = torch.ops.core_engine_tpu.local_part
#: ``torch.ops.core_engine_tpu.whole_of``: the tensor whose parts along ``dim`` the devices hold.
whole_of: Any = torch.ops.core_engine_tpu.whole_of


@cache
def sharding(num_devices: int, num_dims: int, dim: int | None) -> Any:
    """Return the annotation of a tensor that is divided along ``dim``, or whole on every device."""
    from torch_xla.distributed.spmd import Mesh

    mesh: Any = Mesh(list(range(num_devices)), (num_devices,), (_AXIS,))
    return mesh.get_op_sharding(tuple(_AXIS if index == dim else None for index in range(num_dims)))


def _divided_fake(tensor: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    return torch.empty_like(tensor)


def _local_part_fake(tensor: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    return tensor.new_empty(_resized(tensor, dim, 1, num_devices))


def _whole_of_fake(part: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    return part.new_empty(_resized(part, dim, num_devices, 1))


def _divided(tensor: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    import torch_xla

    annotated = tensor.clone()  # an annotation changes the tensor that it is given
    # The stronger annotation would move the data of a graph's argument, and take it for a constant.
    torch_xla._XLAC._xla_annotate_custom_sharding(annotated, sharding(num_devices, tensor.dim(), dim))
    return annotated


def _local_part(tensor: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    import torch_xla

    part: torch.Tensor = torch_xla._XLAC._spmd_full_to_shard_shape(_divided(tensor, dim, num_devices))
    return part


def _whole_of(part: torch.Tensor, dim: int | None, num_devices: int) -> torch.Tensor:
    import torch_xla
    from torch_xla.distributed.spmd.xla_sharding import ShardingType

    marked = part.clone()
    manual = torch_xla._XLAC.OpSharding([], [], [], ShardingType.MANUAL)
    torch_xla._XLAC._mark_manual_sharding(marked, manual)
    whole: torch.Tensor = torch_xla._XLAC._spmd_shard_to_full_shape(
        marked, sharding(num_devices, part.dim(), dim), _resized(part, dim, num_devices, 1), part.dtype
    )
    return whole


def _resized(tensor: torch.Tensor, dim: int | None, times: int, divisor: int) -> torch.Size:
    shape = list(tensor.shape)
    if dim is not None:
        shape[dim] = shape[dim] * times // divisor
    return torch.Size(shape)


torch.library.register_fake(f"{_NAMESPACE}::divided", _divided_fake)
torch.library.register_fake(f"{_NAMESPACE}::local_part", _local_part_fake)
torch.library.register_fake(f"{_NAMESPACE}::whole_of", _whole_of_fake)
_library.impl("divided", _divided, "XLA")
_library.impl("local_part", _local_part, "XLA")
_library.impl("whole_of", _whole_of, "XLA")
