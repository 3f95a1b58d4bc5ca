"""The bits of floats as an operator of torch; torch_xla would take `torch.Tensor.view` to the host."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["float_bits"]

_NAMESPACE = "core_engine_tpu"

_library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("float_bits(Tensor floats) -> Tensor")


def float_bits(floats: torch.Tensor) -> torch.Tensor:
    """Return the bits of float32 ``floats`` as int32 of the same shape."""
    bits: torch.Tensor = torch.ops.core_engine_tpu.float_bits(floats)
    return bits


def _on_host(floats: torch.Tensor) -> torch.Tensor:
    return floats.view(torch.int32).clone()


def _fake(floats: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(floats, dtype=torch.int32)


def _on_xla(floats: torch.Tensor) -> torch.Tensor:
    bits: torch.Tensor = _bitcast()(floats)
    return bits


@cache
def _bitcast() -> Any:
    import torch_xla.core.xla_builder
    import torch_xla.core.xla_op_registry

    to_type = torch_xla.core.xla_builder.Type.S32
    return torch_xla.core.xla_op_registry.register("float_bits", lambda floats: floats.bitcast(to_type))


_library.impl("float_bits", _on_host, "CPU")
_library.impl("float_bits", _on_xla, "XLA")
torch.library.register_fake(f"{_NAMESPACE}::float_bits", _fake)
