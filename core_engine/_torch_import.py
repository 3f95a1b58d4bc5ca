"""The first import of torch, without the extensions that torch would load by itself.

Modules through which torch first enters a process (the doors `core_engine.LLM`,
`core_engine.plugin.runtime`, the worker's main module) import this one before any other that needs
torch; see `core_engine._torch_autoload` for the reason. It also shortens how long torch's threads spin.
"""

from __future__ import annotations

import os

from core_engine._torch_autoload import torch_autoload_off

# libgomp reads these when torch loads it. By default a thread that waits for the others of its step spins
# for so long that one more busy process on the machine makes a step ten times slower.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"

with torch_autoload_off():
    import torch

__all__ = ["torch"]
