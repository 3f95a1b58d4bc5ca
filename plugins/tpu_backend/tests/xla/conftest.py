"""One small engine on PJRT CPU, which all tests of a run share: warming one up takes some 20 seconds."""

from __future__ import annotations

import os

# Before torch_xla is imported; no test may ask a model hub.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core_engine_tpu.runtime import XlaRuntime
from real_model_files import smollm2_folder
from tiny_chat_model import make_tiny_chat_model
from xla_engine import StartEngine, make_engine

from core_engine import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random chat model with a byte-level tokenizer."""
    return make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct (mark the test ``real_model``)."""
    return smollm2_folder()


@pytest.fixture(scope="session")
def tpu(tiny_model: Path) -> Iterator[LLM]:
    """The shared engine."""
    with make_engine(tiny_model) as llm:
        yield llm


@pytest.fixture(scope="session")
def cpu(tiny_model: Path) -> Iterator[LLM]:
    """The same on the CPU backend."""
    with make_engine(tiny_model, "cpu") as llm:
        yield llm


@pytest.fixture
def start(tiny_model: Path) -> Iterator[StartEngine]:
    """Start further engines on PJRT CPU; they are closed after the test."""
    engines: list[LLM] = []

    def start_one(**settings: Any) -> LLM:
        engines.append(make_engine(tiny_model, **settings))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def runtime() -> XlaRuntime:
    """The device without an engine."""
    return XlaRuntime()
