"""Executor: how the engine core reaches its worker, wherever that runs."""

from __future__ import annotations

from core_engine.hookspecs.worker import WorkerApi

__all__ = ["Executor"]


class Executor(WorkerApi):
    """The worker's API as the engine core calls it, one call after another, in the API's order.

    An implementation decides in which process the worker lives. With several workers each of them
    gets the call and rank 0 answers. ``get_model`` is for workers in the caller's process only;
    others raise `UnsupportedFeature`. ``shutdown`` may be called at any time and more than once.
    """
