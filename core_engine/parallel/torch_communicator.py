"""TorchCommunicator: ranks that talk through torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from core_engine.errors import EngineError, UnsupportedFeature
from core_engine.parallel.communicator import Communicator

__all__ = ["TorchCommunicator"]

#: Its type stubs leave out stores and the methods of groups.
dist: Any = torch.distributed
#: How long the other ranks may take to come.
_ARRIVAL_S = 300.0
#: How long an operation may wait for the other ranks.
_OPERATION_S = 600.0
#: All ranks are on one host, and what they say is nobody else's.
_LOOPBACK = "127.0.0.1"


class TorchCommunicator(Communicator):
    """Joins the ranks that meet at the file ``rendezvous``, through torch's collectives of ``kind``.

    "gloo" exchanges host tensors over the loopback address; several such groups may live in one process.
    Any other kind is a name that torch or an extension of torch registers ("nccl"); it becomes the default
    group of the process, of which there is one. ``device`` is where the tensors are.

    The constructor returns when every rank has come and one sum over all of them was right. Raises
    `EngineError` naming the ranks that did not come within ``arrival_s`` seconds, or when they cannot
    connect; `UnsupportedFeature` where torch does not have ``kind``. Operations raise what torch raises,
    in time even when another rank's process has ended.
    """

    def __init__(
        self,
        kind: str,
        rendezvous: str,
        rank: int,
        size: int,
        *,
        device: torch.device | str = "cpu",
        arrival_s: float = _ARRIVAL_S,
        operation_s: float = _OPERATION_S,
    ) -> None:
        _check_kind(kind)
        self.kind, self.rank, self.size = kind, rank, size
        self._owns_default_group = kind != "gloo"
        self._group: Any = None
        try:
            store = _meet(rendezvous, rank, size, arrival_s)
            self._group = _open(kind, store, rank, size, timedelta(seconds=operation_s))
            self._check(device)
        except (RuntimeError, ValueError) as error:
            self.close()
            raise EngineError(
                f"rank {rank} of {size} cannot talk to the others by {kind}: {error}"
            ) from error

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum in place; a tensor that is not contiguous is copied first."""
        tensor = tensor.contiguous()
        self._open_group.allreduce([tensor]).wait()
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Join along the last dimension; for one row, as in decoding of one request, nothing is copied."""
        flat = tensor.reshape(-1)
        gathered = tensor.new_empty(self.size * flat.numel())
        self._open_group._allgather_base(gathered, flat).wait()
        return gathered.view(self.size, *tensor.shape).movedim(0, -2).flatten(-2)

    def close(self) -> None:
        """Leave the group; the others are not waited for."""
        if self._group is None:
            return
        self._group = None
        if self._owns_default_group and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _open_group(self) -> Any:
        if self._group is None:
            raise EngineError("this communicator is closed")
        return self._group

    def _check(self, device: torch.device | str) -> None:
        """Sum the ranks' numbers: the first operation opens what is opened late, and shows that it works."""
        total = self.all_reduce(torch.full((1,), self.rank + 1, dtype=torch.float32, device=device))
        expected = self.size * (self.size + 1) // 2
        if int(total.item()) != expected:
            raise EngineError(
                f"the first sum of {self.size} ranks by {self.kind} is {total.item():g}, not {expected}"
            )


def _check_kind(kind: str) -> None:
    if not dist.is_available() or not dist.is_backend_available(kind):
        known = ", ".join(name for name in dist.Backend.backend_list if dist.is_backend_available(name))
        raise UnsupportedFeature(
            f"this torch ({torch.__version__}) has no collectives of kind {kind!r}; it has: {known or 'none'}"
        )


def _meet(rendezvous: str, rank: int, size: int, arrival_s: float) -> Any:
    """Wait for all ranks and return the store that they share."""
    if not Path(rendezvous).parent.is_dir():
        raise EngineError(f"the ranks cannot meet at {rendezvous!r}: its folder does not exist")
    store = dist.FileStore(rendezvous, size)
    ranks = [f"arrived/{other}" for other in range(size)]
    store.set(ranks[rank], "")
    try:
        store.wait(ranks, timedelta(seconds=arrival_s))
    except RuntimeError:  # a FileStore has no error of its own for this
        missing = [str(other) for other, key in enumerate(ranks) if not store.check([key])]
        raise EngineError(
            f"rank {', '.join(missing)} did not arrive within {arrival_s:g} s; rank {rank} of {size} waited"
        ) from None
    return store


def _open(kind: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if kind != "gloo":
        dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=timeout)
        return dist.group.WORLD
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # By default gloo listens at the host's own name, which may be an address of the network.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)
