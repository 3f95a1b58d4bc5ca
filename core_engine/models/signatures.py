"""Which arguments a model's forward takes by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["accepted_arguments", "takes_argument"]


def takes_argument(module: torch.nn.Module, name: str) -> bool:
    """Say whether ``module.forward`` names an argument ``name``; a bare ``**kwargs`` does not count."""
    return name in inspect.signature(module.forward).parameters


def accepted_arguments(module: torch.nn.Module, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``wanted`` that ``module.forward`` names."""
    return {name: value for name, value in wanted.items() if takes_argument(module, name)}
