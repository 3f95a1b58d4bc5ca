"""Tests on a real GPU; skipped with the reason where there is none.

They run by themselves (``pytest tests/gpu``): the other tests have Triton interpret its kernels, which holds
for the whole process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from core_engine_cuda.detection import detect_gpus
from host_engine import SETTINGS
from real_model_files import smollm2_folder
from tiny_chat_model import make_tiny_chat_model
from tiny_distribution import BACKENDS, add_distribution, show_distribution

from core_engine import LLM
from core_engine.plugin import Detection, DetectionState, Probe

SOURCES = Path(__file__).parents[2] / "src"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip them all where they cannot run."""
    reason = _refusal()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _refusal() -> str:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "TRITON_INTERPRET=1: these tests run by themselves, with kernels that are compiled"
    detection = detect_gpus(Probe())
    return "" if detection.state is DetectionState.AVAILABLE else f"no GPU to test on: {detection.reason}"


@pytest.fixture(scope="session")
def detection() -> Detection:
    """What the light module finds on this machine."""
    return detect_gpus(Probe())


@pytest.fixture(scope="session", autouse=True)
def plugin_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the plugin an installed backend where it is not."""
    if any(entry.name == "cuda" for entry in entry_points(group=BACKENDS)):
        yield
        return
    site = tmp_path_factory.mktemp("site")
    add_distribution(site, "core-engine-cuda", {BACKENDS: {"cuda": "core_engine_cuda.plugin"}})
    with pytest.MonkeyPatch.context() as patch:
        show_distribution(site, SOURCES, patch)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random chat model with a byte-level tokenizer."""
    return make_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct; skips the test where it is not on this machine."""
    try:
        return smollm2_folder()
    except pytest.fail.Exception as error:
        pytest.skip(f"SmolLM2-135M-Instruct is not here: {error}")


@pytest.fixture
def start(tiny_model: Path) -> Iterator[Callable[..., LLM]]:
    """Start engines, on the GPU unless the test says otherwise; they are closed after the test."""
    engines: list[LLM] = []

    def start_one(backend: str = "cuda", **settings: Any) -> LLM:
        engines.append(LLM(str(tiny_model), backend=backend, **{**SETTINGS, **settings}))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def cpu(tiny_model: Path) -> Iterator[LLM]:
    """The same engine on the CPU backend."""
    with LLM(str(tiny_model), backend="cpu", **SETTINGS) as llm:
        yield llm
