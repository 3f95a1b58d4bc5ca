"""Searches in rows of logits as operators of torch: loops that XLA compiles once, not once a round.

Torch has no loop that torch_xla would keep as one, and a graph with its rounds written out takes XLA ten
times as long to compile. Each operator has a plain definition for the host, which tests hold the loop to.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["LOWEST", "float_order", "largest_ids", "largest_threshold"]

#: Below the order of every float.
LOWEST = -(1 << 31)

_MAGNITUDE = (1 << 31) - 1
_HIGHEST_BIT = 1 << 30
_NAMESPACE = "core_engine_tpu"
_SCHEMAS = (
    "float_bits(Tensor floats) -> Tensor",
    "largest_threshold(Tensor order, Tensor weights, Tensor target) -> Tensor",
    "largest_ids(Tensor order, int count) -> Tensor",
)

_library: Any = torch.library.Library(_NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema in _SCHEMAS:
    _library.define(_schema)


def float_order(floats: torch.Tensor) -> torch.Tensor:
    """Map float32 to int32 of the same order, above `LOWEST`; equal zeros, and NaN above infinity."""
    bits = torch.ops.core_engine_tpu.float_bits(torch.where(floats == 0, 0.0, floats))
    order = torch.where(bits < 0, torch.bitwise_xor(bits, _MAGNITUDE), bits)
    return torch.where(torch.isnan(floats), _MAGNITUDE, order)


def largest_threshold(order: torch.Tensor, weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return for each row the largest t at which the weights of ``order >= t`` still sum to ``target``.

    ``order`` is int32 ``[R, V]``, ``weights`` float32 ``[R, V]`` and not negative, ``target`` float32
    ``[R]``. Returns int32 ``[R]``; `LOWEST` where the whole row does not reach the target. t is found bit by
    bit (radix select), in one pass over the row for each.
    """
    threshold: torch.Tensor = torch.ops.core_engine_tpu.largest_threshold(order, weights, target)
    return threshold


def largest_ids(order: torch.Tensor, count: int) -> torch.Tensor:
    """Return where each row has its ``count`` largest, of equals the first before; int32 ``[R, count]``."""
    ids: torch.Tensor = torch.ops.core_engine_tpu.largest_ids(order, count)
    return ids


def _float_bits(floats: torch.Tensor) -> torch.Tensor:
    return floats.view(torch.int32).clone()


def _largest_threshold(order: torch.Tensor, weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    def reaches(threshold: torch.Tensor) -> torch.Tensor:
        return torch.where(order >= threshold[:, None], weights, 0.0).sum(-1) >= target

    at = torch.where(reaches(torch.zeros_like(target, dtype=torch.int32)), 0, LOWEST).to(torch.int32)
    bit = _HIGHEST_BIT
    while bit:
        at = torch.where(reaches(at + bit), at + bit, at)
        bit //= 2
    return at


def _largest_ids(order: torch.Tensor, count: int) -> torch.Tensor:
    return torch.sort(order, dim=-1, descending=True, stable=True).indices[:, :count].to(torch.int32)


def _type(name: str) -> Any:
    import torch_xla.core.xla_builder

    return getattr(torch_xla.core.xla_builder.Type, name)


def _scalar(like: Any, value: float, type_name: str = "S32") -> Any:
    """Return a constant for the computation that ``like`` belongs to."""
    return type(like).scalar(like.builder(), value, dtype=_type(type_name))


def _places(like: Any, sizes: list[int]) -> Any:
    """Return int32 of ``sizes``, ``[R, N]``, that counts along each row."""
    from torch_xla.core.xla_builder import Shape

    return type(like).iota(like.builder(), Shape.create(_type("S32"), sizes), 1)


def _mass(is_above: Any, weights: Any) -> Any:
    """Sum the ``weights`` of each row where ``is_above``."""
    chosen = is_above.select(weights, weights.zeros_like())
    return chosen.reduce(_scalar(weights, 0.0, "F32"), lambda a, b: a + b, [1])


def _build_float_bits(floats: Any) -> Any:
    return floats.bitcast(_type("S32"))


def _build_largest_threshold(order: Any, weights: Any, target: Any) -> Any:
    rows, width = order.shape().sizes

    def step(bit: Any, at: Any, order: Any, weights: Any, target: Any) -> tuple[Any, ...]:
        higher = at + bit.broadcast([rows])
        is_above = order >= higher.broadcast_in_dim([rows, width], [0])
        at = (_mass(is_above, weights) >= target).select(higher, at)
        return bit / _scalar(bit, 2), at, order, weights, target

    lowest = _scalar(order, LOWEST).broadcast([rows])
    is_positive = _mass(order >= order.zeros_like(), weights) >= target
    at = is_positive.select(lowest.zeros_like(), lowest)
    state = (_scalar(order, _HIGHEST_BIT), at, order, weights, target)
    loop = type(order).mkwhile(state, lambda bit, *_: bit > _scalar(bit, 0), step)
    return loop.get_tuple_element(1)


def _build_largest_ids(order: Any, *, count: int) -> Any:
    rows, width = order.shape().sizes

    def step(index: Any, order: Any, found: Any) -> tuple[Any, ...]:
        # Not XLA's argmax: its reduction of pairs takes three times as long to compile for a v6e.
        lowest, beyond, places = _scalar(order, LOWEST), _scalar(order, width), _places(order, [rows, width])
        highest = order.reduce(lowest, lambda a, b: a.max(b), [1])
        is_highest = order == highest.broadcast_in_dim([rows, width], [0])
        place = is_highest.select(places, beyond.broadcast([rows, width]))
        place = place.reduce(beyond, lambda a, b: a.min(b), [1])
        is_taken = places == place.broadcast_in_dim([rows, width], [0])
        order = is_taken.select(lowest.broadcast([rows, width]), order)
        is_column = _places(found, [rows, count]) == index.broadcast([rows, count])
        found = is_column.select(place.broadcast_in_dim([rows, count], [0]), found)
        return index + _scalar(index, 1), order, found

    zero = _scalar(order, 0)
    state = (zero, order, zero.broadcast([rows, count]))
    loop = type(order).mkwhile(state, lambda index, *_: index < _scalar(index, count), step)
    return loop.get_tuple_element(2)


@cache
def _on_xla() -> dict[str, Any]:
    from torch_xla.core.xla_op_registry import register

    return {
        "float_bits": register("float_bits", _build_float_bits),
        "largest_threshold": register("largest_threshold", _build_largest_threshold),
        "largest_ids": register("largest_ids", _build_largest_ids),
    }


def _fake_bits(floats: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(floats, dtype=torch.int32)


def _fake_threshold(order: torch.Tensor, weights: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return order.new_empty(order.shape[0])


def _fake_ids(order: torch.Tensor, count: int) -> torch.Tensor:
    return order.new_empty((order.shape[0], count))


_library.impl("float_bits", _float_bits, "CPU")
_library.impl("largest_threshold", _largest_threshold, "CPU")
_library.impl("largest_ids", _largest_ids, "CPU")
_library.impl("float_bits", lambda floats: _on_xla()["float_bits"](floats), "XLA")
_library.impl("largest_threshold", lambda *rows: _on_xla()["largest_threshold"](*rows), "XLA")
_library.impl("largest_ids", lambda order, count: _on_xla()["largest_ids"](order, count=count), "XLA")
torch.library.register_fake(f"{_NAMESPACE}::float_bits", _fake_bits)
torch.library.register_fake(f"{_NAMESPACE}::largest_threshold", _fake_threshold)
torch.library.register_fake(f"{_NAMESPACE}::largest_ids", _fake_ids)
