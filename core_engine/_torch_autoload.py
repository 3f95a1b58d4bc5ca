"""Keep torch from loading device extensions by itself.

A broken ``torch.backends`` extension anywhere in the environment makes ``import torch`` fail for
good, and a chosen backend loads its own extension anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["AUTOLOAD_VARIABLE", "torch_autoload_off"]

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@contextmanager
def torch_autoload_off() -> Iterator[None]:
    """Turn torch's automatic loading off for imports inside; a value that the user has set stays."""
    if AUTOLOAD_VARIABLE in os.environ:
        yield
        return
    os.environ[AUTOLOAD_VARIABLE] = "0"
    try:
        yield
    finally:
        del os.environ[AUTOLOAD_VARIABLE]
