"""What is settled before a device is opened: the backend has the last word, and the table tells it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_distribution import BACKENDS, add_distribution

from core_engine.backends.selection import select_backend
from core_engine.config import EngineConfig
from core_engine.engine.feature_table import FeatureRow
from core_engine.engine.prepare import SettledEngine, settle_engine
from core_engine.errors import ConfigError, UnsupportedFeature
from core_engine.testing.plugin_site import backend_source

Settle = Callable[..., SettledEngine]

HOOKS = """
from core_engine.plugin import ConfigChange

@hookimpl
def capabilities():
    return Capabilities({capabilities})

@hookimpl
def check_config():
    return ({changes})
"""


@pytest.fixture
def settle(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Settle:
    """Settle an engine on a backend with the given capabilities and changes (source of both)."""

    def settle(capabilities: str, changes: str = "", **settings: Any) -> SettledEngine:
        source = backend_source("acme", extra=HOOKS.format(capabilities=capabilities, changes=changes))
        add_distribution(
            tmp_path, "core-engine-acme", {BACKENDS: {"acme": "acme_plugin"}}, modules={"acme_plugin": source}
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "acme_plugin", raising=False)
        return settle_engine(EngineConfig(model=str(tiny_model), **settings), select_backend("acme", {}))

    return settle


def test_what_the_backend_changes_stands_in_the_table_under_the_features_name(settle: Settle) -> None:
    settled = settle(
        "mixed_batches=True, prefix_caching=True, chunked_prefill=True",
        """ConfigChange(field="enable_prefix_caching", value=False, reason="shared blocks are slow"),
        ConfigChange(field="max_num_seqs", value=8, reason="eight rows"),""",
    )
    assert settled.config.enable_prefix_caching is False
    assert settled.features["prefix_caching"] == FeatureRow(
        "prefix_caching", "off", "True → False (backend 'acme': shared blocks are slow)"
    )
    assert settled.features["max_num_seqs"] == FeatureRow(
        "max_num_seqs", "8", "64 → 8 (backend 'acme': eight rows)"
    )
    assert (settled.asked.enable_prefix_caching, settled.asked.max_num_seqs) == (False, 8)
    assert settled.asked.enable_chunked_prefill is None


def test_a_change_that_the_backend_itself_cannot_serve_is_refused(settle: Settle) -> None:
    with pytest.raises(UnsupportedFeature, match="mixed_batches"):
        settle("", """ConfigChange(field="scheduler", value="unified", reason="a mistake"),""")


def test_a_step_that_the_backend_makes_smaller_limits_the_length(settle: Settle) -> None:
    change = """ConfigChange(field="max_num_batched_tokens", value=96, reason="small memory"),"""
    settled = settle("", change)
    assert settled.config.max_model_len is None
    row = settled.features["max_model_len"]
    assert (row.state, row.reason.partition(" → ")[2]) == (
        "96",
        "96: prompts are computed whole, in one step",
    )


def test_a_length_that_no_step_of_the_backend_holds_is_refused_before_any_weight_is_read(
    settle: Settle,
) -> None:
    change = """ConfigChange(field="max_num_batched_tokens", value=96, reason="small memory"),"""
    with pytest.raises(ConfigError, match="lower max_model_len to 96"):
        settle("", change, max_model_len=97)


def test_an_unknown_load_format_is_refused_before_the_model_is_read(settle: Settle) -> None:
    with pytest.raises(ConfigError, match=r"auto or dummy, got 'dumy'.*dummy"):
        settle("", load_format="dumy")


def test_random_weights_need_no_files(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "config only"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    backend = select_backend("cpu", {})
    assert (
        settle_engine(EngineConfig(model=str(folder), load_format="dummy"), backend).model.weight_file_bytes
        == 0
    )
