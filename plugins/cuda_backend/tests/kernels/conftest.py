"""Kernels run in Triton's interpreter, on tensors of the CPU; whole engines over the fake GPU."""

from host_fixtures import cpu, fake_installed, start, tiny_model

__all__ = ["cpu", "fake_installed", "start", "tiny_model"]
