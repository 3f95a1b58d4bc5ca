"""TracingRuntime: the runtime that records graphs for a TPU which is not there, and runs none of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from core_engine_tpu.runtime import XlaRuntime

__all__ = ["MANUAL", "LoweredGraph", "TracingRuntime"]

#: Stands for the dimension of a division where each device computes by itself.
MANUAL = "manual"

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """One function as StableHLO, and how its arguments and results lie on the devices."""

    #: StableHLO in MLIR's binary form.
    module: bytes
    #: (argument, result) pairs that share their memory: the donated tensors.
    aliases: tuple[tuple[int, int], ...]
    #: By argument and by result the dimension along which it is divided; None is whole on each device.
    argument_dims: tuple[int | None, ...]
    result_dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class _Donated:
    """A tensor whose memory a function overwrites, with its number and division before that."""

    tensor: torch.Tensor
    number: int
    dim: int | None


class TracingRuntime(XlaRuntime):
    """Answers like the runtime of TPUs, but none of its tensors has memory: they are placeholders.

    ``memory_bytes`` is what each of the ``num_devices`` that are traced for has.
    """

    def __init__(self, num_devices: int, memory_bytes: int) -> None:
        # The graphs are recorded over the client of the host, which needs no TPU.
        os.environ["PJRT_DEVICE"] = "CPU"
        # What is divided how is written into the graphs afterwards: a placeholder has nothing to divide.
        super().__init__()
        import torch_xla.core.xla_builder

        self.num_devices = num_devices
        self.is_tpu = True
        self._create_placeholder: Any = torch_xla.core.xla_builder.create_placeholder_tensor
        self._memory_bytes = memory_bytes
        self._donated: dict[int, _Donated] = {}
        #: The dimension along which each divided tensor is, by its number.
        self._divided: dict[int, int] = {}

    def compile(self, fn: F) -> F:
        """Return ``fn``: functions are recorded as they are called."""
        return fn

    def donate(self, tensor: torch.Tensor) -> None:
        """Note that the function under way overwrites ``tensor``; it has not been written yet."""
        if id(tensor) not in self._donated:
            number = self._number_of(tensor)
            self._donated[id(tensor)] = _Donated(tensor, number, self._divided.get(number))

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a placeholder like ``tensor``."""
        return self.placeholder(tuple(tensor.shape), tensor.dtype)

    def divide(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Note how a placeholder is divided; returns it."""
        if dim is not None:
            self._divided[self._number_of(tensor)] = dim
        return tensor

    def zeros(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, divided_dim: int | None = None
    ) -> torch.Tensor:
        """Return a placeholder, divided like the memory that it stands for."""
        return self.divide(self.placeholder(shape, dtype), divided_dim)

    def divided(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Record how a tensor is to be divided."""
        return self._call("Sharding", tensor, tuple(tensor.shape), dim)

    def local_part(self, tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Record that each device goes on with its part."""
        shape = _resized(tensor, dim, 1, self.num_devices)
        return self._call("SPMDFullToShardShape", self.divided(tensor, dim), shape, MANUAL)

    def whole_of(self, part: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Record that the devices' parts are one tensor again."""
        shape = _resized(part, dim, self.num_devices, 1)
        marked = self._call("Sharding", part, part.shape, MANUAL)
        return self._call("SPMDShardToFullShape", marked, shape, dim)

    def synchronize(self) -> None:
        """Do nothing: there is nothing to run."""

    def memory(self) -> tuple[int, int]:
        """Return (total, used) bytes of each device that is traced for."""
        return self._memory_bytes, 0

    def placeholder(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that stands for an argument and holds no memory."""
        tensor: torch.Tensor = self._create_placeholder(shape, dtype)
        return tensor

    def lower(self, results: Sequence[torch.Tensor]) -> LoweredGraph:
        """Return what was recorded for ``results`` since the donated tensors were placeholders.

        The donated tensors are further results. They are placeholders again afterwards.
        """
        donated, self._donated = list(self._donated.values()), {}
        outputs = [*results, *(each.tensor for each in donated)]
        # In the order of the graph's arguments: the number of each placeholder, -1 for a constant.
        numbers, _ = self._xla._XLAC._get_tensors_xla_device_data_node(outputs)
        graph = LoweredGraph(
            module=self._xla.core.xla_model.get_stablehlo_bytecode(outputs),
            aliases=tuple(
                (numbers.index(each.number), result)
                for result, each in enumerate(donated, start=len(results))
                if each.number in numbers
            ),
            argument_dims=tuple(map(self._divided.get, numbers)),
            result_dims=(*[None] * len(results), *(each.dim for each in donated)),
        )
        for each in donated:
            fresh = self.placeholder(tuple(each.tensor.shape), each.tensor.dtype)
            self._xla._XLAC._replace_xla_tensor(each.tensor, self.divide(fresh, each.dim))
        return graph

    def _call(
        self, target: str, tensor: torch.Tensor, shape: tuple[int, ...], dim: int | str | None
    ) -> torch.Tensor:
        """Record a call of the partitioner's, with the division of its result in the place of a setting.

        torch_xla lets nobody write the attribute that belongs there; `core_engine_tpu.libtpu_compiler` does.
        """
        call: Any = self._xla._XLAC._xla_custom_call
        (result,) = call([tensor], target, [list(shape)], [tensor.dtype], False, json.dumps(dim), 0, {})
        returned: torch.Tensor = result
        return returned

    def _number_of(self, tensor: torch.Tensor) -> int:
        """Return the number by which torch_xla lists ``tensor`` among a graph's arguments."""
        number: int = self._xla._XLAC._xla_get_tensor_id(tensor)
        return number


def _resized(tensor: torch.Tensor, dim: int | None, times: int, divisor: int) -> tuple[int, ...]:
    return tuple(size * times // divisor if place == dim else size for place, size in enumerate(tensor.shape))
