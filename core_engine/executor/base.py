"""Executor: how the engine core reaches its worker, wherever that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_engine.hookspecs.worker import WorkerApi

if TYPE_CHECKING:
    from core_engine.errors import CoreEngineError

__all__ = ["Executor"]


class Executor(WorkerApi):
    """The worker's API as the engine core calls it, one call after another, in the API's order.

    An implementation decides in which process the worker lives. With several workers each of them
    gets the call and rank 0 answers. ``get_model`` is for workers in the caller's process only;
    others raise `UnsupportedFeature`. ``shutdown`` may be called at any time and more than once.
    """

    @property
    def failure(self) -> CoreEngineError | None:
        """Why no call will ever be answered again; None as long as the workers live."""
        return None
