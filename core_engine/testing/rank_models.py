"""The ranks of a divided model as threads of one process, which talk through gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from core_engine.config import EngineConfig
from core_engine.models.config_reader import read_model_config
from core_engine.models.loader import LoadedModel, load_model
from core_engine.parallel.torch_communicator import TorchCommunicator
from core_engine.testing.model_check import dense_run
from core_engine.testing.oracle import EngineRun

__all__ = ["communicators", "divided_run", "load_ranks", "on_ranks"]

T = TypeVar("T")


def on_ranks(size: int, run: Callable[[int], T]) -> list[T]:
    """Run ``run(rank)`` in a thread for each rank and return the results in their order."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@contextmanager
def communicators(size: int, folder: Path) -> Iterator[list[TorchCommunicator]]:
    """Yield the communicators of ``size`` ranks, which met in ``folder``."""
    place = str(folder / "ranks")
    ranks = on_ranks(size, lambda rank: TorchCommunicator("gloo", place, rank, size, operation_s=60.0))
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def load_ranks(directory: Path, ranks: Sequence[TorchCommunicator], dtype: str) -> list[LoadedModel]:
    """Load every rank's share of the checkpoint, one after the other."""
    config = EngineConfig(model=str(directory), tensor_parallel_size=len(ranks))
    facts = read_model_config(config)
    return [load_model(config, facts, dtype=dtype, communicator=rank, progress=False) for rank in ranks]


def divided_run(models: Sequence[LoadedModel]) -> EngineRun:
    """Return a function that computes prompts on all ranks; `ValueError` when their bits are not equal."""
    runs = [dense_run(model) for model in models]

    def run(prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        first, *others = on_ranks(len(runs), lambda rank: runs[rank](prompts))
        for other in others:
            if not all(torch.equal(own, theirs) for own, theirs in zip(first, other, strict=True)):
                raise ValueError("the ranks answered with different logits")
        return first

    return run
