"""One pool of threads for torch and numba."""

from __future__ import annotations

from importlib import import_module

import numba
import torch

__all__ = ["share_threads"]


def share_threads() -> int:
    """Let numba's parallel loops run on as many threads as torch, on OpenMP where numba has it.

    Returns that number. When numba starts its pool it sets the number of the OpenMP library that it
    shares with torch, so torch's own is set again.
    """
    _use_openmp()
    num_threads = torch.get_num_threads()
    shared: int = min(num_threads, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(shared)
    torch.set_num_threads(num_threads)
    return shared


def _use_openmp() -> None:
    try:
        import_module("numba.np.ufunc.omppool")
    except ImportError:
        return
    if numba.config.THREADING_LAYER == "default":
        numba.config.THREADING_LAYER = "omp"
