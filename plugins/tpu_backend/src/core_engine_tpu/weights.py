"""Bring a model's weights to the device, or divide them over several."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from core_engine.plugin import EngineConfig, ModelConfig
from core_engine.plugin.runtime import LayerTransform, TensorParallelPlan
from core_engine_tpu.runtime import XlaRuntime
from core_engine_tpu.sharding import divide_weights, divided_share

__all__ = ["PlacedWeights", "RequireTensorParallelPlan", "place_weights"]

logger = logging.getLogger("core_engine.backends.tpu")

#: Below this share of divided weights tensor parallelism saves little, and the log says so loudly.
_LITTLE = 0.5


@dataclass(frozen=True, slots=True)
class PlacedWeights:
    """Where parameters and buffers went."""

    #: Bytes on each device.
    device_bytes: int
    #: Bytes that lie on other devices instead.
    saved_bytes: int
    #: The share of the parameters that is divided.
    divided_share: float


class RequireTensorParallelPlan(LayerTransform):
    """Refuses, before weights are read, a model that transformers has no tensor-parallel plan for."""

    name = "tensor-parallel plan"

    def apply(self, model: torch.nn.Module, config: EngineConfig, facts: ModelConfig) -> int:
        """Replace nothing; raise `UnsupportedFeature` without a plan."""
        TensorParallelPlan.of_model(model, config, facts)
        return 0


def place_weights(model: Any, runtime: XlaRuntime) -> PlacedWeights:
    """Move parameters and buffers to the device one by one; what is tied stays tied.

    Over several devices each gets its part of a divided parameter and no more.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    divided: Mapping[str, int] = {}
    if runtime.num_devices > 1:
        divided = divide_weights(TensorParallelPlan(model.tp_plan), shapes, runtime.num_devices)
    placed: dict[int, torch.Tensor] = {}
    total_bytes = device_bytes = 0
    for prefix, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in placed:
                    dim = divided.get(f"{prefix}.{name}" if prefix else name)
                    placed[id(tensor)] = _placed(tensor, dim, runtime)
                    parts = 1 if dim is None else runtime.num_devices
                    total_bytes += tensor.nbytes
                    device_bytes += tensor.nbytes // parts
                tensors[name] = placed[id(tensor)]
    runtime.synchronize()
    if divided:
        _divide_logits(model, runtime)
    weights = PlacedWeights(device_bytes, total_bytes - device_bytes, divided_share(shapes, divided))
    if runtime.num_devices > 1:
        _tell(weights, runtime.num_devices)
    return weights


def _placed(tensor: torch.Tensor, dim: int | None, runtime: XlaRuntime) -> torch.Tensor:
    uploaded = runtime.divide(runtime.upload(tensor.data), dim)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(uploaded, requires_grad=False)
    return uploaded


def _divide_logits(model: Any, runtime: XlaRuntime) -> None:
    """Say in the graph that the head's result is divided as its matrix is, before it is made whole.

    Left to itself the partitioner asks for a whole result, and gathers the matrix on every device.
    """
    head = model.get_output_embeddings()
    if head is not None and head.weight.shape[0] % runtime.num_devices == 0:
        head.register_forward_hook(lambda _, __, logits: runtime.divided(logits, logits.dim() - 1))


def _tell(weights: PlacedWeights, num_devices: int) -> None:
    level = logging.WARNING if weights.divided_share < _LITTLE else logging.INFO
    logger.log(
        level,
        "tensor parallel over %d devices: %.1f%% of the weights are divided, %.1f MiB lie on each device",
        num_devices,
        100 * weights.divided_share,
        weights.device_bytes / (1 << 20),
    )
