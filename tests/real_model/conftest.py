from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_model.greedy_reference import Answer, difference, reference_answers
from real_model.prompts import PROMPTS
from real_model.threads import all_cores

from core_engine import LLM, SamplingParams

NUM_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)

StartEngine = Callable[..., LLM]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real_model)


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> list[Answer]:
    with all_cores():
        return reference_answers(smollm2, PROMPTS, NUM_TOKENS)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with all_cores():
        yield


@pytest.fixture(params=["cpu", "sim"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(smollm2: Path, backend: str, request: pytest.FixtureRequest) -> Iterator[StartEngine]:
    """Start engines on the real model in fp32; they are closed when the test ends."""
    if backend == "sim":
        request.getfixturevalue("sim_installed")
    running: list[LLM] = []

    def begin(**options: Any) -> LLM:
        settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "kv_cache_bytes": 256 << 20}
        llm = LLM(str(smollm2), backend=backend, **settings | options)
        running.append(llm)
        return llm

    yield begin
    for llm in running:
        llm.close()


def assert_same(answers: list[Answer], outputs: list[list[int]]) -> None:
    __tracebackhide__ = True
    found = {
        prompt[:40]: wrong
        for prompt, answer, token_ids in zip(PROMPTS, answers, outputs, strict=True)
        if (wrong := difference(answer, token_ids)) is not None
    }
    assert not found
