from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core_engine import LLM


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), backend="cpu", kv_cache_bytes=4 << 20) as running:
        yield running
