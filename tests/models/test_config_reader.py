"""A model's facts are read before its weights, and what cannot be served is refused there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_engine.config import EngineConfig, ModelConfig
from core_engine.errors import ModelLoadError, UnsupportedModel
from core_engine.models.config_reader import read_model_config


def read(directory: Path, **settings: Any) -> ModelConfig:
    return read_model_config(EngineConfig(model=str(directory), **settings))


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def test_facts_of_a_directory(make_tiny: Any) -> None:
    directory = make_tiny("llama")

    facts = read(directory)

    assert facts.directory == facts.path == str(directory)
    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.model_type, facts.dtype) == ("llama", "float32")
    assert (facts.vocab_size, facts.hidden_size, facts.num_layers) == (199, 64, 4)
    assert (facts.num_attention_heads, facts.num_kv_heads, facts.max_position_embeddings) == (4, 2, 256)
    assert facts.weight_file_bytes == (directory / "model.safetensors").stat().st_size


def test_a_multimodal_checkpoint_is_described_by_its_text_part(make_tiny: Any) -> None:
    facts = read(make_tiny("gemma3"))

    assert (facts.model_type, facts.architecture) == ("gemma3_text", "Gemma3ForCausalLM")
    assert facts.vocab_size == 199


def test_a_config_without_a_number_of_kv_heads_leaves_it_open(make_tiny: Any) -> None:
    facts = read(make_tiny("gpt2"))

    assert (facts.num_attention_heads, facts.num_kv_heads) == (4, None)


def test_eos_ids_are_the_union_of_both_files(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    edit_config(directory, eos_token_id=7)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7, 11]}))

    assert read(directory).eos_token_ids == (7, 9, 11)


@pytest.mark.parametrize("text", ['{"model_type": "llama",', "[" * 100_000], ids=["cut-off", "too-deep"])
def test_a_damaged_config_is_named(make_tiny: Any, text: str) -> None:
    directory = make_tiny("llama")
    (directory / "config.json").write_text(text)

    with pytest.raises(ModelLoadError, match=r"cannot read '.*config\.json'"):
        read(directory)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_attention_heads": 7}, r"hidden size \(64\) is not a multiple .* attention heads \(7\)"),
        ({"hidden_size": "big"}, "'hidden_size' expected int, got str"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "read '.*': Missing required keys"),
    ],
)
def test_a_wrong_value_is_told_with_its_reason_in_one_line(
    make_tiny: Any, changes: dict[str, Any], reason: str
) -> None:
    directory = make_tiny("llama")
    edit_config(directory, **changes)

    with pytest.raises(ModelLoadError, match=reason) as caught:
        read(directory)
    assert "\n" not in str(caught.value)


def test_a_directory_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        read(tmp_path)


def test_a_directory_without_weights_is_refused(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    (directory / "model.safetensors").unlink()

    with pytest.raises(ModelLoadError, match="holds no weights"):
        read(directory)


def test_an_unknown_type_is_refused(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    edit_config(directory, model_type="llama-of-tomorrow")

    with pytest.raises(
        UnsupportedModel, match="'llama-of-tomorrow' is not known to the installed transformers"
    ):
        read(directory)


@pytest.mark.parametrize("model_type", ["t5", "vit"])
def test_a_type_that_generates_no_text_is_refused(make_tiny: Any, model_type: str) -> None:
    from transformers import CONFIG_MAPPING

    directory = make_tiny("llama")
    CONFIG_MAPPING[model_type]().save_pretrained(directory)

    with pytest.raises(UnsupportedModel, match="not a causal language model"):
        read(directory)


def test_remote_code_is_refused_by_the_name_of_its_flag(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    edit_config(directory, model_type="own", auto_map={"AutoConfig": "own.Config"})
    (directory / "own.py").write_text("raise SystemExit('this must not run')")

    with pytest.raises(ModelLoadError, match="--trust-remote-code"):
        read(directory)


def test_pickled_weights_are_refused_by_the_name_of_their_flag(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")

    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin.*--allow-pickled-weights"):
        read(directory)
    assert read(directory, allow_pickled_weights=True).weight_file_bytes > 0


def test_quantized_weights_are_refused(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    edit_config(directory, quantization_config={"quant_method": "gptq", "bits": 4, "dataset": "c4"})

    with pytest.raises(UnsupportedModel, match=r"quantized \(gptq\)"):
        read(directory)


@pytest.mark.parametrize("missing", ["gguf", "accelerate"])
def test_gguf_without_its_packages_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    import importlib.util

    (tmp_path / "model.gguf").touch()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))

    with pytest.raises(ModelLoadError, match=rf'{missing}.*pip install "core-engine\[gguf\]"'):
        read(tmp_path / "model.gguf")


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"no gguf")

    with pytest.raises(ModelLoadError, match=r"cannot read '.*model\.gguf'"):
        read(tmp_path / "model.gguf")


@pytest.mark.real_model
def test_facts_of_a_gguf_file(smollm2_gguf: Path) -> None:
    facts = read(smollm2_gguf)

    assert facts.gguf_file == smollm2_gguf.name
    assert (facts.model_type, facts.num_layers, facts.vocab_size) == ("llama", 30, 49152)
