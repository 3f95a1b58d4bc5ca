from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_chat_model import make_tiny_chat_model

from core_engine import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20) as running:
        yield running
