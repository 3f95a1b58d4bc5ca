"""The cache is padded as the attention kernel's tiles want it, and not at all for dense attention."""

from __future__ import annotations

import pytest
from core_engine_tpu.kv_layout import KVLayout, dense_layout, kernel_layout
from hypothesis import given
from hypothesis import strategies as st

HEADS, DIMS = st.integers(1, 64), st.integers(1, 300)
DTYPES = st.sampled_from(["bfloat16", "float32"])


def test_dense_attention_pads_nothing() -> None:
    layout = dense_layout(3, 64, 64, "bfloat16")
    assert layout.shape(10, 16) == (10, 16, 6, 64)
    assert layout.page_bytes(16) == 16 * 2 * 3 * 64 * 2


def test_the_wider_of_keys_and_values_counts() -> None:
    assert dense_layout(2, 24, 16, "float32") == KVLayout(2, 24, "float32")
    assert kernel_layout(1, 192, 128, "bfloat16") == KVLayout(1, 256, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "heads"),
    [
        ("bfloat16", {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 7: 8, 8: 8, 9: 16, 12: 16, 16: 16, 20: 24}),
        ("float32", {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 12, 12: 12, 16: 16}),
    ],
)
def test_the_kernel_has_whole_tiles_of_heads(dtype: str, heads: dict[int, int]) -> None:
    assert {asked: kernel_layout(asked, 128, 128, dtype).num_kv_heads for asked in heads} == heads


@pytest.mark.parametrize(("head_dim", "padded"), [(64, 128), (80, 128), (128, 128), (192, 256), (256, 256)])
def test_the_kernel_has_whole_lanes(head_dim: int, padded: int) -> None:
    assert kernel_layout(2, head_dim, head_dim, "bfloat16").head_dim == padded


@given(HEADS, DIMS, DIMS, DTYPES)
def test_padding_holds_the_heads_and_is_stable(heads: int, keys: int, values: int, dtype: str) -> None:
    layout = kernel_layout(heads, keys, values, dtype)
    assert layout.num_kv_heads >= heads
    assert layout.head_dim >= max(keys, values)
    assert kernel_layout(layout.num_kv_heads, layout.head_dim, layout.head_dim, dtype) == layout


@given(HEADS, DIMS, DIMS, DTYPES, st.sampled_from([16, 32, 128]))
def test_a_page_counts_what_the_tensor_holds(h: int, keys: int, values: int, dtype: str, size: int) -> None:
    layout = kernel_layout(h, keys, values, dtype)
    _, tokens, rows, width = layout.shape(1, size)
    assert layout.page_bytes(size) == tokens * rows * width * {"bfloat16": 2, "float32": 4}[dtype]
