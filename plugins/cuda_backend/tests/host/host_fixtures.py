"""Small engines over the fake GPU, and the CPU backend's answers to compare with."""

from __future__ import annotations

import os

# Before torch and triton are imported; no test may ask a model hub, and kernels run without a GPU.
os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_engine import StartEngine, make_engine
from tiny_chat_model import make_tiny_chat_model
from tiny_distribution import BACKENDS, add_distribution, show_distribution

from core_engine import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random chat model with a byte-level tokenizer."""
    return make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session", autouse=True)
def fake_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the backend over the fake GPU an installed one."""
    site = tmp_path_factory.mktemp("fake-site")
    add_distribution(site, "core-engine-cuda-host", {BACKENDS: {"cuda-host": "host_plugin"}})
    with pytest.MonkeyPatch.context() as patch:
        show_distribution(site, Path(__file__).parent, patch)
        yield


@pytest.fixture
def start(tiny_model: Path) -> Iterator[StartEngine]:
    """Start engines over the fake GPU; they are closed after the test."""
    engines: list[LLM] = []

    def start_one(backend: str = "cuda-host", **settings: Any) -> LLM:
        engines.append(make_engine(tiny_model, backend, **settings))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def cpu(tiny_model: Path, fake_installed: None) -> Iterator[LLM]:
    """The same engine on the CPU backend."""
    with make_engine(tiny_model, "cpu") as llm:
        yield llm
