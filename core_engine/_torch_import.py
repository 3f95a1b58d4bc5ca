"""The first import of torch, without the extensions that torch would load by itself.

Modules through which torch first enters a process (the doors `core_engine.LLM`,
`core_engine.plugin.runtime`, the worker's main module) import this one before any other that needs
torch; see `core_engine._torch_autoload` for the reason.
"""

from __future__ import annotations

from core_engine._torch_autoload import torch_autoload_off

with torch_autoload_off():
    import torch

__all__ = ["torch"]
