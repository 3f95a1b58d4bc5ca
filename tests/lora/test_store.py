from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_adapter import make_adapter

from core_engine.attention.context import ContextHolder
from core_engine.backends.cpu.device_io import CpuIO
from core_engine.errors import AdapterError, EngineError, UnsupportedFeature
from core_engine.lora.adapter import AdapterFiles
from core_engine.lora.layers import LoRALinear, LoRATransform
from core_engine.lora.messages import LoRAAdapter
from core_engine.lora.store import LoRAStore
from core_engine.testing.fake_context import fake_engine_config, fake_model_config

CONFIG = fake_engine_config(max_loras=2, max_lora_rank=4, dtype="float32")


def make_model() -> torch.nn.Module:
    return torch.nn.ModuleDict({"q_proj": torch.nn.Linear(6, 5), "up_proj": torch.nn.Linear(5, 6)})


@pytest.fixture
def store() -> LoRAStore:
    model = make_model()
    LoRATransform(("q_proj", "up_proj")).apply(model, CONFIG, fake_model_config())
    return LoRAStore(model, CpuIO(), CONFIG, ContextHolder())


def add(store: LoRAStore, folder: Path, lora_id: int, **settings: Any) -> None:
    make_adapter(folder, make_model(), ("q_proj",), **settings)
    digest = AdapterFiles.read(str(folder)).digest()
    store.add(LoRAAdapter(lora_id=lora_id, name=folder.name, path=str(folder), digest=digest))


def layer_of(store: LoRAStore) -> LoRALinear:
    return store._layers["q_proj"]


def test_its_bytes_are_those_of_the_stacked_matrices(store: LoRAStore) -> None:
    # 2 slots of rank 4, float32, and 6 + 5 columns for each of two layers.
    assert store.num_bytes == 2 * 4 * 4 * (6 + 5) * 2


def test_a_model_without_a_layer_for_adapters_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="max_loras to 0"):
        LoRAStore(make_model(), CpuIO(), CONFIG, ContextHolder())


def test_a_slot_holds_the_adapter_and_zeros_beyond_its_rank(store: LoRAStore, tmp_path: Path) -> None:
    add(store, tmp_path / "a", 1, rank=4, seed=1)
    add(store, tmp_path / "b", 2, rank=2, seed=2)
    lora_a = layer_of(store).lora_a
    for lora_id in (1, 2):
        store.slots.acquire(lora_id)
    assert lora_a[:6].abs().sum(dim=1).min() > 0
    assert not lora_a[6:].any()
    assert lora_a is layer_of(store).lora_a
    # The slot that the smaller adapter takes over keeps nothing of the larger one.
    add(store, tmp_path / "c", 3, rank=2, seed=3)
    store.slots.release(1)
    assert store.slots.acquire(3) == 0
    assert not lora_a[2:4].any()
    assert lora_a[4:6].any()


def test_an_adapter_that_is_removed_while_in_use_goes_on(store: LoRAStore, tmp_path: Path) -> None:
    add(store, tmp_path / "a", 1, rank=4, seed=1)
    add(store, tmp_path / "b", 2, rank=4, seed=2)
    store.slots.acquire(1)
    before = layer_of(store).lora_a[:4].clone()
    assert store.remove(1)
    assert [info.lora_id for info in store.infos()] == [2]
    store.slots.acquire(2)  # writes all slots anew
    assert torch.equal(layer_of(store).lora_a[:4], before)
    store.slots.release(1)
    with pytest.raises(EngineError, match="adapter 1 is not loaded"):
        store.slots.acquire(1)


def test_removing_what_is_not_there_says_so(store: LoRAStore) -> None:
    assert not store.remove(9)


def test_the_same_number_again_is_not_read_again(store: LoRAStore, tmp_path: Path) -> None:
    add(store, tmp_path / "a", 1)
    again = LoRAAdapter(lora_id=1, name="a", path=str(tmp_path / "gone"), digest="")
    assert store.add(again).lora_id == 1


def test_files_that_changed_since_they_were_numbered_are_refused(store: LoRAStore, tmp_path: Path) -> None:
    make_adapter(tmp_path / "a", make_model(), ("q_proj",))
    with pytest.raises(AdapterError, match="written to while it was loaded"):
        store.add(LoRAAdapter(lora_id=1, name="a", path=str(tmp_path / "a"), digest="0" * 64))
    assert store.infos() == ()
