"""Weights are read completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from core_engine.config import EngineConfig
from core_engine.errors import ModelLoadError
from core_engine.models.config_reader import read_model_config
from core_engine.models.layer_transforms import LayerTransform
from core_engine.models.loader import LoadedModel, load_model
from core_engine.testing.model_check import dense_run, load_float32, random_prompts

Tensors = dict[str, torch.Tensor]


def rewrite(directory: Path, change: Callable[[Tensors], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def load(directory: Path, dtype: str = "float32", **arguments: Any) -> LoadedModel:
    config = EngineConfig(model=str(directory))
    return load_model(config, read_model_config(config), dtype=dtype, progress=False, **arguments)


def test_missing_weights_are_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    rewrite(directory, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.weight"))

    with pytest.raises(ModelLoadError, match=r"missing.*model\.layers\.1\.self_attn\.k_proj\.weight"):
        load(directory)


def test_unexpected_weights_are_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    rewrite(directory, lambda t: t.update({"model.layers.0.self_attn.k_proj.bias": torch.zeros(32)}))

    with pytest.raises(ModelLoadError, match=r"does not have: model\.layers\.0\.self_attn\.k_proj\.bias"):
        load(directory)


def test_weights_of_another_shape_are_named_with_both_shapes(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    rewrite(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(65)}))

    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight \(file \[65\], model \[64\]\)"):
        load(directory)


def test_a_cut_off_file_is_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(ModelLoadError, match=r"model\.safetensors' is damaged"):
        load(directory)


@pytest.mark.parametrize("target", ["nowhere", "model.safetensors"], ids=["dangling", "to-itself"])
def test_a_link_that_leads_nowhere_is_named(make_tiny: Any, target: str) -> None:
    directory = make_tiny("llama")
    path = directory / "model.safetensors"
    path.unlink()
    path.symlink_to(directory / target)

    with pytest.raises(ModelLoadError, match=r"cannot read the weight file '.*model\.safetensors'"):
        read_model_config(EngineConfig(model=str(directory)))


def test_a_damaged_pickle_is_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"no pickle")

    config = EngineConfig(model=str(directory), allow_pickled_weights=True)
    facts = read_model_config(config)
    with pytest.raises(ModelLoadError, match="cannot load the weights in"):
        load_model(config, facts, dtype="float32", progress=False)


def test_a_missing_shard_is_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    first, second = shard(directory)
    second.unlink()

    with pytest.raises(ModelLoadError, match=f"1 of the 2 weight files .* {second.name}"):
        load(directory)
    assert first.exists()


def test_all_shards_missing_are_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    first, second = shard(directory)
    first.unlink()
    second.unlink()

    with pytest.raises(ModelLoadError, match=f"2 of the 2 weight files .* {first.name}, {second.name}"):
        read_model_config(EngineConfig(model=str(directory)))


def test_a_missing_shard_of_pickles_is_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    (directory / "model.safetensors").rename(directory / "pytorch_model-00001-of-00002.bin")
    files = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))

    with pytest.raises(ModelLoadError, match=rf"1 of the 2 weight files .* {files['b']}"):
        read_model_config(EngineConfig(model=str(directory), allow_pickled_weights=True))


def test_a_damaged_index_is_named(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    shard(directory)
    (directory / "model.safetensors.index.json").write_text("[]")

    with pytest.raises(ModelLoadError, match=r"cannot read '.*model\.safetensors\.index\.json'"):
        read_model_config(EngineConfig(model=str(directory)))


def test_shards_give_the_same_model(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    [whole] = dense_run(load_float32(directory))(random_prompts((9,)))
    shard(directory)

    [sharded] = dense_run(load_float32(directory))(random_prompts((9,)))

    torch.testing.assert_close(sharded, whole)


def shard(directory: Path) -> tuple[Path, Path]:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    names = sorted(tensors)
    paths = (directory / "model-00001-of-00002.safetensors", directory / "model-00002-of-00002.safetensors")
    weight_map = {}
    for file, part in zip(paths, (names[::2], names[1::2]), strict=True):
        save_file({name: tensors[name] for name in part}, file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file.name))
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    path.unlink()
    return paths


def test_tied_weights_are_one_tensor_and_counted_once(make_tiny: Any) -> None:
    model = load(make_tiny("llama", tie_word_embeddings=True))

    parameters = dict(model.module.named_parameters(remove_duplicate=False))
    assert parameters["lm_head.weight"] is parameters["model.embed_tokens.weight"]
    expected = sum(p.numel() * 4 for p in model.module.parameters())
    assert expected <= model.weight_bytes <= expected + 1024  # the rotary frequencies besides


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_cast_to_the_asked_dtype(make_tiny: Any, dtype: str) -> None:
    model = load(make_tiny("llama"), dtype)

    assert {p.dtype for p in model.module.parameters()} == {getattr(torch, dtype)}
    assert model.module.get_submodule("model.rotary_emb").inv_freq.dtype is torch.float32


def test_the_model_is_ready_for_inference(make_tiny: Any) -> None:
    model = load(make_tiny("llama"))

    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert type(model.module).__module__ == "transformers.models.llama.modeling_llama"
    assert type(model.module).can_generate()


def test_loading_writes_nothing(make_tiny: Any, capfd: pytest.CaptureFixture[str]) -> None:
    directory = make_tiny("llama")
    capfd.readouterr()

    load(directory)

    assert capfd.readouterr() == ("", "")


class _Scaled(torch.nn.Module):
    """A norm that keeps the name of its parameter and doubles what it returns."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.rms_norm(rows, self.weight.shape, self.weight)


class _ScaleLastNorm(LayerTransform):
    name = "scale last norm"

    def apply(self, model: Any, config: EngineConfig, facts: Any) -> int:
        assert next(model.parameters()).is_meta
        model.model.norm = _Scaled(facts.hidden_size)
        return 1


def test_transforms_see_the_model_before_its_weights(make_tiny: Any) -> None:
    directory = make_tiny("llama")
    prompts = random_prompts((5,))
    [plain] = dense_run(load(directory))(prompts)

    model = load(directory, transforms=(_ScaleLastNorm(),))

    [scaled] = dense_run(model)(prompts)
    torch.testing.assert_close(scaled, 2 * plain, atol=1e-4, rtol=1e-4)
    assert model.replaced == {"scale last norm": 1}


@pytest.mark.real_model
def test_a_gguf_file_loads_like_its_safetensors(smollm2: Path, smollm2_gguf: Path) -> None:
    prompt = [[504, 3575, 282, 4649, 314]]

    [expected] = dense_run(load(smollm2))(prompt)
    [found] = dense_run(load(smollm2_gguf))(prompt)

    # The safetensors copy was made from the same file and rounded to bfloat16.
    assert (expected - found).abs().max() < 0.5
    assert expected.argmax(-1).tolist() == found.argmax(-1).tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_weights_has_the_shapes_and_the_bytes_of_one_with_them(
    make_tiny: Any, tied: bool
) -> None:
    directory = make_tiny("llama", tie_word_embeddings=tied)
    whole = load(directory, "bfloat16")
    (directory / "model.safetensors").unlink()
    config = EngineConfig(model=str(directory))
    facts = read_model_config(config, weights=False)
    empty = load_model(config, facts, dtype="bfloat16", weight_device="meta", progress=False)

    assert all(tensor.is_meta for tensor in empty.module.state_dict().values())
    assert {name: tensor.shape for name, tensor in empty.module.state_dict().items()} == {
        name: tensor.shape for name, tensor in whole.module.state_dict().items()
    }
    assert empty.weight_bytes == whole.weight_bytes
    assert empty.layers == whole.layers


def test_transforms_are_applied_to_a_model_without_weights(make_tiny: Any) -> None:
    class Renamed(LayerTransform):
        name = "renamed"

        def apply(self, model: torch.nn.Module, config: Any, facts: Any) -> int:
            model.model.norm = torch.nn.Identity()  # type: ignore[union-attr]
            return 1

    model = load(make_tiny("llama"), weight_device="meta", transforms=(Renamed(),))
    assert model.replaced == {"renamed": 1}
    assert not model.module.get_submodule("model.norm").state_dict()
