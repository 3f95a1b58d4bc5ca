"""The tutorial's smallest backend: found as an installed one, and the CPU backend's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_distribution import BACKENDS, add_distribution

from core_engine import LLM, SamplingParams
from core_engine.errors import BackendUnavailable, ConfigError

SOURCES = Path(__file__).resolve().parents[3] / "examples" / "acme_backend" / "src"
PROMPTS = [[7, 3, 100, 42], list(range(20, 57)), [5] * 18]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture
def acme_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_distribution(tmp_path / "site", "core-engine-acme", {BACKENDS: {"acme": "core_engine_acme.plugin"}})
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(SOURCES)


def tokens(model: Path, backend: str) -> list[list[int]]:
    settings = {"dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 32}
    with LLM(str(model), backend=backend, kv_cache_bytes=8 << 20, **settings) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.usefixtures("acme_installed")
def test_tokens_are_those_of_the_cpu_backend(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PRETEND", "1")
    assert tokens(tiny_model, "acme") == tokens(tiny_model, "cpu")


@pytest.mark.usefixtures("acme_installed")
def test_without_the_device_the_reason_is_told(tiny_model: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no /dev/acme"):
        tokens(tiny_model, "acme")


@pytest.mark.usefixtures("acme_installed")
def test_what_it_does_not_declare_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_PRETEND", "1")
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        LLM(str(tiny_model), backend="acme", enable_prefix_caching=True)
