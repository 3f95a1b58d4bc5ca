"""ProgramBuilder: turns the runner's functions into what the device runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

__all__ = ["EagerPrograms", "ProgramBuilder"]

F = TypeVar("F", bound=Callable[..., object])


class ProgramBuilder(ABC):
    """Compiles or captures the functions "backbone", "logits", "sample" and "score".

    "score" reports log-probabilities, of sampled tokens and of prompts; it runs only where a request asks
    for them.
    Each is a pure function of device tensors but for the KV caches, which the backbone updates in
    place. ``dummy_run`` over `ShapePolicy.warm_up_shapes` calls the compiled functions with every shape.
    """

    @abstractmethod
    def compile(self, name: str, fn: F) -> F:
        """Return a function with the signature of ``fn``."""

    def without_gradients(self) -> AbstractContextManager[object]:
        """Return the context in which steps are computed: `torch.inference_mode`.

        A compiler that cannot take inference tensors returns `torch.no_grad` instead.
        """
        import torch

        return torch.inference_mode()

    @abstractmethod
    def num_programs(self) -> int:
        """Count the programs compiled so far; constant once ``capture_model`` has returned."""

    def seal(self) -> None:  # noqa: B027 - only builders that can tell have something to do
        """Hear that warm-up has ended: a program that is compiled from now on is a fault to tell of.

        Not called under ``enforce_eager``, where nothing is prepared.
        """


class EagerPrograms(ProgramBuilder):
    """Runs the functions as they are."""

    def compile(self, name: str, fn: F) -> F:
        """Return ``fn``."""
        return fn

    def num_programs(self) -> int:
        """Return 0: nothing is compiled."""
        return 0
