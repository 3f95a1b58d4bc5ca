"""What the attention kernel refuses, and that its pieces fit the chip."""

from __future__ import annotations

import pytest
from core_engine_tpu.kernel_limits import head_refusal, kernel_block_sizes, kernel_blocks, table_refusal
from core_engine_tpu.kv_layout import KVLayout, kernel_layout
from hypothesis import given
from hypothesis import strategies as st


def refusal(num_heads: int, num_kv_heads: int, head_dim: int, dtype: str) -> str | None:
    return head_refusal(num_heads, num_kv_heads, kernel_layout(num_kv_heads, head_dim, head_dim, dtype))


@pytest.mark.parametrize(
    "model",
    {
        "SmolLM2-135M": (9, 3, 64, "bfloat16"),
        "Llama-3.1-8B": (32, 8, 128, "bfloat16"),
        "Llama-2-7B": (32, 32, 128, "bfloat16"),
        "Qwen2.5-0.5B": (14, 2, 64, "bfloat16"),
        "Phi-3-mini": (32, 32, 96, "bfloat16"),
        "Gemma-3-1B": (4, 1, 256, "bfloat16"),
        "SmolLM2-135M in float32": (9, 3, 64, "float32"),
    }.items(),
    ids=lambda item: item[0],
)
def test_common_models_are_served(model: tuple[str, tuple[int, int, int, str]]) -> None:
    assert refusal(*model[1]) is None


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ((8, 4, 128, "float16"), "computes in bfloat16 and float32, not in float16"),
        ((8, 4, 256, "bfloat16"), "wider than 128 in bfloat16 with a single K/V head only"),
        ((4, 1, 256, "float32"), "wider than 128 in bfloat16 with a single K/V head only"),
        ((12, 12, 64, "float32"), "no tiles for 12 query and 12 K/V heads in float32"),
    ],
)
def test_other_heads_are_refused_with_the_reason(heads: tuple[int, int, int, str], reason: str) -> None:
    assert reason in (refusal(*heads) or "")


def test_block_tables_must_fit_the_scalar_memory() -> None:
    assert table_refusal(64, 32768, 16) is None
    reason = table_refusal(256, 131072, 128)
    assert reason is not None
    assert "256 requests with 1024 blocks each" in reason
    assert table_refusal(256, 131072, 256) is None


@pytest.mark.parametrize(
    ("max_num_seqs", "max_model_len", "preferred"),
    [(64, 1, 16), (64, 256, 16), (64, 512, 32), (64, 2048, 128), (64, 131072, 128), (256, 131072, 256)],
)
def test_the_preferred_block_grows_with_the_longest_sequence(
    max_num_seqs: int, max_model_len: int, preferred: int
) -> None:
    sizes = kernel_block_sizes(max_num_seqs, max_model_len)
    assert sizes[0] == preferred
    assert sorted(sizes) == [16, 32, 64, 128, 256]


@given(
    st.integers(1, 64),
    st.integers(1, 16),
    st.sampled_from(["bfloat16", "float32"]),
    st.integers(1, 4096),
    st.sampled_from([16, 32, 64, 128, 256]),
    st.integers(1, 1000),
)
def test_pieces_lie_within_the_step(
    kv_heads: int, group: int, dtype: str, num_tokens: int, block_size: int, pages_per_request: int
) -> None:
    layout = kernel_layout(kv_heads, 128, 128, dtype)
    blocks = kernel_blocks(
        layout,
        num_heads=group * layout.num_kv_heads,
        num_tokens=num_tokens,
        block_size=block_size,
        pages_per_request=pages_per_request,
    )
    assert 1 <= blocks.pages <= min(32, pages_per_request)
    assert 1 <= blocks.queries <= min(32, num_tokens)


def test_pieces_shrink_where_many_heads_are_computed_together() -> None:
    sizes = {"num_tokens": 64, "block_size": 16, "pages_per_request": 64}
    few = kernel_blocks(KVLayout(8, 128, "bfloat16"), num_heads=32, **sizes)
    many = kernel_blocks(KVLayout(24, 128, "bfloat16"), num_heads=72, **sizes)
    assert few.pages > many.pages
