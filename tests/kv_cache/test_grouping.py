from __future__ import annotations

from dataclasses import replace

import pytest

from core_engine.errors import ContractError
from core_engine.kv_cache.grouping import block_bytes, group_layers
from core_engine.kv_cache.specs import KVCacheGroup, KVCacheSpec

FULL = KVCacheSpec(num_kv_heads=2, head_dim=8, head_dim_v=8, dtype="float32", page_bytes=512)


def layers(pattern: str, window: int = 512) -> dict[str, KVCacheSpec]:
    """One layer per letter: F full attention, S the window, T another one of twice its size."""
    windows = {"F": None, "S": window, "T": 2 * window}
    return {f"layer.{i}": replace(FULL, sliding_window=windows[kind]) for i, kind in enumerate(pattern)}


def groups_of(
    specs: dict[str, KVCacheSpec] | dict[str, KVCacheSpec | str], longest: int | None = 32768
) -> tuple[KVCacheGroup, ...]:
    return group_layers(dict(specs), block_size=16, longest=longest)


def sizes(groups: tuple[KVCacheGroup, ...]) -> list[tuple[int | None, int]]:
    return [(group.sliding_window, len(group.layers)) for group in groups]


def test_full_attention_alone_is_one_group() -> None:
    assert sizes(groups_of(layers("FFFF"))) == [(None, 4)]


def test_layers_that_alternate_form_two_groups_of_one_cache_each() -> None:
    groups = groups_of(layers("SFSF"))

    assert sizes(groups) == [(None, 2), (512, 2)]
    assert [list(group.layers) for group in groups] == [["layer.1", "layer.3"], ["layer.0", "layer.2"]]
    assert block_bytes(groups) == 2 * 512


def test_the_larger_kind_is_cut_into_groups_of_the_smaller_ones_size() -> None:
    # Gemma 3 1B: 26 layers, every sixth with full attention.
    groups = groups_of(layers("SSSSSF" * 4 + "SS"))

    assert sizes(groups) == [(None, 4), *[(512, 4)] * 5, (512, 2)]
    assert block_bytes(groups) == 4 * 512


def test_one_full_layer_among_many_does_not_make_a_group_of_each() -> None:
    groups = groups_of(layers("F" + "S" * 30))

    assert len(groups) <= 8
    assert sum(size for _, size in sizes(groups)) == 31


def test_one_window_among_many_full_layers_saves_too_little() -> None:
    assert sizes(groups_of(layers("S" + "F" * 30))) == [(None, 31)]


def test_a_few_pages_more_are_worth_fewer_groups() -> None:
    # One layer a group takes 2 · 2,048 + 3 · 33 pages, two take 2 · (2,048 + 2 · 33).
    assert sizes(groups_of(layers("SSFSF"))) == [(None, 2), (512, 2), (512, 1)]


def test_windows_of_several_sizes_are_kinds_of_their_own() -> None:
    assert sizes(groups_of(layers("FSTFST"))) == [(None, 2), (512, 2), (1024, 2)]


def test_a_model_of_one_window_is_one_group_that_keeps_it() -> None:
    assert sizes(groups_of(layers("SSSS"))) == [(512, 4)]


@pytest.mark.parametrize("pattern", ["SFSF", "SSSS"])
def test_a_window_that_no_sequence_leaves_keeps_all_positions(pattern: str) -> None:
    assert sizes(groups_of(layers(pattern), longest=512)) == [(None, 4)]


def test_a_model_without_a_limit_is_grouped() -> None:
    assert sizes(groups_of(layers("SFSF"), longest=None)) == [(None, 2), (512, 2)]


def test_kinds_whose_caches_differ_stay_in_one_group() -> None:
    specs = layers("SFSF")
    specs["layer.1"] = replace(specs["layer.1"], num_kv_heads=1)

    assert sizes(groups_of(specs)) == [(None, 4)]


def test_a_layer_that_reuses_a_cache_goes_with_its_owner_and_costs_nothing() -> None:
    specs: dict[str, KVCacheSpec | str] = {**layers("SFSF"), "layer.4": "layer.2", "layer.5": "layer.1"}

    full, sliding = groups_of(specs)

    assert full.shared == {"layer.5": "layer.1"}
    assert sliding.shared == {"layer.4": "layer.2"}
    assert block_bytes((full, sliding)) == 2 * 512


def test_a_layer_may_only_reuse_a_cache_that_is_owned() -> None:
    with pytest.raises(ContractError, match=r"'layer.1' reuses the KV cache of 'layer.2', which owns none"):
        groups_of({"layer.0": FULL, "layer.1": "layer.2", "layer.2": "layer.0"})


def test_a_model_without_any_cache_is_refused() -> None:
    with pytest.raises(ContractError, match="no layer that owns a KV cache"):
        groups_of({})


def test_a_layer_whose_page_bytes_are_missing_is_named() -> None:
    with pytest.raises(ContractError, match=r"'layer.0' has page_bytes 0"):
        block_bytes(groups_of({"layer.0": replace(FULL, page_bytes=0)}))
