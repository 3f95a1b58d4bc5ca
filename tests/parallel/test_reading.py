from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core_engine.config import EngineConfig
from core_engine.errors import ModelLoadError
from core_engine.models.config_reader import read_model_config
from core_engine.models.loader import LoadedModel, load_model
from core_engine.parallel.lone import LoneCommunicator
from core_engine.parallel.share import share_of
from core_engine.testing.tiny_models import make_tiny_config, save_tiny_model

SIZE = 2


def load(
    directory: Path,
    rank: int | None,
    dtype: str = "float32",
    weight_device: str = "cpu",
    load_format: str = "auto",
) -> LoadedModel:
    """Load the whole model, or the share of one of two ranks."""
    size, communicator = (1, None) if rank is None else (SIZE, LoneCommunicator(rank, SIZE))
    config = EngineConfig(model=str(directory), tensor_parallel_size=size, load_format=load_format)
    return load_model(
        config,
        read_model_config(config),
        dtype=dtype,
        communicator=communicator,
        weight_device=weight_device,
        progress=False,
    )


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "mixtral"])
def test_a_rank_holds_its_share_of_what_one_rank_reads(model_type: str, tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config(model_type), tmp_path)
    whole = dict(load(tmp_path, None).module.named_parameters())
    for rank in range(SIZE):
        model = load(tmp_path, rank)
        for name, parameter in model.module.named_parameters():
            share = share_of(parameter)
            expected = whole[name] if share is None else share.take(whole[name].data, "cpu")
            assert torch.equal(parameter, expected), name
            assert share is None or parameter.untyped_storage().nbytes() == parameter.nbytes, name
        assert not any(type(module).__name__.startswith("Receiving") for module in model.module.modules())


def test_weight_bytes_are_the_ranks_and_tied_weights_stay_one_tensor(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("gemma2"), tmp_path)
    whole, model = load(tmp_path, None), load(tmp_path, 0)
    assert model.module.lm_head.weight is model.module.get_input_embeddings().weight
    assert model.divided_share > 0.99
    assert 0.49 < model.weight_bytes / whole.weight_bytes < 0.53
    assert whole.divided_share == 0.0


def test_weights_are_converted_to_the_asked_type(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("llama"), tmp_path)
    model = load(tmp_path, 1, dtype="bfloat16")
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}


def test_without_weights_a_rank_has_its_shapes(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("llama"), tmp_path)
    model = load(tmp_path, 0, weight_device="meta")
    assert all(parameter.is_meta for parameter in model.module.parameters())
    assert model.weight_bytes == load(tmp_path, 0).weight_bytes
    assert {layer.num_heads for layer in model.layers} == {2}


def test_random_weights_are_drawn_into_a_ranks_shapes(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("mixtral"), tmp_path)
    read, drawn, other = (load(tmp_path, 0), *(load(tmp_path, r, load_format="dummy") for r in range(SIZE)))
    shapes = {name: parameter.shape for name, parameter in read.module.named_parameters()}
    assert {name: parameter.shape for name, parameter in drawn.module.named_parameters()} == shapes
    router = "model.layers.3.mlp.gate.weight"  # every rank's must be the same
    assert torch.equal(drawn.module.get_parameter(router), other.module.get_parameter(router))


def test_missing_weights_and_weights_of_another_shape_are_told_as_ever(tmp_path: Path) -> None:
    save_tiny_model(make_tiny_config("llama"), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.2.mlp.up_proj.weight"
    save_file({**weights, name: torch.zeros(48, 64)}, file, {"format": "pt"})  # as large as a share
    with pytest.raises(
        ModelLoadError, match=r"another shape .*up_proj.weight \(file \[48, 64\], model \[96, "
    ):
        load(tmp_path, 0)
    save_file({other: weights[other] for other in weights if other != name}, file, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"weights are missing in .*: model\.layers\.2\.mlp\.up_proj"):
        load(tmp_path, 0)


def test_the_environment_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(make_tiny_config("llama"), tmp_path)
    load(tmp_path, 0)
    assert "HF_DEACTIVATE_ASYNC_LOAD" not in os.environ
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "0")
    load(tmp_path, 0)
    assert os.environ["HF_DEACTIVATE_ASYNC_LOAD"] == "0"


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Yield a list that holds the growth of this process's own memory, in bytes, when the block has ended."""
    start, done, growth = _own_memory(), threading.Event(), [0]

    def watch() -> None:
        while not done.is_set():
            growth[0] = max(growth[0], _own_memory() - start)
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield growth
    finally:
        done.set()
        thread.join()


def _own_memory() -> int:
    """Return the resident bytes that belong to no file."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def test_a_rank_never_holds_more_than_its_share_and_single_whole_tensors(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "head_dim": 256, "num_hidden_layers": 4}
    save_tiny_model(make_tiny_config("llama", **sizes), tmp_path, dtype=torch.bfloat16)
    load(tmp_path, 0, weight_device="meta")  # what is imported and compiled once
    with watched_memory() as growth:
        model = load(tmp_path, 0)  # float32, so that nothing is a view of the file
    largest = 4 * 1024 * 2816
    assert growth[0] < model.weight_bytes + 3 * largest
    assert model.weight_bytes + 3 * largest < 0.8 * 2 * model.weight_bytes  # the whole model
