"""Reads a divided model's weights: whole parameters come in one by one, and the rank keeps its share.

transformers converts a checkpoint's tensors (merges experts, splits or renames matrices) into the whole
parameters of its model. While it does, the divided parameters look whole, and each is cut when it is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from core_engine.parallel.share import Share, mark_share, share_of

__all__ = ["expect_whole", "keep_shares", "one_by_one"]

#: transformers' switch for reading in threads, which run ahead and would hold the whole model.
_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"


class _Receiver:
    """Comes before a module's class while its weights are read."""

    def __setattr__(self, name: str, value: Any) -> None:
        share: Share | None = self.__dict__["core_engine_shares"].get(name)
        # What is tied is set a second time, cut by then.
        if share is not None and _has_data(value) and tuple(value.shape) == share.whole:
            value = _cut(value, share, self.__dict__["core_engine_device"])
        super().__setattr__(name, value)


def expect_whole(model: torch.nn.Module, device: str) -> None:
    """Let the divided parameters of ``model``, on the meta device, take whole tensors and keep the shares.

    What they keep lies on ``device``.
    """
    wholes: dict[int, torch.nn.Parameter] = {}
    module: Any
    for module in model.modules():
        shares = {
            name: share
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if (share := share_of(parameter)) is not None
        }
        for name, share in shares.items():
            part = module.get_parameter(name)
            if id(part) not in wholes:
                whole = torch.empty(share.whole, device="meta", dtype=part.dtype)
                wholes[id(part)] = torch.nn.Parameter(whole, part.requires_grad)
            module.register_parameter(name, wholes[id(part)])
        if shares:
            module.__dict__["core_engine_shares"] = shares
            module.__dict__["core_engine_device"] = device
            module.__class__ = _receiving(type(module))  # type: ignore[arg-type]  # mypy takes the class for an instance


def keep_shares(model: torch.nn.Module, device: str) -> None:
    """End what `expect_whole` began, and bring what every rank holds whole to ``device`` too."""
    module: Any
    for module in model.modules():
        if isinstance(module, _Receiver):
            module.__class__ = type(module).__bases__[1]
            del module.__dict__["core_engine_shares"], module.__dict__["core_engine_device"]
    model.to(device)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Let transformers read one parameter after the other meanwhile."""
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_THREADS]
        else:
            os.environ[_NO_THREADS] = before


def _has_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta


def _cut(value: torch.Tensor, share: Share, device: str) -> Any:
    part: Any = torch.nn.Parameter(share.take(value.detach(), device), value.requires_grad)
    part._is_hf_initialized = True  # else transformers fills it with random numbers
    mark_share(part, share)
    return part


@cache
def _receiving(kind: Any) -> type:
    return type(f"Receiving{kind.__name__}", (_Receiver, kind), {"__module__": kind.__module__})
