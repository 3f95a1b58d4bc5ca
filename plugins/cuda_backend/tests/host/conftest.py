"""Small engines over the fake GPU, and the CPU backend's answers to compare with."""

from host_fixtures import cpu, fake_installed, start, tiny_model

__all__ = ["cpu", "fake_installed", "start", "tiny_model"]
