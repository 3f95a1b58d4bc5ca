"""What core-engine reads in an adapter's folder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_engine.errors import AdapterError
from core_engine.lora.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterConfig, AdapterFiles, read_stamp

MINIMAL = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}


def adapter(folder: Path, **settings: Any) -> AdapterFiles:
    (folder / CONFIG_FILE).write_text(json.dumps(MINIMAL | settings))
    (folder / WEIGHTS_FILE).write_bytes(b"weights")
    return AdapterFiles.read(str(folder))


def config(folder: Path, **settings: Any) -> AdapterConfig:
    return adapter(folder, **settings).config()


def test_the_scale_is_alpha_over_rank(tmp_path: Path) -> None:
    assert config(tmp_path).scale_of("model.layers.0.self_attn.q_proj") == 2.0


def test_with_rslora_the_scale_is_alpha_over_the_root_of_the_rank(tmp_path: Path) -> None:
    assert config(tmp_path, r=16, use_rslora=True).scale_of("x.q_proj") == 4.0


def test_patterns_match_whole_names_and_their_ends_and_the_first_counts(tmp_path: Path) -> None:
    read = config(
        tmp_path,
        rank_pattern={"q_proj": 4, r"layers\.1\..*": 2},
        alpha_pattern={"model.layers.0.self_attn.k_proj": 32},
    )
    assert read.rank_of("model.layers.1.self_attn.q_proj") == 4
    assert read.rank_of("model.layers.1.mlp.up_proj") == 2
    assert read.rank_of("model.layers.0.mlp.my_q_proj") == 8
    assert read.scale_of("model.layers.0.self_attn.k_proj") == 4.0
    assert read.scale_of("model.layers.10.self_attn.k_proj") == 2.0
    assert read.max_rank == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"invented_in_2031": {"x": 1}}, "invented_in_2031 = {'x': 1}, which this version"),
        ({"r": 0}, "r must be a whole number of at least 1, got 0"),
        ({"r": True}, "r must be a whole number"),
        ({"lora_alpha": "16"}, "lora_alpha must be a number, got '16'"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern must map names to numbers"),
        ({"rank_pattern": {"q_proj(": 4}}, "no expression"),
        ({"target_modules": [1]}, "target_modules"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(AdapterError) as refusal:
        config(tmp_path, **settings)
    assert said in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_settings_of_training_and_empty_ones_do_not_matter(tmp_path: Path) -> None:
    config(tmp_path, lora_dropout=0.1, init_lora_weights="gaussian", use_dora=False, later_option=None)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_config_is_refused(tmp_path: Path, text: bytes) -> None:
    adapter(tmp_path)
    (tmp_path / CONFIG_FILE).write_bytes(text)
    with pytest.raises(AdapterError, match=CONFIG_FILE):
        AdapterFiles.read(str(tmp_path)).config()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="there is no adapter at"):
        AdapterFiles.read(str(tmp_path / "nowhere"))
    with pytest.raises(AdapterError, match=f"has no {CONFIG_FILE}"):
        AdapterFiles.read(str(tmp_path))
    (tmp_path / CONFIG_FILE).write_text("{}")
    (tmp_path / "adapter_model.bin").touch()
    with pytest.raises(AdapterError, match=f"has no {WEIGHTS_FILE}.*Pickle files"):
        AdapterFiles.read(str(tmp_path))


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5000])
def test_what_is_no_path_of_this_system_is_refused(folder: str) -> None:
    assert read_stamp(folder) is None
    with pytest.raises(AdapterError, match=r"no path|no adapter at"):
        AdapterFiles.read(folder)


def test_the_digest_covers_both_files_and_their_border(tmp_path: Path) -> None:
    first = AdapterFiles("x", b"ab", b"c").digest()
    assert AdapterFiles("y", b"ab", b"c").digest() == first
    assert len({first, AdapterFiles("x", b"a", b"bc").digest(), AdapterFiles("x", b"ab", b"d").digest()}) == 3


def test_files_that_are_written_anew_have_another_stamp(tmp_path: Path) -> None:
    adapter(tmp_path)
    before = read_stamp(str(tmp_path))
    assert before == read_stamp(str(tmp_path))
    (tmp_path / WEIGHTS_FILE).write_bytes(b"other weights")
    assert read_stamp(str(tmp_path)) != before
    assert read_stamp(str(tmp_path / "nowhere")) is None
