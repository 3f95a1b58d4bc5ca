"""AdapterSeats: keeps the running requests to as many LoRA adapters as the runner has slots."""

from __future__ import annotations

from collections.abc import Iterable

from core_engine.scheduler.request import RequestState

__all__ = ["AdapterSeats"]


class AdapterSeats:
    """Decides, over one walk along the waiting requests in their order, whose adapter may come in.

    A request whose adapter has no seat is deferred. Requests without an adapter pass it; those with
    one wait behind it, also those whose adapter has a seat: else a steady stream of them would keep it
    waiting for good.
    """

    def __init__(self, max_loras: int, running: Iterable[RequestState]) -> None:
        self._max_loras = max_loras
        self._seated = {request.request.lora_id for request in running if request.request.lora_id}
        self._has_deferred = False

    def admits(self, request: RequestState) -> bool:
        """Say whether ``request`` may come in, and note it as deferred if it may not."""
        lora_id = request.request.lora_id
        if lora_id == 0:
            return True
        if lora_id not in self._seated and len(self._seated) >= self._max_loras:
            self._has_deferred = True
        return not self._has_deferred

    def seat(self, request: RequestState) -> None:
        """Count the adapter of a request that comes in."""
        if request.request.lora_id:
            self._seated.add(request.request.lora_id)
